"""The table of estimators: names, implementations, claimed properties, sources. Everything else reads it.

Traits are those of an estimator under its default options; `CHOICES` says which options change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from refbase.validate import unknown_name

#: What an estimator may claim. Laws are chosen by these claims, never by an estimator's name.
#: A rollout for which neither a local mean nor a target exists keeps its raw reward and is exempt.
TRAITS: Mapping[str, str] = MappingProxyType(
    {
        "shift": "A(r + c) = A(r) for a constant c added to every reward",
        "scale": "A(s*r) = s*A(r) for s > 0",
        "scale_invariant": "A(s*r) = A(r) for s > 0, up to the divisor's eps",
        "zero_sum": "the advantages of each group sum to 0",
        "constant_zero": "a group of equal rewards has advantages exactly 0",
        "own_reward_independent": "the baseline of a rollout does not change when its reward alone changes",
        "unbiased": "the expected policy gradient is the true one, exactly",
        "unbiased_up_to_factor": "the expected policy gradient is (m-1)/m times the true one, for group size m",
        "convex_weight": "0 <= weight <= 1, and the baseline lies between local and target",
        "group_local": "other groups do not matter",
        "history": "reads a state of earlier steps",
    }
)

_LOCAL = ("shift", "zero_sum", "constant_zero", "group_local")
_INDEPENDENT = ("own_reward_independent", "unbiased", "convex_weight")


@dataclass(frozen=True)
class Entry:
    """One estimator: ``refbase.<name>``, its two implementations and what it claims with default options."""

    name: str
    summary: str
    baseline: str  # the formula, one line
    traits: frozenset[str]
    citation: str

    @property
    def spec(self) -> str:
        return f"refbase.spec.{self.name}:{self.name}"

    @property
    def kernel(self) -> str:
        return f"refbase.kernels.{self.name}:{self.name}"

    @property
    def docs(self) -> str:
        return f"docs/estimators/{self.name}.md"

    @property
    def needs_history(self) -> bool:
        return "history" in self.traits

    def claims(self, **options: Any) -> frozenset[str]:
        """The traits that it claims under these options.

        >>> sorted(CATALOG["shrinkage"].traits - CATALOG["shrinkage"].claims(variant="released"))
        ['scale']
        """
        traits = self.traits
        for choice in CHOICES:
            if choice.estimator == self.name and choice.options.items() <= options.items():
                traits = (traits | choice.gains) - choice.loses
        return traits

    def load_spec(self) -> Callable[..., Any]:
        return load(self.spec)

    def load_kernel(self) -> Callable[..., Any]:
        return load(self.kernel)


def load(target: str) -> Callable[..., Any]:
    """The object behind ``"module:name"``."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _entry(name: str, summary: str, baseline: str, traits: tuple[str, ...], citation: str) -> Entry:
    return Entry(name, summary, baseline, frozenset(traits), citation)


