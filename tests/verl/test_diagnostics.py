"""The metrics of an advantage step, on batches whose numbers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from refbase import CATALOG, HistoryState, update_history
from verl_ext import diagnostics, history
from verl_ext.adapters import ESTIMATORS
from verl_ext.diagnostics import gradient_noise
from verl_ext.options import verl_name
from verl_ext.sessions import Sessions
from verl_ext.step import Step, active


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(diagnostics, "_names", {})
    history.reset()
    yield
    history.reset()


def measured(name, rewards, labels, mask=None, *, number=1, algorithm=None, **step):
    mask = torch.tensor(mask if mask is not None else [[1, 1]] * len(rewards))
    tokens = torch.zeros(mask.shape, dtype=torch.float64)
    tokens[:, 0] = torch.tensor(rewards, dtype=torch.float64)
    keys = step.pop("keys", tuple(f"{label}_{i}_0" for i, label in enumerate(labels)))
    current = Step(number, keys, exact_gvpo=True, **step)
    with active(current):
        ESTIMATORS[verl_name(name)](
            token_level_rewards=tokens, response_mask=mask, config=algorithm or {}, index=list(labels)
        )
    assert all(type(value) is float and math.isfinite(value) for value in current.metrics.values())
    return current.metrics


def test_counts():
    found = measured(
        "shrinkage",
        rewards=[1, 0, 1, 1, float("nan"), 1, 5, 0, 0],
        labels=["a", "a", "b", "b", "b", "c", "d", "pad", "pad"],
        mask=[[1, 1]] * 6 + [[0, 0]] * 3,
        padding=(False,) * 7 + (True,) * 2,
        algorithm={"shrinkage": {"nonfinite": "exclude"}},
    )
    assert {key: found[f"refbase/{key}"] for key in ("rollouts/used", "rollouts/excluded", "rollouts/masked")} == {
        "rollouts/used": 5,
        "rollouts/excluded": 1,
        "rollouts/masked": 1,
    }
    assert found["refbase/groups/used"] == 3
    assert found["refbase/groups/single"] == pytest.approx(1 / 3)
    assert found["refbase/groups/constant"] == 0.5  # b, of a and b


@pytest.mark.parametrize("name", CATALOG)
def test_every_estimator_is_measured(name):
    found = measured(name, [1, 0, 1, 0, 0, 0], ["a", "a", "a", "b", "b", "b"])
    assert found["refbase/rollouts/used"] == 6
    assert found["refbase/groups/constant"] == 0.5
    assert found["refbase/noise/estimator"] >= 0
    assert ("refbase/weight/mean" in found) == (
        name in ("batch_mean", "shrinkage", "shrinkage_js", "bvblend", "bvblend_eb", "shrinkage_history")
    )


def test_share_of_rollouts_that_teach():
    rewards, labels = [1, 0, 1, 1, 0, 0, 0, 0], ["a"] * 4 + ["b"] * 4
    assert measured("rloo", rewards, labels)["refbase/rollouts/nonzero_advantage"] == 0.5
    assert measured("shrinkage", rewards, labels)["refbase/rollouts/nonzero_advantage"] == 1


def test_weights():
    found = measured("shrinkage", [1, 0, 0, 0], ["a", "a", "b", "b"], algorithm={"shrinkage": {"weight": 0.25}})
    assert [found[f"refbase/weight/{k}"] for k in ("mean", "q10", "q50", "q90")] == [0.25] * 4
    # a third of the group weights each: the smallest, the middle and the largest
    spread = measured("shrinkage", [1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1], list("aabbbbcccccc"))
    assert spread["refbase/weight/q10"] < spread["refbase/weight/q50"] < spread["refbase/weight/q90"]


def test_nothing_valid():
    assert measured("rloo", [1, 0], ["a", "a"], mask=[[0, 0], [0, 0]]) == {
        "refbase/rollouts/used": 0,
        "refbase/rollouts/excluded": 0,
        "refbase/rollouts/masked": 2,
    }


def test_a_rollout_of_several_rows_counts_once():
    keys = ("a_0_0", "a_0_1", "a_1_0")
    found = measured("rloo", [1, 1, 0], ["a", "a", "a"], keys=keys, sessions=Sessions.of(keys), padding=(False,) * 3)
    assert found["refbase/rollouts/used"] == 2
    # (1 - 0)^2 over four tokens, (0 - 1)^2 over two
    assert found["refbase/noise/rloo"] == 1


# -- history --------------------------------------------------------------------------------------------------


def test_history_before_the_step_by_key():
    algorithm = {"bvblend": {"history_key": "data_source", "weight": 0.5}}
    batch = {"rewards": [1, 0, 1, 1], "labels": ["a", "a", "b", "b"], "algorithm": algorithm}
    first = measured("bvblend", **batch, history_keys=("math", "math", "code/py", "code/py"))
    assert first["refbase/history/keys"] == 0
    assert first["refbase/history/cold"] == 1
    assert "refbase/history/H/math" not in first
    batch["labels"] = ["c", "c", "d", "d"]
    second = measured("bvblend", **batch, number=2, history_keys=("math", "math", "new", "new"))
    assert second["refbase/history/keys"] == 2
    assert second["refbase/history/cold"] == 0.5
    assert second["refbase/history/H/math"] == 0.5
    assert second["refbase/history/beta/math"] == 0.5
    batch["labels"] = ["e", "e", "f", "f"]
    third = measured("bvblend", **batch, number=3, history_keys=("code/py", "code/py", 7, 7))
    assert third["refbase/history/H/code_py"] == 1


def test_one_key_is_called_all():
    batch = {"rewards": [1, 0], "algorithm": {}}
    measured("bvblend_eb", **batch, labels=["a", "a"])
    assert measured("bvblend_eb", **batch, labels=["b", "b"], number=2)["refbase/history/H/all"] == 0.5


def test_names_are_bounded_over_a_run_and_do_not_collide():
    algorithm = {"bvblend": {"history_key": "data_source"}}
    seen = set()
    for number in range(1, 12):
        keys = tuple(f"k{i}" for i in range(5 * number, 5 * number + 8) for _ in range(2))
        found = measured("bvblend", [1.0, 0.0] * 8, keys, number=number, algorithm=algorithm, history_keys=keys)
        seen |= {key.rpartition("/")[2] for key in found if key.startswith("refbase/history/beta/")}
    assert len(seen) == diagnostics.MAX_KEYS
    assert found["refbase/history/keys"] > diagnostics.MAX_KEYS
    diagnostics._names.clear()
    keys = ("a/b", "a_b", 1, "1", None, "all", "", "!")
    found = measured("bvblend", [1.0] * 8, range(8), algorithm=algorithm, history_keys=keys)
    assert len([key for key in found if key.startswith("refbase/history/beta/")]) == 8


# -- noise ----------------------------------------------------------------------------------------------------


def noise(rewards, codes, baseline, own=0.0, lengths=1.0):
    n = len(rewards)
    full = [np.asarray(rewards, float), np.asarray(codes), np.broadcast_to(baseline, n)]
    return gradient_noise(*full, np.broadcast_to(own, n), np.broadcast_to(np.asarray(lengths, float), n))


def test_noise_by_hand():
    found = noise([1, 0, 1, 1], [0, 0, 1, 1], 0.5)
    assert found == {"refbase/noise/estimator": 0.25, "refbase/noise/rloo": 0.5, "refbase/noise/ratio": 0.5}
    # of three tokens each of the second group has one
    assert noise([1, 0, 1, 1], [0, 0, 1, 1], 0.5, lengths=[3, 3, 1, 1])["refbase/noise/rloo"] == 0.75


def test_groups_of_one_are_left_out():
    assert noise([7, 1, 0], [0, 1, 1], 0.5)["refbase/noise/estimator"] == 0.25
    assert noise([7, 8], [0, 1], 0.5) == {}


def test_constant_groups_have_no_ratio():
    found = noise([0.7] * 3, [0] * 3, 0.2)
    assert found["refbase/noise/rloo"] == 0
    assert "refbase/noise/ratio" not in found


@pytest.mark.parametrize("name", ["rloo", "group_mean", "grpo", "gvpo"])
def test_estimators_with_the_same_direction_have_the_same_noise(name):
    """Those that contain the own reward are shorter by (m - 1)/m, in signal as in noise."""
    found = measured(name, [1, 0, 0, 1, 1, 0, 0, 1, 1], list("aaabbcccc"))
    assert found["refbase/noise/ratio"] == pytest.approx(1)


@pytest.mark.parametrize("name", ["shrinkage", "bvblend_eb", "shrinkage_history", "group_mean", "batch_mean"])
def test_ratio_is_that_of_simulated_gradients(name):
    """Scores of 200 dimensions that carry a signal, lengths that differ: variance of the gradient, measured."""
    rng = np.random.default_rng(0)
    prompts, m, dims, trials = 6, 3, 200, 600
    p, lengths = rng.beta(2, 2, prompts).repeat(m), rng.choice([1.0, 2.0, 4.0], prompts * m)
    directions = rng.normal(size=(prompts, dims)).repeat(m, 0) / math.sqrt(dims)
    labels = list(np.arange(prompts).repeat(m))
    state = HistoryState.empty()
    for step in range(40):
        state = update_history(state, list(map(float, rng.random(len(p)) < p)), labels, step=step)
    kernel, extra = CATALOG[name].load_kernel(), (state,) if CATALOG[name].needs_history else ()
    base = CATALOG["rloo"].load_kernel()
    shrunk = (m - 1) / m if name == "group_mean" else 1
    gradients, sums = [[], []], np.zeros(2)
    for _ in range(trials):
        rewards = (rng.random(len(p)) < p).astype(float)
        scores = np.sqrt(lengths)[:, None] * rng.normal(size=(len(p), dims)) + (rewards - p)[:, None] * directions
        ours = kernel(torch.tensor(rewards), labels, *extra)
        theirs = base(torch.tensor(rewards), labels)
        gradients[0].append(ours.advantages.numpy() @ scores / shrunk)
        gradients[1].append(theirs.advantages.numpy() @ scores)
        found = noise(rewards, labels, ours.baseline.numpy(), 1 - shrunk, lengths)
        sums += found["refbase/noise/estimator"], found["refbase/noise/rloo"]
    variances = [np.var(g, axis=0).sum() for g in gradients]
    assert sums[0] / sums[1] == pytest.approx(variances[0] / variances[1], rel=0.04)
    assert (sums[0] < 0.95 * sums[1]) == (name != "group_mean")
