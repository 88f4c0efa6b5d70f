"""What the search finds: large groups, rare randomness, changed arguments; and how small and telling it shows them."""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import refbase
from refbase.checks import LAWS, Batch, Probe, Subject, as_subject, judge, run_law, run_same_as
from refbase.checks.broken import BROKEN
from refbase.checks.broken import _per_group as per_group
from refbase.checks.runner import SEVERAL
from refbase.checks.subject import read_answer

_LOO = frozenset({"shift", "scale", "zero_sum", "own_reward_independent", "unbiased", "group_local"})


def first_six_only(rewards, group_ids, valid=None):
    """Leave-one-out up to six rollouts of a prompt; beyond, the mean of the first six."""
    out = refbase.rloo(rewards, group_ids, valid).advantages
    for label in dict.fromkeys(group_ids):
        rows = [k for k, other in enumerate(group_ids) if other == label and (valid is None or valid[k])]
        if len(rows) > 6:
            out[rows] = rewards[rows] - rewards[rows[:6]].mean()
    return out


def first_six_columns(rewards):
    m = rewards.shape[-1]
    if m > 6:
        return rewards - rewards[:, :6].mean(-1, keepdim=True)
    return (rewards - rewards.mean(-1, keepdim=True)) * (m / max(m - 1, 1))


LARGE = {
    "flat": Subject("first_six_only", first_six_only, _LOO, code="estimator = first_six_only"),
    "matrix": as_subject(first_six_columns, signature="matrix", claims=_LOO),
}


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("law", ["zero_sum", "own_reward_independent", "unbiased", "permutation"])
@pytest.mark.parametrize("signature", LARGE)
def test_what_goes_wrong_from_seven_rollouts_on_is_found(signature, law, seed):
    if (signature, law) == ("matrix", "permutation"):  # rows of a matrix are put in order by the group first seen
        law = "zero_sum"
    result = run_law(LARGE[signature], LAWS[law], seed=seed, shrink=seed is None)
    assert result.status == "fails", result.report()
    assert result.subject is LARGE[signature]


@pytest.mark.parametrize("tries", [60, 1])
def test_all_batches_are_tried_then_several_groups_then_large_ones(tries):
    calls = []

    def watched(rewards, group_ids, valid=None):
        calls.append(sorted(Counter(group_ids).values()))
        return refbase.rloo(rewards, group_ids, valid).advantages

    result = run_law(Subject("watched", watched, _LOO), LAWS["finite"], max_examples=tries)
    assert result.holds
    each = max(tries // 5, 1)
    assert result.examples == len(calls) == 3 * tries // 5 + 2 * each + (tries == 1)
    assert all(len([size for size in sizes if size > 1]) >= SEVERAL for sizes in calls[-2 * each : -each])
    assert all(sizes[0] >= 7 for sizes in calls[-each:])
    if tries > 1:
        assert {sizes[-1] > 6 for sizes in calls[: -2 * each]} == {True, False}


def test_what_is_not_found_again_is_not_forgotten():
    calls = []

    def once(rewards, group_ids, valid=None):
        calls.append(rewards)
        if len(calls) == 5:
            raise RuntimeError("only now")
        return refbase.rloo(rewards, group_ids, valid).advantages

    for how in ({}, {"derandomize": False}, {"shrink": False}):
        calls.clear()
        result = run_law(Subject("once", once, _LOO), LAWS["zero_sum"], **how)
        assert result.status == "error"
        assert "not deterministic" in result.reason


def test_every_law_has_inputs_of_its_own():
    drawn = {}

    def watched(rewards, group_ids, valid=None):
        calls.append(tuple(rewards))
        return refbase.rloo(rewards, group_ids, valid).advantages

    for law in ("zero_sum", "group_local", "finite"):
        calls = []
        run_law(Subject("watched", watched, _LOO, numbers="exact", masks=False), LAWS[law], max_examples=20)
        drawn[law] = tuple(calls)
    assert len(set(drawn.values())) == 3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("mistake", "law", "rows"),
    [
        ("whole_batch_mean", "zero_sum", 3),  # a group of two and a lone rollout
        ("whole_batch_mean", "group_local", 2),
        ("first_rollout_only", "permutation", 2),
        ("own_reward_in_the_mean", "own_reward_independent", 1),
        ("masked_rows_vote", "masked_absent", 2),
        ("divides_although_told_not_to", "scale", 2),
    ],
)
def test_a_counterexample_has_the_fewest_rows_whatever_the_seed(mistake, law, rows, seed):
    result = run_law(BROKEN[mistake].subject, LAWS[law], seed=seed)
    assert result.status == "fails"
    shown = [found.count(",") + 1 for found in re.findall(r"tensor\(\[([-\d., ]*)\], dtype", result.code)]
    assert max(shown) == rows, result.report()


