"""BV-Blend's memory and the diagnostics in a real job that is killed after a checkpoint and resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("verl")

import tiny_job
import torch

import refbase
from verl_ext import checkpoint
from verl_ext.cpu import run

pytestmark = [pytest.mark.e2e, pytest.mark.verl, pytest.mark.slow]

PROBE = Path(__file__).parent / "probe"
TIMEOUT = 400


def ragged_task(root: Path) -> Path:
    """Two data sets, groups of two to four, hence padding rows."""
    import pandas as pd

    tiny_job.build(root)
    data = pd.read_parquet(root / "train.parquet")
    data["data_source"] = [("even", "odd")[i % 2] for i in range(len(data))]
    data["__rollout_n__"] = [2 + i % 3 for i in range(len(data))]
    data.to_parquet(root / "train.parquet")
    return root


def job(task: Path, directory: Path, *overrides: str, steps: int) -> tuple[int, str]:
    with open(directory / "log.txt", "ab") as log:
        code = run.run(
            [
                *tiny_job.overrides(task, directory, steps=steps, ranks=1),
                "trainer.v1.trainer_mode=refbase",
                "algorithm.adv_estimator=bvblend",
                "algorithm.bvblend.history_key=data_source",
                "trainer.checkpoint_callback_class=kill_after.KillAfter",
                "trainer.resume_mode=auto",
                "trainer.save_freq=1",
                *overrides,
            ],
            env={
                "VERL_FILE_LOGGER_PATH": str(directory / "metrics.jsonl"),
                "VERL_USE_EXTERNAL_MODULES": "verl_ext_probe",
                "REFBASE_KILL_AFTER": "2",
                "PYTHONPATH": os.pathsep.join(filter(None, [str(PROBE), os.environ.get("PYTHONPATH")])),
            },
            output=log,
            timeout=TIMEOUT,
        )
    return code, (directory / "log.txt").read_text(errors="replace")


def seen_of(directory: Path) -> list[dict]:
    return [torch.load(path, weights_only=True) for path in sorted(directory.glob("*.pt"))]


@pytest.mark.timeout(3 * TIMEOUT)
def test_killed_after_a_checkpoint_and_resumed(tmp_path):
    task, directory = ragged_task(tmp_path / "task"), tmp_path / "job"
    directory.mkdir()
    code, log = job(task, directory, steps=3)
    assert code != 0, log[-4000:]
    assert (directory / "latest_checkpointed_iteration.txt").read_text() == "2", log[-4000:]
    seen = seen_of(directory / "advantages")
    (directory / "advantages").rename(directory / "before")
    code, log = job(task, directory, "trainer.test_freq=1", steps=3)
    assert code == 0, log[-4000:]
    assert "history of 2 keys and 2 steps restored" in log
    seen += seen_of(directory / "advantages")
    assert [s["step"] for s in seen] == [1, 2, 3]

    # The history of a job that was never interrupted and saw the same rewards, to the last bit.
    state = refbase.HistoryState.empty()
    spec = refbase.CATALOG["bvblend"].load_spec()
    for step in seen:
        mask = step["mask"] != 0
        rewards, valid = step["rewards"].double().sum(-1).tolist(), mask.any(-1).tolist()
        keys = step["history_keys"]
        assert {key for key, keep in zip(keys, valid, strict=True) if keep} == {"even", "odd"}
        wanted = torch.tensor(spec(rewards, step["uids"], state, valid, keys).advantages)
        torch.testing.assert_close(
            step["advantages"], torch.where(mask, wanted.unsqueeze(-1), 0.0).float(), rtol=1e-4, atol=1e-5
        )
        state = refbase.update_history(state, rewards, step["uids"], valid, keys, step["step"])
        saved = checkpoint.read(directory / f"global_step_{step['step']}" / checkpoint.FILE)
        assert saved["state"] == json.loads(json.dumps(state.to_dict()))
    assert any("pad" in str(uid) for step in seen for uid in step["uids"])

    # The logger got what the estimator knows.
    metrics = next(m for m in tiny_job.metrics(directory / "metrics.jsonl") if m.get("training/global_step") == 3)
    mask = seen[2]["mask"] != 0
    assert metrics["refbase/rollouts/used"] == mask.any(-1).sum()
    assert metrics["refbase/groups/used"] == 8
    assert metrics["refbase/history/keys"] == 2
    assert metrics["refbase/history/cold"] == 0
    assert 0 <= metrics["refbase/weight/q10"] <= metrics["refbase/weight/q90"] <= 1
    assert {"refbase/history/H/even", "refbase/history/beta/odd", "refbase/noise/rloo"} <= metrics.keys()


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.v1.trainer_mode=colocate_async", "algorithm.adv_estimator=shrinkage"],
        ["trainer.use_v1=false", "algorithm.adv_estimator=bvblend_eb"],
    ],
    ids=["colocate_async", "legacy"],
)
@pytest.mark.timeout(2 * TIMEOUT)
def test_verls_other_trainers(tmp_path, overrides):
    tiny_job.build(tmp_path / "task")
    with open(tmp_path / "log.txt", "wb") as log:
        code = run.run(
            [*tiny_job.overrides(tmp_path / "task", tmp_path, steps=2, ranks=1), *overrides],
            env={"VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl")},
            output=log,
            timeout=TIMEOUT,
        )
    text = (tmp_path / "log.txt").read_text(errors="replace")
    assert code == 0, text[-4000:]
    assert f"refbase: adv_estimator={overrides[1].partition('=')[2]}" in text
    steps = [m for m in tiny_job.metrics(tmp_path / "metrics.jsonl") if "actor/grad_norm" in m]
    assert len(steps) == 2
    assert any(step["actor/grad_norm"] > 1e-4 for step in steps)
