"""The seams of verl that the trainer relies on, and the trainer's own promises."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="needs verl")
pytestmark = pytest.mark.verl

from verl_ext import seams  # noqa: E402


@pytest.mark.parametrize("seam", seams.SEAMS, ids=lambda seam: seam.target.partition(":")[2])
def test_seam_holds(seam):
    assert seam.problem() is None, seam.problem()


def test_every_override_is_a_seam():
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.workers.engine_workers import TrainingWorker

    from verl_ext.gvpo_worker import GvpoTrainingWorker
    from verl_ext.trainer import RefbaseTrainer

    declared = {seam.target.rpartition(".")[2] for seam in seams.SEAMS if seam.parameters is not None}
    for ours, base in ((RefbaseTrainer, PPOTrainer), (GvpoTrainingWorker, TrainingWorker)):
        overridden = {name for name, value in vars(ours).items() if callable(value) and hasattr(base, name)}
        assert overridden, f"{ours.__name__} overrides nothing of {base.__name__}"
        assert overridden <= declared, f"{ours.__name__} overrides {overridden - declared} without a seam"


def test_overrides_keep_the_signature():
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from verl_ext.trainer import RefbaseTrainer

    for name, value in vars(RefbaseTrainer).items():
        if inspect.isfunction(value) and name in vars(PPOTrainer):
            theirs = tuple(inspect.signature(getattr(PPOTrainer, name)).parameters)
            ours = tuple(inspect.signature(value).parameters)
            assert theirs[: len([p for p in ours if p not in ("args", "kwargs")])] == tuple(
                p for p in ours if p not in ("args", "kwargs")
            ), name


def test_a_moved_seam_is_named(monkeypatch):
    """The check must be able to fail, with a sentence that says what moved and who minds."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    by_name = {seam.target.rpartition(".")[2]: seam for seam in seams.SEAMS}
    monkeypatch.setattr(PPOTrainer, "_update_actor", lambda self, data: data)
    assert "PPOTrainer._update_actor` takes (self, data)" in by_name["_update_actor"].problem()
    monkeypatch.delattr(PPOTrainer, "_compute_advantage")
    problem = by_name["_compute_advantage"].problem()
    assert "is gone" in problem
    assert "verl_ext.trainer" in problem
    monkeypatch.setattr(
        PPOTrainer, "_balance_batch", lambda self, batch, metrics, logging_prefix, keep_minibatch: batch
    )
    assert "does not mention" in by_name["_balance_batch"].problem()
    assert len(list(seams.broken())) == 3


def test_the_trainer_stays_small():
    import verl_ext.trainer

    lines = Path(verl_ext.trainer.__file__).read_text().splitlines()
    assert len(lines) < 200, "move what grows into a module of its own"


def test_trainer_is_registered_without_being_asked_for():
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    assert issubclass(get_trainer_cls("refbase"), PPOTrainerSync)
