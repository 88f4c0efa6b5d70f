"""Rollouts of several rows vote once, whatever the estimator; on keys in verl's format, through verl's own step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

import refbase
from refbase.validate import InputError
from verl_ext import history
from verl_ext.options import verl_name
from verl_ext.sessions import Sessions, split_key

pytest.importorskip("verl", reason="needs verl")
pytestmark = pytest.mark.verl

ALGORITHM = {
    "gamma": 1.0,
    "lam": 1.0,
    "use_kl_in_reward": False,
    "kl_penalty": "kl",
    "kl_ctrl": {"type": "fixed", "kl_coef": 0.5},
    "norm_adv_by_std_in_grpo": True,
}


class Queue:
    """TransferQueue's two calls, on one batch in memory."""

    def __init__(self, fields):
        self.fields = fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        from verl.utils import tensordict_utils as tu

        return tu.get_tensordict({name: self.fields[name] for name in select_fields if name in self.fields})

    def kv_batch_put(self, keys, partition_id, fields):
        self.fields.update(fields.items())
        return SimpleNamespace(keys=keys, partition_id=partition_id)


def advantages(monkeypatch, estimator, rows, *, kl=False, gvpo=False, **algorithm):
    """One advantage step of our trainer; rows are (key, mask, score) or (key, mask, score, old - ref log-prob)."""
    from verl.trainer.ppo.core_algos import FixedKLController
    from verl.trainer.ppo.v1 import trainer_base

    import verl_ext.trainer

    def nested(parts):
        return torch.nested.as_nested_tensor([torch.tensor(p, dtype=torch.float32) for p in parts], layout=torch.jagged)

    queue = Queue(
        {
            "uid": [split_key(row[0])[0] for row in rows],
            "response_mask": nested([row[1] for row in rows]),
            "rm_scores": nested([[0.0] * (len(row[1]) - 1) + [row[2]] for row in rows]),
            "old_log_probs": nested([row[3] if len(row) > 3 else [0.0] * len(row[1]) for row in rows]),
            "ref_log_prob": nested([[0.0] * len(row[1]) for row in rows]),
        }
    )
    monkeypatch.setattr(trainer_base, "tq", queue)
    monkeypatch.setattr(verl_ext.trainer, "tq", queue)
    trainer = object.__new__(verl_ext.trainer.RefbaseTrainer)
    trainer.global_steps, trainer.gvpo = 1, object() if gvpo else None
    trainer.kl_ctrl_in_reward = FixedKLController(0.5)
    trainer.config = OmegaConf.create(
        {
            "algorithm": {**ALGORITHM, "adv_estimator": verl_name(estimator), "use_kl_in_reward": kl, **algorithm},
            "actor_rollout_ref": {
                "rollout": {"n": 2},
                "actor": {"loss_agg_mode": "seq-mean-token-sum", "policy_loss": {"loss_mode": "vanilla"}},
            },
        }
    )

    class Batch(SimpleNamespace):
        def __len__(self):
            return len(self.keys)

    history.reset()
    trainer._compute_advantage(Batch(keys=[row[0] for row in rows], tags=[{} for _ in rows], partition_id="train"), {})
    return queue, [row.tolist() for row in queue.fields["advantages"].unbind()]


H12 = [("p_0_0", [1], 1.0), ("p_0_1", [1, 1], 1.0), ("p_0_2", [1], 1.0), ("p_1_0", [1], 0.0)]


@pytest.mark.parametrize(("estimator", "expected"), [("rloo", 1.0), ("group_mean", 0.5), ("gvpo", 0.5)])
def test_a_rollout_of_three_rows_votes_once(monkeypatch, estimator, expected):
    _, got = advantages(monkeypatch, estimator, H12)
    assert got == [[expected], [expected] * 2, [expected], [-expected]]


def test_verl_itself_counts_rows():
    """What our trainer changes for our estimators; if verl does it for its own one day, this says so."""
    import numpy as np
    from tensordict import TensorDict
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    fields = {"token_level_rewards": torch.tensor([[1.0], [1.0], [1.0], [0.0]]), "response_mask": torch.ones(4, 1)}
    data = DataProto(batch=TensorDict(fields, batch_size=4), non_tensor_batch={"uid": np.array(["p"] * 4, object)})
    out = compute_advantage_for_multi_trajectories(data, [row[0] for row in H12], "rloo", config={})
    assert out.batch["advantages"][:, 0].tolist() == pytest.approx([1 / 3] * 3 + [-1])


