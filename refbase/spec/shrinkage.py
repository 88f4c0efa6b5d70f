"""James-Stein shrinkage baseline of arXiv 2511.03710."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, Group, assemble, mean, others, read_groups, total

# What the released code adds to the denominator, kept exact so that rationals stay rational.
RELEASED_EPS = Fraction(1, 10**6)


def shrinkage(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    weight: Any = None,
    variant: str = "paper",
    nonfinite: str = "raise",
) -> Estimate:
    """James-Stein baseline: the leave-one-out mean shrunk towards the other prompts' mean.

    **Definition.** For rollout j of prompt i, with n prompts, mu_k, s2_k the mean and Bessel variance of prompt k,
    m_i the number of rollouts of prompt i, and all averages over the other prompts k != i::

        baseline_j = (1 - w) * local_j + w * target
        local_j    = leave-one-out mean of prompt i
        target     = mu_-i = average of mu_k
        w          = (n - 1)/n * v / (v + s)
        v          = average of s2_k, over those with m_k >= 2, divided by m_i
        s          = average of (mu_k - mu_-i)^2

    `w` and the target come from the other prompts alone, so no rollout's own reward moves its baseline.

    Parameters
    ----------
    rewards
        (N,) numbers, one return per rollout, in any reward unit. Torch tensors of any real dtype are computed by
        the kernel; arrays and sequences (float, int, ``Fraction``, sympy) by this function.
    group_ids
        (N,) hashable labels: the prompt that each rollout answers. Rows may come in any order.
    valid
        (N,) booleans or 0 and 1; False takes a rollout out of every statistic. Default: all True.
    weight
        None for the formula, or a constant w in [0, 1]; 0 is `rloo`.
    variant
        ``"paper"``, or ``"released"`` for the coefficient of the authors' code, v/(v + s + 1e-6), to compare with. Its
        1e-6 has a unit, which costs scale.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local``, ``target`` and ``weight`` as above; ``scale`` is None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; `weight` outside [0, 1]; an unknown `variant`.

    Edge cases
    ----------
    In this order: one prompt -> w = 0; a group of one -> w = 1 (the other prompts' mean is the baseline); no other
    prompt with two rollouts -> w = 0; v + s = 0 -> w = 0. One prompt with one rollout keeps its raw reward. Constant
    group: not 0 in general, which is the point. No valid rollout: zeros. Empty batch: `InputError`.

    Laws
    ----
    shift, scale, own_reward_independent, unbiased, convex_weight

    With ``variant="released"`` not scale.

    Differs from
    ------------
    The paper assumes equal group sizes; the division of v by the own m_i is ours and reduces to it.
    The released code leaves out (n - 1)/n, adds 1e-6, ignores labels and takes rows as sorted with equal sizes:
    with groups (1, 0), (0, 0), (1, 1) its w for the second group is 0.66666 where the paper's formula gives 4/9;
    ``variant="released"`` reproduces the coefficient, not the assumption about rows.
    verl 0.9.1 has no counterpart.

    References
    ----------
    Zeng, Zhou, Arora, Zanette, "Shrinking the Variance", arXiv 2511.03710.

    Examples
    --------
    >>> import refbase
    >>> from fractions import Fraction as F
    >>> rewards = [F(1), F(0), F(0), F(0), F(1), F(1)]
    >>> estimate = refbase.shrinkage(rewards, ["a", "a", "b", "b", "c", "c"])
    >>> [str(w) for w in estimate.weight]
    ['0', '0', '4/9', '4/9', '4/9', '4/9']
    >>> [str(b) for b in estimate.baseline]
    ['0', '1', '1/3', '1/3', '2/3', '2/3']
    """
    validate.check_choice("shrinkage", "variant", variant, validate.SHRINKAGE_VARIANTS)
    if weight is not None:
        validate.check_number("shrinkage", "weight", weight, 0, 1)
    groups, n_rows = read_groups("shrinkage", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        group, rest = groups[i], others(groups, i)
        if not rest:
            return Blend(local=mean(group.without(j))) if group.size > 1 else Blend()
        target = mean([other.mean for other in rest])
        if group.size == 1:
            return Blend(target=target, weight=1)
        share = james_stein(group.size, rest, variant) if weight is None else weight
        return Blend(mean(group.without(j)), target, share)

    return assemble("shrinkage", groups, n_rows, rule)


def james_stein(size: int, rest: Sequence[Group], variant: str) -> Any:
    """The plug-in coefficient, from the other prompts alone: lambda = (n-1)/n * v/(v + s)."""
    spread = [group for group in rest if group.size > 1]
    if not spread:
        return 0
    v = mean([group.variance for group in spread]) / size
    centre = mean([group.mean for group in rest])
    s = total([(group.mean - centre) * (group.mean - centre) for group in rest]) / len(rest)
    if variant == "released":
        eps = RELEASED_EPS if not isinstance(v, float) else float(RELEASED_EPS)
        return v / (v + s + eps)
    if v + s == 0:
        return 0
    n = len(rest) + 1
    return (n - 1) * v / (n * (v + s))
