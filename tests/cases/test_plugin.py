"""The cases that concern the plug-in's side of an estimator: configuration, sessions, outputs."""

import math

import numpy as np
import pytest
import torch

import refbase
from verl_ext import adapters, history
from verl_ext.options import verl_name
from verl_ext.sessions import Sessions
from verl_ext.step import Step, active

ALL = tuple(refbase.CATALOG)
everywhere = pytest.mark.parametrize("name", ALL)


def call(name, token_level, mask, groups, config=None):
    history.reset()
    index = np.fromiter(groups, dtype=object, count=len(groups))
    rewards = token_level if isinstance(token_level, torch.Tensor) else torch.tensor(token_level, dtype=torch.float32)
    return adapters.ESTIMATORS[verl_name(name)](rewards, torch.as_tensor(mask), config or {}, index)


def per_token(rewards, width=2):
    """The reward on a response's last token."""
    return [[0.0] * (width - 1) + [float(reward)] for reward in rewards]


def ones(rewards, width=2):
    return [[1] * width for _ in rewards]


@pytest.mark.parametrize("name", ["rloo", "grpo", "opo"])
def test_h01_reward_on_a_masked_token(case, approx, name):
    config = {"refbase": {"masked_rewards": "drop"}}
    dropped, _ = call(name, case.rewards, case.mask, case.groups, config)
    assert dropped.sum(-1).tolist() == case.expect["if_masked_rewards_are_dropped"][name]
    if name in case.expect["if_they_count"]:
        counted, _ = call(name, case.rewards, case.mask, case.groups)
        assert counted[:, 0].tolist() == approx(case.expect["if_they_count"][name])


def test_h06_flag_reaches_the_estimator(case, approx):
    flag = case.given["algorithm.norm_adv_by_std_in_grpo"]
    token_level, mask = per_token(case.rewards), ones(case.rewards)
    plain, _ = call("grpo", token_level, mask, case.groups, {"norm_adv_by_std_in_grpo": flag})
    assert plain[:, 0].tolist() == approx(case.expect["grpo_no_std"])
    scaled, _ = call("grpo", token_level, mask, case.groups, {"norm_adv_by_std_in_grpo": True})
    assert scaled[:, 0].tolist() == approx(case.expect["wrong_seen"])
    for name in ("group_mean", "gvpo"):
        assert call(name, token_level, mask, case.groups, {"norm_adv_by_std_in_grpo": True})[0].equal(plain)
    blend, _ = call("bvblend", token_level, mask, case.groups, {"norm_adv_by_std_in_grpo": flag})
    assert blend[:, 0].tolist() == approx(case.expect["grpo_no_std"])


def test_h12_sessions_vote_once(case, approx):
    keys = [
        f"{group}_{session}_{row}"
        for row, (group, session) in enumerate(zip(case.groups, case.given["session"], strict=True))
    ]
    step = Step(number=1, keys=tuple(keys), sessions=Sessions.of(keys))
    for name, key in (("rloo", "rloo"), ("group_mean", "centred"), ("gvpo", "centred"), ("opo", None)):
        with active(step):
            got, _ = call(name, per_token(case.rewards), ones(case.rewards), case.groups)
        if key:
            assert got[:, 0].tolist() == approx(case.expect["per_session"][key])
        else:  # the three rows of a session are three times as long: baseline 3/4
            assert got[:, 0].tolist() == approx([0.25, 0.25, 0.25, -0.75])
        rows, _ = call(name, per_token(case.rewards), ones(case.rewards), case.groups)
        if key:
            assert rows[:, 0].tolist() == approx(case.expect["per_row_wrong"][key])


@everywhere
def test_h22_kl_not_finite_under_the_mask(case, approx, name):
    measured = torch.tensor([[0.9, math.nan], [-0.1, -0.1]])  # what verl's apply_kl_penalty leaves on this case
    advantages, returns = call(name, measured, case.mask, case.groups)
    assert advantages.isfinite().all()
    assert returns[:, 0].tolist() == approx(case.expect["penalised_rewards"])
    if name == "rloo":
        assert advantages[:, 0].tolist() == approx(case.expect["rloo"])


@everywhere
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_h05_output_dtype(case, name, dtype):
    advantages, returns = call(
        name, torch.tensor(per_token(case.rewards), dtype=dtype), ones(case.rewards), case.groups
    )
    assert advantages.dtype == returns.dtype == dtype


@everywhere
def test_h39_advantages_and_returns_are_two_tensors(case, approx, name):
    token_level, mask = torch.tensor(per_token(case.rewards)), torch.tensor(ones(case.rewards))
    before = token_level.clone(), mask.clone()
    advantages, returns = call(name, token_level, mask, case.groups)
    assert returns[:, 0].tolist() == case.rewards
    kept = returns.clone()
    advantages.mul_(2)
    assert returns.equal(kept)
    assert token_level.equal(before[0])
    assert mask.equal(before[1])
    if name == "rloo":
        assert advantages[:, 0].tolist() == approx(case.expect["after adv *= 2"]["advantages"])


@everywhere
def test_h44_integer_rewards(case, approx, name):
    token_level = torch.tensor(per_token(case.rewards)).long()
    advantages, _ = call(name, token_level, ones(case.rewards), case.groups)
    floating, _ = call(name, token_level.float(), ones(case.rewards), case.groups)
    assert advantages.dtype == torch.get_default_dtype()
    assert advantages.tolist() == floating.tolist()
    if name in case.expect:
        assert advantages[:, 0].tolist() == approx(case.expect[name])


@everywhere
def test_h46_masked_positions_are_exactly_zero(case, name):
    advantages, _ = call(name, [[1.0, 0.0], [0.0, 0.0]], case.mask, case.groups)
    assert advantages[0, 1].item() == 0
    assert advantages[1, 0] == advantages[1, 1]
