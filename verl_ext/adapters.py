"""verl's advantage seam: its keywords to an estimator's arguments, and back.

verl calls ``f(token_level_rewards=(N, T), response_mask=(N, T), config=algorithm, index=(N,) uids)`` and takes
``(advantages, returns)``, both (N, T).

* A rollout's return is the sum of its token-level rewards, with KL already in it if
  ``algorithm.use_kl_in_reward`` says so.
* A row without a valid token is out of every statistic and gets 0: the padding rows that verl adds to ragged
  batches (uid ``pad...``), and rollouts that were rejected as a whole.
* ``advantages`` hold the rollout's advantage on its valid tokens, 0 elsewhere; ``returns`` the rollout's return
  in the same way. They share no memory with each other or with the inputs.
* Under our trainer (`verl_ext.step.current`) rows of one session are one rollout, see `verl_ext.sessions`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refbase import CATALOG, Estimate, validate
from refbase.groups import factorise
from refbase.tokens import broadcast, sequence_returns, valid_rows
from verl_ext import diagnostics, gvpo_config, history, modes
from verl_ext.options import BVBlendOptions, GVPOOptions, Options, parse, verl_name
from verl_ext.step import Step, current

__all__ = ["ESTIMATORS", "estimate"]


def _adapter(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def compute(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Any = None,
        index: Any = None,
        **_unused: Any,
    ) -> tuple[Tensor, Tensor]:
        options = parse(name, config)
        returns = sequence_returns(token_level_rewards.detach(), response_mask, options.masked_rewards)
        if index is None:
            validate.reject(
                verl_name(name),
                "index",
                "hold the prompt of each rollout",
                "None",
                "verl takes it from the batch's `uid` column; add that column, one label per prompt.",
            )
        step = current()
        if step is None:
            _check_trainer(name, config)
        with torch.no_grad(), validate.worded(_words(name), options.where):
            advantages = _per_row(name, returns, index, response_mask, options, config, step)
        _announce(name, options, config)
        shown = torch.where(returns.isfinite(), returns, 0.0)
        return broadcast(advantages, response_mask), broadcast(shown, response_mask)

    compute.__name__ = compute.__qualname__ = verl_name(name)
    compute.__doc__ = f"`refbase.{name}` ({CATALOG[name].summary}) as a verl advantage estimator."
    return compute


def _words(name: str) -> dict[str, str]:
    """What verl calls the estimator and the arguments that messages are about."""
    words = {"rewards": "token_level_rewards", "group_ids": "index", "valid": "response_mask"}
    return {name: verl_name(name), **words}


def _per_row(
    name: str, returns: Tensor, labels: Any, response_mask: Tensor, options: Options, config: Any, step: Step | None
) -> Tensor:
    """(N,) advantages; where a rollout has several rows, they share one."""
    valid, lengths = valid_rows(response_mask), response_mask.sum(-1)
    number, exact_gvpo = (None, False) if step is None else (step.number, step.exact_gvpo)
    sessions, keys, padding = (None, None, None) if step is None else (step.sessions, step.history_keys, step.padding)
    if isinstance(options, BVBlendOptions) and options.history_key != "none" and keys is None:
        got = f"{options.history_key!r} in a trainer that shows an estimator no column but `uid`"
        remedy = "Set `trainer.v1.trainer_mode=refbase`."
        validate.reject(options.where, "history_key", "be 'none' outside our trainer", got, remedy)
    if step is not None and sessions is not None:
        scores = step.scores
        if scores is not None:
            scores = sequence_returns(scores, response_mask, options.masked_rewards)
        rows = sessions.final(valid)
        returns = sessions.returns(returns, valid, scores)
        labels, valid, lengths = [labels[row] for row in rows.tolist()], valid[rows], sessions.sum(lengths)
        keys = None if keys is None else tuple(keys[row] for row in rows.tolist())
        padding = None if padding is None else tuple(padding[row] for row in rows.tolist())
    result = estimate(name, returns, labels, valid, options, config, lengths, keys, number, exact_gvpo)
    if step is not None:
        step.metrics.update(
            diagnostics.measure(
                name,
                options,
                result,
                returns=returns,
                labels=labels,
                valid=valid,
                lengths=lengths,
                padding=padding,
                history_keys=keys,
                remembered=history.remembered(options.memory) if isinstance(options, BVBlendOptions) else 0,
            )
        )
    return result.advantages if sessions is None else result.advantages[sessions.codes]


def estimate(
    name: str,
    returns: Tensor,
    labels: Any,
    valid: Tensor,
    options: Options,
    config: Any = None,
    lengths: Tensor | None = None,
    history_keys: Any = None,
    step: int | None = None,
    exact_gvpo: bool = False,
) -> Estimate:
    """Run an estimator on one number per rollout, with what surrounds it in a trainer.

    Parameters
    ----------
    name : str
        Name in `refbase.CATALOG`.
    returns, valid, lengths : Tensor, shape (N,)
        Return, validity and number of valid tokens of each rollout.
    labels : sequence of length N
        Which prompt a rollout answers, in this batch.
    options : Options
        From `parse`.
    config : DictConfig, optional
        verl's ``algorithm`` section.
    history_keys, step : optional
        For BV-Blend, where the trainer knows them.
    exact_gvpo : bool
        Whether the actor recomputes GVPO's weights itself, from plain centred returns.
    """
    kernel = CATALOG[name].load_kernel()
    arguments = options.kernel(name)
    if options.nonfinite == "exclude":
        valid = valid & returns.isfinite()
    if isinstance(options, BVBlendOptions):
        return _with_history(kernel, returns, labels, valid, options, arguments, history_keys, step)
    if name == "grpo" and not _get(config, "norm_adv_by_std_in_grpo", True):
        kernel = CATALOG["group_mean"].load_kernel()
    if name == "opo" and lengths is not None:
        arguments["lengths"] = lengths
    result = kernel(returns, labels, valid, **arguments)
    if isinstance(options, GVPOOptions) and not exact_gvpo:
        _check_stock_gvpo(config)
        if options.size_correction:
            factor = _size_factor(labels, valid).to(result.advantages)
            return Estimate(
                advantages=result.advantages * factor,
                baseline=result.baseline,
                weight=result.weight,
                local=result.local,
                target=result.target,
                scale=torch.where(factor > 0, 1 / factor, 1.0),
            )
    return result


def _with_history(
    kernel: Callable[..., Estimate],
    returns: Tensor,
    labels: Any,
    valid: Tensor,
    options: BVBlendOptions,
    arguments: Mapping[str, Any],
    history_keys: Any,
    step: int | None,
) -> Estimate:
    rows = valid.nonzero()[:, 0].tolist()
    values = returns.double().tolist()
    return history.history_for(options.memory).read(
        lambda state: kernel(returns, labels, state, valid, history_keys, **arguments),
        rewards=[values[row] for row in rows],
        group_ids=[labels[row] for row in rows],
        keys=None if history_keys is None else [history_keys[row] for row in rows],
        step=step,
    )


def _size_factor(labels: Any, valid: Tensor) -> Tensor:
    """(N,) ``(k_max - 1)/(k_i - 1)``, 0 for a group of one.

    The gradient of GVPO's loss weighs the centred rewards of a group by 1/(k-1). verl averages over rollouts,
    which lets a group of five weigh more than that against one of two (cosine 0.84 to the right direction).
    The factor k_max - 1, common to the batch, leaves groups of one size as they are.
    """
    rows = valid.nonzero()[:, 0].tolist()
    factor = torch.zeros(valid.shape, dtype=torch.float64)
    codes, _ = factorise([labels[row] for row in rows])
    if len(codes):
        size = np.bincount(codes)[codes]
        weight = np.where(size > 1, (size.max() - 1) / np.maximum(size - 1, 1), 0.0)
        factor[rows] = torch.from_numpy(weight)
    return factor.to(valid.device)


def _check_stock_gvpo(config: Any) -> None:
    """Refuse a job whose updates are not GVPO's in a stock trainer."""
    root = _whole(config)
    if root is not None and _get(root, "actor_rollout_ref") is not None:
        gvpo_config.enforce(gvpo_config.findings(root, exact=False))


