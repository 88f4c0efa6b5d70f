"""What a law is run on: an estimator behind one call signature, and the record of how it was called."""

from __future__ import annotations

import numbers
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis.errors import UnsatisfiedAssumption

from refbase.checks import tolerance
from refbase.estimate import Estimate
from refbase.validate import is_tensor

#: How a subject takes its rewards.
NUMBERS = ("exact", "float", "torch")


@dataclass(frozen=True)
class Batch:
    """Generated input, in exact numbers; a subject receives it in its own number type.

    Parameters
    ----------
    rewards
        (N,) Fractions, or the floats nan and ±inf on rows that are masked.
    group_ids
        (N,) labels.
    valid
        (N,) flags, or None when every row is valid.
    dtype
        What torch subjects receive; the others ignore it.
    """

    rewards: tuple[Any, ...]
    group_ids: tuple[Hashable, ...]
    valid: tuple[bool, ...] | None = None
    dtype: str = "float64"

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def rows(self) -> list[int]:
        """Positions of the valid rows."""
        return [row for row in range(len(self)) if self.valid is None or self.valid[row]]

    @property
    def groups(self) -> dict[Hashable, list[int]]:
        """Valid rows by label."""
        members: dict[Hashable, list[int]] = {}
        for row in self.rows:
            members.setdefault(self.group_ids[row], []).append(row)
        return members

    def mapped(self, change: Callable[[Any], Any]) -> Batch:
        """The same batch with every reward changed."""
        return replace(self, rewards=tuple(change(r) for r in self.rewards))

    def with_reward(self, row: int, value: Any) -> Batch:
        return replace(self, rewards=(*self.rewards[:row], value, *self.rewards[row + 1 :]))

    def take(self, order: Sequence[int]) -> Batch:
        """Rows in another order, or some of them."""
        valid = None if self.valid is None else tuple(self.valid[k] for k in order)
        rewards = tuple(self.rewards[k] for k in order)
        return replace(self, rewards=rewards, group_ids=tuple(self.group_ids[k] for k in order), valid=valid)


@dataclass(frozen=True)
class Memory:
    """How a subject that reads a state keeps it, for the laws about streams of steps.

    Parameters
    ----------
    empty
        ``empty(window, max_keys)``: a state without history, bounded by these two numbers.
    update
        ``update(state, rewards, group_ids, valid, history_keys, step)`` -> state.
    estimate
        ``estimate(state, rewards, group_ids, valid, history_keys, **options)``, as `Subject.call`.
    dump, load
        The state as JSON-able data, and back.
    code
        Python that binds ``empty``, ``update``, ``estimate``, ``dump`` and ``load``.
    """

    empty: Callable[[int, int], Any]
    update: Callable[..., Any]
    estimate: Callable[..., Any]
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]
    code: str = ""


