"""BV-Blend: the group mean blended with a historical mean by their uncertainties."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.history import HistoryState, Key, KeyHistory
from refbase.spec._groups import Blend, Group, assemble, mean, read_groups, total
from refbase.spec._history import keyed_history
from refbase.spec._numbers import larger, square_root


def bvblend(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    state: HistoryState,
    valid: Sequence[bool] | None = None,
    history_keys: Sequence[Key] | None = None,
    *,
    local: str = "mean",
    scale: str = "blend",
    min_scale: Any = 0.1,
    weight: Any = None,
    nonfinite: str = "raise",
) -> Estimate:
    """BV-Blend: the group mean blended with a historical mean by their uncertainties.

    **Definition.** For rollout j of a group with mean mu and Bessel variance var (0 for one rollout), and the history
    of its key: H the decayed mean of group means, var_u their variance (ddof 0) in the window, var_H the decayed mean
    of (reward - H)^2::

        w           = var_u / (var_u + var)
        baseline_j  = (1 - w) * mu + w * H
        scale       = max(min_scale, sqrt((1 - w) * var + w * var_H))     for scale="blend"
        advantage_j = (reward_j - baseline_j) / scale

    Parameters
    ----------
    rewards, group_ids, valid
        (N,) each; as for the estimators without a state.
    state
        `HistoryState` of the steps before this one. It is read, never changed; see `update_history`.
    history_keys
        (N,) strings, ints or None, equal within a group: the history that each prompt leans on. Default: one for all.
    local
        ``"mean"``: mu and var of the whole group. ``"loo"``: of the group's other rollouts, which gains
        own_reward_independent; with one other rollout var is the historical within-group variance.
    scale
        ``"blend"`` as above; ``"group"``: max(min_scale, sqrt(var)); ``"none"``: no division, which under
        ``local="loo"`` gains unbiased.
    min_scale
        Positive smallest divisor, in the reward's unit.
    weight
        None for the formula, or a constant w in [0, 1] for groups that have a history and a local mean.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local`` the group's mean, ``target`` H, ``scale`` the divisor or None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; an unknown `local` or `scale`; `min_scale` not
        positive; `weight` outside [0, 1]; `state` no HistoryState; history keys that differ within a group.

    Edge cases
    ----------
    No history: w = 0 and the group's own deviation as scale; a group of one then keeps its raw reward, undivided.
    Group of one with history: H is its baseline. var_u = var = 0 with history: w = 1, so an all-equal group with
    rewards other than H gets advantages other than 0: the purpose of the method. No valid rollout: zeros. Empty
    batch: `InputError`.

    Laws
    ----
    group_local, convex_weight, history

    With ``local="loo"`` also own_reward_independent, and with ``scale="none"`` besides unbiased; the default is
    neither: docs/estimators/bvblend.md has an example in which its expected gradient points the wrong way.

    Differs from
    ------------
    This is the article's formula made well-defined, not a transcript of the paper, whose history is keyed by semantic
    cluster and whose weight comes from a standard-error proxy. ``scale="group"`` without a floor is the article's: it
    divides by 0 in all-equal groups. verl 0.9.1 has no counterpart.

    References
    ----------
    Chang, Wu, Chang, arXiv 2606.28707.

    Examples
    --------
    >>> import refbase
    >>> state = refbase.HistoryState.empty()
    >>> state = refbase.update_history(state, [1.0, 0.0, 0.0, 0.0], ["a", "a", "b", "b"], step=1)
    >>> state.keys[None].mean
    0.25
    >>> estimate = refbase.bvblend([1.0, 1.0], ["c", "c"], state, scale="none")
    >>> estimate.weight, estimate.baseline, estimate.advantages
    ([1.0, 1.0], [0.25, 0.25], [0.75, 0.75])
    """
    validate.check_choice("bvblend", "local", local, validate.BVBLEND_LOCALS)
    validate.check_choice("bvblend", "scale", scale, validate.BVBLEND_SCALES)
    validate.check_number("bvblend", "min_scale", min_scale, 0, open_low=True)
    if weight is not None:
        validate.check_number("bvblend", "weight", weight, 0, 1)
    groups, n_rows = read_groups("bvblend", rewards, group_ids, valid, nonfinite)
    pasts = keyed_history("bvblend", groups, state, history_keys, n_rows)

    def rule(i: int, j: int) -> Blend:
        group, past = groups[i], pasts[i]
        centre, variance = local_moments(group, j, local, past)
        if past is None:
            return Blend(centre, scale=cold_scale(variance, scale, min_scale))
        if centre is None:
            share = 1
        elif weight is not None:
            share = weight
        else:
            share = uncertainty_weight(past.window_variance, variance)
        return Blend(centre, past.mean, share, blend_scale(past, variance, share, scale, min_scale))

    return assemble("bvblend", groups, n_rows, rule)


def local_moments(group: Group, j: int, local: str, past: KeyHistory | None) -> tuple[Any, Any]:
    """The local mean and variance that rollout j sees; None where they do not exist."""
    if local == "mean":
        if group.size > 1:
            return group.mean, group.variance
        # One rollout: the raw return without history, with it the article's zero variance.
        return (None, None) if past is None else (group.mean, group.rewards[0] * 0)
    rest = group.without(j)
    if not rest:
        return None, None if past is None else past.within_variance
    if len(rest) == 1:  # one value has no variance: the historical one stands in
        return rest[0], None if past is None else past.within_variance
    centre = mean(rest)
    return centre, total([(r - centre) * (r - centre) for r in rest]) / (len(rest) - 1)


def uncertainty_weight(window_variance: Any, variance: Any) -> Any:
    """beta = sigma_u^2 / (sigma_u^2 + sigma_G^2), 1 where both are 0."""
    if window_variance + variance == 0:
        return 1
    return window_variance / (window_variance + variance)


def blend_scale(past: KeyHistory, variance: Any, share: Any, scale: str, min_scale: Any) -> Any:
    """The divisor of the advantage, or None."""
    if scale == "none":
        return None
    if scale == "group":
        return larger(square_root(variance), min_scale)
    return larger(square_root((1 - share) * variance + share * past.spread_variance), min_scale)


def cold_scale(variance: Any, scale: str, min_scale: Any) -> Any:
    """Without history the group's own deviation, or 1 where it has none to show."""
    if scale == "none":
        return None
    return 1 if variance is None else larger(square_root(variance), min_scale)
