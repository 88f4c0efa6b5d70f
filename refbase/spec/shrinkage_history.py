"""Shrinkage towards what the other prompts and earlier steps say together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.history import HistoryState, Key, KeyHistory, group_keys
from refbase.spec._groups import Blend, Group, assemble, mean, read_groups, total
from refbase.spec._history import keyed_history
from refbase.spec._numbers import larger
from refbase.spec.shrinkage_js import corrected_weight, excess_variance, observed_spread, reliable


def shrinkage_history(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    state: HistoryState,
    valid: Sequence[bool] | None = None,
    history_keys: Sequence[Key] | None = None,
    *,
    min_groups: Any = 16,
    nonfinite: str = "raise",
) -> Estimate:
    """James-Stein baseline towards the other prompts' mean and a historical mean, each by its precision.

    **Definition.** For rollout j of prompt i. From the other prompts k of the step that have the same history key, in
    words of `shrinkage_js`: sigma2_b, kappa, n, and S, noise and V, here divided by (Q - sum q_k^2/Q). From the history
    of the key, in words of `bvblend_eb`: H, sigma2_h, tau2, average 1/m_h, N effective groups::

        drift   = squared error of H because the level moves, 0 within two standard errors (`KeyHistory.drift`)
        tau2_h  = tau2 - drift
        N_h     = N * W / (W + N * drift),  W = tau2_h + sigma2_h * average 1/m_h
        c       = (n - 2) / (n - 2 + N_h)                       the others' share in what is pooled
        sigma2  = c * sigma2_b + (1 - c) * sigma2_h
        t       = c * (S/A * (1 + 1/(kappa + N_h)) - noise) + (1 - c) * tau2_h,  A = (n - 3 + N_h)/(n - 1 + N_h)
        spread  = t / (1 + c^2 * V/t^2) if t > 0 else 0
        V_b     = (spread + sigma2 * average 1/m_k) / (number of other prompts)
        V_h     = (spread + sigma2 * average 1/m_h) / N + drift
        target  = (V_h * mean of mu_k + V_b * H) / (V_b + V_h)
        v       = sigma2 / (m_i - 1)
        g       = v + spread + V_b * V_h / (V_b + V_h)
        w       = v / max(g, c * (local - target)^2 * (n - 1)/(n * (n - 3)))

    Parameters
    ----------
    rewards, group_ids, valid
        (N,) each; as for the estimators without a state.
    state
        `HistoryState` of the steps before this one. It is read, never changed; see `update_history`.
    history_keys
        (N,) strings, ints or None, equal within a group. Prompts of one key share a history and are the other prompts
        to each other. Default: one key for all.
    min_groups
        A history of fewer effective groups is not used where there are other prompts or rollouts.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local`` is the leave-one-out mean, ``target`` the precision-weighted mean; ``scale`` is None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; `min_groups` negative; `state` no HistoryState; history keys
        that differ within a group.

    Edge cases
    ----------
    In this order: no history, or fewer effective groups than `min_groups`: `shrinkage_js` among the prompts of the key
    (for one rollout without any other: H, or its raw reward if there is no H). No other prompt: target H, c = 0. Group
    of one: w = 1. Fewer than three other prompts with two rollouts, or none of them with a spread: c = 0. V_b + V_h =
    0: the target weighs by numbers of groups. sigma2 = 0: w = 0. Constant group: not 0 in general. No valid rollout:
    zeros. Empty batch: `InputError`.

    Laws
    ----
    own_reward_independent, unbiased, convex_weight, history

    Differs from
    ------------
    `shrinkage_js` and `bvblend_eb` are its two ends: the first without a history, the second (up to drift/N in g) with
    one prompt a step. The rule is this library's; no paper and no other code has it.

    References
    ----------
    James, Stein, "Estimation with quadratic loss", Berkeley Symposium 1961.
    von Neumann, "Distribution of the ratio of the mean square successive difference to the variance", 1941.

    Examples
    --------
    >>> import refbase
    >>> state = refbase.HistoryState.empty()
    >>> prompts = [f"p{k // 2}" for k in range(32)]
    >>> state = refbase.update_history(state, [1.0, 0.0] * 16, prompts, step=1)
    >>> estimate = refbase.shrinkage_history([1.0, 1.0, 1.0, 0.0], ["a", "a", "b", "b"], state)
    >>> [round(w, 4) for w in estimate.weight]
    [0.9714, 0.9714, 0.9714, 0.9714]
    >>> [round(t, 4) for t in estimate.target]
    [0.5, 0.5, 0.5294, 0.5294]
    """
    where = "shrinkage_history"
    validate.check_number(where, "min_groups", min_groups, 0)
    groups, n_rows = read_groups(where, rewards, group_ids, valid, nonfinite)
    pasts = keyed_history(where, groups, state, history_keys, n_rows)
    keys = _keys(where, groups, history_keys, n_rows)

    def rule(i: int, j: int) -> Blend:
        group, past = groups[i], pasts[i]
        rest = [other for k, other in enumerate(groups) if k != i and keys[k] == keys[i]]
        local = mean(group.without(j)) if group.size > 1 else None
        if past is None or past.effective_groups < min_groups:
            return _without_history(group, local, rest, past)
        prior = _pool(rest, past, state.decay)
        return Blend(local, prior.target, 1 if local is None else prior.weight(group.size, local))

    return assemble(where, groups, n_rows, rule)


@dataclass(frozen=True)
class _Prior:
    """What is known about a prompt's true mean before its own rewards are looked at."""

    target: Any
    noise: Any  # sigma2
    doubt: Any  # expected squared distance of the true mean from the target
    bound: Any  # c / (a n)

    def weight(self, size: int, local: Any) -> Any:
        if self.noise == 0:
            return 0
        v, gap = self.noise / (size - 1), local - self.target
        return v / larger(v + self.doubt, gap * gap * self.bound)