def test_a_crash_does_not_take_the_place_of_wrong_numbers():
    def crashes_on_five(rewards, group_ids, valid=None):
        if len(rewards) == 5:
            raise IndexError("five rollouts")
        return rewards

    subject = Subject("crashes_on_five", crashes_on_five, frozenset({"zero_sum"}))
    first = [run_law(subject, LAWS["zero_sum"], seed=seed, shrink=False).status for seed in range(12)]
    assert set(first) == {"error", "fails"}
    for seed, status in enumerate(first):
        assert run_law(subject, LAWS["zero_sum"], seed=seed).status == status


def test_what_is_random_once_in_fifty_calls_is_found():
    """Also with the generators that Hypothesis sets back before every input."""

    def noisy(draw):
        return lambda rewards, group_ids, valid=None: rewards + (1 if draw() < 0.02 else 0)

    for draw in (random.random, np.random.random):
        for seed in (None, 1, 2):
            result = run_law(Subject("noisy", noisy(draw)), LAWS["deterministic"], seed=seed)
            assert result.status in ("fails", "error")


# --- changed arguments --------------------------------------------------------------------------------------


def tensor_in_place(rewards, group_ids):
    rewards -= rewards.mean()
    return rewards.clone()


def array_in_place(rewards, group_ids):
    rewards -= rewards.mean()
    return rewards.copy()


def list_in_place(rewards, group_ids):
    rewards[0] = rewards[0] + 1
    return list(rewards)


def tensor_matrix_in_place(rewards):
    return tensor_in_place(rewards, None)


def array_matrix_in_place(rewards):
    return array_in_place(rewards, None)


def list_matrix_in_place(rewards):
    rewards[0][0] = rewards[0][0] + 1
    return [list(row) for row in rewards]


def verl_in_place(token_level_rewards, response_mask, index, config=None):
    token_level_rewards += 1
    return token_level_rewards.clone() * response_mask, token_level_rewards.clone() * response_mask


def flags_in_place(rewards, group_ids, valid=None):
    if valid is not None:
        valid[:] = torch.ones_like(valid)
    return rewards * 0


def labels_in_place(rewards, group_ids):
    group_ids.sort()
    return rewards * 0


HERE = {
    "flat torch": as_subject(tensor_in_place),
    "flat numpy": as_subject(array_in_place, arrays="numpy"),
    "flat float": as_subject(list_in_place, arrays="float"),
    "flat exact": as_subject(list_in_place, arrays="exact"),
    "matrix torch": as_subject(tensor_matrix_in_place, signature="matrix"),
    "matrix numpy": as_subject(array_matrix_in_place, signature="matrix", arrays="numpy"),
    "matrix float": as_subject(list_matrix_in_place, signature="matrix", arrays="float"),
    "verl": as_subject(verl_in_place, signature="verl"),
    "flags": as_subject(flags_in_place),
    "labels": as_subject(labels_in_place),
}


