"""GRPO: group mean and group standard deviation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, alone, assemble, read_groups
from refbase.spec._numbers import square_root


def grpo(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    eps: Any = 1e-6,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Standardised reward: group mean subtracted, group standard deviation divided out (GRPO).

    **Definition.** With the m rewards of the prompt::

        baseline_j  = mu = mean of the group's rewards
        scale       = sqrt(sum_j (reward_j - mu)^2 / (m - 1)) + eps
        advantage_j = (reward_j - mu) / scale

    Parameters
    ----------
    rewards
        (N,) numbers, one return per rollout, in any reward unit. Torch tensors of any real dtype are computed by
        the kernel; arrays and sequences (float, int, ``Fraction``, sympy) by this function.
    group_ids
        (N,) hashable labels: the prompt that each rollout answers. Rows may come in any order.
    valid
        (N,) booleans or 0 and 1; False takes a rollout out of every statistic. Default: all True.
    eps
        Positive number added to the standard deviation, in the reward's unit.
    singletons
        What a group of one gets: ``"raw"`` keeps its reward (baseline 0), ``"zero"`` gives advantage 0,
        ``"error"`` refuses it.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local`` is the group mean, ``scale`` the divisor (1 for a group of one); ``weight`` is 0, ``target`` None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; a group of one under ``singletons="error"``.
        An `eps` that is not positive.

    Edge cases
    ----------
    Group of one: see `singletons`; nothing is divided. Constant group: exactly 0, whatever its value and dtype.
    No valid rollout: zeros. Empty batch: `InputError`.

    Laws
    ----
    shift, scale_invariant, zero_sum, constant_zero, group_local, convex_weight

    Differs from
    ------------
    verl 0.9.1 ``grpo``: equal on clean input except that a lone reward of 2 gives 2/(1 + 1e-6) there. Its mean is
    float32: twelve rewards of 0.7 get an advantage of 0.106 and three of 1000.1 one of 0.806, here 0. A fully masked
    row counts there: rewards 1, 1, 0, 0 with the second row masked give 0.866, 0, -0.866, -0.866; here 1.155, 0,
    -0.577, -0.577.
    verl 0.9.1 ``grpo_vectorized``: labels ``"7"`` and ``"007"`` are one group there, two here.
    The paper divides by the deviation without `eps`.

    References
    ----------
    Shao et al., "DeepSeekMath", arXiv 2402.03300.

    Examples
    --------
    >>> import refbase
    >>> estimate = refbase.grpo([1.0, 0.0, 5.0, 5.0], ["a", "a", "b", "b"])
    >>> [round(a, 4) for a in estimate.advantages]
    [0.7071, -0.7071, 0.0, 0.0]
    """
    validate.check_choice("grpo", "singletons", singletons, validate.SINGLETONS)
    validate.check_number("grpo", "eps", eps, 0, open_low=True)
    groups, n_rows = read_groups("grpo", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        group = groups[i]
        single = alone("grpo", group, singletons)
        if single:
            return replace(single, scale=1)  # no spread to divide by
        return Blend(local=group.mean, scale=square_root(group.variance) + eps)

    return assemble("grpo", groups, n_rows, rule)
