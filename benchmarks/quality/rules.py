"""Weights of the baselines for many batches at once, by the formulas that the kernels use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.quality.families import Binary, Draw, Gaussian
from benchmarks.quality.variants import leave_prompt_out, leave_sample_out
from refbase.kernels._segments import others_moments
from refbase.kernels.shrinkage import james_stein
from refbase.kernels.shrinkage_js import gap_model, gap_weight

Rule = Callable[[Draw, Tensor], Tensor]  # batches and their targets (R, n) to weights, (R, n, u) or broadcastable


def rloo(draw: Draw, target: Tensor) -> Tensor:
    return torch.zeros_like(target)[..., None]


def batch_mean(draw: Draw, target: Tensor) -> Tensor:
    return torch.ones_like(target)[..., None]


def shrinkage(draw: Draw, target: Tensor) -> Tensor:
    _, between = others_moments(draw.mean)
    return james_stein(draw.size, draw.squares, between)[..., None]


def shrinkage_js(draw: Draw, target: Tensor) -> Tensor:
    v, expected, share = (x[..., None] for x in gap_model(draw.size, draw.squares, draw.mean))
    return gap_weight(draw.local - target[..., None], v, expected, share)


RULES: Mapping[str, Rule] = {
    "rloo": rloo,
    "batch_mean": batch_mean,
    "shrinkage": shrinkage,
    "shrinkage_js": shrinkage_js,
    "prompt out": leave_prompt_out,
    "sample out": leave_sample_out,
}


def oracle(family: Binary | Gaussian, size: Tensor) -> Tensor:
    """(n,) the constant weight of least expected error, from the population's true variances."""
    within, between = family.moments()
    n = size.shape[0]
    others = ((1 / size).sum() - 1 / size) / (n - 1)  # average of 1/m over the other prompts
    target = between + (between + within * others) / (n - 1)
    v = within / (size - 1)
    return v / (v + target)
