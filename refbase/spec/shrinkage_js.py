"""Corrected James-Stein shrinkage: the between-prompt spread without the noise of the means."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase.estimate import Estimate
from refbase.spec._groups import Blend, Group, assemble, mean, others, read_groups, total
from refbase.spec._numbers import larger


def shrinkage_js(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    nonfinite: str = "raise",
) -> Estimate:
    """Degrees-of-freedom-corrected shrinkage; see `refbase.shrinkage_js`."""
    groups, n_rows = read_groups("shrinkage_js", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        group, rest = groups[i], others(groups, i)
        if not rest:
            return Blend(local=mean(group.without(j))) if group.size > 1 else Blend()
        target = mean([other.mean for other in rest])
        if group.size == 1:
            return Blend(target=target, weight=1)
        return Blend(mean(group.without(j)), target, corrected_weight(group.size, rest))

    return assemble("shrinkage_js", groups, n_rows, rule)


def corrected_weight(size: int, rest: Sequence[Group]) -> Any:
    """lambda = v / (v + spread + Var(target)), all from the other prompts."""
    informed = [group for group in rest if group.size > 1]  # these have a variance
    if len(informed) <= 3:  # the James-Stein factor (N-3)/(N-1) is not positive
        return 0
    dof = [group.size - 1 for group in informed]
    squares = total([group.squares for group in informed])
    if squares == 0:
        return 0
    noise = squares / sum(dof)  # pooled within-prompt variance
    # Satterthwaite's effective degrees of freedom of that pooled variance
    nu = squares * squares / total([g.squares * g.squares / q for g, q in zip(informed, dof, strict=True)])
    spread = true_spread(informed, dof, noise, nu)
    v = noise / (size - 1)
    inverse_sizes = total([noise / group.size for group in rest]) / len(rest)
    return v / (v + spread + (spread + inverse_sizes) / len(rest))


def true_spread(informed: Sequence[Group], dof: Sequence[int], noise: Any, nu: Any) -> Any:
    """Between-prompt variance of the true means, from the positive-part James-Stein factor.

    With weights q_k = m_k - 1: S is the weighted between-prompt variance of the observed means, normalised
    so that a true spread enters with coefficient 1, and v_bar the sampling variance it contains. The factor
    B = min(1, c * v_bar / S) with c = (N-3)/(N-1) * nu/(nu+2) gives spread = v_bar * (1/B - 1).
    """
    q = sum(dof)
    means = [group.mean for group in informed]
    anchor = means[0]
    centre = anchor + total([w * (x - anchor) for w, x in zip(dof, means, strict=True)]) / q
    between = total([w * (x - centre) * (x - centre) for w, x in zip(dof, means, strict=True)])
    sampling = total([noise * (w * (q - w)) / (q * g.size) for w, g in zip(dof, informed, strict=True)])
    n = len(informed)
    c = (n - 3) * nu / ((n - 1) * (nu + 2))
    scaled = larger(between / c - sampling, 0 * noise)
    return scaled * q / (q * q - sum(w * w for w in dof))