def pasted(result, subject, capsys):
    """What the printed counterexample prints, for a subject defined in this module."""
    code = re.sub(r"^from \S*test_search import (\w+) as estimator$", r"estimator = \1", result.code, flags=re.M)
    exec(compile(code, "counterexample", "exec"), dict(globals()))
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", HERE)
def test_a_changed_argument_is_found_and_shown(kind, capsys):
    result = run_law(HERE[kind], LAWS["inputs_untouched"])
    assert result.status == "fails", result.report()
    name = {"flags": "valid", "labels": "group_ids"}.get(kind, "rewards")
    assert f"changed its argument `{name}`" in result.reason
    before = re.search(rf"^{name} = (.*)$", result.code, flags=re.M)[1]
    printed = pasted(result, HERE[kind], capsys).strip()
    unchanged = str(eval(before, dict(globals()), {"Fraction": __import__("fractions").Fraction}))
    assert printed
    assert printed != unchanged


# --- counterexamples that show what is wrong ----------------------------------------------------------------


def attached(rewards, group_ids):
    return rewards * 2


def attached_matrix(rewards):
    return rewards * 2


def attached_verl(token_level_rewards, response_mask, index, config=None):
    advantages = token_level_rewards.sum(-1, keepdim=True) * response_mask
    return advantages, advantages.clone()


@pytest.mark.parametrize(
    "subject",
    [
        as_subject(attached),
        as_subject(attached_matrix, signature="matrix"),
        as_subject(attached_verl, signature="verl"),
    ],
    ids=["flat", "matrix", "verl"],
)
def test_the_graph_is_seen_in_what_the_counterexample_prints(subject, capsys):
    result = run_law(subject, LAWS["no_graph"])
    assert result.status == "fails"
    assert "grad_fn=" in pasted(result, subject, capsys)


def reads_storage(rewards, group_ids):
    whole = torch.empty(0, dtype=rewards.dtype).set_(rewards.untyped_storage())
    return whole.repeat(len(rewards))[: len(rewards)]


def reads_storage_matrix(rewards):
    whole = torch.empty(0, dtype=rewards.dtype).set_(rewards.untyped_storage())
    return whole[: rewards.numel()].reshape(rewards.shape).clone()


def reads_storage_verl(token_level_rewards, response_mask, index, config=None):
    returns = reads_storage_matrix(token_level_rewards).sum(-1, keepdim=True) * response_mask
    return returns, returns.clone()


@pytest.mark.parametrize(
    "subject",
    [
        as_subject(reads_storage),
        as_subject(reads_storage_matrix, signature="matrix"),
        as_subject(reads_storage_verl, signature="verl"),
    ],
    ids=["flat", "matrix", "verl"],
)
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_view_that_is_misread_is_found_and_its_counterexample_prints_two_results(subject, seed, capsys):
    result = run_law(subject, LAWS["strided"], seed=seed)
    assert result.status == "fails"
    lines = pasted(result, subject, capsys).strip()
    half = len(lines.splitlines()) // 2
    assert half
    assert lines.splitlines()[:half] != lines.splitlines()[half:]


def shared_pair(rewards, group_ids):
    out = rewards * 0
    return out, out


def a_view_of_it(rewards, group_ids):
    out = rewards * 0
    return out, out[::-1]


def its_own_argument(rewards, group_ids):
    return rewards


def rewards_as_returns(token_level_rewards, response_mask, index, config=None):
    return token_level_rewards * 0, token_level_rewards


def its_own_matrix(rewards):
    return rewards


def shared_in_verl(token_level_rewards, response_mask, index, config=None):
    out = token_level_rewards * 0
    return out, out


@pytest.mark.parametrize(
    "subject",
    [
        as_subject(shared_pair),
        as_subject(its_own_argument),
        as_subject(its_own_argument, arrays="numpy"),
        as_subject(a_view_of_it, arrays="numpy"),
        as_subject(shared_in_verl, signature="verl"),
        as_subject(rewards_as_returns, signature="verl"),
        as_subject(its_own_matrix, signature="matrix"),
        as_subject(its_own_matrix, signature="matrix", arrays="numpy"),
    ],
    ids=["pair", "argument", "numpy argument", "numpy view", "verl", "verl argument", "matrix", "numpy matrix"],
)
def test_shared_memory_is_seen_in_what_the_counterexample_prints(subject, capsys):
    result = run_law(subject, LAWS["own_storage"])
    assert result.status == "fails"
    assert pasted(result, subject, capsys).strip() == "True"


