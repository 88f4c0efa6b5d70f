"""GVPO: centred returns, and the group-variance loss on sequence log-probabilities."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, Group, assemble, mean, read_groups, total


def gvpo(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    nonfinite: str = "raise",
) -> Estimate:
    """Centred return: GVPO's weights at the sampling policy.

    **Definition.** `group_mean`, except that a group of one gets 0::

        baseline_j  = mean of the group's rewards
        advantage_j = reward_j - baseline_j

    At the policy that sampled the rollouts, and with it as the reference, the log-ratios of `gvpo_weights` are 0 and
    this is the weight of each rollout's score. Elsewhere use `gvpo_weights` or `gvpo_loss`.

    Parameters
    ----------
    rewards
        (N,) numbers, one return per rollout, in any reward unit. Torch tensors of any real dtype are computed by
        the kernel; arrays and sequences (float, int, ``Fraction``, sympy) by this function.
    group_ids
        (N,) hashable labels: the prompt that each rollout answers. Rows may come in any order.
    valid
        (N,) booleans or 0 and 1; False takes a rollout out of every statistic. Default: all True.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local`` is the group mean; ``weight`` is 0, ``target`` and ``scale`` are None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`.

    Edge cases
    ----------
    Group of one: advantage 0, since its own reward is its mean. Constant group: exactly 0. No valid rollout: zeros.
    Empty batch: `InputError`.

    Laws
    ----
    shift, zero_sum, constant_zero, group_local, scale, convex_weight

    Differs from
    ------------
    The gradient of the loss carries a further beta/(k - 1) per group, k its size: with groups of different sizes these
    advantages alone do not give its direction.
    verl 0.9.1 ``grpo`` with ``norm_adv_by_std_in_grpo=False``: equal for groups of two and more.

    References
    ----------
    Zhang et al., "GVPO: Group Variance Policy Optimization", arXiv 2504.19599.

    Examples
    --------
    >>> import refbase
    >>> refbase.gvpo([1.0, 0.0, 7.0], ["a", "a", "b"]).advantages
    [0.5, -0.5, 0.0]
    """
    groups, n_rows = read_groups("gvpo", rewards, group_ids, valid, nonfinite)
    # A group of one has its own reward as mean, so it contributes nothing, as the 1/(k-1) loss demands.
    return assemble("gvpo", groups, n_rows, lambda i, j: Blend(local=groups[i].mean))


def gvpo_weights(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    log_probs: Sequence[Any],
    ref_log_probs: Sequence[Any],
    beta: Any,
    valid: Sequence[bool] | None = None,
    *,
    nonfinite: str = "raise",
) -> list[Any]:
    """GVPO's weight of each rollout's score at the current policy.

    **Definition.** With R = rewards and I = beta * (log_probs - ref_log_probs), bars for means over the group::

        w_j = (R_j - R_bar) - (I_j - I_bar)

    The gradient of the group's loss is -beta/(k - 1) * sum_j w_j * (gradient of log_probs_j).

    Parameters
    ----------
    rewards
        (N,) numbers, one return per rollout. A tensor makes all others tensors.
    group_ids
        (N,) hashable labels: the prompt that each rollout answers.
    log_probs, ref_log_probs
        (N,) log-probabilities of whole sequences: sums over valid tokens, see `refbase.tokens.sequence_log_probs`.
    beta
        Positive strength of the KL constraint, in the reward's unit.
    valid
        (N,) booleans or 0 and 1. Whatever invalid rows hold has no influence. Default: all True.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Tensor or list
        (N,) weights, 0 on invalid rows and in groups of one. Tensors have the rewards' floating dtype and no graph.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; `beta` not positive; a non-finite log-probability of a valid
        row.

    Edge cases
    ----------
    Group of one: 0. Equal R - I within a group: exactly 0. No valid rollout: zeros. Empty batch: `InputError`.

    References
    ----------
    Zhang et al., "GVPO: Group Variance Policy Optimization", arXiv 2504.19599.

    Examples
    --------
    >>> import refbase
    >>> refbase.gvpo_weights([1.0, 0.0], ["a", "a"], [-1.0, -2.0], [-2.0, -2.0], beta=0.5)
    [0.25, -0.25]
    """
    groups, gaps, n_rows = _gaps("gvpo_weights", rewards, group_ids, log_probs, ref_log_probs, beta, valid, nonfinite)
    zero = rewards_zero(groups)
    weights = [zero] * n_rows
    for group, gap in zip(groups, gaps, strict=True):
        centre = mean(gap)
        for row, value in zip(group.rows, gap, strict=True):
            weights[row] = value - centre
    return weights


def gvpo_loss(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    log_probs: Sequence[Any],
    ref_log_probs: Sequence[Any],
    beta: Any,
    valid: Sequence[bool] | None = None,
    *,
    reduction: str = "mean",
    nonfinite: str = "raise",
) -> Any:
    """GVPO's loss: half the variance of reward minus implicit reward in each group.

    **Definition.** For a group of k rollouts with the weights w of `gvpo_weights`::

        L = 1/(2 * (k - 1)) * sum_j w_j^2

    Parameters
    ----------
    rewards
        (N,) numbers, one return per rollout. A tensor makes all others tensors.
    group_ids
        (N,) hashable labels: the prompt that each rollout answers.
    log_probs, ref_log_probs
        (N,) log-probabilities of whole sequences: sums over valid tokens, see `refbase.tokens.sequence_log_probs`.
    beta
        Positive strength of the KL constraint, in the reward's unit.
    valid
        (N,) booleans or 0 and 1. Whatever invalid rows hold has no influence. Default: all True.
    reduction
        ``"mean"`` over the groups of two and more, ``"sum"``, or ``"none"``: one value per group, in order of first
        appearance.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Tensor or number
        The loss, differentiable in `log_probs` and of its dtype if they are tensors.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; `beta` not positive; a non-finite log-probability of a valid
        row; an unknown `reduction`.

    Edge cases
    ----------
    Group of one: 0, and not counted in the mean. No group of two: 0. No valid rollout: 0. Empty batch: `InputError`.

    Differs from
    ------------
    The released code needs equal group sizes; here each group has its own k, so that every group of two or more is an
    unbiased estimate of the population loss.

    References
    ----------
    Zhang et al., "GVPO: Group Variance Policy Optimization", arXiv 2504.19599.

    Examples
    --------
    >>> import refbase
    >>> refbase.gvpo_loss([1.0, 0.0], ["a", "a"], [-1.0, -2.0], [-2.0, -2.0], beta=0.5)
    0.0625
    """
    validate.check_choice("gvpo_loss", "reduction", reduction, validate.REDUCTIONS)
    groups, gaps, _ = _gaps("gvpo_loss", rewards, group_ids, log_probs, ref_log_probs, beta, valid, nonfinite)
    losses = []
    for gap in gaps:
        if len(gap) == 1:
            losses.append(gap[0] * 0)
            continue
        centre = mean(gap)
        losses.append(total([(value - centre) * (value - centre) for value in gap]) / (2 * (len(gap) - 1)))
    if reduction == "none":
        return losses
    if not losses:
        return rewards_zero(groups)
    informed = sum(len(gap) > 1 for gap in gaps)
    return total(losses) / max(informed, 1) if reduction == "mean" else total(losses)


def rewards_zero(groups: Sequence[Group]) -> Any:
    return groups[0].rewards[0] * 0 if groups else 0.0


def _gaps(
    where: str,
    rewards: Any,
    group_ids: Any,
    log_probs: Any,
    ref_log_probs: Any,
    beta: Any,
    valid: Any,
    nonfinite: str,
) -> tuple[list[Group], list[list[Any]], int]:
    """Per group, R - beta*(log_prob - ref_log_prob) of each valid rollout."""
    validate.check_number(where, "beta", beta, 0, open_low=True)
    groups, n_rows = read_groups(where, rewards, group_ids, valid, nonfinite)
    current = validate.read_per_row(where, "log_probs", log_probs, n_rows)
    reference = validate.read_per_row(where, "ref_log_probs", ref_log_probs, n_rows)
    for group in groups:
        for row in group.rows:
            validate.check_number(where, f"log_probs[{row}]", current[row])
            validate.check_number(where, f"ref_log_probs[{row}]", reference[row])
    gaps = [
        [r - beta * (current[row] - reference[row]) for row, r in zip(group.rows, group.rewards, strict=True)]
        for group in groups
    ]
    return groups, gaps, n_rows
