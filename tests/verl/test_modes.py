"""What an estimator refuses, or says, when one of verl's own trainers calls it."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("verl")

import torch
from omegaconf import OmegaConf

from refbase import InputError
from verl_ext import adapters
from verl_ext.adapters import ESTIMATORS
from verl_ext.step import Step, active

pytestmark = pytest.mark.verl

BATCH = {
    "token_level_rewards": torch.tensor([[1.0], [0.0]]),
    "response_mask": torch.ones(2, 1),
    "index": ["a", "a"],
}


@pytest.fixture(autouse=True)
def first_call(monkeypatch):
    monkeypatch.setattr(adapters, "_checked", set())


def algorithm(directory, estimator="bvblend_eb", bvblend=(), **trainer):
    """The node that verl hands to an estimator, in a whole configuration."""
    root = OmegaConf.create(
        {
            "algorithm": {"adv_estimator": estimator, "bvblend": dict(bvblend)},
            "actor_rollout_ref": {"rollout": {"n": 2}, "actor": {"policy_loss": {"loss_mode": "vanilla"}}},
            "data": {"train_batch_size": 8},
            "trainer": {
                "use_v1": True,
                "v1": {"trainer_mode": "sync"},
                "default_local_dir": str(directory),
                "resume_mode": "auto",
                "resume_from_path": None,
                "save_freq": -1,
                **trainer,
            },
        }
    )
    return root.algorithm


def checkpoint(directory):
    (directory / "global_step_7").mkdir()
    (directory / "latest_checkpointed_iteration.txt").write_text("7")


def call(config):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ESTIMATORS[config.adv_estimator](**BATCH, config=config)
    return [str(w.message) for w in caught if "trainer_mode=refbase" in str(w.message)]


def test_a_stock_trainer_says_once_that_it_does_not_save_the_history(tmp_path):
    config = algorithm(tmp_path, save_freq=5)
    assert len(call(config)) == 1
    assert call(config) == []


def test_nothing_to_say_without_checkpoints(tmp_path):
    assert call(algorithm(tmp_path)) == []
    assert call(algorithm(tmp_path, estimator="shrinkage", save_freq=5)) == []


@pytest.mark.parametrize("mode", [{"v1": {"trainer_mode": "sync"}}, {"use_v1": False}])
def test_a_stock_trainer_does_not_resume_without_history_unless_told(tmp_path, mode):
    checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"resumes without the history.*allow_cold_history=true"):
        call(algorithm(tmp_path, **mode))
    call(algorithm(tmp_path, bvblend={"allow_cold_history": True}, **mode))
    path = {"resume_mode": "resume_path", "resume_from_path": f"{tmp_path}/global_step_7"}
    adapters._checked.clear()
    with pytest.raises(InputError, match="resumes without the history"):
        call(algorithm(tmp_path / "other", **path, **mode))
    call(algorithm(tmp_path, estimator="shrinkage", **mode))


def test_a_checkpoint_of_this_job_is_not_one_that_it_resumed_from(tmp_path):
    config = algorithm(tmp_path)
    call(config)
    checkpoint(tmp_path)
    call(config)


def test_keys_need_our_trainer(tmp_path):
    config = algorithm(tmp_path, bvblend={"history_key": "data_source"})
    with pytest.raises(InputError, match="trainer_mode=refbase"):
        call(config)
    with pytest.raises(InputError, match="trainer_mode=refbase"):  # without a whole configuration as well
        ESTIMATORS["bvblend"](**BATCH, config={"bvblend": {"history_key": "data_source"}})
    with active(Step(1, ("a_0_0", "a_1_0"), history_keys=("math", "math"))):
        ESTIMATORS["bvblend_eb"](**BATCH, config=config)


def test_our_trainer_in_the_legacy_one_is_refused(tmp_path):
    for estimator in ("shrinkage", "bvblend", "gvpo"):
        with pytest.raises(InputError, match="use_v1=True"):
            call(algorithm(tmp_path, estimator=estimator, use_v1=False, v1={"trainer_mode": "refbase"}))


def test_separate_async_on_a_cpu_is_refused(tmp_path, monkeypatch):
    config = algorithm(tmp_path, estimator="shrinkage", v1={"trainer_mode": "separate_async"})
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    with pytest.raises(InputError, match="nccl"):
        call(config)


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async", "refbase", "legacy"])
@pytest.mark.parametrize("estimator", ["shrinkage", "bvblend_eb", "shrinkage_history", "gvpo"])
def test_every_trainer_of_verl_computes_our_advantages(tmp_path, monkeypatch, mode, estimator):
    """Its own code from the queue to the estimator and back; ragged groups, a masked row, padding rows."""
    import memory_job
    import verl.trainer.ppo.v1.trainer_base as base
    from verl.trainer.ppo.v1 import get_trainer_cls

    import refbase
    import verl_ext.trainer as ours

    whole = algorithm(tmp_path, estimator)._get_root()
    more = {"gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False, "gvpo": {"size_correction": False}}
    whole.algorithm = {**whole.algorithm, **more}
    whole.actor_rollout_ref.actor.loss_agg_mode = "seq-mean-token-sum"
    keys, columns, tags = memory_job.Loader().batch()
    uids, rewards = [key.rsplit("_", 2)[0] for key in keys], torch.tensor(columns["reward"])
    masks = torch.tensor(columns["mask"])
    if mode == "legacy":
        whole.trainer.use_v1 = False
        import verl_seam

        data = verl_seam.batch(columns["reward"], uids, columns["mask"])
        tokens = verl_seam.advantages(estimator, data, whole.algorithm)
    else:
        whole.trainer.v1.trainer_mode = mode
        queue = memory_job.Queue()
        monkeypatch.setattr(base, "tq", queue)
        monkeypatch.setattr(ours, "tq", queue)
        nested = {"response_mask": masks, "rm_scores": torch.stack([0 * rewards, rewards, 0 * rewards], -1)}
        queue.fields = {
            "uid": uids,
            **{name: torch.nested.as_nested_tensor(list(v), layout=torch.jagged) for name, v in nested.items()},
        }
        trainer = object.__new__(get_trainer_cls(mode))
        trainer.config, trainer.global_steps = whole, 1
        batch = memory_job.Batch(keys=keys, tags=tags, partition_id="train")
        if (mode, estimator) == ("separate_async", "gvpo"):
            with pytest.raises(InputError, match="ahead of"):
                trainer._compute_advantage(batch, {})
            return
        trainer._compute_advantage(batch, {})
        tokens = torch.stack(list(queue.fields["advantages"].unbind()))
    spec = refbase.CATALOG[estimator].load_spec()
    state = (refbase.HistoryState.empty(),) if refbase.CATALOG[estimator].needs_history else ()
    wanted = torch.tensor(spec(rewards.tolist(), uids, *state, masks.any(-1).tolist()).advantages)
    torch.testing.assert_close(tokens, wanted.unsqueeze(-1) * masks, rtol=1e-5, atol=1e-6)
