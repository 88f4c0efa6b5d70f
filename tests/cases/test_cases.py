"""Faults from public bug reports: the value that is right, from spec and kernel.

``cases.json`` holds each report's source, input and right value; a test carries the id of its case. Where the
report is a matter of convention, the case's ``decision`` says which one holds here.
"""

import math
import re
import warnings
from pathlib import Path

import pytest
import torch

import refbase
from refbase import tokens

pytestmark = pytest.mark.filterwarnings("ignore::refbase.DegenerateBatchWarning")

LOCAL = ("rloo", "group_mean", "grpo", "opo", "gvpo")  # group statistics only
CENTRED = ("group_mean", "gvpo")  # r - mean, as "grpo_no_std" and "centred" in the cases
ALL = tuple(refbase.CATALOG)
HISTORY = tuple(name for name in ALL if refbase.lookup(name).needs_history)
everywhere = pytest.mark.parametrize("name", ALL)


def rows_with_tokens(mask):
    return [any(row) for row in mask]


def test_every_case_is_tested_or_excused(request):
    text = Path(__file__).read_text()
    tested = {number.upper() for number in re.findall(r"^def test_(h\d\d)_", text, re.MULTILINE)}
    from_file = request.getfixturevalue("all_cases")
    excused = {number for number, case in from_file.items() if case.get("not_here")}
    assert len(from_file) == 46
    assert tested | excused == set(from_file)
    assert not tested & excused


def test_cited_pages_exist(all_cases):
    root = Path(__file__).parents[2]
    conventions = [case for case in all_cases.values() if case["clarity"].startswith("convention")]
    assert conventions
    for case in conventions:
        assert case.get("decision") or case.get("not_here"), case["id"]
    for case in all_cases.values():
        cited = [case["decided_in"]] if "decided_in" in case else []
        cited += re.findall(r"tests/[\w/]+\.py", case.get("not_here", ""))
        assert all((root / page).is_file() for page in cited), case["id"]


# --- masks and rejected rows --------------------------------------------------------------------------------


def test_h01_reward_on_a_masked_token(case, run, approx):
    rewards, mask = torch.tensor(case.rewards, dtype=torch.float32), torch.tensor(case.mask)
    for rule, expected in (
        ("count", case.expect["if_they_count"]),
        ("drop", case.expect["if_masked_rewards_are_dropped"]),
    ):
        returns = tokens.sequence_returns(rewards, mask, rule).tolist()
        for name, values in expected.items():
            assert run(name, returns, case.groups) == approx(values)
    # One rule for all: no estimator has a second way to sum.
    assert tokens.sequence_returns(rewards, mask).tolist() == tokens.sequence_returns(rewards, mask, "count").tolist()


@everywhere
@pytest.mark.parametrize("other", [10, 3, -7.5, math.nan, math.inf])
def test_h02_empty_response(case, run, approx, name, other):
    valid = rows_with_tokens(case.mask)
    assert valid == tokens.valid_rows(torch.tensor(case.mask)).tolist() == [False, True]
    assert run(name, [other, case.rewards[1]], case.groups, valid) == approx(case.expect["rloo, grpo, opo"])


def test_h07_validity_flag(case, run, approx):
    for name in CENTRED:
        got = run(name, case.rewards, case.groups, case.given["valid"])
        assert got == approx(case.expect["with_flag"]["centred"])
        assert run(name, case.rewards, case.groups) == approx(case.expect["without_flag_wrong"]["centred"])


def test_h14_padding_copies_keep_their_label(case, run, approx):
    valid = [not flag for flag in case.given["is_padding"]]
    assert run("rloo", case.rewards, case.groups, valid) == approx(case.expect["rloo"])


@everywhere
def test_h18_one_valid_row_or_none(case, run, name):
    one = run(name, case.rewards, case.groups, rows_with_tokens(case.mask))
    assert all(map(math.isfinite, one))
    assert one[1] == case.expect["row_1"]
    assert run(name, case.rewards, case.groups, [False, False]) == [0, 0]


@everywhere
def test_h25_outlier_under_the_mask(case, run, approx, name):
    valid = rows_with_tokens(case.mask)
    got = run(name, case.rewards, case.groups, valid)
    assert got == run(name, [1, 1, 0, 0, 1], case.groups, valid)
    if name == "rloo":
        assert got == approx(case.expect["rloo"])


