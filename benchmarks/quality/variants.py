"""Two corrected coefficients that were not chosen, to compare `shrinkage_js` with.

Both are positive-part James-Stein with its degrees of freedom, for groups that count by m - 1. One leaves the
whole prompt out of the statistics, the other only the rollout itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.quality.families import Draw
from refbase.kernels._segments import others_moments, others_sum


def leave_prompt_out(draw: Draw, target: Tensor) -> Tensor:
    q = (draw.size - 1).expand_as(target)
    _, between = others_moments(draw.mean, q)
    sums = _sums(draw, q)
    return _weight(draw, q.shape[-1] - 1, between, *sums)[..., None]


def leave_sample_out(draw: Draw, target: Tensor) -> Tensor:
    q = (draw.size - 1).expand_as(target)
    centre, between = others_moments(draw.mean, q)
    squares, dof, mass, mass2, share, share2 = (x[..., None] for x in _sums(draw, q))
    own, size = q[..., None], draw.size[:, None]
    away = draw.reward - draw.mean[..., None]
    left = draw.squares[..., None] - size / own * away * away
    left = torch.where(left > 1e-12 * draw.squares[..., None], left, 0.0)
    between = between[..., None] + own * mass / (own + mass) * (draw.local - centre[..., None]) ** 2
    return _weight(
        draw,
        q.shape[-1],
        between,
        squares + left,
        dof + own - 1,
        mass + own,
        mass2 + own**2,
        share + 1,  # own / (m - 1)
        share2 + own,
        last=size,
    )


def _sums(draw: Draw, q: Tensor) -> tuple[Tensor, ...]:
    values = draw.squares, q, q, q * q, q / draw.size, q * q / draw.size
    return tuple(others_sum(torch.stack(torch.broadcast_tensors(*values))).unbind(0))


def _weight(
    draw: Draw,
    count: int,
    between: Tensor,
    squares: Tensor,
    dof: Tensor,
    mass: Tensor,
    mass2: Tensor,
    share: Tensor,
    share2: Tensor,
    last: Tensor | None = None,
) -> Tensor:
    if count <= 3:
        return torch.zeros_like(between)
    noise = squares / dof
    sampling = noise * (share - share2 / mass)
    spread = (between * (count - 1) / (count - 3) - sampling).clamp(min=0) / (mass - mass2 / mass)
    others = draw.size.shape[0] - 1
    inverse = others_sum(1 / draw.size)
    size = draw.size if last is None else last
    v = noise / (size - 1)
    target = (spread + noise * (inverse if last is None else inverse[:, None]) / others) / others
    return torch.where(noise > 0, v / (v + spread + target), 0.0)
