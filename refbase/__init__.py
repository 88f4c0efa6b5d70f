"""Advantage estimators for critic-free RL of language models, as tested mathematics.

Every estimator is called ``refbase.<name>(rewards, group_ids, valid=None, **options) -> Estimate``. Torch
tensors are computed by a vectorised kernel, any other sequence of numbers (floats, ``Fraction``, sympy) by
the executable specification. Importing this package loads NumPy and nothing heavier.
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
    "shrinkage_js",
    "update_history",
]