def test_rejected_row_in_group_statistics(run, approx):
    """verl#6452, NVIDIA-NeMo/RL#3467: rewards 1, 1, 0, 0, the second row fully masked."""
    valid = [True, False, True, True]
    assert run("grpo", [1, 1, 0, 0], list("pppp"), valid) == approx([1.154699, 0, -0.57735, -0.57735], 3e-6)
    assert run("rloo", [1, 1, 0, 0], list("pppp"), valid) == approx([1, 0, -0.5, -0.5])


# --- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.7, 0.1, 0.2, 0.3, 1 / 3, 0.95])
@pytest.mark.parametrize("size", [3, 5, 6, 7, 8, 12, 16])
def test_h03_constant_group(case, run, value, size):
    """Exactly 0, where the case allows 1e-6. Without history, every estimator has nothing to lean on."""
    assert case.rewards == [0.7] * 12
    for name in ALL:
        if name != "batch_mean":  # a single prompt has no other prompts' mean: the raw reward stays
            assert run(name, [value] * size, ["p"] * size) == [0.0] * size, name


def test_h04_small_spread(case, approx):
    # Float64: the differences of the case are not representable in float32 to the case's digits.
    for rewards in (case.rewards, torch.tensor(case.rewards, dtype=torch.float64)):
        got = refbase.grpo(rewards, case.groups).advantages
        assert [float(value) for value in got] == approx(case.expect["grpo"], case.expect["tolerance"])
    assert refbase.grpo(torch.tensor(case.rewards), case.groups).advantages.tolist() == approx(
        case.expect["grpo"], 0.002
    )


@everywhere
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_h05_output_dtype(case, approx, name, dtype):
    options = {"state": refbase.HistoryState.empty()} if name in HISTORY else {}
    got = getattr(refbase, name)(torch.tensor(case.rewards, dtype=dtype), case.groups, **options)
    assert got.advantages.dtype == got.baseline.dtype == got.weight.dtype == dtype
    if name == "rloo":
        assert got.advantages.tolist() == approx(case.expect["rloo"])


def test_h06_without_division(case, run, approx):
    for name in CENTRED:
        assert run(name, case.rewards, case.groups) == approx(case.expect["grpo_no_std"])
    assert run("grpo", case.rewards, case.groups) == approx(case.expect["wrong_seen"])


@everywhere
def test_h08_no_explosion(case, run, approx, name):
    got = run(name, case.rewards, case.groups)
    if name == "rloo":
        assert got == approx(case.expect["rloo"])
    # A standardised advantage is at most (m-1)/sqrt(m); any other at most max|r_i - r_j|.
    bound = 1.5 if name in ("grpo", "bvblend") else 1.0
    assert max(map(abs, got)) <= bound


@pytest.mark.parametrize("rewards", [[0.95] * 8, [0.4] * 4])
def test_h40_constant_group_has_no_spread(case, rewards):
    assert case.expect["informative"] is case.expect["second_case"]["informative"] is False
    groups = ["p"] * len(rewards)
    for given in (rewards, torch.tensor(rewards), torch.tensor(rewards, dtype=torch.float64)):
        scale = [float(value) for value in refbase.grpo(given, groups, eps=0.5).scale]
        assert scale == [0.5] * len(rewards)  # a standard deviation of exactly 0, plus eps


@everywhere
def test_h44_integers(case, run, approx, name):
    expected = case.expect.get(name)
    options = {"state": refbase.HistoryState.empty()} if name in HISTORY else {}
    ints = torch.tensor(case.rewards)
    assert str(ints.dtype) == f"torch.{case.given['dtype']}"
    for given in (ints, ints.to(torch.int32), ints.bool(), ints.to(torch.uint8)):
        got = getattr(refbase, name)(given, case.groups, **options).advantages
        assert got.dtype == torch.get_default_dtype()
        assert got.tolist() == approx(run(name, case.rewards, case.groups))
        if expected:
            assert got.tolist() == approx(expected)
    if name == "opo":
        lengths = [3, 3, 3, 3]
        assert run(name, case.rewards, case.groups, lengths=lengths) == approx(expected)


