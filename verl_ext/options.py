"""Options of the estimators, as verl's configuration carries them.

One block for each family, beside verl's own keys under ``algorithm``::

    algorithm.shrinkage.weight=0.3        adv_estimator=shrinkage | shrinkage_js
    algorithm.bvblend.window=200          adv_estimator=bvblend | bvblend_eb | shrinkage_history
    algorithm.gvpo.masked_rewards=drop    adv_estimator=gvpo
    algorithm.refbase.singletons=zero     adv_estimator=refbase_rloo | group_mean | refbase_grpo | ...

Hydra accepts a key that no file defines only with a ``+``. So there are two ways that work end to end:

* in verl's stock configuration, ``+algorithm.shrinkage.weight=0.3``;
* with ``--config-name refbase_trainer`` (or a file of yours that has it in its ``defaults``), the same without
  ``+``. The plug-in puts ``verl_ext/configs`` into Hydra's configuration store while ``import verl`` runs, so
  no search path has to be given. Those files hold every option with its default.

verl hands ``algorithm`` to an estimator as it is, so all of this reaches the process that computes advantages.
Keys are checked there, at the first batch, and by ``python -m verl_ext.doctor`` before a job starts: an
unknown, ill-typed or out-of-range value is an error, and so is an option of another estimator of the family.

``algorithm.norm_adv_by_std_in_grpo`` is verl's, and true by default. It belongs to ``grpo``: `refbase_grpo`
obeys it, and estimators that never divide by a standard deviation have nothing to switch off. BV-Blend can
divide: with the flag false, ``scale`` is "none" unless set, and set to anything else is a contradiction and an
error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NoReturn

from refbase import CATALOG, validate
from verl_ext.history_keys import check_source

__all__ = [
    "BLOCKS",
    "BVBlendOptions",
    "ComparatorOptions",
    "GVPOOptions",
    "Options",
    "ShrinkageOptions",
    "parse",
    "verl_name",
]

#: verl has estimators of its own under these names; ours are registered with the prefix ``refbase_``.
TAKEN_BY_VERL = frozenset({"rloo", "grpo", "opo"})


#: verl 0.9.1's own keys under ``algorithm`` that resemble ours.
VERL_KEYS = frozenset({"gdpo_reward_keys", "gdpo_reward_weights"})


def verl_name(name: str) -> str:
    """What ``algorithm.adv_estimator`` must be for the estimator ``refbase.<name>``."""
    return f"refbase_{name}" if name in TAKEN_BY_VERL else name


def _only(*estimators: str) -> dict[str, Any]:
    """Metadata of an option that not every estimator of the family has."""
    return {"only": estimators}


@dataclass(frozen=True)
class Options:
    """Common to all blocks.

    Parameters
    ----------
    nonfinite : {"raise", "exclude"}
        What a NaN or infinite return on a valid row does: stop, or leave the row out.
    masked_rewards : {"count", "drop"}
        Whether a reward on a masked position belongs to the return. "count" is what verl does: the mask says
        which tokens train, not what the response was worth.
    """

    block: ClassVar[str]
    estimators: ClassVar[tuple[str, ...]]

    nonfinite: str = "raise"
    masked_rewards: str = "count"

    def __post_init__(self) -> None:
        validate.check_choice(self.where, "nonfinite", self.nonfinite, ("raise", "exclude"))
        validate.check_choice(self.where, "masked_rewards", self.masked_rewards, ("count", "drop"))

    @property
    def where(self) -> str:
        return f"algorithm.{self.block}"

    def kernel(self, name: str) -> dict[str, Any]:
        """Keyword arguments of the kernel ``name``."""
        return {"nonfinite": self.nonfinite}

    def _check_weight(self, weight: float | None) -> None:
        if weight is not None:
            validate.check_number(self.where, "weight", weight, 0, 1)

    def _check_flag(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, bool):
            got = f"{value!r} of type {type(value).__name__}"
            validate.reject_type(self.where, name, "be true or false", got, "Write true or false, without quotes.")


@dataclass(frozen=True)
class ShrinkageOptions(Options):
    """``algorithm.shrinkage``.

    Parameters
    ----------
    weight : float in [0, 1], optional
        Constant weight of the other prompts' mean instead of the estimated one. `shrinkage` only.
    variant : {"paper", "released"}
        The paper's coefficient, or that of its authors' released code, which depends on the unit of the rewards.
        `shrinkage` only.
    """

    block: ClassVar[str] = "shrinkage"
    estimators: ClassVar[tuple[str, ...]] = ("shrinkage", "shrinkage_js")

    weight: float | None = field(default=None, metadata=_only("shrinkage"))
    variant: str = field(default="paper", metadata=_only("shrinkage"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_weight(self.weight)
        validate.check_choice(self.where, "variant", self.variant, validate.SHRINKAGE_VARIANTS)

    def kernel(self, name: str) -> dict[str, Any]:
        own = {"weight": self.weight, "variant": self.variant} if name == "shrinkage" else {}
        return {**super().kernel(name), **own}


@dataclass(frozen=True)
class BVBlendOptions(Options):
    """``algorithm.bvblend``: the estimators that read a history.

    Parameters
    ----------
    window : int
        Steps of a key that its window variance covers.
    decay : float in [0, 1)
        Weight that a step keeps at the key's next step.
    max_keys : int
        History keys kept at most.
    local : {"mean", "loo"}
        Group mean, or the mean of the group's other rollouts, whose baseline is independent of the own reward.
        `bvblend` only.
    scale : str, optional
        What divides the advantage: "blend" (default), "group" or "none" for `bvblend`, "none" (default) or
        "history" for `bvblend_eb`. Not for `shrinkage_history`, which never divides. Only with "none" is `bvblend_eb`,
        or `bvblend` with local="loo", unbiased.
    min_scale : float > 0
        Smallest divisor, in units of the reward. Not for `shrinkage_history`.
    weight : float in [0, 1], optional
        Constant weight of the history. `bvblend` only.
    min_groups : float >= 0
        Effective groups of history below which it is not used. Not for `bvblend`.
    history_key : str
        What a prompt is remembered under: "none" (one history for all), "data_source", "extra_info.<field>" or
        "<module>:<function>", see `verl_ext.history_keys`. All but "none" need ``trainer.v1.trainer_mode=refbase``.
    allow_cold_history : bool
        Whether a job may resume from a checkpoint that holds no history.
    """

    block: ClassVar[str] = "bvblend"
    estimators: ClassVar[tuple[str, ...]] = ("bvblend", "bvblend_eb", "shrinkage_history")

    window: int = 100
    decay: float = 0.95
    max_keys: int = 65536
    local: str = field(default="mean", metadata=_only("bvblend"))
    scale: str | None = field(default=None, metadata=_only("bvblend", "bvblend_eb"))
    min_scale: float = field(default=0.1, metadata=_only("bvblend", "bvblend_eb"))
    weight: float | None = field(default=None, metadata=_only("bvblend"))
    min_groups: float = field(default=16, metadata=_only("bvblend_eb", "shrinkage_history"))
    history_key: str = "none"
    allow_cold_history: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.check_integer(self.where, "window", self.window, 1)
        validate.check_number(self.where, "decay", self.decay, 0, 1, open_high=True)
        validate.check_integer(self.where, "max_keys", self.max_keys, 1)
        validate.check_choice(self.where, "local", self.local, validate.BVBLEND_LOCALS)
        if self.scale is not None:
            known = dict.fromkeys((*validate.BVBLEND_SCALES, *validate.BVBLEND_EB_SCALES))
            validate.check_choice(self.where, "scale", self.scale, tuple(known))
        validate.check_number(self.where, "min_scale", self.min_scale, 0, open_low=True)
        self._check_weight(self.weight)
        validate.check_number(self.where, "min_groups", self.min_groups, 0)
        check_source(self.where, self.history_key)
        self._check_flag("allow_cold_history")

    def kernel(self, name: str) -> dict[str, Any]:
        if name == "shrinkage_history":  # never divides, so `_without_scale` has nothing to switch off either
            return {**super().kernel(name), "min_groups": self.min_groups}
        own: dict[str, Any] = {"min_scale": self.min_scale}
        if name == "bvblend":
            own |= {"local": self.local, "weight": self.weight}
        else:
            own |= {"min_groups": self.min_groups}
        if self.scale is not None:
            allowed = validate.BVBLEND_SCALES if name == "bvblend" else validate.BVBLEND_EB_SCALES
            validate.check_choice(f"{self.where} (adv_estimator={name})", "scale", self.scale, allowed)
            own["scale"] = self.scale
        return {**super().kernel(name), **own}

    @property
    def memory(self) -> dict[str, Any]:
        """Arguments of `refbase.HistoryState.empty`."""
        return {"window": self.window, "decay": self.decay, "max_keys": self.max_keys}


@dataclass(frozen=True)
class GVPOOptions(Options):
    """``algorithm.gvpo``.

    Parameters
    ----------
    size_correction : bool
        In a stock trainer: give groups of different sizes the weight 1/(k-1) that the loss has, relative to
        the largest group of the batch. Groups of one size are not changed by it. The exact loss always has it.
    beta : float > 0, optional
        β of the exact loss (``trainer.v1.trainer_mode=refbase``). Leave it out with the KL penalty in the
        reward, where it is ``algorithm.kl_ctrl.kl_coef``; needed without.
    divide_by_beta : bool
        Exact loss: use the gradient of L/β, which has the size of GRPO's, so that ``clip_grad`` and learning
        rate mean the same.
    """

    block: ClassVar[str] = "gvpo"
    estimators: ClassVar[tuple[str, ...]] = ("gvpo",)

    size_correction: bool = True
    beta: float | None = None
    divide_by_beta: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_flag("size_correction")
        self._check_flag("divide_by_beta")
        if self.beta is not None:
            validate.check_number(self.where, "beta", self.beta, 0, open_low=True)


@dataclass(frozen=True)
class ComparatorOptions(Options):
    """``algorithm.refbase``: the estimators that exist to be compared with.

    Parameters
    ----------
    singletons : {"raw", "zero", "error"}
        What a group of one gets: its raw return, 0, or an error. Not for `batch_mean`, which has no such case. With
        "zero" such rollouts are lost to the gradient, and `refbase_rloo` is not unbiased.
    """

    block: ClassVar[str] = "refbase"
    estimators: ClassVar[tuple[str, ...]] = ("rloo", "group_mean", "grpo", "batch_mean", "opo")

    singletons: str = field(default="raw", metadata=_only("rloo", "group_mean", "grpo", "opo"))

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.check_choice(self.where, "singletons", self.singletons, validate.SINGLETONS)

    def kernel(self, name: str) -> dict[str, Any]:
        own = {} if name == "batch_mean" else {"singletons": self.singletons}
        return {**super().kernel(name), **own}


#: Block name -> its class.
BLOCKS: Mapping[str, type[Options]] = {
    cls.block: cls for cls in (ShrinkageOptions, BVBlendOptions, GVPOOptions, ComparatorOptions)
}
_BLOCK_OF: Mapping[str, type[Options]] = {name: cls for cls in BLOCKS.values() for name in cls.estimators}


def parse(name: str, algorithm: Any) -> Options:
    """Options of estimator ``name`` from verl's ``algorithm`` section.

    Parameters
    ----------
    name : str
        Name in `refbase.CATALOG`.
    algorithm : DictConfig, mapping, verl's ``AlgoConfig`` or None
        None, or a section without the block, gives the defaults.

    Raises
    ------
    InputError, InputTypeError
        An unknown key (the valid ones are listed), a value of the wrong type or out of range, an option that
        ``name`` does not have, or a block whose name is close to, but not, one of ours.
    """
    if name not in _BLOCK_OF:
        raise validate.unknown_name("algorithm.adv_estimator", "estimator", name, _BLOCK_OF)
    cls = _BLOCK_OF[name]
    section = _container(algorithm)
    _check_block_names(section)
    block = section.get(cls.block)
    if block is None:
        block = {}
    where = f"algorithm.{cls.block}"
    _check_resolved("algorithm", cls.block, block)
    if not isinstance(block, Mapping):
        got = f"{block!r} of type {type(block).__name__}"
        validate.reject_type("algorithm", cls.block, "be a mapping of options", got, f"Write {where}.<option>=...")
    known = {f.name: f for f in fields(cls)}
    for key, value in block.items():
        if key not in known:
            raise validate.unknown_name(where, "option", key, known)
        _check_resolved(where, str(key), value)
        only = known[key].metadata.get("only", cls.estimators)
        if name not in only and value != known[key].default:
            estimators = " or ".join(verl_name(estimator) for estimator in only)
            remedy = f"algorithm.adv_estimator is {verl_name(name)}: leave the option out."
            validate.reject(where, str(key), f"stay unset unless adv_estimator is {estimators}", repr(value), remedy)
    options = cls(**block)
    if isinstance(options, BVBlendOptions) and section.get("norm_adv_by_std_in_grpo") is False:
        options = _without_scale(options)
    options.kernel(name)  # checks what depends on the estimator
    return options


def _without_scale(options: BVBlendOptions) -> BVBlendOptions:
    if options.scale not in (None, "none"):
        remedy = "Leave one of the two out."
        got = f"{options.scale!r} with algorithm.norm_adv_by_std_in_grpo=False"
        validate.reject(options.where, "scale", "agree with norm_adv_by_std_in_grpo", got, remedy)
    from dataclasses import replace

    return replace(options, scale="none")


def _container(config: Any) -> dict[str, Any]:
    """The section as a plain dictionary, interpolations resolved."""
    if config is None:
        return {}
    if _is_omegaconf(config):
        from omegaconf import OmegaConf, errors

        # Key by key: what is broken elsewhere in the section is not ours to report.
        plain: dict[str, Any] = OmegaConf.to_container(config, resolve=False)
        for key in plain:
            try:
                node = config[key]
                plain[key] = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
            except errors.MissingMandatoryValue:
                pass  # "???" stays
            except errors.OmegaConfBaseException as error:
                if key in BLOCKS:
                    _reject_unresolved(key, plain[key], error)
        return plain
    if isinstance(config, Mapping):
        return {key: _container(v) if _is_omegaconf(v) else v for key, v in config.items()}
    if not hasattr(config, "__dict__"):
        got = f"{config!r} of type {type(config).__name__}"
        remedy = "Pass the configuration's `algorithm` section."
        validate.reject_type("options", "algorithm", "be verl's section of that name", got, remedy)
    return dict(vars(config))


def _is_omegaconf(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "omegaconf"


def _check_resolved(where: str, name: str, value: Any) -> None:
    """A section that is no longer OmegaConf's may still hold the text of an interpolation."""
    if isinstance(value, str) and (value == "???" or "${" in value):
        remedy = f"Set {where}.{name}, or define what it refers to."
        validate.reject(where, name, "have a value", f"the unresolved {value!r}", remedy)