@dataclass(frozen=True)
class Subject:
    """An estimator under test.

    Parameters
    ----------
    name
        As it appears in reports.
    call
        ``call(rewards, group_ids, valid=None, **options)``; `rewards` is a list of Fractions ("exact"), a
        list of floats ("float") or an (N,) tensor ("torch"), `group_ids` a list, `valid` None or a list of
        bools (a bool tensor for "torch"). It returns a `refbase.Estimate`, the (N,) advantages alone, or a
        tuple of outputs whose first entry is the advantages.
    claims
        Traits from `refbase.catalog.TRAITS`.
    numbers
        "exact", "float" or "torch".
    options
        Keyword arguments of every call.
    code
        Python that binds the name ``estimator``, put before the calls of a printed counterexample.
    render
        Text of one call, where the outside signature is not ``estimator(rewards, group_ids, valid)``:
        ``render(batch, options, rewards)``, with the text of the argument that holds the rewards.
    literal
        Goes with `render`: ``literal(batch)`` is the text of that argument.
    first
        Text that picks the advantages from what the call returns, "[0]" say.
    adapter
        Goes with `render`: ``adapter(options, dtype, first)`` is the text of a function ``advantages(rewards,
        group_ids)`` around ``estimator``, as `refbase.exact.evaluate` calls it: rows grouped by prompt, rewards a list
        of Fractions for exact subjects and a float64 array for others. ``first`` is the text "[0]" where `call`
        returns several outputs, else "".
    dtypes
        Floating dtypes of a torch subject; the first one is preferred in counterexamples.
    ragged, masks
        False where the signature cannot express groups of unequal size, or masked rows.
    parts
        Whether it returns a `refbase.Estimate`, with baseline and weight, and not the advantages only.
    context
        Numbers of the rewards' unit that results also depend on (a history's range), for the tolerances.
    reference
        The exact counterpart (called with Fractions), for the law that compares the two.
    two_dimensional
        Whether its rewards are a matrix.
    max_rows
        The largest batch to try, if it holds one group of the smallest size.
    several
        If more than 1, groups of two rollouts and more that a batch should have at least.
    min_group, min_valid
        The smallest group, and the fewest valid rows of a batch, that the estimator is defined for. Batches
        below are not tried, except where a law is about just them.
    memory
        Of a subject that reads a state; `call` then has some state filled in.
    """

    name: str
    call: Callable[..., Any]
    claims: frozenset[str] = frozenset()
    numbers: str = "torch"
    options: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    render: Callable[[Batch, Mapping[str, Any], str], str] | None = None
    literal: Callable[[Batch], str] | None = None
    first: str = ""
    adapter: Callable[[Mapping[str, Any], str, str], str] | None = None
    dtypes: tuple[str, ...] = ("float32", "float64")
    ragged: bool = True
    masks: bool = True
    parts: bool = False
    context: tuple[Any, ...] = ()
    reference: Callable[..., Estimate] | None = None
    two_dimensional: bool = False
    max_rows: int = 20
    several: int = 1
    min_group: int = 1
    min_valid: int = 0
    memory: Memory | None = None


@dataclass(frozen=True)
class Answer:
    """One result in Python numbers; parts that the subject does not report are None."""

    advantages: list[Any]
    baseline: list[Any] | None = None
    weight: list[Any] | None = None
    local: list[Any] | None = None
    target: list[Any] | None = None
    scale: list[Any] | None = None
    eps: float = 0.0  # of the number type that came out; 0 for exact numbers
    raw: Any = None

    @property
    def is_estimate(self) -> bool:
        return isinstance(self.raw, Estimate)


class Violation(AssertionError):
    """A law does not hold on some input."""

    def __init__(self, message: str, expected: Any = None, got: Any = None) -> None:
        super().__init__(message)
        self.expected, self.got = expected, got


class SubjectError(Exception):
    """The subject raised, or returned something that cannot be read as advantages."""