def _pool(rest: Sequence[Group], past: KeyHistory, decay: Any) -> _Prior:
    drift = past.drift(decay)
    noise, spread, number = past.within_variance, past.between_variance - drift, past.effective_groups
    of_means = spread + past.mean_noise
    worth = number * of_means / (of_means + number * drift) if drift > 0 else number

    informed = [group for group in rest if group.size > 1]
    squares = total([group.squares for group in informed]) if informed else 0
    bound = 0 * noise
    if len(informed) > 2 and squares != 0:
        n = len(informed) + 1
        share = (n - 2) / (n - 2 + worth)
        others_noise = squares / sum(group.size - 1 for group in informed)
        between, sampling, one_over_kappa = observed_spread(informed, others_noise, squares)
        # James and Stein's factor and Kish's number of groups, of all that is pooled.
        inflation = (1 + one_over_kappa / (1 + one_over_kappa * worth)) * (n - 1 + worth) / (n - 3 + worth)
        pooled = share * (between * inflation - sampling) + (1 - share) * spread
        variance = share * share * excess_variance(between, sampling, n, one_over_kappa)
        spread = reliable(larger(pooled, 0 * noise), variance)
        noise = share * others_noise + (1 - share) * noise
        bound = share * (n - 1) / (n * (n - 3))

    in_history = (spread + noise * past.inverse_sizes / past.groups) / number + drift
    if not rest:
        return _Prior(past.mean, noise, spread + in_history, bound)
    beside = (spread + total([noise / group.size for group in rest]) / len(rest)) / len(rest)
    both = beside + in_history
    trusted = in_history / both if both > 0 else len(rest) / (len(rest) + number)
    target = past.mean + trusted * (mean([group.mean for group in rest]) - past.mean)
    return _Prior(target, noise, spread + trusted * beside, bound)


def _without_history(group: Group, local: Any, rest: Sequence[Group], past: KeyHistory | None) -> Blend:
    if not rest:
        return Blend(local) if local is not None or past is None else Blend(target=past.mean, weight=1)
    target = mean([other.mean for other in rest])
    return Blend(local, target, 1 if local is None else corrected_weight(group.size, local - target, rest))


def _keys(where: str, groups: Sequence[Group], history_keys: Any, n_rows: int) -> list[Key]:
    kept = [row for group in groups for row in group.rows]
    codes = [code for code, group in enumerate(groups) for _ in group.rows]
    return group_keys(where, history_keys, kept, codes, len(groups), n_rows)
