"""Empirical-Bayes BV-Blend: James-Stein shrinkage of the leave-one-out mean towards history."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.history import HistoryState, Key, KeyHistory
from refbase.spec._groups import Blend, assemble, mean, read_groups
from refbase.spec._history import keyed_history
from refbase.spec._numbers import larger, square_root


def bvblend_eb(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    state: HistoryState,
    valid: Sequence[bool] | None = None,
    history_keys: Sequence[Key] | None = None,
    *,
    scale: str = "none",
    min_scale: Any = 0.1,
    min_groups: Any = 16,
    nonfinite: str = "raise",
) -> Estimate:
    """Historical baseline with an empirical-Bayes weight: the leave-one-out mean shrunk towards history.

    **Definition.** For rollout j of a group with m rollouts, and from the history of its key alone: H the decayed mean
    of group means, sigma2 the pooled within-group variance, tau2 = max(0, variance of the group means - sigma2 *
    average 1/m), N the effective number of groups (Kish)::

        w          = v / (v + tau2 + var_H)
        v          = sigma2 / (m - 1)
        var_H      = (tau2 + sigma2 * average 1/m) / N
        baseline_j = (1 - w) * leave-one-out mean_j + w * H

    Parameters
    ----------
    rewards, group_ids, valid
        (N,) each; as for the estimators without a state.
    state
        `HistoryState` of the steps before this one. It is read, never changed; see `update_history`.
    history_keys
        (N,) strings, ints or None, equal within a group: the history that each prompt leans on. Default: one for all.
    scale
        ``"none"``, or ``"history"``: divide by max(min_scale, sqrt(decayed mean of (reward - H)^2)), a factor that all
        groups of a key share. Dividing costs unbiased: the expected gradient keeps its direction, not its length.
    min_scale
        Positive smallest divisor, in the reward's unit.
    min_groups
        w is 0 until the history holds this many effective groups.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local`` the leave-one-out mean, ``target`` H, ``scale`` the divisor or None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; an unknown `scale`; `min_scale` not positive;
        `min_groups` negative; `state` no HistoryState; history keys that differ within a group.

    Edge cases
    ----------
    No history: `rloo`. Fewer effective groups than `min_groups`, or sigma2 = 0: w = 0. Group of one: H is the baseline
    if there is a history, else the raw reward stays. Constant group: not 0 in general. No valid rollout: zeros. Empty
    batch: `InputError`.

    Laws
    ----
    group_local, own_reward_independent, unbiased, convex_weight, history

    With ``scale="history"`` not unbiased.

    Differs from
    ------------
    `bvblend` takes the spread between prompts for the group mean's usefulness and the own rewards for its noise; here
    both come from history, so the own reward does not move its baseline. The rule is this library's; verl 0.9.1 and
    the paper have no counterpart.

    References
    ----------
    James, Stein, "Estimation with quadratic loss", Berkeley Symposium 1961.
    Chang, Wu, Chang, arXiv 2606.28707.

    Examples
    --------
    >>> import refbase
    >>> state = refbase.HistoryState.empty()
    >>> prompts = [f"p{k // 2}" for k in range(32)]
    >>> state = refbase.update_history(state, [1.0, 0.0] * 16, prompts, step=1)
    >>> estimate = refbase.bvblend_eb([1.0, 1.0], ["c", "c"], state)
    >>> [round(w, 4) for w in estimate.weight]
    [0.9697, 0.9697]
    >>> [round(b, 4) for b in estimate.baseline]
    [0.5152, 0.5152]
    """
    validate.check_choice("bvblend_eb", "scale", scale, validate.BVBLEND_EB_SCALES)
    validate.check_number("bvblend_eb", "min_scale", min_scale, 0, open_low=True)
    validate.check_number("bvblend_eb", "min_groups", min_groups, 0)
    groups, n_rows = read_groups("bvblend_eb", rewards, group_ids, valid, nonfinite)
    pasts = keyed_history("bvblend_eb", groups, state, history_keys, n_rows)

    def rule(i: int, j: int) -> Blend:
        group, past = groups[i], pasts[i]
        local = mean(group.without(j)) if group.size > 1 else None
        if past is None:
            return Blend(local, scale=None if scale == "none" else 1)
        share = 1 if local is None else bayes_weight(past, group.size, min_groups)
        divisor = None if scale == "none" else larger(square_root(past.spread_variance), min_scale)
        return Blend(local, past.mean, share, divisor)

    return assemble("bvblend_eb", groups, n_rows, rule)


def bayes_weight(past: KeyHistory, size: int, min_groups: Any) -> Any:
    """beta = v / (v + tau^2 + Var(H)) with v = sigma^2 / (m - 1), all from history."""
    v = past.within_variance / (size - 1)
    if past.effective_groups < min_groups or v == 0:
        return 0
    return v / (v + past.between_variance + past.mean_variance)
