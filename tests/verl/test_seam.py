"""Every estimator through verl's real `compute_advantage` on a real `DataProto`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refbase
from refbase import DegenerateBatchWarning, InputError, InputTypeError

pytest.importorskip("verl")

import torch
from verl_seam import advantages, algorithm, batch, per_row

from verl_ext import history
from verl_ext.adapters import ESTIMATORS
from verl_ext.options import BLOCKS, verl_name

pytestmark = [
    pytest.mark.verl,
    pytest.mark.filterwarnings("ignore::refbase.DegenerateBatchWarning"),
]

NAMES = list(refbase.CATALOG)
REWARDS = [1.0, 0.0, 1.0, 1.0, 0.0, 0.5]
UIDS = ["b", "a", "b", "a", "b", "a"]
MASK = [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1]]


def expected(name, rewards, uids, lengths=None):
    """Per-row advantages from the specification, without torch."""
    spec = refbase.CATALOG[name].load_spec()
    options = {"lengths": lengths} if name == "opo" else {}
    state = (refbase.HistoryState.empty(),) if refbase.CATALOG[name].needs_history else ()
    result = spec([float(r) for r in rewards], uids, *state, **options).advantages
    if name == "gvpo":
        sizes = {u: uids.count(u) for u in uids}
        top = max(sizes.values())
        return [a * (top - 1) / (sizes[u] - 1) if sizes[u] > 1 else 0.0 for a, u in zip(result, uids, strict=True)]
    return result


@st.composite
def clean_batches(draw):
    """Groups of two to five, rows in any order, responses of different lengths, no rejected token."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=5))
    uids = list(draw(st.permutations([f"uid-{g}" for g, size in enumerate(sizes) for _ in range(size)])))
    # Sixteenths: sums and means of them are exact in float32, where verl computes.
    rewards = draw(st.lists(st.integers(-160, 160), min_size=len(uids), max_size=len(uids)))
    lengths = draw(st.lists(st.integers(1, 4), min_size=len(uids), max_size=len(uids)))
    rewards = [r / 16 for r in rewards]
    mask = [[1] * length + [0] * (4 - length) for length in lengths]
    tokens = [[0.0] * (n - 1) + [r] + [0.0] * (4 - n) for r, n in zip(rewards, lengths, strict=True)]
    return rewards, uids, mask, tokens