_ENTRIES = (
    _entry(
        "rloo",
        "leave-one-out mean of the group",
        "mean of the group's other rollouts",
        (*_LOCAL, "scale", *_INDEPENDENT),
        "Kool, van Hoof, Welling 2019 (DeepRLStructPred workshop); Ahmadian et al. 2024, arXiv 2402.14740",
    ),
    _entry(
        "group_mean",
        "group-mean centring (Dr.GRPO)",
        "mean of the group",
        (*_LOCAL, "scale", "unbiased_up_to_factor", "convex_weight"),
        "Liu et al. 2025, arXiv 2503.20783",
    ),
    _entry(
        "grpo",
        "group mean, divided by the group's standard deviation",
        "mean of the group; scale = std (Bessel) + eps",
        (*_LOCAL, "scale_invariant", "convex_weight"),
        "Shao et al. 2024, arXiv 2402.03300",
    ),
    _entry(
        "batch_mean",
        "mean of the other prompts' means",
        "mean over the other groups of their means",
        ("shift", "scale", *_INDEPENDENT),
        "REINFORCE++ (Hu et al. 2025, arXiv 2501.03262), with the own prompt left out",
    ),
    _entry(
        "opo",
        "length-weighted mean of the group",
        "sum(length * reward) / sum(length) over the group",
        ("shift", "constant_zero", "group_local", "scale", "convex_weight"),
        "Hao et al. 2025, arXiv 2505.23585",
    ),
    _entry(
        "shrinkage",
        "James-Stein blend of the leave-one-out mean and the other prompts' mean",
        "(1-w) * leave-one-out mean + w * batch_mean, w = (n-1)/n * v/(v+s) from the other prompts",
        ("shift", "scale", *_INDEPENDENT),
        "Zeng, Zhou, Arora, Zanette 2025, arXiv 2511.03710",
    ),
    _entry(
        "shrinkage_js",
        "the same blend with the noise of the means taken out of the between-prompt spread",
        "as shrinkage, w = v/max(v + spread + Var(target), gap^2/(a*n)); gap = local - target, a = (n-3)/(n-1)",
        ("shift", "scale", *_INDEPENDENT),
        "this library; James and Stein 1961, arXiv 2511.03710",
    ),
    _entry(
        "bvblend",
        "group mean blended with a historical mean by their uncertainties",
        "(1-w) * group mean + w * H, w = sigma_u^2/(sigma_u^2 + sigma_G^2); scale = blended deviation",
        ("group_local", "convex_weight", "history"),
        "Chang, Wu, Chang 2026, arXiv 2606.28707; formula of the article that describes it",
    ),
    _entry(
        "bvblend_eb",
        "leave-one-out mean shrunk towards a historical mean, empirical Bayes",
        "(1-w) * leave-one-out mean + w * H, w = v/(v + tau^2 + Var(H)) from history",
        ("group_local", *_INDEPENDENT, "history"),
        "this library; James and Stein 1961, arXiv 2606.28707",
    ),
    _entry(
        "shrinkage_history",
        "leave-one-out mean shrunk towards history and the other prompts together, each by its precision",
        "(1-w) * leave-one-out mean + w * (precision-weighted H and batch_mean), w = v/(v + spread + Var(target))",
        (*_INDEPENDENT, "history"),
        "this library; James and Stein 1961, arXiv 2511.03710, arXiv 2606.28707",
    ),
    _entry(
        "gvpo",
        "centred return, GVPO's weights at the sampling policy; see also gvpo_loss",
        "mean of the group",
        (*_LOCAL, "scale", "convex_weight"),
        "Zhang et al. 2025, arXiv 2504.19599",
    ),
)


@dataclass(frozen=True)
class Choice:
    """Options that change what an estimator claims; the rows of an estimator apply one after the other."""

    estimator: str
    options: Mapping[str, Any]
    gains: frozenset[str]
    loses: frozenset[str]
    why: str


def _choice(
    estimator: str, options: dict[str, Any], why: str, gains: tuple[str, ...] = (), loses: tuple[str, ...] = ()
) -> Choice:
    return Choice(estimator, MappingProxyType(options), frozenset(gains), frozenset(loses), why)


CHOICES = (
    _choice(
        "rloo",
        {"singletons": "zero"},
        "a zero advantage in a group of one is a baseline equal to the own reward",
        loses=("own_reward_independent", "unbiased"),
    ),
    _choice(
        "shrinkage",
        {"variant": "released"},
        "1e-6 is added to what has the unit of a squared reward",
        loses=("scale",),
    ),
    _choice(
        "bvblend",
        {"local": "loo"},
        "local mean and weight come from the group's other rollouts and from history",
        gains=("own_reward_independent",),
    ),
    _choice(
        "bvblend",
        {"local": "loo", "scale": "none"},
        "and nothing is divided by",
        gains=("unbiased",),
    ),
    _choice(
        "bvblend_eb",
        {"scale": "history"},
        "a divisor from history keeps the direction of the expected gradient, not its length",
        loses=("unbiased",),
    ),
)

CATALOG: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})


def lookup(name: str) -> Entry:
    """The catalogue's row of that name; an unknown name lists the valid ones."""
    try:
        return CATALOG[name]
    except (KeyError, TypeError):
        raise unknown_name("refbase", "estimator", name, CATALOG) from None