# --- groups and labels --------------------------------------------------------------------------------------


def test_h09_unequal_sizes(case, run, approx):
    assert run("rloo", case.rewards, case.groups) == approx(case.expect["rloo"])
    assert run("grpo", case.rewards, case.groups) == approx(case.expect["grpo"])
    for name in (*CENTRED, "opo"):
        assert run(name, case.rewards, case.groups) == approx(case.expect["grpo_no_std"])


def test_h10_groups_by_label_not_by_stride(case, run, approx):
    assert run("rloo", case.rewards, case.groups) == approx(case.expect["rloo"])
    for name in (*CENTRED, "opo"):
        assert run(name, case.rewards, case.groups) == approx(case.expect["grpo_no_std"])


@everywhere
def test_h11_tiled_order(case, run, approx, name):
    got = run(name, case.rewards, case.groups)
    if name == "rloo":
        assert got == approx(case.expect["rloo"])
    order = [2, 0, 3, 1]
    shuffled = run(name, [case.rewards[k] for k in order], [case.groups[k] for k in order])
    assert shuffled == approx([got[k] for k in order])


def test_h12_several_rows_per_session(case, run, approx):
    sessions = case.given["session"]
    last = [row == len(sessions) - 1 or sessions[row + 1] != sessions[row] for row in range(len(sessions))]
    for name, key in (("rloo", "rloo"), ("group_mean", "centred"), ("gvpo", "centred")):
        got = dict(zip(sessions, run(name, case.rewards, case.groups, last), strict=True))
        per_session = [value for value in run(name, case.rewards, case.groups, last) if value]
        assert sorted(per_session) == approx(sorted(set(case.expect["per_session"][key])))
        assert [got[session] for session in sessions] == approx(case.expect["per_session"][key])
        assert run(name, case.rewards, case.groups) == approx(case.expect["per_row_wrong"][key])


@pytest.mark.filterwarnings("error::refbase.DegenerateBatchWarning")
@everywhere
def test_h13_label_unique_per_row(case, run, approx, name):
    with pytest.warns(refbase.DegenerateBatchWarning, match="alone in its group"):
        run(name, case.rewards, case.groups)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = run(name, case.rewards, ["task"] * 4)
    expected = case.expect["with_the_task_id"].get("grpo_no_std" if name in CENTRED else name)
    if expected:
        assert task == approx(expected)


@everywhere
def test_h19_however_rows_are_dealt(case, run, approx, name):
    """One call sees the whole batch; which rows came from which rank does not matter."""
    groups = list("aabb")
    first, second = case.given["shards"]
    got = run(name, case.rewards, groups)
    for order in (first + second, second + first, [0, 2, 1, 3]):
        dealt = run(name, [case.rewards[k] for k in order], [groups[k] for k in order])
        assert dealt == approx([got[k] for k in order])


@everywhere
def test_h23_two_dimensional_rewards(case, name):
    options = {"state": refbase.HistoryState.empty()} if name in HISTORY else {}
    for rewards in (case.rewards, torch.tensor(case.rewards, dtype=torch.float32)):
        with pytest.raises(refbase.InputError, match="`rewards` must have shape"):
            getattr(refbase, name)(rewards, case.groups, **options)


def test_h23_rows_as_groups(case, run, approx):
    flat = [value for row in case.rewards for value in row]
    assert run("rloo", flat, case.groups) == approx(
        [value for row in case.expect["rows_as_groups_rloo"] for value in row]
    )