def test_a_baseline_that_moved_is_printed_or_noted(capsys):
    parts = replace(BROKEN["own_group_in_the_spread"].subject)
    result = run_law(parts, LAWS["own_reward_independent"])
    assert result.code.count(".baseline)") == 2
    exec(compile(result.code, "counterexample", "exec"), {})
    printed = capsys.readouterr().out
    assert "tensor" in printed
    result = run_law(BROKEN["own_reward_in_the_mean"].subject, LAWS["own_reward_independent"])
    noted = re.findall(r"# r - A of rollout \d+: (\S+)", result.code)
    assert noted == [str(result.expected), str(result.got)]


@pytest.mark.parametrize(
    "read",
    [
        lambda label: label[:32],
        lambda label: label[:64],
        lambda label: label.strip(),
        lambda label: label.casefold(),
        lambda label: unicodedata.normalize("NFKC", label),
        lambda label: label.rstrip("\0"),
        lambda label: label[:8],
        lambda label: label[-12:],
    ],
    ids=["first 32", "first 64", "strip", "casefold", "NFKC", "NUL", "uuid's first 8", "uuid's last 12"],
)
def test_labels_that_become_one_when_read_are_found(read):
    def call(rewards, group_ids, valid=None):
        return refbase.rloo(rewards, [read(g) if isinstance(g, str) else g for g in group_ids], valid).advantages

    assert run_law(Subject("reader", call), LAWS["relabel"], shrink=False).status == "fails"


@pytest.mark.parametrize("read", [float, lambda label: int(np.array(label).astype(np.int32))], ids=["float64", "int32"])
def test_whole_numbers_that_become_one_are_found(read):
    def call(rewards, group_ids, valid=None):
        labels = [read(g) if isinstance(g, int) else g for g in group_ids]
        return refbase.rloo(rewards, labels, valid).advantages

    assert run_law(Subject("reader", call), LAWS["relabel"], shrink=False).status == "fails"


def kept(rewards, valid):
    return torch.ones(len(rewards), dtype=torch.bool) if valid is None else valid


def pooled_weight(rewards, group_ids, valid=None):
    """Shrinks towards the mean of all by a variance pooled over the groups: 0 only where all of them are constant."""
    centred = per_group(lambda r: r - r.mean())(rewards, group_ids, valid)
    rows = slice(None) if valid is None else valid
    noise = centred[rows].square().mean() if len(centred[rows]) else 0
    means = per_group(lambda r: r.mean() - r * 0)(rewards, group_ids, valid)
    weight = noise / (noise + 1) if noise > 0 else 0
    out = centred + weight * (means - means[rows].mean()) if weight else centred
    return out if valid is None else out * valid


def raw_beside_none(rewards, group_ids, valid=None):
    """Centres groups, but where there is one group only."""
    out = refbase.group_mean(rewards, group_ids, valid).advantages
    alone = len({g for k, g in enumerate(group_ids) if valid is None or valid[k]}) == 1
    return (rewards if valid is None else rewards.masked_fill(~valid, 0)) * 1 if alone else out


@per_group
def own_mean_from_four_to_six(rewards):
    m = len(rewards)
    if m == 1:
        return rewards
    return (rewards - rewards.mean()) * (1 if m in (4, 5, 6) else m / (m - 1))


def whitened_beside_a_raw_one(rewards, group_ids, valid=None):
    """A group of one keeps its reward, which the deviation of the batch carries to all others."""
    rows = kept(rewards, valid)
    out = refbase.rloo(rewards, group_ids, valid).advantages
    return torch.where(rows, out / (1 + out[rows].double().square().sum().sqrt().to(out.dtype)), 0)


def batch_mean_from_eight_groups(rewards, group_ids, valid=None):
    out = refbase.rloo(rewards, group_ids, valid).advantages
    rows = kept(rewards, valid)
    if len({g for g, flag in zip(group_ids, rows.tolist(), strict=True) if flag}) < 8:
        return out
    return torch.where(rows, (out + rewards - rewards[rows].mean()) / 2, 0)


