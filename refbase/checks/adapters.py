"""Other people's estimators as subjects: verl's signature, a matrix of groups, or plain rows.

Three signatures are understood.

``flat``
    ``f(rewards, group_ids)`` or ``f(rewards, group_ids, valid)``: one reward and one label per rollout.
``matrix``
    ``f(rewards)`` with rewards of shape (prompts, rollouts): equal group sizes, no masks.
``verl``
    ``f(token_level_rewards=, response_mask=, index=, config=)`` with (N, T) tensors, as a function
    registered with ``register_adv_est`` is called.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from refbase.catalog import CATALOG, TRAITS, lookup
from refbase.checks.catalogue import catalogue_subject
from refbase.checks.subject import Batch, Probe, Subject, SubjectError, render_labels, render_rewards
from refbase.validate import InputError, InputTypeError, check_integer, closest, reject_type, unknown_name

SIGNATURES = ("flat", "matrix", "verl")
ARRAYS = ("torch", "numpy", "float", "exact")

#: What `as_subject` itself reads; its other keyword arguments are the estimator's.
KEYWORDS = ("signature", "claims", "arrays", "name", "min_group", "min_valid")

_LOCAL = ("shift", "zero_sum", "constant_zero", "group_local")
_WHITENED = ("shift", "scale_invariant")

#: What verl's outcome-reward estimators are supposed to satisfy by their definitions. Besides these, all are
#: held to the laws that bind every estimator (order, labels, masks, dtypes, ...).
VERL_CLAIMS: Mapping[str, tuple[str, ...]] = {
    "rloo": (*_LOCAL, "scale", "own_reward_independent", "unbiased"),
    "rloo_vectorized": (*_LOCAL, "scale", "own_reward_independent", "unbiased"),
    "grpo": (*_LOCAL, "scale_invariant"),
    "grpo_vectorized": (*_LOCAL, "scale_invariant"),
    "opo": ("shift", "scale", "constant_zero", "group_local"),
    "grpo_passk": ("shift", "scale_invariant", "constant_zero", "group_local"),  # max - second, over the std
    "gpg": ("scale", "zero_sum", "constant_zero"),  # group mean, times rows per non-zero reward of the batch
    "reinforce_plus_plus": _WHITENED,  # whitened over the batch
    "reinforce_plus_plus_baseline": _WHITENED,  # group mean, then whitened over the batch
    "gdpo": _WHITENED,  # grpo per reward component (here one), then whitened over the batch
    "remax": ("own_reward_independent", "unbiased"),  # greedy reward as the baseline, here a constant
}

#: They refuse a batch without any valid token; the law `all_masked` says so once, and others leave it out.
WHITENING = ("reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo")

#: Registered in verl, but not functions of one reward per rollout.
VERL_OTHERS = {
    "gae": "needs a critic's values",
    "optimal_token_baseline": "needs token log-probabilities",
    "tir_optimal_token_baseline": "needs token log-probabilities",
}

#: verl's `reward_baselines` when the suite calls `remax`: the reward of a greedy rollout is unrelated to the
#: sampled ones, so any constant will do.
GREEDY_REWARD = 0.5


def as_subject(
    estimator: str | Callable[..., Any] | Subject,
    *,
    signature: str = "flat",
    claims: Iterable[str] | None = None,
    arrays: str = "torch",
    name: str | None = None,
    min_group: int = 1,
    min_valid: int = 0,
    **options: Any,
) -> Subject:
    """An estimator under test, from a function or from a name.

    Parameters
    ----------
    estimator
        A function; ``"package.module:function"``; ``"verl:rloo"`` for an estimator registered in verl;
        ``"refbase:shrinkage"`` for one of this library; or a `Subject`, returned as it is, without further arguments.
    signature
        How it is called: "flat", "matrix" or "verl". Names of verl and refbase bring their own.
    claims
        Traits (`refbase.catalog.TRAITS`) that it is supposed to have; by default those of the catalogue or
        of `VERL_CLAIMS`, and none for other functions.
    arrays
        What it takes and returns: "torch" tensors, "numpy" arrays, lists of "float", or lists of "exact"
        Fractions.
    min_group, min_valid
        The smallest group, and the fewest valid rows of a batch, that it accepts.
    options
        Keyword arguments of every call.

    Raises
    ------
    InputError
        An unknown name, signature, kind of arrays or claim; a number out of range; an option that the estimator does
        not take, or that looks like a misspelt argument of this function; any argument besides a `Subject`.
    InputTypeError
        Something that is no function, claims that are no list, a number that is none.

    Examples
    --------
    >>> def centred(rewards, group_ids):
    ...     return [r - sum(rewards) / len(rewards) for r in rewards]
    >>> subject = as_subject(centred, arrays="exact", claims=["shift"])
    >>> from refbase.checks import LAWS, run_law
    >>> run_law(subject, LAWS["shift"]).status
    'holds'
    """
    check_integer("refbase.checks", "min_group", min_group, 1)
    check_integer("refbase.checks", "min_valid", min_valid, 0)
    claims = None if claims is None else check_traits(claims)
    if isinstance(estimator, Subject):
        check_spelling(options)
        given = {
            "signature": signature != "flat",
            "claims": claims is not None,
            "arrays": arrays != "torch",
            "name": name is not None,
            "min_group": min_group != 1,
            "min_valid": min_valid != 0,
            **dict.fromkeys(options, True),
        }
        for key in filter(given.get, given):
            raise InputError(
                f"refbase.checks: `{key}` is for functions and names; {estimator.name} is a Subject and has its own. "
                "Give it when the subject is made, or change it with dataclasses.replace."
            )
        return estimator
    if signature not in SIGNATURES:
        raise unknown_name("refbase.checks", "signature", signature, SIGNATURES)
    if arrays not in ARRAYS:
        raise unknown_name("refbase.checks", "kind of arrays", arrays, ARRAYS)
    if arrays == "torch" and find_spec("torch") is None:
        raise InputError(
            "refbase.checks: arrays 'torch', the default, need torch, which is not installed. "
            "Install it, or say arrays 'numpy', 'float' or 'exact'."
        )
    if isinstance(estimator, str):
        package, _, function = estimator.partition(":")
        if package in ("refbase", "verl"):
            if package == "verl":
                known = _of_verl(function, claims, options)
            else:
                known = _of_refbase(function, arrays, claims, options)
            smallest, fewest = max(min_group, known.min_group), max(min_valid, known.min_valid)
            return replace(known, name=name or known.name, min_group=smallest, min_valid=fewest)
        call = load(estimator)
    else:
        call = estimator
    if not callable(call):
        raise InputTypeError(f"refbase.checks: {estimator!r} is a {type(call).__name__}, not a function")
    label = name or (estimator if isinstance(estimator, str) else _label(call))
    traits = frozenset(claims or ())
    code = _import_named(*estimator.split(":", 1)) if isinstance(estimator, str) else _import_of(call)
    if signature == "verl":
        check_spelling(options)
        return _verl_subject(label, call, traits, code, min_group, options, min_valid)
    _check_options(label, call, options, 1 if signature == "matrix" else 2)
    build = _matrix_subject if signature == "matrix" else _flat_subject
    subject = replace(build(label, call, traits, code, arrays, min_group, options), min_valid=min_valid)
    return replace(subject, parts=_returns_estimate(subject))


def _returns_estimate(subject: Subject) -> bool:
    """Whether it returns baselines and weights too, seen on one small batch; a crash there is reported later."""
    size = max(2, subject.min_group)
    batch = Batch((Fraction(1), *[Fraction(0)] * (size - 1)), ("a",) * size, None, subject.dtypes[0])
    try:
        return Probe(subject)(batch).is_estimate
    except SubjectError:
        return False


def _check_options(
    label: str,
    function: Callable[..., Any],
    options: Mapping[str, Any],
    n_batch: int,
    filled: Collection[str] = ("valid",),
) -> None:
    """Options must be arguments of the function: a misspelt keyword of ours is not to become one.

    Parameters
    ----------
    n_batch, filled
        How many arguments the suite fills by position, and which ones by name.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin or an extension without a signature
        check_spelling(options)
        return
    batch = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:n_batch]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    own = [key for key in named if key not in (*batch, *filled)]
    others = [key for key in options if key not in own]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        check_spelling(others)
    elif others:
        valid = closest(others[0], (*KEYWORDS, *own))
        raise InputError(f"refbase.checks: {label} takes no argument {others[0]!r}; {valid}")


