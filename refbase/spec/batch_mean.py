"""Leave-one-prompt-out batch mean."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase.estimate import Estimate
from refbase.spec._groups import Blend, assemble, mean, others, read_groups


def batch_mean(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    nonfinite: str = "raise",
) -> Estimate:
    """Cross-prompt baseline: the mean of the other prompts' mean rewards.

    **Definition.** With n prompts and mu_k the mean reward of prompt k::

        baseline_j  = mu_-i = 1/(n - 1) * sum over k != i of mu_k      for rollout j of prompt i
        advantage_j = reward_j - mu_-i

    Parameters
    ----------
    rewards
        (N,) numbers, one return per rollout, in any reward unit. Torch tensors of any real dtype are computed by
        the kernel; arrays and sequences (float, int, ``Fraction``, sympy) by this function.
    group_ids
        (N,) hashable labels: the prompt that each rollout answers. Rows may come in any order.
    valid
        (N,) booleans or 0 and 1; False takes a rollout out of every statistic. Default: all True.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``target`` is the other prompts' mean; ``weight`` is 1, ``local`` and ``scale`` are None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`.

    Edge cases
    ----------
    One prompt: no other exists, the raw rewards come back with weight 0. Group of one: as any other. Constant group:
    in general not 0. No valid rollout: zeros. Empty batch: `InputError`.

    Laws
    ----
    shift, scale, own_reward_independent, unbiased, convex_weight

    Differs from
    ------------
    REINFORCE++ whitens over the whole batch, the own prompt included, so its baseline is not independent of the
    own reward; here the own prompt is left out and nothing is divided. Prompts count equally, whatever their size.
    verl 0.9.1 has no counterpart.

    References
    ----------
    Hu et al., "REINFORCE++", arXiv 2501.03262.

    Examples
    --------
    >>> import refbase
    >>> refbase.batch_mean([1.0, 1.0, 0.0, 0.0, 0.0, 1.0], ["a", "a", "b", "b", "c", "c"]).baseline
    [0.25, 0.25, 0.75, 0.75, 0.5, 0.5]
    """
    groups, n_rows = read_groups("batch_mean", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        if len(groups) == 1:
            return Blend()
        return Blend(target=mean([group.mean for group in others(groups, i)]), weight=1)

    return assemble("batch_mean", groups, n_rows, rule)