def clipped(rewards, group_ids, valid=None):
    return refbase.grpo(rewards, group_ids, valid).advantages.clamp(-3, 3)


@pytest.mark.parametrize(
    ("estimator", "claims", "law"),
    [
        (pooled_weight, ["constant_zero"], "constant_zero"),
        (raw_beside_none, ["zero_sum", "shift", "constant_zero"], "zero_sum"),
        (raw_beside_none, ["zero_sum", "shift", "constant_zero"], "shift"),
        (raw_beside_none, ["zero_sum", "shift", "constant_zero"], "constant_zero"),
        (own_mean_from_four_to_six, ["unbiased"], "unbiased"),
        (batch_mean_from_eight_groups, ["own_reward_independent"], "own_reward_independent"),
        (clipped, ["zero_sum"], "zero_sum"),
    ],
)
def test_regions_that_a_reviewer_found_missing(estimator, claims, law):
    """Constant groups beside others, one group without a baseline, four to six rollouts, eight groups, one success."""
    assert run_law(as_subject(estimator, claims=claims), LAWS[law], shrink=False).status == "fails"


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_a_group_of_one_beside_larger_ones_is_tried_whatever_the_seed(seed):
    subject = as_subject(whitened_beside_a_raw_one, claims=["shift"])
    assert run_law(subject, LAWS["shift"], seed=seed, shrink=False).status == "fails"


def with_rejected_rows(rewards, group_ids, valid=None):
    out = per_group(lambda r: r - r.mean())(rewards, group_ids)
    return torch.where(kept(rewards, valid), out, 0)


def an_ulp_further(rewards, group_ids, valid=None):
    out = with_rejected_rows(rewards, group_ids, valid)
    return out * (1 + torch.finfo(out.dtype).eps)


def test_two_that_round_rejected_rows_otherwise_are_the_same():
    """Where the valid rewards are all 0 the rejected ones still say how much rounding there may be."""
    result = run_same_as(as_subject(with_rejected_rows), as_subject(an_ulp_further), max_examples=1000)
    assert result.holds, result.report()


def beyond_its_target(rewards, group_ids, valid=None):
    """James and Stein's blend without the positive part: where it shrinks at all, by more than the whole."""
    good = refbase.shrinkage(rewards, group_ids, valid)
    weight = torch.where(good.weight > 0, 2 - good.weight, good.weight)
    both = good.local.isfinite() & good.target.isfinite()
    weight = torch.where(both, weight, good.weight)
    baseline = torch.where(both, good.local + weight * (good.target - good.local), good.baseline)
    return replace(good, baseline=baseline, weight=weight, advantages=good.advantages + good.baseline - baseline)


def nothing_for_one(rewards, group_ids, valid=None):
    """A group of one has no leave-one-out mean, and gets no baseline in place of the target."""
    good = refbase.shrinkage(rewards, group_ids, valid)
    alone = good.local.isnan() & kept(rewards, valid)
    return replace(
        good, baseline=good.baseline.masked_fill(alone, 0), advantages=good.advantages.where(~alone, rewards)
    )


def something_from_nothing(rewards, group_ids, valid=None):
    """A baseline where neither the prompt nor the others say anything."""
    good = refbase.shrinkage(rewards, group_ids, valid)
    neither = good.local.isnan() & good.target.isnan() & kept(rewards, valid)
    return replace(good, baseline=good.baseline.masked_fill(neither, 1), advantages=good.advantages - 1.0 * neither)


@pytest.mark.parametrize(
    ("estimator", "reason"),
    [
        (beyond_its_target, "weight of rollout"),
        (nothing_for_one, "local = nan"),
        (something_from_nothing, "local = nan, target = nan"),
    ],
)
def test_each_clause_of_a_blend_is_checked(estimator, reason):
    subject = as_subject(estimator)
    assert run_law(replace(subject, parts=True), LAWS["baseline_identity"]).holds
    result = run_law(replace(subject, parts=True), LAWS["convex_weight"])
    assert result.status == "fails"
    assert reason in result.reason


