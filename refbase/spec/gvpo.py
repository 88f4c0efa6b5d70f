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
    """Centred return, the weights at the sampling policy; see `refbase.gvpo`."""
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
    """w = (R - mean R) - (beta*log-ratio - its mean) per rollout; see `refbase.gvpo_weights`."""
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
    """L = 1/(k-1) * 1/2 * sum_i w_i^2 per group; see `refbase.gvpo_loss`."""
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