def check_spelling(options: Iterable[str], keywords: Collection[str] = KEYWORDS) -> None:
    """Reject an option that would reach the estimator, or nobody, because a keyword was misspelt."""
    for key in options:
        near = difflib.get_close_matches(key, keywords, n=1, cutoff=0.8)
        if near:
            raise InputError(
                f"refbase.checks: unknown keyword {key!r}; did you mean {near[0]!r}? "
                "An argument of the estimator that is really called so can be bound with functools.partial."
            )


def check_traits(claims: Iterable[str]) -> list[str]:
    """The claims, if all of them exist."""
    if isinstance(claims, str):
        names = claims.replace(",", " ").split()
        reject_type("refbase.checks", "claims", "be a list of traits", f"{claims!r} of type str", f"Write {names!r}.")
    if not isinstance(claims, Iterable):
        got = f"{claims!r} of type {type(claims).__name__}"
        reject_type("refbase.checks", "claims", "be a list of traits", got, 'Write ["shift"], say.')
    claims = list(claims)
    for claim in claims:
        if claim not in TRAITS:
            raise unknown_name("refbase.checks", "claim", claim, TRAITS)
    return claims


def load(target: str) -> Any:
    """The object behind ``"package.module:function"``; what is wrong with another string, and what is near."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise InputError(
            f"refbase.checks: an estimator is named 'package.module:function', 'verl:name' or 'refbase:name'; "
            f"got {target!r}"
        )
    try:
        found = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise  # the module is there and imports something that is not
        raise InputError(f"refbase.checks: no module named {missing!r} (while loading {target!r})") from None
    except SystemExit as error:  # a script without a guard must not end the checks as if all were well
        raise InputError(f"refbase.checks: {module_name!r} exits when it is imported ({error.code})") from None
    for part in path.split("."):
        if not hasattr(found, part):
            functions = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
            raise InputError(f"refbase.checks: {module_name!r} has no {part!r}; {closest(part, functions)}")
        found = getattr(found, part)
    return found


def _label(call: Callable[..., Any]) -> str:
    """A function's name, an object's class, and what a partial binds: never an address in memory."""
    if isinstance(call, partial):
        return f"partial({', '.join([_label(call.func), *_bound(call, _short)])})"
    return str(getattr(call, "__qualname__", None) or getattr(call, "__name__", None) or type(call).__qualname__)


def _bound(call: partial[Any], text: Callable[[Any], str]) -> list[str]:
    return [*map(text, call.args), *(f"{key}={text(value)}" for key, value in call.keywords.items())]


def _short(value: Any) -> str:
    if callable(value):
        return _label(value)
    text = repr(value)
    return type(value).__qualname__ if len(text) > 40 or "\n" in text or " at 0x" in text else text


def _import_of(call: Callable[..., Any]) -> str:
    """Python that binds the name ``estimator``, or a comment where nothing that can be imported leads to it."""
    if isinstance(call, partial):
        wrapped = _import_of(call.func)
        if wrapped.startswith("#") or not all(map(_can_be_pasted, (*call.args, *call.keywords.values()))):
            return f"# estimator: {_label(call)}"
        arguments = ", ".join(["estimator", *_bound(call, repr)])
        return f"import functools\n{wrapped}\nestimator = functools.partial({arguments})"
    module, name = getattr(call, "__module__", None), getattr(call, "__qualname__", "")
    owner = getattr(call, "__self__", None)
    if isinstance(owner, (type, ModuleType)):  # a class method, a builtin function
        owner = None
    if module and name and "<" not in name and owner is None:
        return _import_named(module, name)
    thing = call if owner is None else owner
    home = thing.__module__ if hasattr(thing, "__module__") else None
    variable = _variable(home, thing)
    if home and variable:
        return _import_named(home, variable if owner is None else f"{variable}.{call.__name__}")
    if owner is not None:
        return f"# estimator: {name} of an object of class {home}.{type(owner).__qualname__}"
    return f"# estimator: {name}" if name else f"# estimator: an object of class {home}.{type(call).__qualname__}"


def _can_be_pasted(value: Any) -> bool:
    if isinstance(value, Fraction):
        return True
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False


def _variable(module: str | None, thing: Any) -> str | None:
    """The name under which a module that is loaded holds this very object."""
    found = vars(sys.modules[module]) if module in sys.modules else {}
    return next((name for name, value in found.items() if value is thing and name.isidentifier()), None)


def _import_named(module: str, name: str) -> str:
    head, _, rest = name.partition(".")
    return (
        f"from {module} import {head} as estimator" if not rest else f"from {module} import {head}\nestimator = {name}"
    )


# --- this library -------------------------------------------------------------------------------------------


def _of_refbase(name: str, arrays: str, claims: Iterable[str] | None, options: Mapping[str, Any]) -> Subject:
    entry = lookup(name)
    if arrays == "numpy":
        raise InputError("refbase.checks: refbase's estimators are checked with arrays 'torch', 'float' or 'exact'")
    function = entry.load_kernel() if arrays == "torch" else entry.load_spec()
    _check_options(f"refbase:{name}", function, options, 2, ("valid", "state", "history_keys"))
    subject = catalogue_subject(name, arrays, **options)
    return subject if claims is None else replace(subject, claims=frozenset(claims))


# --- plain rows ---------------------------------------------------------------------------------------------


def _flat_subject(
    name: str,
    function: Callable[..., Any],
    traits: frozenset[str],
    code: str,
    arrays: str,
    min_group: int,
    options: Mapping[str, Any],
) -> Subject:
    masks = _accepts(function, "valid")

    def call(rewards: Any, group_ids: Any, valid: Any = None, **settings: Any) -> Any:
        given = np.array(rewards) if arrays == "numpy" else rewards
        flags = {"valid": valid} if masks else {}
        result = function(given, group_ids, **flags, **settings)
        if arrays == "numpy":
            rewards[:] = given.tolist()  # a change of the array is passed on to the caller, who looks for one
            return rewards if result is given else result
        return result

    def literal(batch: Batch) -> str:
        text = render_rewards(batch, _numbers(arrays))
        return f"np.array({text})" if arrays == "numpy" else text

    def render(batch: Batch, settings: Mapping[str, Any], rewards: str) -> str:
        arguments = [rewards, render_labels(batch.group_ids)]
        if batch.valid is not None:
            flags = repr(list(batch.valid))
            arguments.append(f"valid=torch.tensor({flags})" if arrays == "torch" else f"valid={flags}")
        return f"estimator({', '.join([*arguments, *_keywords(settings)])})"

    def adapter(settings: Mapping[str, Any], dtype: str, first: str) -> str:
        given = _from_enumeration(arrays, dtype)
        return _advantages(f"return estimator({', '.join([given, 'list(group_ids)', *_keywords(settings)])}){first}")

    return Subject(
        name,
        call,
        traits,
        _numbers(arrays),
        options,
        code,
        render,
        literal,
        adapter=adapter,
        masks=masks,
        min_group=min_group,
    )


def _from_enumeration(arrays: str, dtype: str) -> str:
    """Rewards, as `refbase.exact.evaluate` passes them, in the kind of array that the function takes."""
    return {
        "torch": f"torch.tensor(rewards, dtype=torch.{dtype})",
        "numpy": "rewards",
        "float": "rewards.tolist()",
        "exact": "rewards",
    }[arrays]


def _advantages(*lines: str) -> str:
    return "\n".join(["def advantages(rewards, group_ids):", *(f"    {line}" for line in lines)])


def _numbers(arrays: str) -> str:
    return "float" if arrays == "numpy" else arrays


def _keywords(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value!r}" for key, value in settings.items()]


def _accepts(function: Callable[..., Any], argument: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin or an extension without a signature
        return False
    return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


# --- a matrix of groups -------------------------------------------------------------------------------------


def _matrix_subject(
    name: str,
    function: Callable[..., Any],
    traits: frozenset[str],
    code: str,
    arrays: str,
    min_group: int,
    options: Mapping[str, Any],
) -> Subject:
    def call(rewards: Any, group_ids: Any, valid: Any = None, **settings: Any) -> Any:
        rows = by_group(group_ids)
        if arrays == "torch":
            import torch

            order = torch.tensor(rows)
            given = rewards[order] if rewards.is_contiguous() else rewards[order].T.contiguous().T
            result = function(given, **settings)
            _check_shape(result, rows)
            with torch.no_grad():  # a change of the matrix is passed on to the caller, who looks for one
                if not _same(rewards[order], given):
                    rewards[order] = given
            if result is given:
                return rewards
            out = result.new_zeros(len(group_ids))
            out[order] = result
            return out
        if arrays == "numpy":
            given = np.array(rewards)[np.array(rows)]
            result = function(given, **settings)
            _check_shape(result, rows)
            _scatter(given.tolist(), rows, rewards)
            if result is given:
                return rewards
            out = np.zeros(len(group_ids), dtype=result.dtype)
            out[np.array(rows)] = result
            return out
        matrix = [[rewards[k] for k in group] for group in rows]
        result = function(matrix, **settings)
        listed = [None] * len(group_ids)
        try:
            _scatter(matrix, rows, rewards)
            _scatter(result, rows, listed)
        except (TypeError, ValueError):
            raise SubjectError(f"did not return advantages of shape ({len(rows)}, {len(rows[0])})") from None
        return listed

    def literal(batch: Batch) -> str:
        rows = by_group(batch.group_ids)
        parts = ", ".join(f"[{', '.join(_value(batch, arrays, k) for k in group)}]" for group in rows)
        return {
            "torch": f"torch.tensor([{parts}], dtype=torch.{batch.dtype})",
            "numpy": f"np.array([{parts}])",
        }.get(arrays, f"[{parts}]")

    def render(batch: Batch, settings: Mapping[str, Any], rewards: str) -> str:
        return f"estimator({', '.join([rewards, *_keywords(settings)])})"

    def adapter(settings: Mapping[str, Any], dtype: str, first: str) -> str:
        given, more = _from_enumeration(arrays, dtype), "".join(f", {word}" for word in _keywords(settings))
        if arrays in ("torch", "numpy"):
            return _advantages(f"return estimator({given}.reshape(len(set(group_ids)), -1){more}).reshape(-1)")
        return _advantages(
            f"values, size = {given}, len(rewards) // len(set(group_ids))",
            "matrix = [values[k : k + size] for k in range(0, len(values), size)]",
            f"return [value for group in estimator(matrix{more}) for value in group]",
        )

    return Subject(
        name,
        call,
        traits,
        _numbers(arrays),
        options,
        code,
        render,
        literal,
        adapter=adapter,
        two_dimensional=True,
        ragged=False,
        masks=False,
        min_group=min_group,
    )


def by_group(group_ids: Sequence[Any]) -> list[list[int]]:
    """Row positions of each group, in order of first appearance."""
    rows: dict[Any, list[int]] = {}
    for row, label in enumerate(group_ids):
        rows.setdefault(label, []).append(row)
    return list(rows.values())


def _scatter(values: Any, rows: Sequence[Sequence[int]], out: Any) -> None:
    """Write the entries of a matrix of groups to the rows that they belong to."""
    for group, row_values in zip(rows, values, strict=True):
        for row, value in zip(group, row_values, strict=True):
            out[row] = value


def _check_shape(result: Any, rows: Sequence[Sequence[int]]) -> None:
    expected = (len(rows), len(rows[0]))
    if not hasattr(result, "shape"):
        raise SubjectError(f"returned {type(result).__name__} where an array of shape {expected} was expected")
    if tuple(result.shape) != expected:
        raise SubjectError(f"returned shape {tuple(result.shape)}; {expected} was expected, as the rewards have")


def _value(batch: Batch, arrays: str, row: int) -> str:
    one = Batch((batch.rewards[row],), (0,), None, batch.dtype)
    return render_rewards(one, "exact" if arrays == "exact" else "float").strip("[]")


# --- verl ---------------------------------------------------------------------------------------------------


def _of_verl(name: str, claims: Iterable[str] | None, options: Mapping[str, Any]) -> Subject:
    try:
        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    except ImportError as error:
        raise InputError(
            f"refbase.checks: verl:{name} needs verl, which cannot be imported ({error}); "
            'install it with: pip install "refbase[verl]"'
        ) from error
    if name in VERL_OTHERS:
        raise InputError(
            f"refbase.checks: verl:{name} {VERL_OTHERS[name]}; the laws are about functions of one reward per rollout"
        )
    if name not in ADV_ESTIMATOR_REGISTRY:
        names = [known for known in ADV_ESTIMATOR_REGISTRY if known not in VERL_OTHERS]
        raise unknown_name("refbase.checks", "verl estimator", name, names)
    if claims is None:
        own = name.removeprefix("refbase_")  # registered by our plug-in, so the catalogue knows what it claims
        claims = VERL_CLAIMS[name] if name in VERL_CLAIMS else CATALOG[own].traits if own in CATALOG else ()
    code = f'from verl.trainer.ppo.core_algos import get_adv_estimator_fn\n\nestimator = get_adv_estimator_fn("{name}")'
    return _verl_subject(
        f"verl:{name}",
        ADV_ESTIMATOR_REGISTRY[name],
        frozenset(claims),
        code,
        2 if name == "grpo_passk" else 1,
        options,
        1 if name in WHITENING else 0,
    )


def verl_config(**options: Any) -> Any:
    """What verl hands to an estimator as ``config``: the algorithm section, as an OmegaConf object."""
    from omegaconf import OmegaConf

    return OmegaConf.create({"gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": True, **options})


def _verl_subject(
    name: str,
    function: Callable[..., Any],
    traits: frozenset[str],
    code: str,
    min_group: int,
    options: Mapping[str, Any],
    min_valid: int = 0,
) -> Subject:
    """Each rollout as two valid tokens, the reward on the second, and one position of padding.

    Two, because estimators that whiten over tokens refuse a batch of one valid token. Options go into
    ``config``.
    """
    greedy = _accepts_by_name(function, "reward_baselines")

    def call(rewards: Any, group_ids: Any, valid: Any = None, **settings: Any) -> Any:
        import torch

        n = len(group_ids)
        mask = torch.tensor([[1, 1, 0]]).repeat(n, 1)
        if valid is not None:
            mask[~valid] = 0
        columns = [torch.zeros_like(rewards), rewards, torch.zeros_like(rewards)]
        token_rewards = torch.stack(columns, dim=-1) if rewards.is_contiguous() else torch.stack(columns).T
        if not rewards.requires_grad:  # the caller, who looks at them later, sees what is changed or returned
            rewards.set_(token_rewards[:, 1])
        index = np.fromiter(group_ids, dtype=object, count=n)
        given = token_rewards.detach().clone(), mask.clone(), index.copy()
        extra = {"reward_baselines": torch.full((n,), GREEDY_REWARD, dtype=floating(rewards))} if greedy else {}
        result = function(
            token_level_rewards=token_rewards,
            response_mask=mask,
            index=index,
            config=verl_config(**settings),
            **extra,
        )
        if _same(token_rewards[:, 1], given[0][:, 1]) and not _same(token_rewards, given[0]):
            raise SubjectError("changed its token_level_rewards in place, where they hold no reward")
        if not _same(mask, given[1]) or list(index) != list(given[2]):
            raise SubjectError("changed its response_mask or index in place")
        return _per_row(result, mask)

    def literal(batch: Batch) -> str:
        rows = [render_rewards(Batch((r,), (0,), None, batch.dtype), "float").strip("[]") for r in batch.rewards]
        return f"torch.tensor([{', '.join(f'[0, {r}, 0]' for r in rows)}], dtype=torch.{batch.dtype})"

    def render(batch: Batch, settings: Mapping[str, Any], rewards: str) -> str:
        masked = [batch.valid is not None and not flag for flag in (batch.valid or [True] * len(batch))]
        mask = ", ".join("[0, 0, 0]" if flag else "[1, 1, 0]" for flag in masked)
        labels = f"np.fromiter({render_labels(batch.group_ids)}, dtype=object)"
        if not any(isinstance(label, (tuple, list)) for label in batch.group_ids):
            labels = f"np.array({render_labels(batch.group_ids)}, dtype=object)"
        lines = [
            f"token_level_rewards={rewards}",
            f"response_mask=torch.tensor([{mask}])",
            f"index={labels}",
            f'config=OmegaConf.create({{"gamma": 1.0, "norm_adv_by_std_in_grpo": True{_config_text(settings)}}})',
        ]
        if greedy:
            lines.append(f"reward_baselines=torch.full(({len(batch)},), {GREEDY_REWARD})")
        body = "".join(f"    {line},\n" for line in lines)
        return f"estimator(\n{body})"

    def adapter(settings: Mapping[str, Any], dtype: str, first: str) -> str:
        config = f'OmegaConf.create({{"gamma": 1.0, "norm_adv_by_std_in_grpo": True{_config_text(settings)}}})'
        return _advantages(
            "rows = [[0, r, 0] for r in rewards]",
            "arguments = {",
            f'    "token_level_rewards": torch.tensor(rows, dtype=torch.{dtype}),',
            '    "response_mask": torch.tensor([[1, 1, 0]] * len(rows)),',
            '    "index": np.array(group_ids, dtype=object),',
            f'    "config": {config},',
            *([f'    "reward_baselines": torch.full((len(rows),), {GREEDY_REWARD}),'] if greedy else []),
            "}",
            "return estimator(**arguments)[0][:, 0]",
        )

    imports = "import numpy as np\nimport torch\nfrom omegaconf import OmegaConf\n"
    return Subject(
        name,
        call,
        traits,
        "torch",
        options,
        imports + code,
        render,
        literal,
        "[0]",
        adapter,
        dtypes=("float32",),  # what verl's rewards are
        two_dimensional=True,
        min_group=min_group,
        min_valid=min_valid,
    )


def floating(rewards: Any) -> Any:
    """The rewards' dtype if it is a floating one, else the default."""
    import torch

    return rewards.dtype if rewards.dtype.is_floating_point else torch.get_default_dtype()


