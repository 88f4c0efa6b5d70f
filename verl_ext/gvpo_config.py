"""Which configurations train what GVPO says: the settings of the exact loss, and what is refused, with the remedy.

`findings` looks at the whole configuration of a job. The trainer enforces it at the start, the estimator at its first
call in a stock trainer, and ``python -m verl_ext.doctor`` shows it before anything runs.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from refbase.validate import InputError
from verl_ext.options import GVPOOptions, parse

__all__ = ["Finding", "GvpoSettings", "enforce", "findings", "is_gvpo", "settings", "updates_per_batch"]

_ACTOR = "actor_rollout_ref.actor"
_EXACT = "trainer.v1.trainer_mode=refbase"


@dataclass(frozen=True)
class GvpoSettings:
    """What the actor needs to know.

    Attributes
    ----------
    beta
        β of the loss. With KL in the reward it is ``algorithm.kl_ctrl.kl_coef``.
    divide_by_beta
        Gradients of L/β instead of L.
    first_pass
        Whether θ may differ from θ_old already at the first mini-batch of a batch, so that this one needs
        an inference pass too.
    """

    beta: float
    divide_by_beta: bool = False
    first_pass: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing about a configuration: an error stops the job."""

    severity: Literal["error", "warning"]
    message: str


def is_gvpo(config: DictConfig) -> bool:
    """Whether the job's estimator is ours of that name."""
    return bool(_get(config, "algorithm.adv_estimator") == "gvpo")


def settings(config: DictConfig) -> GvpoSettings:
    """The settings of ``algorithm.gvpo``; call `findings` first."""
    options = parse("gvpo", config.algorithm)
    assert isinstance(options, GVPOOptions)
    beta = options.beta if options.beta is not None else _get(config, "algorithm.kl_ctrl.kl_coef")
    return GvpoSettings(
        beta=float(beta),
        divide_by_beta=options.divide_by_beta,
        first_pass=bool(_get(config, "algorithm.rollout_correction.bypass_mode", False)),
    )


def updates_per_batch(config: DictConfig) -> int:
    """Optimizer steps that the actor takes on one batch."""
    batch, mini = _get(config, "data.train_batch_size"), _get(config, f"{_ACTOR}.ppo_mini_batch_size")
    epochs = _get(config, f"{_ACTOR}.ppo_epochs", 1)
    return math.ceil(batch / mini) * int(epochs) if batch and mini else int(epochs)


def findings(config: DictConfig, *, exact: bool) -> list[Finding]:
    """What is wrong or doubtful about a job with ``algorithm.adv_estimator=gvpo``.

    Parameters
    ----------
    config
        The whole configuration, not only ``algorithm``.
    exact
        Whether our trainer runs it; otherwise a stock one does.
    """
    found = _common(config)
    return found + (_exact(config) if exact else _stock(config))


def enforce(found: list[Finding]) -> None:
    """Raise the errors, all in one message, and warn of the rest."""
    for finding in found:
        if finding.severity == "warning":
            warnings.warn(finding.message, UserWarning, stacklevel=2)
    errors = [finding.message for finding in found if finding.severity == "error"]
    if errors:
        raise InputError("\n".join(errors))


def _common(config: DictConfig) -> list[Finding]:
    found = []
    if _get(config, "algorithm.use_kl_in_reward", False):
        controller = _get(config, "algorithm.kl_ctrl.type", "fixed")
        if controller != "fixed":
            found.append(
                _error(
                    "algorithm.kl_ctrl.type",
                    "be 'fixed': the controller would change β, and with it the loss, between two steps",
                    controller,
                    "Set `algorithm.kl_ctrl.type=fixed`.",
                )
            )
        penalty = _get(config, "algorithm.kl_penalty", "kl")
        if penalty not in ("kl", "k1"):
            found.append(
                _error(
                    "algorithm.kl_penalty",
                    "be 'kl': only then is the penalised return R - β·log(π_old/π_ref)",
                    penalty,
                    "Set `algorithm.kl_penalty=kl`.",
                )
            )
    rejection = _get(config, "algorithm.rollout_correction.rollout_rs")
    if rejection and not all(part.strip().startswith("seq_") for part in str(rejection).split(",")):
        found.append(
            _error(
                "algorithm.rollout_correction.rollout_rs",
                "reject whole sequences ('seq_...') or nothing: with some tokens masked after the KL penalty "
                "went into the reward, penalty and log-ratio would cover different tokens",
                rejection,
                "Set it to null or to one of the 'seq_' criteria.",
            )
        )
    weighting = _get(config, "algorithm.rollout_correction.rollout_is")
    if weighting:
        found.append(
            _error(
                "algorithm.rollout_correction.rollout_is",
                "be null: GVPO's loss holds for any sampling policy, without importance weights",
                weighting,
                "Set `algorithm.rollout_correction.rollout_is=null`.",
            )
        )
    if _get(config, f"{_ACTOR}.use_kl_loss", False):
        found.append(
            Finding(
                "warning",
                f"gvpo: `{_ACTOR}.use_kl_loss=True` adds a second KL term; β is already GVPO's. Its gradient "
                "is no longer that of the loss alone.",
            )
        )
    if _get(config, f"{_ACTOR}.entropy_coeff", 0):
        found.append(
            Finding(
                "warning",
                f"gvpo: `{_ACTOR}.entropy_coeff` is not 0; the gradient is no longer that of the loss alone.",
            )
        )
    return found