def test_numbers_of_numpy_are_read_in_their_own_precision():
    means = {kind: read_answer([kind(0.1), kind(-0.1)], 2) for kind in (np.float32, np.float64, np.longdouble)}
    assert means[np.float32].eps == np.finfo(np.float32).eps
    assert means[np.float64].eps == means[np.longdouble].eps == np.finfo(float).eps
    assert all(type(a) is float for answer in means.values() for a in answer.advantages)
    assert read_answer([torch.tensor(0.5), torch.tensor(1)], 2).advantages == [0.5, 1]
    assert read_answer(np.zeros(2, np.longdouble), 2).advantages == [0.0, 0.0]


def test_floats_from_fractions_are_an_error_of_the_estimator():
    subject = Subject(
        "floats", lambda r, g, valid=None: [float(x) for x in r], frozenset({"unbiased"}), numbers="exact"
    )
    result = run_law(subject, LAWS["unbiased"], shrink=False)
    assert result.status == "error"
    assert 'say arrays "float"' in result.reason


def test_two_that_need_valid_rows_are_compared_on_batches_that_have_them():
    needy = replace(as_subject(refbase.rloo), min_valid=1, call=refuses_without_rows)
    for pair in ((as_subject(refbase.rloo), needy), (needy, as_subject(refbase.rloo))):
        assert run_same_as(*pair).holds


def refuses_without_rows(rewards, group_ids, valid=None):
    if valid is not None and not bool(valid.any()):
        raise ValueError("no rows")
    return refbase.rloo(rewards, group_ids, valid)


def padding_in_place(token_level_rewards, response_mask, index, config=None):
    token_level_rewards[:, 0] = token_level_rewards[:, 1]
    return token_level_rewards * 0, token_level_rewards * 0


def test_tokens_without_a_reward_must_not_change_either():
    result = run_law(as_subject(padding_in_place, signature="verl"), LAWS["inputs_untouched"])
    assert result.status == "error"
    assert "changed its token_level_rewards in place" in result.reason


def test_groups_too_large_to_enumerate():
    subject = Subject("nine", refbase.rloo, _LOO, min_group=9)
    assert run_law(subject, LAWS["unbiased"]).status == "not_applicable"
    assert run_law(replace(subject, min_group=8), LAWS["unbiased"], max_examples=1).holds


def test_an_eps_that_is_no_number_is_left_to_the_estimator():
    subject = Subject("auto", lambda r, g, v=None, eps=None: refbase.grpo(r, g, v).advantages, options={"eps": None})
    assert run_law(subject, LAWS["scale_invariant"]).holds


@pytest.mark.parametrize("law", ["permutation", "group_local"])
@pytest.mark.parametrize("seed", range(1, 9))
def test_rounding_of_equal_rewards_is_not_called_order_or_locality(law, seed):
    def plain_grpo(rewards, group_ids, valid=None):
        out = torch.zeros_like(rewards)
        for label in dict.fromkeys(group_ids):
            rows = [k for k, other in enumerate(group_ids) if other == label and (valid is None or valid[k])]
            if len(rows) > 1:
                out[rows] = (rewards[rows] - rewards[rows].mean()) / (rewards[rows].std() + 1e-6)
        return out

    assert run_law(Subject("plain_grpo", plain_grpo), LAWS[law], seed=seed).holds


def test_masks_are_not_blamed_for_a_counterexample_without_masked_rows():
    def unlucky(rewards, group_ids, valid=None):
        return rewards * 0 + (1.0 if valid is not None else 0.0)  # with flags, all of them true or not

    result = judge(Subject("flags", unlucky, frozenset({"zero_sum"})), LAWS["zero_sum"])
    assert result.status == "fails"
    assert (result.masked, result.only_masked) == (False, False)


@pytest.mark.parametrize("how", [{}, {"signature": "verl"}, {"arrays": "numpy"}], ids=str)
def test_labels_that_are_not_numbers_can_be_pasted(how):
    subject = as_subject(lambda *a, **b: None, **how)
    code = Probe(subject).render(Batch((0,), (float("nan"),)), {}, "x")
    assert "float('nan')" in code
