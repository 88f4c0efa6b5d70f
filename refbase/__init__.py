"""Advantage estimators for critic-free RL of language models, as tested mathematics.

Every estimator is called ``refbase.<name>(rewards, group_ids, valid=None, **options) -> Estimate``; `bvblend`,
`bvblend_eb` and `shrinkage_history` take a `HistoryState` as third argument. Torch tensors are computed by a vectorised
kernel, any other sequence of numbers (floats, ``Fraction``, sympy) by the executable specification; a NumPy array gives
arrays. Importing this package loads NumPy and nothing heavier.

What all estimators share
-------------------------
Data
    A batch holds N rollouts: `rewards` (one return each), `group_ids` (the prompt each answers), `valid`. Groups
    may have any sizes, their rows any order, labels may be any hashables and are compared by equality alone.
Invalid rows
    They take part in no statistic, whatever they hold, and get 0 in ``advantages``, ``baseline`` and ``weight``.
    A group without valid rows does not exist. A batch without valid rows gives zeros.
Numbers
    Kernels accumulate in float64, measured from a member of the data, and return the rewards' floating dtype
    (integers and booleans: torch's default dtype) on their device, without graph and in fresh storage. The spec
    computes in the rewards' own number type; integers become floats. ``decimal.Decimal`` is refused, as it mixes with
    neither floats nor Fractions. What the rewards' type cannot hold is infinite in it: the difference of the float16
    rewards 60000 and -60000, say.
Absent parts
    A row that has no local mean or no target holds None there (spec) or NaN (kernels). Where neither exists the
    baseline is 0 and the row keeps its raw reward.

Errors
------
`InputError` (a ValueError) and `InputTypeError` (a TypeError) name function, argument, requirement, value with its
place, and remedy. All estimators raise them for: an empty batch; rewards that are not one real number per
rollout; a NaN or infinite reward of a valid rollout under ``nonfinite="raise"``; `group_ids` or `valid` of another
length; labels of valid rollouts that cannot be hashed or differ from themselves (NaN, NaT); flags other than
booleans, 0 and 1; options outside their range; unknown options. `DegenerateBatchWarning` is issued when each of several
rollouts is alone in its group, and when no rollout gets an advantage although the rewards differ between groups.

Examples
--------
>>> import refbase
>>> estimate = refbase.rloo([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"])
>>> estimate.advantages
[1.0, -1.0, 0.0, 0.0]
>>> refbase.rloo([1.0, float("nan")], ["a", "a"])  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
refbase.validate.InputError: rloo: `rewards` must be finite; got nan at rollout 1 (group 'a'). Pass ...
"""

from refbase._dispatch import public
from refbase._version import __version__
from refbase.catalog import CATALOG, lookup
from refbase.estimate import Estimate
from refbase.history import HistoryState, update_history
from refbase.validate import DegenerateBatchWarning, InputError, InputTypeError

batch_mean = public("batch_mean")
bvblend = public("bvblend")
bvblend_eb = public("bvblend_eb")
group_mean = public("group_mean")
grpo = public("grpo")
gvpo = public("gvpo")
gvpo_loss = public("gvpo_loss", module="gvpo")
gvpo_weights = public("gvpo_weights", module="gvpo")
opo = public("opo")
rloo = public("rloo")
shrinkage = public("shrinkage")
shrinkage_history = public("shrinkage_history")
shrinkage_js = public("shrinkage_js")

__all__ = [
    "CATALOG",
    "DegenerateBatchWarning",
    "Estimate",
    "HistoryState",
    "InputError",
    "InputTypeError",
    "__version__",
    "batch_mean",
    "bvblend",
    "bvblend_eb",
    "group_mean",
    "grpo",
    "gvpo",
    "gvpo_loss",
    "gvpo_weights",
    "lookup",
    "opo",
    "rloo",
    "shrinkage",
    "shrinkage_history",
    "shrinkage_js",
    "update_history",
]