def test_a_masked_last_row_neither_votes_nor_erases(monkeypatch):
    """verl's grpo gives the other rows of such a session 0, and lets the masked row vote."""
    rows = [("p_0_0", [1], 1.0), ("p_0_1", [0, 0], 9.0), ("p_1_0", [1], 0.0)]
    assert advantages(monkeypatch, "rloo", rows)[1] == [[1.0], [0.0, 0.0], [-1.0]]
    assert advantages(monkeypatch, "group_mean", rows)[1] == [[0.5], [0.0, 0.0], [-0.5]]


def test_a_fully_masked_session_is_out(monkeypatch):
    rows = [("p_0_0", [1], 1.0), ("p_1_0", [0], 5.0), ("p_1_1", [0], 5.0), ("p_2_0", [1], 0.0)]
    assert advantages(monkeypatch, "rloo", rows)[1] == [[1.0], [0.0], [0.0], [-1.0]]


def test_the_last_row_decides_in_any_order(monkeypatch):
    rows = [("p_0_10", [1], 1.0), ("p_1_0", [1], 0.0), ("p_0_9", [1], 0.25), ("p_0_2", [1], 0.5)]
    assert advantages(monkeypatch, "rloo", rows)[1] == [[1.0], [-1.0], [1.0], [1.0]]


def test_kl_of_all_rows_counts(monkeypatch):
    """A session's log-ratio is the sum over its rows; verl's grpo drops that of all but the last."""
    rows = [("p_0_0", [1, 1], 1.0, [0.2, 0.4]), ("p_0_1", [1], 1.0, [-0.2]), ("p_1_0", [1, 0], 0.0, [0.1, 9.0])]
    _, got = advantages(monkeypatch, "group_mean", rows, kl=True)
    # returns 1 - 0.5 * (0.2 + 0.4 - 0.2) = 0.8 and 0 - 0.5 * 0.1 = -0.05
    assert got[0] == pytest.approx([0.425, 0.425])
    assert got[2] == pytest.approx([-0.425, 0.0])


@pytest.mark.parametrize("estimator", refbase.CATALOG)
@pytest.mark.filterwarnings("ignore::refbase.DegenerateBatchWarning")
def test_every_estimator_sees_rollouts(monkeypatch, estimator):
    """Splitting rollouts into rows, with the same tokens in all, leaves every advantage as it was."""
    whole = [
        (f"{group}_{session}_0", [1] * (1 + session + group), float((group * 7 + session * 5) % 4))
        for group in range(5)
        for session in range(3)
    ]
    split = []
    for key, mask, score in whole:
        prefix = key.rpartition("_")[0]
        split += [(f"{prefix}_{i}", [1], score) for i in range(len(mask))]
    _, one = advantages(monkeypatch, estimator, whole)
    _, many = advantages(monkeypatch, estimator, split[::-1])
    expected = {key: values[0] for (key, _, _), values in zip(whole, one, strict=True)}
    assert len({round(value, 6) for value in expected.values()}) > 3
    for (key, _, _), values in zip(split[::-1], many, strict=True):
        assert values == pytest.approx([expected[key.rpartition("_")[0] + "_0"]], abs=1e-6)


def test_actor_is_told_of_sessions(monkeypatch):
    queue, _ = advantages(monkeypatch, "gvpo", H12, gvpo=True)
    assert queue.fields["refbase_sessions"].tolist() == [[0, 3], [0, 3], [0, 3], [1, 1]]
    queue, _ = advantages(monkeypatch, "gvpo", [("p_0_0", [1], 1.0), ("p_1_0", [1], 0.0)], gvpo=True)
    assert "refbase_sessions" not in queue.fields


def test_keys():
    assert split_key("a_b_3_12") == ("a_b", "3", 12)
    assert split_key("pad77_0_0") == ("pad77", "0", 0)
    for key in ("a", "a_1", "a_1_x"):
        with pytest.raises(InputError, match="must have the form"):
            split_key(key)


def test_uids_with_underscores_are_told_apart():
    sessions = Sessions.of(["a_1_0_0", "a_1_0_1", "a_1_0", "a_10_0"])
    assert sessions.codes.tolist() == [0, 0, 1, 2]
    assert sessions.rows.tolist() == [2, 2, 1, 1]
    assert not sessions.trivial
    assert sessions.final(torch.tensor([True, False, True, False])).tolist() == [0, 2, 3]
