# make train   train a small model with verl, on this machine     make test   lint, types and all tests
# make help    what can be set
#
# Both make the virtual environment .venv here on first use; see requirements/install.py.

PYTHON ?= python3
TORCH ?= torch==2.13.0
ESTIMATOR ?= shrinkage
ROLLOUT ?= hf
SEED ?= 1
STEPS ?= 60
ARGS ?=

run := --estimator '$(ESTIMATOR)' --rollout '$(ROLLOUT)' --seed '$(SEED)' --steps '$(STEPS)' $(ARGS)
install := $(PYTHON) requirements/install.py --torch '$(TORCH)'
bin := .venv/bin

.PHONY: help train test coverage lint env clean

help:
	@echo "make train [ESTIMATOR=NAME]   shrinkage, shrinkage_js, shrinkage_history, bvblend, bvblend_eb, gvpo, group_mean,"
	@echo "                              batch_mean, refbase_grpo, refbase_rloo, refbase_opo; verl's: grpo, rloo, opo"
	@echo "           [ROLLOUT=hf|vllm] [SEED=1] [STEPS=60]"
	@echo "           [ARGS='key=value ...']    further settings of verl, as Hydra overrides"
	@echo "make test  [ARGS='...']    arguments of pytest"
	@echo "make lint"
	@echo "make coverage   lines and branches of refbase that its tests take; twelve minutes of processor time"
	@echo "make env   only the environment of make test"
	@echo "make clean removes .venv and runs"
	@echo "All:       [PYTHON=python3.11] makes .venv with this Python, [TORCH='torch==2.13.0'] is what pip installs"

# The arguments are checked before anything is installed.
train:
	@$(PYTHON) -m examples.first_run --check $(run)
	@$(install) train $(if $(filter vllm,$(ROLLOUT)),vllm)
	@$(bin)/python -m examples.first_run $(run)

env:
	@$(install) train vllm test --optional vllm

lint: env
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy

# Jobs of verl take both cores: they come after the other tests, one at a time.
test: lint
	HYPOTHESIS_PROFILE=ci $(bin)/python -m pytest -m "not e2e" -n 2 $(ARGS)
	HYPOTHESIS_PROFILE=ci $(bin)/python -m pytest -m e2e --durations=10 $(ARGS)

# What the jobs of verl take besides is not counted.
coverage: env
	HYPOTHESIS_PROFILE=ci $(bin)/python -m pytest -n 2 --cov --cov-report=term-missing:skip-covered --cov-fail-under=95 \
	  tests/core tests/estimators tests/cases tests/exact tests/checks/test_broken.py tests/checks/test_runner.py \
	  tests/checks/test_strategies.py tests/thirdparty tests/test_tools.py $(ARGS)

clean:
	rm -rf .venv runs