def test_h24_group_of_one(case, run, approx):
    expected = case.expect["rows_1_2"]
    for name, pair in (("rloo", expected["rloo"]), ("group_mean", expected["grpo_no_std"]), ("opo", [0.5, -0.5])):
        assert run(name, case.rewards, case.groups) == approx([2, *pair])
        assert run(name, case.rewards, case.groups, singletons="zero") == approx([0, *pair])
        with pytest.raises(refbase.InputError, match="group 'a'"):
            run(name, case.rewards, case.groups, singletons="error")
    assert run("grpo", case.rewards, case.groups)[0] == approx(2)
    assert run("gvpo", case.rewards, case.groups) == approx([0, *expected["grpo_no_std"]])
    assert run("shrinkage", case.rewards, case.groups)[0] == approx(2 - 0.5)  # the other prompt's mean


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("batch_mean", *HISTORY)])
def test_h26_label_one_level_too_deep(case, run, approx, name):
    with pytest.warns(refbase.DegenerateBatchWarning, match="no rollout has an advantage"):
        assert run(name, case.rewards, case.groups) == case.expect["by_trajectory_wrong"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = run(name, case.rewards, case.given["prompt"])
        run(name, [1, 1, 1], list("aab"), [True, True, False])  # an equal batch is not degenerate
    if name in CENTRED:
        assert got == approx(case.expect["by_prompt_per_trajectory_centred"])


def test_h27_constant_groups_that_differ(case, run, approx):
    for name in ("rloo", "grpo", "opo", "group_mean", "gvpo", "shrinkage", "shrinkage_js"):
        assert run(name, case.rewards, case.groups) == case.expect.get(name, [0] * 8)
    assert run("batch_mean", case.rewards, case.groups) == approx([1] * 4 + [-1] * 4)


def test_h28_all_rollouts_enter(case, run, approx):
    assert run("rloo", case.rewards, case.groups) == approx(case.expect["rloo"])
    for name in CENTRED:
        assert run(name, case.rewards, case.groups) == approx(case.expect["grpo_no_std"])


def test_h45_the_label_is_the_only_truth(case, run, approx):
    merged = case.expect["if_the_index_is_the_id"]
    assert run("rloo", case.rewards, case.groups) == approx(case.expect["rloo"])
    assert run("rloo", case.rewards, merged["groups"]) == approx(merged["rloo"])
    for labels in (["7", "7", "007", "007"], [7, 7, "7", "7"], [(1, 2), (1, 2), (1, 3), (1, 3)], [None, None, "", ""]):
        assert run("rloo", case.rewards, labels) == approx(case.expect["rloo"])


# --- KL in the reward ---------------------------------------------------------------------------------------


def test_h21_kl_of_observation_tokens(case, run, approx):
    kl, mask = torch.tensor(case.given["per_token_kl"], dtype=torch.float32), torch.tensor(case.mask)
    penalty = case.given["beta"] * tokens.sequence_log_probs(kl, mask)
    penalised = (torch.tensor(case.rewards) - penalty).tolist()
    assert penalised == approx(case.expect["penalised_rewards"])
    assert run("rloo", penalised, case.groups) == approx(case.expect["rloo"])


def test_h22_kl_not_finite_under_the_mask(case, run, approx):
    old, ref = (torch.tensor(case.given[key], dtype=torch.float32) for key in ("old_log_prob", "ref_log_prob"))
    mask = torch.tensor(case.mask)
    token_level = -case.given["beta"] * (old - ref)  # NaN at the masked position, as a trainer may hand it over
    token_level[0, 0] += case.rewards[0]
    assert token_level.isnan().any()
    for rule in tokens.MASKED_REWARDS:
        returns = tokens.sequence_returns(token_level, mask, rule).tolist()
        assert returns == approx(case.expect["penalised_rewards"])
        assert run("rloo", returns, case.groups) == approx(case.expect["rloo"])


# --- GVPO's loss and the step between tokens and rollouts ---------------------------------------------------


def group_loss(rewards, groups, log_probs, beta=0.1, valid=None, reduction="mean"):
    log_probs = torch.tensor(log_probs, dtype=torch.float64)
    rewards = torch.tensor(rewards, dtype=torch.float64)
    reference = torch.zeros_like(log_probs)
    return refbase.gvpo_loss(rewards, groups, log_probs, reference, beta, valid, reduction=reduction).tolist()


def test_h15_padding_does_not_dilute_the_loss(case):
    valid = tokens.valid_rows(torch.tensor(case.mask)).tolist()
    groups = ["a", "a", "pad", "pad"]  # the case's groups of one have no group loss
    whole = group_loss(case.rewards, groups, [-1, -2, -3, -4], valid=valid)
    assert whole == group_loss(case.rewards[:2], groups[:2], [-1, -2])
    assert group_loss([0, 1, 0, 1], list("aabb"), [-1, -2, -1, -2], reduction="sum") == pytest.approx(
        2 * group_loss([0, 1, 0, 1], list("aabb"), [-1, -2, -1, -2], reduction="mean")
    )


def test_h16_not_finite_under_the_mask(case):
    values, mask = torch.tensor(case.given["per_token_loss"]), torch.tensor(case.mask)
    assert tokens.sequence_log_probs(values, mask).mean().item() == case.expect["seq-mean-token-sum"]


def test_h17_numerator_and_gradient_are_masked(case):
    values = torch.tensor(case.given["per_token_loss"], dtype=torch.float32, requires_grad=True)
    mask = torch.tensor(case.mask)
    mean = tokens.sequence_log_probs(values, mask).sum() / mask.sum()
    mean.backward()
    assert mean.item() == case.expect["token-mean"]
    assert values.grad.tolist() == case.expect["grad_wrt_loss"]


def test_h29_micro_batches_of_whole_groups(case, approx):
    log_probs, groups = case.given["log_prob"], case.groups
    rewards = [2, 0, 4, 0]
    advantages = refbase.gvpo([float(r) for r in rewards], groups).advantages
    assert advantages == case.given["advantages"]
    pieces = [
        -sum(advantages[row] * log_probs[row] for row in rows) / len(groups) for rows in case.given["micro_batches"]
    ]
    assert sum(pieces) == approx(case.expect["loss"])
    parts = [
        group_loss([rewards[k] for k in rows], [groups[k] for k in rows], [log_probs[k] for k in rows], reduction="sum")
        for rows in case.given["micro_batches"]
    ]
    assert sum(parts) == approx(group_loss(rewards, groups, log_probs, reduction="sum"))


def test_h30_gvpo_edges(case, approx):
    beta, gaps = case.given["beta"], case.given["sum_logp_minus_ref"]
    valid = rows_with_tokens(case.mask)
    # The normaliser of a group of two valid rows is 1/(2-1), so the half sum of squares is the loss itself.
    for reduction in ("sum", "mean"):
        assert group_loss(case.rewards, case.groups, gaps, beta, valid, reduction) == approx(
            case.expect["half_sum_of_squares"]
        )
    ragged = group_loss([1, 0, 0, 2, 3], list("aaabb"), [1, 2, 3, 4, 5], reduction="none")
    assert len(ragged) == 2
    assert all(map(math.isfinite, ragged))
    alone = group_loss([1, 0, 9], list("aab"), [1, 2, 50])
    assert alone == group_loss([1, 0], list("aa"), [1, 2])
    doubled = group_loss([1, 0, 1, 0], list("aabb"), [1, 2, 1, 2])
    assert doubled == approx(group_loss([1, 0], list("aa"), [1, 2]))
    assert refbase.gvpo([10.0, 0.0], list("aa")).advantages == [5, -5]  # centred, not divided by the std


@pytest.mark.parametrize("columns", [1, 4])
def test_h32_padded_width(case, columns):
    mask = torch.tensor(case.mask)
    values = torch.tensor(case.given["per_token_loss"], dtype=torch.float32)
    wide = torch.nn.functional.pad(mask, (0, columns))
    wider = torch.nn.functional.pad(values, (0, columns), value=math.nan)
    row_sums = tokens.sequence_log_probs(values, mask)
    assert (row_sums.mean() / case.given["constant"]).item() == case.expect["loss"]
    assert tokens.sequence_log_probs(wider, wide).equal(row_sums)
    assert tokens.sequence_returns(wider, wide).equal(tokens.sequence_returns(values, mask))
    assert tokens.broadcast(row_sums, wide)[:, : mask.shape[1]].equal(tokens.broadcast(row_sums, mask))


def test_h35_mask_that_is_no_mask(case):
    wrong = torch.tensor(case.given["advantages"], dtype=torch.float32)
    values = torch.zeros(1, 2)
    for reader in (tokens.sequence_returns, tokens.sequence_log_probs):
        with pytest.raises(refbase.InputError, match="`response_mask` must hold 0 and 1"):
            reader(values, wrong)
        with pytest.raises(refbase.InputError, match="shape"):
            reader(values, torch.ones(1, 3))
    assert tokens.sequence_log_probs(torch.ones(1, 2), torch.tensor(case.mask)).item() == case.expect["token_count"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_h42_masked_log_probs(case, dtype):
    mask = torch.tensor([case.mask[0], [1, 1]])
    groups, rewards = ["p", "p"], torch.tensor([1.0, 0.0], dtype=dtype)

    def run(under_the_mask, under_the_reference):
        log_probs = torch.tensor([[-1, under_the_mask], [-2, -3]], dtype=dtype, requires_grad=True)
        reference = torch.tensor([[-1.5, under_the_reference], [-2, -2.5]], dtype=dtype)
        current = tokens.sequence_log_probs(log_probs, mask)
        anchor = tokens.sequence_log_probs(reference, mask)
        loss = refbase.gvpo_loss(rewards, groups, current, anchor, 0.1)
        loss.backward()
        return (current - anchor)[0].item(), loss.item(), log_probs.grad

    (value,), (reference,) = ([row[1] for row in case.given[key]] for key in ("log_prob", "ref_log_prob"))
    ratio, loss, gradient = run(value, reference)
    assert ratio == case.expect["row_log_ratio"]
    assert gradient[0, 1] == case.expect["grad_at_masked"]
    _, clean_loss, clean_gradient = run(0.0, 0.0)
    assert loss == clean_loss
    assert gradient.equal(clean_gradient)


@everywhere
def test_h39_no_shared_storage(case, approx, name):
    options = {"state": refbase.HistoryState.empty()} if name in HISTORY else {}
    rewards = torch.tensor(case.rewards, dtype=torch.float64)
    got = getattr(refbase, name)(rewards, case.groups, **options)
    fields = [value for value in vars(got).values() if value is not None]
    kept = [value.clone() for value in fields]
    got.advantages.mul_(2)
    for value, before in zip(fields[1:], kept[1:], strict=True):
        assert torch.equal(value.nan_to_num(7), before.nan_to_num(7))
    assert rewards.tolist() == case.rewards
    assert len({value.untyped_storage().data_ptr() for value in (*fields, rewards)}) == len(fields) + 1
    if name == "rloo":
        assert got.advantages.tolist() == approx(case.expect["after adv *= 2"]["advantages"])


def test_h46_masked_positions_are_exactly_zero(case):
    mask = torch.tensor(case.mask)
    advantages = refbase.rloo(torch.tensor(case.rewards, dtype=torch.float32), case.groups).advantages
    spread = tokens.broadcast(advantages, mask)
    assert spread.tolist() == [[1.0, 0.0], [-1.0, -1.0]]
    # Even a value that is not finite leaves nothing under the mask, which a product would.
    assert tokens.broadcast(torch.tensor([math.inf, math.nan]), mask)[0, 1] == 0


# --- state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HISTORY)
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_h33_resumed_equals_uninterrupted(name, cut):
    stream = [([1.0, 0.0], ["a", "a"]), ([0.0, 0.0, 1.0], ["a", "a", "b"]), ([1.0, 1.0], ["c", "c"])]
    estimator = getattr(refbase, name)

    def follow(state, steps, start):
        seen = []
        for step, (rewards, groups) in enumerate(steps, start):
            seen.append(estimator(rewards, groups, state).advantages)
            state = refbase.update_history(state, rewards, groups, step=step)
        return seen, state

    whole, last = follow(refbase.HistoryState.empty(), stream, 0)
    before, state = follow(refbase.HistoryState.empty(), stream[:cut], 0)
    after, resumed = follow(refbase.HistoryState.from_dict(state.to_dict()), stream[cut:], cut)
    assert before + after == whole
    assert resumed.to_dict() == last.to_dict()


def test_h34_reload_keeps_the_history(case):
    state = refbase.HistoryState.empty(decay=case.given["decay"])
    for step in range(case.given["reload_after"]):
        state = refbase.update_history(state, [float(case.rewards[step])], case.groups[:1], step=step)
    with_history = refbase.bvblend([0.0, 0.0], ["p", "p"], state).advantages
    reloaded = refbase.HistoryState.from_dict(state.to_dict())
    assert refbase.bvblend([0.0, 0.0], ["p", "p"], reloaded).advantages == with_history != [0.0, 0.0]
    with pytest.raises((refbase.InputError, refbase.InputTypeError)):
        refbase.HistoryState.from_dict({})  # a checkpoint without the state is not an empty history
