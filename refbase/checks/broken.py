"""Deliberately wrong estimators: each makes a mistake that public code made, and breaks the law against it.

They calibrate the suite. `BROKEN` lists them with the report that shows the mistake and the laws that must
reject it; the tests run both directions, so that no mistake passes and no law lets everything through.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from refbase.checks.broken_memory import MEMORIES, memory_subject
from refbase.checks.catalogue import catalogue_subject, past_state, with_state
from refbase.checks.subject import Subject
from refbase.estimate import Estimate

_LOCAL = ("shift", "zero_sum", "constant_zero", "group_local")


@dataclass(frozen=True)
class Broken:
    """One wrong estimator.

    Parameters
    ----------
    mistake
        What it does wrong.
    source
        The public report, as repository#number, or the public code, where the mistake was made.
    laws
        Ids of laws that reject it, the most telling first.
    """

    subject: Subject
    mistake: str
    source: str
    laws: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.subject.name


# --- what the mistakes are built from -----------------------------------------------------------------


def _codes(group_ids: Sequence[Hashable]) -> Any:
    import torch

    index = {label: code for code, label in enumerate(dict.fromkeys(group_ids))}
    return torch.tensor([index[label] for label in group_ids], dtype=torch.long)


def _groups(group_ids: Sequence[Hashable], valid: Any = None) -> list[Any]:
    """Positions of the valid rows of each group."""
    import torch

    codes = _codes(group_ids)
    keep = torch.ones(len(codes), dtype=torch.bool) if valid is None else valid
    rows = [((codes == code) & keep).nonzero()[:, 0] for code in codes.unique()]
    return [r for r in rows if len(r)]


def _per_group(rule: Callable[[Any], Any]) -> Callable[..., Any]:
    """A correct frame around a rule for the rewards of one group."""

    def estimate(rewards: Any, group_ids: Sequence[Hashable], valid: Any = None, **options: Any) -> Any:
        import torch

        floating = rewards.dtype.is_floating_point
        wide = rewards.detach() if floating else rewards.to(torch.get_default_dtype())
        out = torch.zeros_like(wide)
        for rows in _groups(group_ids, valid):
            out[rows] = rule(wide[rows]).to(out.dtype)
        return out

    return estimate


def _centred(values: Any) -> Any:
    exact = values.double()
    return (exact - exact[:1]) - (exact - exact[:1]).mean()


# --- groups -------------------------------------------------------------------------------------------


def whole_batch_mean(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """One mean for all prompts."""
    return _per_group(_centred)(rewards, [0] * len(rewards), valid)


def fixed_stride(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Groups cut every four rows, whatever the labels."""
    return _per_group(_centred)(rewards, [row // 4 for row in range(len(rewards))], valid)


def ragged_falls_back(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Groups of unequal size become one group."""
    sizes = {len(rows) for rows in _groups(group_ids)}
    return _per_group(_centred)(rewards, group_ids if len(sizes) <= 1 else [0] * len(rewards), valid)


def labels_as_numbers(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Labels that look like numbers are compared as numbers."""

    def number(label: Hashable) -> Hashable:
        try:
            return float(label)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return label

    return _per_group(_centred)(rewards, [number(label) for label in group_ids], valid)


def labels_in_single_precision(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Whole-number labels go through a float32 tensor."""
    import torch

    if all(isinstance(label, int) for label in group_ids):
        group_ids = torch.tensor(group_ids, dtype=torch.float32).tolist()
    return _per_group(_centred)(rewards, group_ids, valid)


def labels_sorted(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Labels are sorted to find the groups, which labels of mixed types do not allow."""
    order = {label: code for code, label in enumerate(sorted(set(group_ids)))}
    return _per_group(_centred)(rewards, [order[label] for label in group_ids], valid)


def _first_only(values: Any) -> Any:
    """The mean of the first rollout alone."""
    return values - values[:1]


# --- formulas -----------------------------------------------------------------------------------------


def _mean_added_back(values: Any) -> Any:
    """Scaled and centred, with the unscaled mean added again."""
    if len(values) == 1:
        return values
    return _centred(values) / (values.double().std() + 1e-6) + values.double().mean()


def _variance_floored(values: Any) -> Any:
    """The variance floored at the epsilon before the root."""
    if len(values) == 1:
        return values
    return _centred(values) / (values.double().var().clamp(min=1e-6).sqrt() + 1e-6)


def _std_all_the_same(values: Any) -> Any:
    """Divided by the deviation although it was switched off."""
    if len(values) == 1:
        return values
    return _centred(values) / (values.double().std() + 1e-6)


def _nan_for_one(values: Any) -> Any:
    """Bessel's deviation of one rollout: 0/0."""
    return _centred(values) / (values.double().std() + 1e-6)


def _in_single_precision(values: Any) -> Any:
    """Mean and deviation in the rewards' own precision."""
    if len(values) == 1:
        return values
    return (values - values.mean()) / (values.std() + 1e-6)


def _loo_in_single_precision(values: Any) -> Any:
    """Leave-one-out mean as (sum - r)/(m - 1) in the rewards' own precision."""
    m = len(values)
    return values if m == 1 else values - (values.sum() - values) / (m - 1)


def reported_without_the_std(rewards: Any, group_ids: Any, valid: Any = None) -> Estimate:
    """Divides by the group's deviation and says that it did not."""
    from refbase.kernels.grpo import grpo

    return replace(grpo(rewards, group_ids, valid), scale=None)


def history_lost_on_reload(rewards: Any, group_ids: Any, valid: Any = None) -> Estimate:
    """Blends with 0 while it reports the history's mean as its target."""
    from refbase.kernels.bvblend_eb import bvblend_eb

    good = with_state(bvblend_eb, past_state(float))(rewards, group_ids, valid)
    lost = good.weight * good.target.nan_to_num()
    return replace(good, baseline=good.baseline - lost, advantages=good.advantages + lost)


def own_group_in_the_spread(rewards: Any, group_ids: Any, valid: Any = None) -> Estimate:
    """The blend of `shrinkage_js` by a weight whose noise and spread are those of all prompts, the own one included."""
    import torch

    from refbase.kernels.shrinkage_js import shrinkage_js

    good = shrinkage_js(rewards, group_ids, valid)
    groups = [rows for rows in _groups(group_ids, valid) if len(rows) > 1]
    if len(groups) < 4:
        return good
    values = rewards.double()
    noise = sum(_centred(values[rows]).square().sum() for rows in groups) / sum(len(rows) - 1 for rows in groups)
    spread = torch.stack([values[rows].mean() for rows in groups]).var()
    weight = good.weight.double()
    for rows in groups:
        v = noise / (len(rows) - 1)
        weight[rows] = v / (v + spread) if noise > 0 else 0.0
    return _reblended(good, weight)


def own_noise_against_history(rewards: Any, group_ids: Any, valid: Any = None) -> Estimate:
    """`bvblend_eb` with the variance of the own group, which holds the own reward, in place of history's."""
    from refbase.kernels.bvblend_eb import bvblend_eb

    state = past_state(float)
    good = with_state(bvblend_eb, state)(rewards, group_ids, valid)
    doubt = state.keys[None].between_variance + state.keys[None].mean_variance
    weight = good.weight.double()
    for rows in _groups(group_ids, valid):
        if len(rows) > 1:
            v = rewards[rows].double().var() / (len(rows) - 1)
            weight[rows] = v / (v + doubt)
    return _reblended(good, weight)


def _reblended(good: Estimate, weight: Any) -> Estimate:
    """The same local means and targets under another weight, where both exist."""
    weight = weight.to(good.weight.dtype)
    baseline = good.local + weight * (good.target - good.local)
    baseline = baseline.where(baseline.isfinite(), good.baseline)
    return replace(good, weight=weight, baseline=baseline, advantages=good.advantages + good.baseline - baseline)


# --- masks --------------------------------------------------------------------------------------------


def masked_rows_vote(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Rows under an empty mask count in the group's mean."""
    advantages = _per_group(_centred)(rewards, group_ids)
    return advantages if valid is None else advantages.where(valid, 0)


def masked_by_product(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """The mask is multiplied in, so NaN times 0 stays NaN."""
    if valid is None:
        return _per_group(_centred)(rewards, group_ids)
    out = rewards * 0
    for rows in _groups(group_ids):
        weights = valid[rows].to(rewards.dtype)
        mean = (rewards[rows] * weights).sum() / weights.sum().clamp(min=1)
        out[rows] = (rewards[rows] - mean) * weights
    return out


def shifted_under_the_mask(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Whitening shifts the masked rows as well."""
    kept = rewards.double() if valid is None else rewards[valid].double()
    if len(kept) < 2:
        return rewards * 0
    return ((rewards.double() - kept.mean()) / (kept.std() + 1e-8)).to(rewards.dtype)


def raises_without_valid_rows(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Whitening refuses a batch in which nothing is left."""
    if valid is not None and not bool(valid.any()):
        raise ZeroDivisionError("the sum of the mask is zero")
    return _per_group(_centred)(rewards, group_ids, valid)


# --- arrays -------------------------------------------------------------------------------------------


def first_row_of_nothing(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Reads row 0 of an empty batch."""
    return _per_group(_centred)(rewards - rewards[0] * 0, group_ids, valid)


def nan_spreads(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """A NaN reward goes into the mean of its group."""
    return _per_group(_centred)(rewards, group_ids, valid)


def always_double(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Statistics in float64, and the result left there."""
    return _per_group(_centred)(rewards.double(), group_ids, valid)


def integer_buffer(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """The result is written into a buffer of the rewards' integer type."""
    exact = _per_group(_centred)(rewards, group_ids, valid)
    return exact if rewards.dtype.is_floating_point else exact.to(rewards.dtype).to(exact.dtype)


def ignores_the_offset(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Reads the memory under a view from its beginning."""
    import torch

    whole = torch.empty(0, dtype=rewards.dtype).set_(rewards.untyped_storage())
    return _per_group(_centred)(whole[: len(rewards)] if len(whole) >= len(rewards) else rewards, group_ids, valid)


def centred_in_place(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Subtracts the mean from the caller's tensor."""
    advantages = _per_group(_centred)(rewards, group_ids, valid)
    if rewards.dtype.is_floating_point and not rewards.requires_grad:
        rewards.copy_(advantages)
    return advantages


def one_tensor_twice(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Returns one tensor as advantages and as returns."""
    advantages = _per_group(_centred)(rewards, group_ids, valid)
    return advantages, advantages


def keeps_the_graph(rewards: Any, group_ids: Any, valid: Any = None) -> Any:
    """Returns advantages that are attached to the rewards."""
    advantages = _per_group(_centred)(rewards, group_ids, valid)
    return advantages + 0 * rewards if rewards.requires_grad else advantages


class CountsItsCalls:
    """Keeps a running mean of all rewards that it was ever called with, and subtracts that."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def __call__(self, rewards: Any, group_ids: Any, valid: Any = None) -> Any:
        self.total, self.count = self.total + float(rewards.double().sum()), self.count + len(rewards)
        return rewards - self.total / max(self.count, 1)


# --- the table ----------------------------------------------------------------------------------------


def _torch(
    name: str,
    call: Callable[..., Any],
    mistake: str,
    source: str,
    laws: tuple[str, ...],
    claims: tuple[str, ...] = _LOCAL,
    **how: Any,
) -> Broken:
    subject = Subject(
        name=name,
        call=call,
        claims=frozenset(claims),
        numbers="torch",
        code=f"from refbase.checks.broken import BROKEN\nestimator = BROKEN[{name!r}].subject.call",
        **how,
    )
    return Broken(subject, mistake, source, laws)


def _catalogued(
    name: str, mistake: str, source: str, laws: tuple[str, ...], subject: Subject, claims: tuple[str, ...] = ()
) -> Broken:
    return Broken(replace(subject, name=name, claims=subject.claims | set(claims)), mistake, source, laws)


_ENTRIES = (
    _torch(
        "whole_batch_mean",
        whole_batch_mean,
        "one mean for all prompts",
        "linkedin/Liger-Kernel#553",
        ("group_local", "zero_sum"),
    ),
    _torch(
        "fixed_stride",
        fixed_stride,
        "groups cut every group_size rows instead of by label",
        "areal-project/AReaL#1419",
        ("permutation", "copies", "zero_sum", "group_local"),
    ),
    _torch(
        "ragged_falls_back",
        ragged_falls_back,
        "groups of unequal size become one group",
        "THUDM/slime#1414",
        ("zero_sum", "group_local"),
    ),
    _torch(
        "labels_as_numbers",
        labels_as_numbers,
        'labels coerced to numbers, so "7" and "007" are one group',
        "verl 0.9.1, verl/utils/groupwise.py: as_torch_index",
        ("relabel",),
    ),
    _torch(
        "labels_in_single_precision",
        labels_in_single_precision,
        "whole-number labels go through float32 and merge beyond 2**24",
        "verl 0.9.1, verl/utils/groupwise.py: as_torch_index",
        ("copies",),
    ),
    _torch(
        "labels_sorted",
        labels_sorted,
        "labels are sorted, which mixed types do not allow",
        "verl 0.9.1, verl/utils/groupwise.py: as_torch_index",
        ("relabel",),
    ),
    _torch(
        "first_rollout_only",
        _per_group(_first_only),
        "only the first rollout enters the statistics",
        "ServiceNow/PipelineRL#54",
        ("own_reward_independent", "unbiased", "permutation", "zero_sum"),
        (*_LOCAL, "scale", "own_reward_independent", "unbiased"),
    ),
    _torch(
        "own_reward_in_the_mean",
        _per_group(_centred),
        "a mean that includes the own reward, called independent of it",
        "jsboige/CoursIA#15256",
        ("own_reward_independent", "unbiased"),
        (*_LOCAL, "scale", "own_reward_independent", "unbiased"),
    ),
    _torch(
        "own_group_in_the_spread",
        own_group_in_the_spread,
        "shrinks by a weight estimated from all prompts, the own one included, from four prompts on",
        "jsboige/CoursIA#15256 (a baseline that contains what it judges)",
        ("unbiased", "own_reward_independent"),
        ("shift", "scale", "own_reward_independent", "unbiased", "convex_weight"),
        parts=True,
    ),
    _torch(
        "own_noise_against_history",
        own_noise_against_history,
        "weighs history against the variance of the own group, which holds the own reward",
        "arXiv 2606.28707 (its weight does so, and its authors claim no unbiasedness)",
        ("unbiased", "own_reward_independent"),
        ("group_local", "own_reward_independent", "unbiased", "convex_weight"),
        parts=True,
        context=(Fraction(0), Fraction(1)),
    ),
    _torch(
        "mean_added_back",
        _per_group(_mean_added_back),
        "centred and scaled, and the unscaled mean added again",
        "THUDM/slime#1369",
        ("shift", "scale_invariant", "zero_sum"),
        (*_LOCAL, "scale_invariant"),
    ),
    _torch(
        "variance_floored",
        _per_group(_variance_floored),
        "the variance is floored at the epsilon before the root",
        "verl#6348",
        ("scale_invariant",),
        (*_LOCAL, "scale_invariant"),
        options={"eps": 1e-6},
    ),
    _torch(
        "divides_although_told_not_to",
        _per_group(_std_all_the_same),
        "the flag that switches the division off does not arrive",
        "verl#7893",
        ("scale", "unbiased_up_to_factor"),
        (*_LOCAL, "scale", "unbiased_up_to_factor"),
    ),
    _torch(
        "nan_for_a_group_of_one",
        _per_group(_nan_for_one),
        "divides by m - 1 in a group of one",
        "verl-recipe#9",
        ("finite",),
        ("group_local",),
    ),
    _torch(
        "mean_in_single_precision",
        _per_group(_in_single_precision),
        "mean and deviation in float32: equal rewards get an advantage",
        "verl#4598",
        ("constant_zero", "large_offset"),
        (*_LOCAL, "scale_invariant"),
    ),
    _torch(
        "sums_in_single_precision",
        _per_group(_loo_in_single_precision),
        "leave-one-out mean from a float32 sum",
        "verl#4598",
        ("constant_batch", "constant_zero", "large_offset", "reference"),
        (*_LOCAL, "scale", "own_reward_independent", "unbiased"),
        reference=catalogue_subject("rloo").reference,
    ),
    _torch(
        "reported_without_the_std",
        reported_without_the_std,
        "A is divided by the deviation, and the result says that it is r - b",
        "verl#7893",
        ("baseline_identity",),
        (*_LOCAL, "convex_weight"),
        parts=True,
    ),
    _torch(
        "history_lost_on_reload",
        history_lost_on_reload,
        "the running estimate is 0 after a reload, while the reported one is not",
        "Metta-AI/metta#902",
        ("convex_weight",),
        ("group_local", "convex_weight"),
        parts=True,
    ),
    _torch(
        "masked_rows_vote",
        masked_rows_vote,
        "rows under an empty mask count in the group's statistics",
        "verl#6452",
        ("masked_absent", "masked_inert"),
    ),
    _torch(
        "masked_by_product",
        masked_by_product,
        "the mask is multiplied in, so NaN on masked rows spreads",
        "verl#6349",
        ("masked_inert",),
    ),
    _torch(
        "shifted_under_the_mask",
        shifted_under_the_mask,
        "whitening shifts masked rows too, and nothing sets them back",
        "verl#1527",
        ("masked_zero",),
        (),
    ),
    _torch(
        "raises_without_valid_rows",
        raises_without_valid_rows,
        "whitening raises in a batch without valid tokens",
        "alibaba/ROLL#475",
        ("all_masked",),
    ),
    _torch(
        "first_row_of_nothing",
        first_row_of_nothing,
        "an index that does not exist when there is nothing",
        "verl#6310",
        ("empty_batch",),
    ),
    _torch(
        "nan_spreads",
        nan_spreads,
        "one NaN reward makes its whole group NaN",
        "modelscope/ms-swift#9767",
        ("nan_contained",),
    ),
    _torch(
        "always_double",
        always_double,
        "float64 comes out whatever went in",
        "verl#7964",
        ("output_dtype",),
    ),
    _torch(
        "integer_buffer",
        integer_buffer,
        "fractions are truncated in an integer buffer",
        "PrimeIntellect-ai/prime-rl#2029",
        ("whole_numbers",),
    ),
    _torch(
        "ignores_the_offset",
        ignores_the_offset,
        "a slice gets the numbers of other rows",
        "tenstorrent/tt-metal#46412",
        ("strided",),
    ),
    _torch(
        "centred_in_place",
        centred_in_place,
        "the caller's rewards are overwritten",
        "NovaSky-AI/SkyRL#773",
        ("inputs_untouched",),
    ),
    _torch(
        "one_tensor_twice",
        one_tensor_twice,
        "advantages and returns are one tensor",
        "NovaSky-AI/SkyRL#773",
        ("own_storage",),
    ),
    _torch(
        "keeps_the_graph",
        keeps_the_graph,
        "advantages carry the rewards' graph",
        "lcswillems/rl-starter-files#6 (asked there, and found guarded)",
        ("no_graph",),
    ),
    _torch(
        "counts_its_calls",
        CountsItsCalls(),
        "statistics move on every call, evaluation included",
        "DLR-RM/rl-baselines3-zoo#276",
        ("deterministic",),
        (),
    ),
    _catalogued(
        "hidden_epsilon",
        "1e-6 is added to a denominator that has the unit of a squared reward",
        "released code of arXiv 2511.03710 (JSPO-Official)",
        ("scale",),
        catalogue_subject("shrinkage", "exact", variant="released"),
        ("scale",),
    ),
    _catalogued(
        "hidden_epsilon_in_floats",
        "the same in floats, where it takes small rewards to see it",
        "released code of arXiv 2511.03710 (JSPO-Official)",
        ("extreme_scale",),
        catalogue_subject("shrinkage", "torch", variant="released"),
        ("scale",),
    ),
    *(Broken(memory_subject(mistake), mistake.what, mistake.source, mistake.laws) for mistake in MEMORIES),
)

BROKEN: dict[str, Broken] = {entry.name: entry for entry in _ENTRIES}
