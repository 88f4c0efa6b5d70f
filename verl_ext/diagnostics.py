"""Numbers of an advantage step that verl cannot know, under verl's own metrics, so that every logger shows them.

Only under our trainer, where an estimator can reach the metrics. A rollout is a session (`verl_ext.sessions`);
padding rows are not counted.

=======================================  =====================================================================
``refbase/rollouts/used``                rollouts that entered the statistics
``refbase/rollouts/excluded``            left out for a NaN or infinite return (``nonfinite="exclude"``)
``refbase/rollouts/masked``              left out because no token of theirs is valid
``refbase/rollouts/nonzero_advantage``   share of the used ones whose advantage is not 0
``refbase/groups/used``                  prompts with a used rollout
``refbase/groups/constant``              share of the prompts with two or more whose returns are all equal
``refbase/groups/single``                share of the prompts with one
``refbase/weight/{mean,q10,q50,q90}``    weight of the target over the used rollouts, if the estimator has one
``refbase/history/keys``                 keys that BV-Blend remembered before the step
``refbase/history/cold``                 share of the used rollouts whose key it did not
``refbase/history/H/<key>``              remembered mean of a key of the batch (not of `shrinkage_history`)
``refbase/history/beta/<key>``           mean weight of that key's rollouts
``refbase/noise/{estimator,rloo}``       see `gradient_noise`
``refbase/noise/ratio``                  the first over the second
=======================================  =====================================================================

Of the keys the first `MAX_KEYS` that the process meets are shown, so that a run has no more names than that; the
one key of ``history_key=none`` is called ``all``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refbase import CATALOG, Estimate
from refbase.groups import factorise
from verl_ext.options import BVBlendOptions, Options

__all__ = ["MAX_KEYS", "gradient_noise", "measure"]

#: History keys shown, over the life of a process.
MAX_KEYS = 16

Array = NDArray[Any]

_names: dict[Any, str] = {}


def measure(
    name: str,
    options: Options,
    estimate: Estimate,
    *,
    returns: Any,
    labels: Sequence[Any],
    valid: Any,
    lengths: Any,
    padding: Sequence[bool] | None = None,
    history_keys: Sequence[Any] | None = None,
    remembered: int = 0,
) -> dict[str, float]:
    """The metrics of one step.

    Parameters
    ----------
    name, options, estimate
        The estimator, its options and what it returned.
    returns, labels, valid, lengths
        (N,) return, prompt, validity and number of valid tokens of each rollout; `valid` as the mask says.
    padding, history_keys
        (N,) from the trainer's `Step`.
    remembered
        Number of keys in the history before the step.
    """
    values, real = _array(returns), ~np.asarray(padding or [False] * len(labels))
    finite = np.isfinite(values)
    kept = _array(valid).astype(bool)
    used = kept & finite if options.nonfinite == "exclude" else kept
    out: dict[str, float] = {
        "refbase/rollouts/used": float(used.sum()),
        "refbase/rollouts/excluded": float((kept & ~used).sum()),
        "refbase/rollouts/masked": float((real & ~kept).sum()),
    }
    if not used.any():
        return out
    rows = np.flatnonzero(used)
    codes, _ = factorise([labels[row] for row in rows])
    size = np.bincount(codes)
    rewards, weight = values[rows], _array(estimate.weight)[rows]
    low, high = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(low, codes, rewards)
    np.maximum.at(high, codes, rewards)
    several = size > 1
    out["refbase/rollouts/nonzero_advantage"] = float((_array(estimate.advantages)[rows] != 0).mean())
    out["refbase/groups/used"] = float(len(size))
    out["refbase/groups/single"] = float((~several).mean())
    if several.any():
        out["refbase/groups/constant"] = float((low == high)[several].mean())
    if estimate.target is not None:
        out["refbase/weight/mean"] = float(weight.mean())
        for q in (10, 50, 90):
            out[f"refbase/weight/q{q}"] = float(np.percentile(weight, q))
    if isinstance(options, BVBlendOptions) and estimate.target is not None:
        keys = [None] * len(rows) if history_keys is None else [history_keys[row] for row in rows]
        if "group_local" in CATALOG[name].traits:  # the target is H; elsewhere other prompts are in it
            out |= _history(keys, weight, _array(estimate.target)[rows], remembered)
        else:
            out["refbase/history/keys"] = float(remembered)
    own = _own_share(name, options, weight, size[codes], codes, _array(lengths)[rows])
    return out | gradient_noise(rewards, codes, _array(estimate.baseline)[rows], own, _array(lengths)[rows])


def gradient_noise(rewards: Array, codes: Array, baseline: Array, own_share: Array, lengths: Array) -> dict[str, float]:
    """What the batch says about the variance of the policy gradient, against `rloo` on the same rollouts.

    The gradient is a sum of (r - b)·s over rollouts, with s = ∇log π of the whole rollout. Its variance is taken
    to be the sum of L·(r - b)², over the sum of L, with L the rollout's number of valid tokens. That assumes:

    * E|s|² is proportional to L, since the scores of the tokens are uncorrelated, and |s|² does not depend on the
      advantage otherwise;
    * scores of different rollouts are nearly orthogonal, as in many dimensions, so that products of two rollouts
      do not matter. With a handful of parameters they do (`refbase.exact` has examples where the order of two
      estimators is the other way round);
    * the gradient itself is small beside its noise.

    A baseline that contains the rollout's own reward shrinks signal and noise alike, which is no gain: r - b is
    divided by ``1 - own_share``, the factor on the signal. So centring by the group's mean has ratio 1. A divisor
    such as grpo's is left out: it is a learning rate per prompt. For ``loss_agg_mode=seq-mean-token-mean``, which
    divides by L itself, the ratio is only indicative.

    Groups of one, where `rloo` has no baseline, are left out. To average over steps, average the two numbers and
    divide: the mean of ratios is biased. A step in which all groups are constant has no ratio.

    Parameters
    ----------
    rewards, codes, baseline, own_share, lengths
        (N,) of valid rollouts; `codes` are groups 0, 1, ...
    """
    size = np.bincount(codes)[codes]
    several = size > 1
    if not several.any():
        return {}
    total = np.bincount(codes, weights=rewards)[codes]
    with np.errstate(divide="ignore", invalid="ignore"):
        others = (total - rewards) / (size - 1)
        residual = (rewards - baseline) / (1 - own_share)
    # A constant group has no noise under rloo, not that of a rounded sum.
    constant = np.bincount(codes, weights=rewards != rewards[_first(codes)][codes])[codes] == 0
    reference = np.where(constant, 0.0, rewards - others)
    weight = lengths[several] / lengths[several].sum()
    own, rloo = (float(weight @ np.square(part[several])) for part in (residual, reference))
    out = {"refbase/noise/estimator": own, "refbase/noise/rloo": rloo}
    if rloo > 0:
        out["refbase/noise/ratio"] = own / rloo
    return out


def _own_share(name: str, options: Options, weight: Array, size: Array, codes: Array, lengths: Array) -> Array:
    """Share of a rollout's own reward in its baseline; weights that depend on it count as constants."""
    independent = "own_reward_independent" in CATALOG[name].traits
    if independent or (isinstance(options, BVBlendOptions) and options.local == "loo"):
        return np.zeros(len(size))
    if name == "opo":
        return lengths / np.bincount(codes, weights=lengths)[codes]
    return (1 - weight) / size


