"""GVPO: centred returns, and the group-variance loss on sequence log-probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refbase import validate
from refbase.estimate import Estimate
from refbase.kernels._segments import blend, read_batch


def gvpo(rewards: Tensor, group_ids: Any, valid: Any = None, *, nonfinite: str = "raise") -> Estimate:
    """Centred return, the weights at the sampling policy; see `refbase.gvpo`."""
    batch = read_batch("gvpo", rewards, group_ids, valid, nonfinite)
    # A group of one has its own reward as mean, so it contributes nothing, as the 1/(k-1) loss demands.
    return blend(batch, local=batch.mean_offset[batch.codes])


def gvpo_weights(
    rewards: Tensor,
    group_ids: Any,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    beta: float,
    valid: Any = None,
    *,
    nonfinite: str = "raise",
) -> Tensor:
    """w = (R - mean R) - (beta*log-ratio - its mean) per rollout; see `refbase.gvpo_weights`."""
    with torch.no_grad():
        rows, residual, _ = _residuals(
            "gvpo_weights", rewards, group_ids, log_probs, ref_log_probs, beta, valid, nonfinite
        )
        dtype = rewards.dtype if rewards.dtype.is_floating_point else torch.get_default_dtype()
        out = torch.zeros(rewards.shape, dtype=dtype, device=rewards.device)
        if rows.kept is None:
            out.copy_(residual)
        else:
            out[rows.kept] = residual.to(dtype)
        return out


def gvpo_loss(
    rewards: Tensor,
    group_ids: Any,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    beta: float,
    valid: Any = None,
    *,
    reduction: str = "mean",
    nonfinite: str = "raise",
) -> Tensor:
    """L = 1/(k-1) * 1/2 * sum_i w_i^2 per group; see `refbase.gvpo_loss`."""
    validate.check_choice("gvpo_loss", "reduction", reduction, validate.REDUCTIONS)
    rows, residual, size = _residuals("gvpo_loss", rewards, group_ids, log_probs, ref_log_probs, beta, valid, nonfinite)
    losses = _group_sum(residual * residual, rows) / (2 * (size - 1).clamp(min=1))
    losses = losses.to(log_probs.dtype if log_probs.dtype.is_floating_point else torch.get_default_dtype())
    if reduction == "none":
        return losses
    informed = (size > 1).sum().clamp(min=1)
    return losses.sum() / informed if reduction == "mean" else losses.sum()


def _residuals(
    where: str,
    rewards: Tensor,
    group_ids: Any,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    beta: float,
    valid: Any,
    nonfinite: str,
) -> tuple[validate.TensorRows, Tensor, Tensor]:
    """Centred R - beta*(log_prob - ref_log_prob) of the valid rows, float64, and the group sizes."""
    validate.check_number(where, "beta", beta, 0, open_low=True)
    rows = validate.read_tensor_rows(where, rewards, group_ids, valid, nonfinite)
    validate.check_tensor_per_row(where, "log_probs", log_probs, rewards.shape[0])
    validate.check_tensor_per_row(where, "ref_log_probs", ref_log_probs, rewards.shape[0])
    # Rows are selected before any arithmetic, so what invalid rows hold reaches neither value nor gradient.
    current, reference = _select(log_probs, rows), _select(ref_log_probs.detach(), rows)
    for argument, values in (("log_probs", current), ("ref_log_probs", reference)):
        bad = ~values.detach().isfinite()
        if bool(bad.any()):
            position = int(bad.nonzero()[0, 0])
            row = position if rows.kept is None else int(rows.kept[position])
            validate.check_number(where, f"{argument}[{row}]", float(values[position]))
    gap = rows.values - float(beta) * (current - reference)
    size = _group_sum(torch.ones_like(rows.values), rows)
    # Centre on a member first: groups of equal gaps have exactly zero residuals.
    anchor = rows.values.new_zeros(rows.n_groups)
    anchor = anchor.scatter_reduce(0, rows.codes, gap.detach(), "amin", include_self=False)
    centred = gap - anchor[rows.codes]
    return rows, centred - (_group_sum(centred, rows) / size)[rows.codes], size


def _select(values: Tensor, rows: validate.TensorRows) -> Tensor:
    values = values.to(rows.values.device)
    return (values if rows.kept is None else values[rows.kept]).double()


def _group_sum(values: Tensor, rows: validate.TensorRows) -> Tensor:
    return values.new_zeros(rows.n_groups).index_add(0, rows.codes, values)