def _exact(config: DictConfig) -> list[Finding]:
    found = []
    aggregation = _get(config, f"{_ACTOR}.loss_agg_mode")
    if aggregation != "seq-mean-token-sum":
        found.append(
            _error(
                f"{_ACTOR}.loss_agg_mode",
                "be 'seq-mean-token-sum', as GVPO weighs whole sequences by one number",
                aggregation,
                f"Set `{_ACTOR}.loss_agg_mode=seq-mean-token-sum`.",
            )
        )
    strategy = _get(config, f"{_ACTOR}.strategy")
    if strategy not in ("fsdp", "fsdp2"):
        found.append(
            _error(
                f"{_ACTOR}.strategy",
                "be 'fsdp' or 'fsdp2' for the exact loss",
                strategy,
                f"Use one of these, or a stock trainer (`trainer.v1.trainer_mode=sync`) with "
                f"`{_ACTOR}.policy_loss.loss_mode=vanilla` and one update per batch.",
            )
        )
    loss = _get(config, f"{_ACTOR}.policy_loss.loss_mode")
    if loss != "gvpo":
        found.append(
            _error(
                f"{_ACTOR}.policy_loss.loss_mode",
                "be 'gvpo': any other clips or reweighs, which is not the loss's gradient",
                loss,
                f"Set `{_ACTOR}.policy_loss.loss_mode=gvpo`.",
            )
        )
    beta, coefficient = _get(config, "algorithm.gvpo.beta"), _get(config, "algorithm.kl_ctrl.kl_coef")
    if _get(config, "algorithm.use_kl_in_reward", False):
        if beta is not None and not math.isclose(float(beta), float(coefficient)):
            found.append(
                _error(
                    "algorithm.gvpo.beta",
                    f"equal `algorithm.kl_ctrl.kl_coef` ({coefficient}) with the KL penalty in the reward",
                    beta,
                    "Leave `algorithm.gvpo.beta` out.",
                )
            )
        beta = coefficient
    elif beta is None:
        found.append(
            _error(
                "algorithm.gvpo.beta",
                "be given where the reward holds no KL penalty (the reference policy is then π_old)",
                beta,
                "Set `algorithm.gvpo.beta=0.1`, say, or `algorithm.use_kl_in_reward=True`.",
            )
        )
    if beta is not None and not (math.isfinite(float(beta)) and float(beta) > 0):
        found.append(_error("algorithm.gvpo.beta", "be positive", beta, "It is the strength of the KL regularisation."))
    if _get(config, "distillation.enabled", False):
        found.append(
            _error(
                "distillation.enabled",
                "be False: distillation brings a loss of its own",
                True,
                "Set `distillation.enabled=False`.",
            )
        )
    sequence_parallel = max(
        _get(config, f"{_ACTOR}.ulysses_sequence_parallel_size", 1) or 1,
        _get(config, f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size", 1) or 1,
    )
    if sequence_parallel > 1:
        found.append(
            Finding(
                "warning",
                "gvpo: sequence parallelism (ulysses_sequence_parallel_size > 1) has not been tested with the "
                "exact loss.",
            )
        )
    return found


def _stock(config: DictConfig) -> list[Finding]:
    found = []
    aggregation = _get(config, f"{_ACTOR}.loss_agg_mode")
    if aggregation != "seq-mean-token-sum":
        # Not refused: `algorithm.adv_estimator=gvpo` alone must run, and what then runs is centred rewards
        # under verl's aggregation, a policy gradient in its own right.
        found.append(
            Finding(
                "warning",
                f"gvpo: `{_ACTOR}.loss_agg_mode` is {aggregation!r}, which does not weigh whole sequences as GVPO's "
                f"gradient does; set `{_ACTOR}.loss_agg_mode=seq-mean-token-sum` for its direction.",
            )
        )
    updates = updates_per_batch(config)
    if updates > 1:
        found.append(
            _error(
                f"{_ACTOR}.ppo_mini_batch_size",
                "give one update per batch in a stock trainer: the group means are those of the sampling "
                "policy and are wrong after the first update",
                f"{updates} updates",
                f"Set `{_EXACT}` and `{_ACTOR}.policy_loss.loss_mode=gvpo`, or "
                f"`{_ACTOR}.ppo_mini_batch_size=${{data.train_batch_size}}` and `{_ACTOR}.ppo_epochs=1`.",
            )
        )
    loss = _get(config, f"{_ACTOR}.policy_loss.loss_mode")
    if loss not in ("vanilla", "gpg"):
        found.append(
            _error(
                f"{_ACTOR}.policy_loss.loss_mode",
                "be 'vanilla' in a stock trainer, which for one update per batch clips nothing",
                loss,
                f"Set it, or `{_EXACT}` and `loss_mode=gvpo`.",
            )
        )
    if _get(config, "algorithm.rollout_correction.bypass_mode", False):
        found.append(
            _error(
                "algorithm.rollout_correction.bypass_mode",
                "be False in a stock trainer: the policy differs from the one the log-probabilities belong to",
                True,
                f"Set it to False, or `{_EXACT}`.",
            )
        )
    if _get(config, "trainer.use_v1", True) and _get(config, "trainer.v1.trainer_mode") == "separate_async":
        found.append(
            _error(
                "trainer.v1.trainer_mode",
                "not be 'separate_async': the policy is ahead of the one the group means belong to",
                "separate_async",
                f"Set `{_EXACT}`.",
            )
        )
    return found


def _error(setting: str, requirement: str, got: object, remedy: str) -> Finding:
    return Finding("error", f"gvpo: `{setting}` must {requirement}; got {got!r}. {remedy}")


def _get(config: DictConfig, path: str, default: Any = None) -> Any:
    return OmegaConf.select(config, path, default=default)