def _config_text(settings: Mapping[str, Any]) -> str:
    return "".join(f', "{key}": {value!r}' for key, value in settings.items())


def _accepts_by_name(function: Callable[..., Any], argument: str) -> bool:
    try:
        return argument in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool((a.nan_to_num() == b.nan_to_num()).all())


def _per_row(result: Any, mask: Any) -> Any:
    """One number per row from (N, T) advantages; what is wrong with others."""
    import torch

    if not (isinstance(result, tuple) and len(result) == 2):
        raise SubjectError(f"returned {type(result).__name__}; verl expects (advantages, returns)")
    for part, values in zip(("advantages", "returns"), result, strict=True):
        if not isinstance(values, torch.Tensor):
            raise SubjectError(f"returned {part} of type {type(values).__name__}; a tensor was expected")
        if values.shape != mask.shape:
            raise SubjectError(
                f"returned {part} of shape {tuple(values.shape)}; {tuple(mask.shape)} was expected, as the mask has"
            )
    advantages, returns = result
    first, second, padding = advantages.detach().unbind(-1)
    if not bool(((padding == 0) | padding.isnan()).all()):
        raise SubjectError("returned a non-zero advantage on a padding token of a valid row")
    if bool((first.nan_to_num() != second.nan_to_num()).any()):
        raise SubjectError("returned advantages that differ between the tokens of a row; one number was expected")
    # On the rows whose mask is empty, the padding's NaN would be lost in a view of one column.
    if bool(padding.isnan().any()):
        return torch.where(padding.isnan(), padding, advantages[:, 0]), returns[:, 0]
    return advantages[:, 0], returns[:, 0]
