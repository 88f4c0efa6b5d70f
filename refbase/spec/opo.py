"""OPO: the length-weighted group mean."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, alone, assemble, read_groups, total


def opo(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    lengths: Sequence[Any] | None = None,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Length-weighted group mean (OPO).

    **Definition.** With the rewards of the prompt and their lengths::

        baseline_j  = sum_j lengths_j * reward_j / sum_j lengths_j
        advantage_j = reward_j - baseline_j

    Parameters
    ----------
    rewards
        (N,) numbers, one return per rollout, in any reward unit. Torch tensors of any real dtype are computed by
        the kernel; arrays and sequences (float, int, ``Fraction``, sympy) by this function.
    group_ids
        (N,) hashable labels: the prompt that each rollout answers. Rows may come in any order.
    valid
        (N,) booleans or 0 and 1; False takes a rollout out of every statistic. Default: all True.
    lengths
        (N,) positive numbers, the valid response tokens of each rollout; only ratios within a group matter.
        Default: all equal, which is `group_mean`. A tensor if `rewards` is one.
    singletons
        What a group of one gets: ``"raw"`` keeps its reward (baseline 0), ``"zero"`` gives advantage 0,
        ``"error"`` refuses it.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local`` is the weighted mean; ``weight`` is 0, ``target`` and ``scale`` are None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; a group of one under ``singletons="error"``.
        A length of a valid rollout that is not positive.

    Edge cases
    ----------
    Group of one: see `singletons`. Constant group: exactly 0. No valid rollout: zeros. Empty batch: `InputError`.

    Laws
    ----
    shift, constant_zero, group_local, scale, convex_weight

    Differs from
    ------------
    verl 0.9.1 ``opo``: equal on clean input, a group of one included; integer rewards give zeros there, and a fully
    masked row counts with length 0.
    The paper's weight is the squared norm of the score; length stands in for it.

    References
    ----------
    Hao et al., "On-Policy RL with Optimal Reward Baseline", arXiv 2505.23585.

    Examples
    --------
    >>> import refbase
    >>> refbase.opo([1.0, 0.0], ["a", "a"], lengths=[3, 1]).advantages
    [0.25, -0.75]
    """
    validate.check_choice("opo", "singletons", singletons, validate.SINGLETONS)
    groups, n_rows = read_groups("opo", rewards, group_ids, valid, nonfinite)
    weights = [1] * n_rows if lengths is None else validate.read_per_row("opo", "lengths", lengths, n_rows)
    for group in groups:
        for row in group.rows:
            validate.check_number("opo", f"lengths[{row}]", weights[row], 0, open_low=True)

    def rule(i: int, j: int) -> Blend:
        group = groups[i]
        anchor = group.rewards[0]
        shares = [weights[row] for row in group.rows]
        offset = total([w * (r - anchor) for w, r in zip(shares, group.rewards, strict=True)])
        return alone("opo", group, singletons) or Blend(local=anchor + offset / total(shares))

    return assemble("opo", groups, n_rows, rule)