def _reject_unresolved(block: str, written: Any, error: Exception) -> NoReturn:
    """Name the option whose interpolation leads nowhere; OmegaConf knows its full name."""
    name = str(getattr(error, "full_key", "")).rpartition(".")[2]
    if isinstance(written, Mapping) and name in written:
        where, value = f"algorithm.{block}", written[name]
    else:
        where, name, value = "algorithm", block, written
    got = f"the unresolved {value!r} ({str(error).splitlines()[0]})"
    validate.reject(where, name, "have a value", got, f"Set {where}.{name}, or define what it refers to.")


def _check_block_names(section: Mapping[str, Any]) -> None:
    """``+algorithm.shrinkge.weight=...`` would be accepted by Hydra and never be read."""
    for key in section:
        name = str(key).lower()
        if key in BLOCKS or key in VERL_KEYS:
            continue
        estimator = name.removeprefix("refbase_")
        if estimator in CATALOG:
            block = _BLOCK_OF[estimator].block
            remedy = f"The options of {verl_name(estimator)} are algorithm.{block}.<option>."
            validate.reject("algorithm", str(key), "be an option block", "the name of an estimator", remedy)
        near = difflib.get_close_matches(name, BLOCKS, n=1, cutoff=0.7)
        if near or any(name.startswith(f"{block}_") for block in BLOCKS):
            raise validate.unknown_name("algorithm", "block", key, BLOCKS)


assert set(_BLOCK_OF) == set(CATALOG), "every estimator of the catalogue needs a block"
