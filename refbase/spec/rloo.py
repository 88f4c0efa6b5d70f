"""RLOO: the mean of the other rollouts of the prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, alone, assemble, mean, read_groups


def rloo(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Leave-one-out baseline: the mean reward of the prompt's other rollouts (RLOO).

    **Definition.** With m rollouts of the prompt and mean mu::

        baseline_j   = mean of the group's rewards without reward_j = (m*mu - reward_j) / (m - 1)
        advantage_j  = reward_j - baseline_j = m/(m - 1) * (reward_j - mu)

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
        ``"error"`` refuses it. Zero costs own_reward_independent and unbiased: the baseline is then the own reward, and
        such rollouts contribute nothing.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local`` is the leave-one-out mean; ``weight`` is 0, ``target`` and ``scale`` are None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`; a group of one under ``singletons="error"``.

    Edge cases
    ----------
    Group of one: see `singletons`. Constant group: exactly 0. No valid rollout: zeros. Empty batch: `InputError`.

    Laws
    ----
    shift, scale, zero_sum, constant_zero, group_local, own_reward_independent, unbiased, convex_weight

    With ``singletons="zero"`` neither own_reward_independent nor unbiased.

    Differs from
    ------------
    verl 0.9.1 ``rloo``: equal on clean input, a group of one included. A fully masked row counts there: rewards
    1, 1, 0, 0 with the second row masked give 2/3, 0, -2/3, -2/3; here 1, 0, -1/2, -1/2. float32 there turns twelve
    rewards of 0.7 into advantages of 1.2e-7 (here 0) and 1e6 + {0, 1, 0, 1} into -+0.625 (here -+2/3); integer
    rewards raise.
    verl 0.9.1 ``rloo_vectorized``: a lone reward of 2 gives 0 (here 2); bfloat16 rewards come back as float64.

    References
    ----------
    Kool, van Hoof, Welling, "Buy 4 REINFORCE samples, get a baseline for free!", DeepRLStructPred workshop 2019.
    Ahmadian et al., "Back to Basics", arXiv 2402.14740.

    Examples
    --------
    >>> import refbase
    >>> refbase.rloo([3.0, 1.0, 0.0, 0.0, 6.0], ["a", "a", "b", "b", "b"]).advantages
    [2.0, -2.0, -3.0, -3.0, 6.0]
    """
    validate.check_choice("rloo", "singletons", singletons, validate.SINGLETONS)
    groups, n_rows = read_groups("rloo", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        single = alone("rloo", groups[i], singletons)
        return single or Blend(local=mean(groups[i].without(j)))

    return assemble("rloo", groups, n_rows, rule)
