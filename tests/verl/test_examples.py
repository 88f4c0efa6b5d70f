"""The configurations of examples/gpu: composed by Hydra, accepted by verl, and approved by doctor."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf

from refbase import CATALOG
from verl_ext import doctor
from verl_ext.options import verl_name

pytestmark = pytest.mark.verl

EXAMPLES = Path(__file__).parents[2] / "examples" / "gpu"


def command(**variables) -> list[str]:
    """Arguments of main_ppo that run.sh writes."""
    environment = {**os.environ, "PYTHON": sys.executable, "DRY_RUN": "1", **variables}
    done = subprocess.run([EXAMPLES / "run.sh"], env=environment, capture_output=True, text=True, check=True)
    words = shlex.split(done.stdout)
    assert words[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    return words[3:]


def composed(*overrides, **variables):
    words = command(**variables)
    assert words[0::2][:2] == ["--config-dir", "--config-name"]
    return doctor.compose(words[3], [*words[4:], *overrides], directory=words[1])


def examined(config) -> doctor.Report:
    report = doctor.Report()
    doctor.examine(config, report)
    return report


def problems(report) -> list[str]:
    """All but the machine, which has no GPU here."""
    return [row.text for row in report.rows if row.status in ("warning", "error") and row.topic != "device"]


RUNS = [
    *({"ESTIMATOR": verl_name(name), "TASK": "math", "MACHINE": "gpu8"} for name in CATALOG),
    *({"ESTIMATOR": "shrinkage", "MACHINE": machine} for machine in ("gpu1", "gpu8", "nodes")),
    {"ESTIMATOR": "gvpo", "MACHINE": "gpu1"},
    {"ESTIMATOR": "gvpo", "MACHINE": "nodes", "NNODES": "4", "TASK": "math"},
    {"ESTIMATOR": "shrinkage", "MACHINE": "gpu8", "BACKEND": "megatron"},
    {"ESTIMATOR": "bvblend", "MACHINE": "nodes", "BACKEND": "megatron"},
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(run.values()))
def test_nothing_is_wrong(run, monkeypatch):
    monkeypatch.setenv("NNODES", run.get("NNODES", "2"))
    config = composed(**run)
    assert config.algorithm.adv_estimator == run["ESTIMATOR"]
    assert config.trainer.v1.trainer_mode == "refbase"
    assert config.actor_rollout_ref.actor.strategy == run.get("BACKEND", "fsdp2")
    assert config.actor_rollout_ref.rollout.name == "vllm"
    assert config.trainer.nnodes == (int(os.environ["NNODES"]) if run.get("MACHINE") == "nodes" else 1)
    report = examined(config)
    assert problems(report) == []
    assert any(row.topic == "verl" and row.status == "ok" for row in report.rows)


def test_exact_gvpo_on_megatron_is_refused():
    found = problems(examined(composed(ESTIMATOR="gvpo", MACHINE="gpu8", BACKEND="megatron")))
    assert len(found) == 1
    assert "actor.strategy` must be 'fsdp' or 'fsdp2'" in found[0]


def test_difference_from_verls_example_is_what_the_method_needs():
    """Of the whole configuration, only these keys depend on the estimator."""

    def flat(config):
        out = {}

        def walk(prefix, node):
            for key, value in node.items():
                if isinstance(value, dict):
                    walk(f"{prefix}{key}.", value)
                else:
                    out[f"{prefix}{key}"] = value

        OmegaConf.resolve(config)
        walk("", OmegaConf.to_container(config))
        return out

    base = flat(composed(ESTIMATOR="shrinkage"))

    def differing(estimator):
        other = flat(composed(ESTIMATOR=estimator))
        changed = {key for key in base.keys() | other.keys() if base.get(key) != other.get(key)}
        named = ("algorithm.adv_estimator", "trainer.default_local_dir")
        return {
            key for key in changed if key not in named and not key.endswith("experiment_name") and key[:7] != "critic."
        }

    assert differing("refbase_rloo") == set()
    assert differing("bvblend_eb") == {"algorithm.bvblend.history_key"}
    actor = "actor_rollout_ref.actor."
    assert differing("gvpo") == {
        "algorithm.gvpo.beta",
        "algorithm.gvpo.divide_by_beta",
        f"{actor}loss_agg_mode",
        f"{actor}policy_loss.loss_mode",
        f"{actor}use_kl_loss",
    }


@pytest.mark.parametrize("script", ["run.sh", "nodes.sh"])
def test_scripts_are_bash(script):
    assert subprocess.run(["bash", "-n", EXAMPLES / script], check=False).returncode == 0
    assert os.access(EXAMPLES / script, os.X_OK)


def test_overrides_reach_the_command():
    words = subprocess.run(
        [EXAMPLES / "run.sh", "data.seed=3", "+x.y='a b'"],
        env={**os.environ, "DRY_RUN": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shlex.split(words)[-2:] == ["data.seed=3", "+x.y='a b'"]


def test_rows_of_the_data():
    """What verl's own rewards make of them."""
    import importlib.util

    from verl.utils.reward_score import default_compute_score

    spec = importlib.util.spec_from_file_location("prepare_data", EXAMPLES / "prepare_data.py")
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    gsm = prepare.gsm8k({"question": "1000+234?", "answer": "It is so.\n#### 1,234"}, "train", 0)
    math = prepare.math({"problem": "Half?", "solution": r"So \boxed{\frac{1}{2}}.", "level": "Level 1"}, "test", 7)
    assert gsm["reward_model"]["ground_truth"] == "1234"
    assert math["extra_info"] == {"split": "test", "index": 7, "level": "Level 1"}

    def score(row, text):
        return default_compute_score(row["data_source"], text, row["reward_model"]["ground_truth"])

    assert [score(gsm, text) for text in ("#### 1234", "#### 1,234", "#### 5", "1234")] == [1, 1, 0, 0]
    assert [score(math, rf"it is \boxed{{{x}}}") for x in (r"\frac{1}{2}", "2")] == [1, 0]
    with pytest.raises(ValueError, match="row 3"):
        prepare.gsm8k({"question": "?", "answer": "none"}, "train", 3)