def _history(keys: Sequence[Any], weight: Array, target: Array, remembered: int) -> dict[str, float]:
    cold = np.isnan(target)
    out = {"refbase/history/keys": float(remembered), "refbase/history/cold": float(cold.mean())}
    of_key: dict[Any, list[int]] = {}
    for row, key in enumerate(keys):
        of_key.setdefault(key, []).append(row)
    for key in sorted(of_key, key=lambda key: (type(key).__name__, str(key))):
        if key not in _names and len(_names) < MAX_KEYS:
            _names[key] = _metric_name(key)
        if key in _names:
            rows = of_key[key]
            out[f"refbase/history/beta/{_names[key]}"] = float(weight[rows].mean())
            if not cold[rows[0]]:
                out[f"refbase/history/H/{_names[key]}"] = float(target[rows[0]])
    return out


def _metric_name(key: Any) -> str:
    """A name that every logger takes, and that no other key has."""
    name = "all" if key is None else re.sub(r"[^A-Za-z0-9_.-]", "_", str(key))[:40] or "_"
    taken = set(_names.values())
    return (
        name if name not in taken else next(f"{name}_{i}" for i in range(2, MAX_KEYS + 2) if f"{name}_{i}" not in taken)
    )


def _first(codes: Array) -> Array:
    """(G,) a row of each group."""
    rows = np.empty(codes.max() + 1, dtype=np.int64)
    rows[codes] = np.arange(len(codes))
    return rows


def _array(values: Any) -> Array:
    return np.asarray(values.detach().cpu().double())
