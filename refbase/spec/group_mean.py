"""Group-mean centring (Dr.GRPO; GRPO without its division)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, alone, assemble, read_groups


def group_mean(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Group-mean centring: the reward less the mean of its prompt's rewards (Dr.GRPO).

    **Definition.** With the m rewards of the prompt::

        baseline_j  = mu = mean of the group's rewards
        advantage_j = reward_j - mu = (m - 1)/m * RLOO's advantage

    Parameters
    ----------
    rewards
        (N,) numbers, one return per rollout, in any reward unit. Torch tensors of any real dtype are computed by
        the kernel; arrays and sequences (float, int, ``Fraction``, sympy) by this function.
    group_ids
        (N,) hashable labels: the prompt that each rollout answers. Rows may come in any order.
    valid
        (N,) booleans or 0 and 1; False takes a rollout out of every statistic. Default: all True.
    singletons
        What a group of one gets: ``"raw"`` keeps its reward (baseline 0), ``"zero"`` gives advantage 0,
        ``"error"`` refuses it.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local`` is the group mean; ``weight`` is 0, ``target`` and ``scale`` are None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; a group of one under ``singletons="error"``.

    Edge cases
    ----------
    Group of one: see `singletons`. Constant group: exactly 0. No valid rollout: zeros. Empty batch: `InputError`.

    Laws
    ----
    shift, scale, zero_sum, constant_zero, group_local, unbiased_up_to_factor, convex_weight

    Differs from
    ------------
    verl 0.9.1 ``grpo`` with ``norm_adv_by_std_in_grpo=False``: equal on clean input, a group of one included; counts
    fully masked rows; ``grpo_vectorized`` never receives that option from the trainer and divides nevertheless
    (0, 0, 1, 1 gives -+0.866 where -+0.5 was asked for).

    References
    ----------
    Liu et al., "Understanding R1-Zero-Like Training", arXiv 2503.20783.

    Examples
    --------
    >>> import refbase
    >>> refbase.group_mean([3.0, 1.0, 0.0, 0.0, 6.0], ["a", "a", "b", "b", "b"]).advantages
    [1.0, -1.0, -2.0, -2.0, 4.0]
    """
    validate.check_choice("group_mean", "singletons", singletons, validate.SINGLETONS)
    groups, n_rows = read_groups("group_mean", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        return alone("group_mean", groups[i], singletons) or Blend(local=groups[i].mean)

    return assemble("group_mean", groups, n_rows, rule)