def _check_trainer(name: str, config: Any) -> None:
    """Refuse, at the first batch, what a trainer of verl's own cannot do for the estimator."""
    root = _whole(config)
    if name not in _checked and root is not None and _get(root, "trainer") is not None:
        gvpo_config.enforce(modes.findings(root))
        _checked.add(name)  # not again: a checkpoint of this job is none that it resumed from


_checked: set[str] = set()


def _whole(config: Any) -> Any:
    """verl shows an estimator the ``algorithm`` section alone, but a node of a configuration knows its root."""
    return config._get_root() if hasattr(config, "_get_root") else None


def _get(config: Any, key: str, default: Any = None) -> Any:
    """``config[key]`` of a DictConfig in struct mode, a mapping, verl's dataclass or None."""
    return config.get(key, default) if hasattr(config, "get") else default


_announced: set[tuple[str, Options]] = set()


def _announce(name: str, options: Options, config: Any) -> None:
    """Say once what runs: a setting that was misplaced shows by its absence."""
    if (name, options) in _announced:
        return
    _announced.add((name, options))
    settings = {"masked_rewards": options.masked_rewards, **options.kernel(name)}
    text = ", ".join(f"{key}={value}" for key, value in settings.items())
    note = ""
    if not isinstance(options, BVBlendOptions) and name != "grpo" and _get(config, "norm_adv_by_std_in_grpo", False):
        note = "; not divided by a standard deviation (norm_adv_by_std_in_grpo applies to grpo)"
    print(f"refbase: adv_estimator={verl_name(name)} ({text}{note})", file=sys.stderr, flush=True)


#: Name for ``algorithm.adv_estimator`` -> function.
ESTIMATORS: Mapping[str, Callable[..., tuple[Tensor, Tensor]]] = {verl_name(name): _adapter(name) for name in CATALOG}
