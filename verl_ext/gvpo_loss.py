"""GVPO on a mini-batch: the weights of its rows, and a policy loss that is linear in the log-probabilities.

For one group of k rollouts, with w_i = (A_i - mean A) - (β·lr_i - mean β·lr) and lr_i = log π_θ/π_old of
the whole rollout, ∇L = -β/(k-1) Σ w_i ∇log π_θ(y_i). The w_i are numbers once θ is known, so the
worker computes them before the backward pass, from all ranks, and the loss is -Σ c_i·log π_θ(y_i) with the
constants c_i = β/(k-1)·w_i: how the rows are split into ranks and micro-batches cannot matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import refbase
from refbase.groups import factorise
from refbase.validate import InputError

__all__ = ["Row", "Weighted", "coefficients_in_place", "policy_loss", "weigh"]


@dataclass(frozen=True)
class Row:
    """A row of a mini-batch, on whichever rank.

    Attributes
    ----------
    group
        The prompt's uid.
    session, session_rows
        The rollout the row belongs to, and how many rows that has in the whole batch.
    log_ratio
        Sum of log π_θ - log π_old over the row's valid tokens.
    advantage
        The rollout's return, up to a constant that the rollouts of its group share; None for a row
        without a valid token, such as padding.
    """

    group: str
    session: Any
    session_rows: int
    log_ratio: float
    advantage: float | None


@dataclass(frozen=True)
class Weighted:
    """`coefficients[i]` is what row i's log-probability is multiplied with; `metrics` are for the logs."""

    coefficients: list[float]
    metrics: dict[str, float]


def weigh(rows: Sequence[Row], beta: float, *, divide_by_beta: bool = False) -> Weighted:
    """Coefficients c_i with Σ c_i ∇log π_θ(row i) = -∇L, L the mean over groups of `refbase.gvpo_loss`.

    Parameters
    ----------
    rows
        The whole mini-batch, of all ranks in one order.
    beta
        Strength of the KL regularisation.
    divide_by_beta
        Coefficients of -∇L/β: gradients then have the size of a policy gradient with advantages w_i, so
        that clipping and learning rate mean what they mean for GRPO.

    Notes
    -----
    Groups with one rollout in the mini-batch contribute nothing. Neither do sessions of which some rows
    lie in other mini-batches: their log-probability is not known here.
    """
    codes, _ = factorise([(row.group, row.session) for row in rows])
    index = torch.from_numpy(codes)
    sessions: dict[int, Row] = {}
    for code, row in zip(codes.tolist(), rows, strict=True):
        if code not in sessions or sessions[code].advantage is None:
            sessions[code] = row
    heads = [sessions[code] for code in range(len(sessions))]
    labels = [row.group for row in heads]
    members = torch.from_numpy(factorise(labels)[0])
    valid = torch.tensor([row.advantage is not None for row in heads])
    whole = index.bincount() == torch.tensor([row.session_rows for row in heads])
    used = valid & whole
    log_ratio = _sum(torch.tensor([row.log_ratio for row in rows], dtype=torch.float64), index, len(heads))
    advantage = torch.tensor([row.advantage or 0.0 for row in heads], dtype=torch.float64)

    batch = (advantage, labels, log_ratio, torch.zeros_like(log_ratio), beta, used)
    weight = refbase.gvpo_weights(*batch)
    size = _sum(used.double(), members, len(set(labels)))
    informed = max(int((size > 1).sum()), 1)
    scale = (1.0 if divide_by_beta else beta) / informed
    coefficients = (weight * scale / (size[members] - 1).clamp(min=1))[index]
    coefficients[[row.advantage is None for row in rows]] = 0.0

    implicit = torch.where(used, beta * log_ratio, 0)
    centred = torch.where(used, implicit - (_sum(implicit, members, len(size)) / size.clamp(min=1))[members], 0)
    freedom = (size - 1).clamp(min=0).sum().clamp(min=1)
    metrics = {
        "gvpo/loss": refbase.gvpo_loss(*batch),  # verl's own `pg_loss` is the surrogate
        "gvpo/weight_sum_max": _sum(weight, members, len(size)).abs().max(),  # 0 up to rounding
        "gvpo/implicit_reward_std": (centred.square().sum() / freedom).sqrt(),  # β·lr within groups
        "gvpo/groups": (size > 1).sum(),
        "gvpo/groups_of_one": (size == 1).sum(),
        "gvpo/split_sessions": (valid & ~whole).sum(),
    }
    return Weighted(coefficients.tolist(), {name: float(value) for name, value in metrics.items()})


def _sum(values: Tensor, codes: Tensor, n: int) -> Tensor:
    return values.new_zeros(n).index_add_(0, codes, values)


_in_place: ContextVar[bool] = ContextVar("refbase_gvpo_coefficients", default=False)


@contextmanager
def coefficients_in_place() -> Iterator[None]:
    """Our worker's promise that the column ``advantages`` holds the coefficients of this mini-batch."""
    token = _in_place.set(True)
    try:
        yield
    finally:
        _in_place.reset(token)


def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """verl's policy loss ``gvpo``: -coefficient·log π, summed over the tokens of each sequence."""
    if not _in_place.get():
        raise InputError(
            "gvpo: `actor.policy_loss.loss_mode=gvpo` needs the weights of the current policy, which only "
            "`trainer.v1.trainer_mode=refbase` with `algorithm.adv_estimator=gvpo` computes. Set both, or "
            "`loss_mode=vanilla` for one update per batch."
        )
    if loss_agg_mode != "seq-mean-token-sum":
        raise InputError(
            f"gvpo: `actor.loss_agg_mode` must be 'seq-mean-token-sum'; got {loss_agg_mode!r}. GVPO weighs "
            "whole sequences."
        )
    if rollout_is_weights is not None:
        raise InputError(
            "gvpo: importance weights do not go with it; its loss holds for any sampling policy. Set "
            "`algorithm.rollout_correction.rollout_is=null`."
        )
    from verl.trainer.ppo.core_algos import agg_loss

    # Selected, not multiplied: what a masked token holds reaches neither the loss nor a gradient.
    masked = torch.where(response_mask != 0, -advantages * log_prob, 0)
    loss = agg_loss(loss_mat=masked, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    return loss, {}