class Probe:
    """Calls a subject, reads what comes back, and remembers the calls for the report."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.calls: list[str] = []
        self.rows = 0  # of the largest batch among them
        self.masked = False  # whether one of them had masked rows
        self.notes: dict[int, str] = {}  # by position among the calls
        self.listing: str | None = None  # takes the place of the calls in the report

    def __call__(self, batch: Batch, **options: Any) -> Answer:
        return read_answer(self.raw(batch, **options), len(batch))

    def raw(
        self,
        batch: Batch,
        rewards: Any = None,
        valid: Any = None,
        group_ids: list[Hashable] | None = None,
        shown: str = "",
        **options: Any,
    ) -> Any:
        """What the subject itself returns for the batch, or for stand-ins of its rewards, flags and labels.

        Parameters
        ----------
        shown
            Text of the stand-in for the rewards, for the printed call.
        """
        if len(batch) and smallest_group(batch) < self.subject.min_group:
            reject()
        self.rows = max(self.rows, len(batch))
        self.masked = self.masked or len(batch.rows) < len(batch)
        self.calls.append(self.render(batch, options, shown) + self.subject.first)
        rewards = self.rewards(batch) if rewards is None else rewards
        valid = self.valid(batch) if valid is None else valid
        group_ids = list(batch.group_ids) if group_ids is None else group_ids
        return self.run(rewards, group_ids, valid, **options)

    def run(self, rewards: Any, group_ids: Any, valid: Any = None, **options: Any) -> Any:
        """The bare call with the subject's options; any exception becomes a `SubjectError`."""
        try:
            options = {**self.subject.options, **options}
            return self.quietly(self.subject.call, rewards, group_ids, valid, **options)
        except UnsatisfiedAssumption:
            raise
        except (Exception, SystemExit) as error:  # an estimator that exits must not end the run in silence
            raise SubjectError(f"raised {type(error).__name__}: {error}") from error

    @staticmethod
    def quietly(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """A call whose warnings are of no interest: every degenerate batch is tried on purpose."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*arguments, **options)

    def rewards(self, batch: Batch) -> Any:
        """The batch's rewards as the subject takes them."""
        if self.subject.numbers == "exact":
            return list(batch.rewards)
        if self.subject.numbers == "float":
            return [float(r) for r in batch.rewards]
        return to_tensor(batch.rewards, batch.dtype)

    def valid(self, batch: Batch) -> Any:
        if batch.valid is None:
            return None
        if self.subject.numbers == "torch":
            import torch

            return torch.tensor(batch.valid)
        return list(batch.valid)

    def seen(self, batch: Batch) -> Batch:
        """The batch with its rewards as they are after conversion to the subject's number type."""
        if self.subject.numbers == "exact":
            return batch
        values = self.rewards(batch)
        listed = values if self.subject.numbers == "float" else values.double().tolist()
        return replace(batch, rewards=tuple(Fraction(v) if np.isfinite(v) else v for v in listed))

    def exact(self, batch: Batch) -> bool:
        """Whether the conversion changes nothing."""
        return self.seen(batch).rewards == batch.rewards

    def bound(self, batch: Batch, *answers: Answer) -> Any:
        """The rounding allowance of `tolerance.algebraic` for these answers to this batch."""
        return tolerance.algebraic(self.scope(batch), max(answer.eps for answer in answers), self._unit)

    def span(self, rewards: Sequence[Any], eps: float) -> float:
        """The same allowance for a result that depends on all of these rewards."""
        return tolerance.algebraic([*rewards, *self.subject.context], eps, self._unit)

    @property
    def _unit(self) -> float:
        """What scales with the rewards is in their unit."""
        return 0.0 if "scale" in self.subject.claims else 1.0

    def scope(self, batch: Batch) -> list[Any]:
        """The numbers that a result depends on: the rewards of valid rows, and the subject's context."""
        return [*(batch.rewards[row] for row in batch.rows), *self.subject.context]

    def literal(self, batch: Batch) -> str:
        """The argument that holds the rewards, as Python source."""
        if self.subject.literal is not None:
            return self.subject.literal(batch)
        return render_rewards(batch, self.subject.numbers)

    def flags(self, batch: Batch) -> str:
        """The validity flags as Python source."""
        flags = None if batch.valid is None else list(batch.valid)
        return f"torch.tensor({flags})" if self.subject.numbers == "torch" and flags is not None else repr(flags)

    def render(self, batch: Batch, options: Mapping[str, Any], rewards: str = "") -> str:
        """The call as Python source, with this text for the rewards; by default they are written out."""
        options = {**self.subject.options, **options}
        rewards = rewards or self.literal(batch)
        if self.subject.render is not None:
            return self.subject.render(batch, options, rewards)
        arguments = [rewards, render_labels(batch.group_ids)]
        if batch.valid is not None:
            arguments.append(f"valid={self.flags(batch)}")
        arguments += [f"{key}={value!r}" for key, value in options.items()]
        return f"estimator({', '.join(arguments)})"


def smallest_group(batch: Batch) -> int:
    """Fewest valid rows of a group that has any, and fewest rows of one that has none; an empty batch has no group."""
    total, valid = Counter(batch.group_ids), Counter(batch.group_ids[row] for row in batch.rows)
    return min((valid[label] or total[label] for label in total), default=sys.maxsize)


def to_tensor(values: Sequence[Any], dtype: str) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if kind == torch.bool or not kind.is_floating_point:
        return torch.tensor([int(v) for v in values], dtype=kind)
    return torch.tensor([float(v) for v in values], dtype=torch.float64).to(kind)


def render_rewards(batch: Batch, numbers: str) -> str:
    """The rewards as Python source."""
    if numbers == "exact":
        return f"[{', '.join(map(render_number, batch.rewards))}]"
    if numbers == "float":
        return f"[{', '.join(render_number(float(r)) for r in batch.rewards)}]"
    integral = batch.dtype.startswith(("int", "uint", "bool"))
    values = ", ".join(str(int(r)) if integral else render_number(float(r)) for r in batch.rewards)
    return f"torch.tensor([{values}], dtype=torch.{batch.dtype})"


def render_number(value: Any) -> str:
    if isinstance(value, Fraction):
        whole = value.denominator == 1
        return f"Fraction({value.numerator})" if whole else f"Fraction({value.numerator}, {value.denominator})"
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def render_labels(labels: Sequence[Hashable]) -> str:
    """The labels as a list to paste."""
    return f"[{', '.join('float(' + repr('nan') + ')' if label != label else repr(label) for label in labels)}]"


def read_answer(result: Any, n_rows: int) -> Answer:
    """Any accepted return value as an `Answer`; a `SubjectError` says what is wrong with others."""
    if isinstance(result, Estimate):
        parts = {
            name: _read(name, getattr(result, name), n_rows)
            for name in ("advantages", "baseline", "weight", "local", "target", "scale")
        }
        for name in ("advantages", "baseline", "weight"):
            if parts[name] is None:
                raise SubjectError(f"returned an Estimate whose `{name}` is None")
        return Answer(**parts, eps=_eps(result.advantages), raw=result)  # type: ignore[arg-type]
    first = result[0] if isinstance(result, tuple) else result
    values = _read("advantages", first, n_rows)
    if values is None:
        raise SubjectError("returned None where advantages belong")
    return Answer(values, eps=_eps(first), raw=result)


def _read(name: str, values: Any, n_rows: int) -> list[Any] | None:
    if values is None:
        return None
    if is_tensor(values):
        shape = tuple(values.shape)
        listed = values.detach().cpu().double().tolist() if len(shape) == 1 else None
    elif isinstance(values, np.ndarray):
        shape = values.shape
        listed = values.tolist() if values.ndim == 1 else None
    elif isinstance(values, (list, tuple)):
        shape = (len(values),)
        listed = list(values)
    else:
        raise SubjectError(f"returned {name} of type {type(values).__name__}; a tensor, array or list was expected")
    if shape != (n_rows,) or listed is None:
        raise SubjectError(f"returned {name} of shape {shape} for {n_rows} rollouts; ({n_rows},) was expected")
    for row, value in enumerate(listed):
        if not (_is_number(value) or (value is None and name in ("local", "target", "scale"))):
            raise SubjectError(
                f"returned {name} that hold {value!r} of type {type(value).__name__} at rollout {row}; "
                "real numbers were expected"
            )
    return list(map(_plain, listed))


def _plain(value: Any) -> Any:
    """A Fraction, a float or None from a number of any kind."""
    if is_tensor(value) or isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int):
        return Fraction(value)
    return float(value) if isinstance(value, np.floating) else value  # .item() leaves a longdouble as it is


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) or (is_tensor(value) and value.dim() == 0)


def _eps(values: Any) -> float:
    """The precision of the type that numbers came in, at most that of the floats which they are read as."""
    if is_tensor(values):
        import torch

        return torch.finfo(values.dtype).eps if values.dtype.is_floating_point else 0.0
    if isinstance(values, (np.ndarray, np.generic)):
        kind: Any = values.dtype
        return float(max(np.finfo(kind).eps, np.finfo(float).eps)) if kind.kind == "f" else 0.0
    if isinstance(values, (list, tuple)):
        return max(map(_eps, values), default=0.0)
    return float(np.finfo(float).eps) if isinstance(values, float) else 0.0