@pytest.mark.parametrize("name", NAMES)
@given(data=clean_batches())
def test_equals_the_specification(name, data):
    history.reset()
    rewards, uids, mask, tokens = data
    found = per_row(advantages(verl_name(name), batch(tokens, uids, mask)), torch.tensor(mask))
    want = expected(name, rewards, uids, lengths=[float(sum(row)) for row in mask])
    assert found == pytest.approx(want, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("name", ["rloo", "grpo", "opo"])
@given(data=clean_batches())
def test_equals_verls_own_on_clean_inputs(name, data):
    rewards, uids, mask, tokens = data
    ours = advantages(f"refbase_{name}", batch(tokens, uids, mask))
    theirs = advantages(name, batch(tokens, uids, mask))
    if name == "grpo":
        # In a constant group verl divides the rounding error of a float32 mean by an epsilon; ours is 0.
        values = {u: {r for r, v in zip(rewards, uids, strict=True) if v == u} for u in uids}
        rows = [i for i, u in enumerate(uids) if len(values[u]) > 1]
        assert (ours[[i for i in range(len(uids)) if i not in rows]] == 0).all()
        ours, theirs = ours[rows], theirs[rows]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_group_mean_equals_verls_grpo_without_std():
    ours = advantages("group_mean", batch(REWARDS, UIDS))
    theirs = advantages("grpo", batch(REWARDS, UIDS), norm_adv_by_std_in_grpo=False)
    torch.testing.assert_close(ours, theirs)
    flagged = advantages("refbase_grpo", batch(REWARDS, UIDS), algorithm(norm_adv_by_std_in_grpo=False))
    torch.testing.assert_close(flagged, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_padding_rows_are_out(name):
    """verl appends rows `pad...` without a valid token to ragged batches, before the advantage step."""
    clean = advantages(verl_name(name), batch(REWARDS, UIDS, MASK))
    history.reset()
    padded = batch([*REWARDS, 0.0, 0.0], [*UIDS, "pad0", "pad1"], [*MASK, [0, 0, 0], [0, 0, 0]])
    found = advantages(verl_name(name), padded)
    assert torch.equal(found[:6], clean)
    assert (found[6:] == 0).all()
    assert clean.abs().sum() > 0


@pytest.mark.parametrize("name", ["bvblend", "bvblend_eb"])
def test_padding_rows_do_not_enter_the_history(name):
    memory = {"window": 100, "decay": 0.95, "max_keys": 65536}
    advantages(name, batch(REWARDS, UIDS, MASK))
    clean = history.snapshot(memory)
    history.reset()
    advantages(name, batch([*REWARDS, 0.0], [*UIDS, "pad0"], [*MASK, [0, 0, 0]]))
    assert history.snapshot(memory) == clean
    assert clean["updates"] == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("junk", [0.0, 7.0, math.nan, math.inf])
def test_a_fully_masked_row_has_no_influence(name, junk):
    mask = [*MASK[:2], [0, 0, 0], *MASK[3:]]
    clean = advantages(verl_name(name), batch(REWARDS, UIDS, mask))
    history.reset()
    found = advantages(verl_name(name), batch([*REWARDS[:2], junk, *REWARDS[3:]], UIDS, mask))
    assert torch.equal(found, clean)
    assert found.isfinite().all()


def test_masked_rewards_count_as_in_verl_or_are_dropped():
    data = [[0.0, 1.0], [0.0, 0.0]], ["p", "p"], [[1, 0], [1, 1]]
    counted = advantages("refbase_rloo", batch(*data))
    assert torch.equal(counted, advantages("rloo", batch(*data)))
    assert per_row(counted, torch.tensor(data[2])) == [1.0, -1.0]
    dropped = advantages("refbase_rloo", batch(*data), algorithm(refbase={"masked_rewards": "drop"}))
    assert (dropped == 0).all()


def test_nan_on_a_masked_position_is_ignored():
    mask = [[1, 0], [1, 1]]
    found = advantages("shrinkage", batch([[1.0, math.nan], [0.0, 0.0]], ["p", "p"], mask))
    assert per_row(found, torch.tensor(mask)) == [1.0, -1.0]


@pytest.mark.parametrize("name", NAMES)
def test_nonfinite_return_is_an_error_or_left_out(name):
    data = [*REWARDS[:5], math.nan], UIDS
    with pytest.raises(InputError, match=r"must be finite; got nan at rollout 5 \(group 'a'\)"):
        advantages(verl_name(name), batch(*data))
    block = next(block for block, cls in BLOCKS.items() if name in cls.estimators)
    data = batch(*data)
    found = advantages(verl_name(name), data, algorithm(**{block: {"nonfinite": "exclude"}}))
    assert found.isfinite().all()
    assert (found[5] == 0).all()
    assert found.abs().sum() > 0
    assert data.batch["returns"].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_missing_uid_is_explained(name):
    with pytest.raises(InputError, match=r"`index` must hold the prompt of each rollout.*`uid` column"):
        advantages(verl_name(name), batch(REWARDS, None))


@pytest.mark.parametrize("name", NAMES)
def test_unhashable_uid_is_explained(name):
    with pytest.raises(InputTypeError, match=rf"^{verl_name(name)}: `index` must hold hashable labels; got a list at"):
        advantages(verl_name(name), batch([1.0, 0.0], [["a"], ["a"]]))


def test_messages_are_in_verls_words():
    """verl's user knows `index`, `token_level_rewards` and configuration keys, not the arguments of a kernel."""
    with pytest.raises(
        InputError, match=r"shrinkage: `token_level_rewards` must be finite.*algorithm\.shrinkage\.nonf"
    ):
        advantages("shrinkage", batch([1.0, math.nan], ["a", "a"]))
    config = algorithm(refbase={"singletons": "error"})
    with pytest.raises(InputError, match=r"refbase_rloo: `index` must give.*algorithm\.refbase\.singletons=zero for"):
        advantages("refbase_rloo", batch([1.0, 0.0, 1.0], ["a", "a", "b"]), config)
    with pytest.warns(DegenerateBatchWarning, match="refbase_rloo: each of the 2 .*Check that `index` names"):
        advantages("refbase_rloo", batch([1.0, 0.0], ["a", "b"]))
    with pytest.raises(InputError, match="`response_mask` must hold 0 and 1; got 2"):
        advantages("refbase_rloo", batch([1.0, 0.0], ["a", "a"], [[1, 2], [1, 1]]))
    with pytest.raises(InputError, match="rloo: `group_ids` must"):  # and the library speaks of its own again
        refbase.rloo([1.0, 0.0], ["a"])


@pytest.mark.parametrize("name", NAMES)
def test_outputs_share_no_memory_and_inputs_stay(name):
    data = batch(REWARDS, UIDS, MASK)
    before = data.batch["token_level_rewards"].clone()
    advantages(verl_name(name), data)
    adv, returns = data.batch["advantages"], data.batch["returns"]
    wanted = torch.tensor(REWARDS).unsqueeze(-1) * torch.tensor(MASK)
    torch.testing.assert_close(returns, wanted)
    adv.mul_(2).add_(1)
    torch.testing.assert_close(returns, wanted)
    assert torch.equal(data.batch["token_level_rewards"], before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_dtype_in_is_dtype_out(name, dtype):
    found = advantages(verl_name(name), batch([1, 0, 3, 5], ["a", "a", "b", "b"], dtype=dtype))
    assert found.dtype == (dtype if dtype.is_floating_point else torch.float32)
    assert found.abs().sum() > 0


def test_integer_rewards_are_not_truncated():
    found = advantages("refbase_rloo", batch([1, 0, 1, 1], ["p"] * 4, dtype=torch.int64))
    assert found[:, 0].tolist() == pytest.approx([1 / 3, -1, 1 / 3, 1 / 3])


def test_gvpo_gives_ragged_groups_the_weight_of_the_loss():
    """Equal groups stay as they are; otherwise 1/(k-1) per group, relative to the largest."""
    equal = advantages("gvpo", batch(REWARDS, UIDS))
    torch.testing.assert_close(equal, advantages("group_mean", batch(REWARDS, UIDS)))
    uids = ["a", "a", "b", "b", "b", "c"]
    ragged = advantages("gvpo", batch(REWARDS, uids))[:, 0]
    plain = advantages("group_mean", batch(REWARDS, uids))[:, 0]
    assert ragged.tolist() == pytest.approx([*(2 * plain[:2]).tolist(), *plain[2:5].tolist(), 0.0])
    off = advantages("gvpo", batch(REWARDS, uids), algorithm(gvpo={"size_correction": False}))[:, 0]
    assert off.tolist() == pytest.approx([*plain[:5].tolist(), 0.0])


def test_gvpo_is_along_the_gradient_of_its_loss():
    """At the sampling policy the advantages are proportional to -dL/d(log pi), groups of two and four."""
    uids = ["a", "a", "b", "b", "b", "b"]
    log_probs = torch.tensor([-1.0, -2.0, -3.0, -1.5, -2.5, -0.5], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    refbase.gvpo_loss(rewards, uids, log_probs, log_probs.detach(), 0.5).backward()
    found = advantages("gvpo", batch(REWARDS, uids, dtype=torch.float64))[:, 0]
    ratio = found / -log_probs.grad
    torch.testing.assert_close(ratio, torch.full_like(ratio, ratio[0].item()))


def test_gvpo_is_refused_where_a_stock_trainer_would_leave_its_gradient():
    """Two updates per batch: from the second on, the group means are those of another policy."""
    from omegaconf import OmegaConf

    actor = {"loss_agg_mode": "seq-mean-token-sum", "ppo_epochs": 1, "ppo_mini_batch_size": 4}
    actor["policy_loss"] = {"loss_mode": "vanilla"}

    def config(**changes):
        sections = {"algorithm": {}, "data": {"train_batch_size": 4}, "actor_rollout_ref": {"actor": actor | changes}}
        return OmegaConf.create(sections).algorithm

    assert advantages("gvpo", batch(REWARDS, UIDS), config()).abs().sum() > 0
    with pytest.raises(InputError, match="one update per batch"):
        advantages("gvpo", batch(REWARDS, UIDS), config(ppo_epochs=2))
    with pytest.raises(InputError, match="one update per batch"):
        advantages("gvpo", batch(REWARDS, UIDS), config(ppo_mini_batch_size=2))


@pytest.mark.parametrize("name", ["bvblend", "bvblend_eb", "shrinkage_history"])
def test_history_is_used_from_the_next_step_on(name):
    """A step sees earlier steps only, and the same batch again is the same step."""
    options = {} if name == "bvblend" else {"min_groups": 0}
    config = algorithm(bvblend=options)
    spec = refbase.CATALOG[name].load_spec()
    state = refbase.HistoryState.empty()
    rng = np.random.default_rng(0)
    touched = False
    for step in range(4):
        rewards = rng.integers(0, 2, 6).astype(float).tolist()
        uids = [f"{step}-{u}" for u in UIDS]
        want = spec(rewards, uids, state, **options)
        for _ in range(2):  # a retried step
            found = advantages(name, batch(rewards, uids), config)[:, 0]
            assert found.tolist() == pytest.approx(want.advantages, abs=1e-5)
        touched = touched or any(w > 0 for w in want.weight)
        state = refbase.update_history(state, rewards, uids)
    assert touched


def test_unknown_estimator_lists_the_valid_ones():
    with pytest.raises(InputError, match="unknown estimator 'shrinkge'; did you mean 'shrinkage'") as caught:
        advantages("shrinkge", batch(REWARDS, UIDS))
    assert all(name in str(caught.value) for name in (*ESTIMATORS, "grpo"))


def test_groups_of_one_warn():
    with pytest.warns(DegenerateBatchWarning):
        advantages("refbase_rloo", batch([1.0, 0.0], ["a", "b"]))


def test_every_estimator_is_registered():
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    assert set(ESTIMATORS) == {verl_name(name) for name in refbase.CATALOG}
    assert {"shrinkage", "shrinkage_js", "bvblend", "bvblend_eb", "shrinkage_history", "gvpo"} <= set(ESTIMATORS)
    for name, function in ESTIMATORS.items():
        assert ADV_ESTIMATOR_REGISTRY[name] is function
