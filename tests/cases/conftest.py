"""The reported cases, and one way to call every estimator through each of its implementations."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import refbase

CASES = {case["id"]: case for case in json.loads(Path(__file__).with_name("cases.json").read_text())}


def _numbers(value):
    """JSON has no NaN and no infinity: the strings stand for them."""
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


@pytest.fixture
def case(request):
    """The case whose id the test's name starts with (``test_h09_...``)."""
    number = request.node.originalname.split("_")[1].upper()
    found = dict(CASES[number])
    return SimpleNamespace(
        rewards=_numbers(found.pop("rewards")),
        mask=_numbers(found.pop("mask")),
        given={key: _numbers(value) for key, value in found.pop("config", {}).items()},
        **found,
    )


def _options(name, state):
    return {"state": refbase.HistoryState.empty() if state is None else state} if is_stateful(name) else {}


def is_stateful(name):
    return refbase.lookup(name).needs_history


def _spec(name, rewards, groups, valid=None, state=None, **options):
    result = getattr(refbase, name)(list(rewards), groups, valid=valid, **_options(name, state), **options)
    return [float(value) for value in result.advantages]


def _kernel(name, rewards, groups, valid=None, state=None, **options):
    rewards = torch.tensor([float(value) for value in rewards])
    if options.get("lengths") is not None:
        options["lengths"] = torch.tensor(options["lengths"])
    result = getattr(refbase, name)(rewards, groups, valid=valid, **_options(name, state), **options)
    return result.advantages.tolist()


def _adapter(name, rewards, groups, valid=None, **options):
    """As verl calls the plug-in: the reward on the last token of each response, one position of padding."""
    from verl_ext import adapters, history
    from verl_ext.options import verl_name

    lengths = options.pop("lengths", None) or [2] * len(rewards)
    width = max(lengths) + 1
    token_level = torch.zeros(len(rewards), width)
    mask = torch.zeros(len(rewards), width, dtype=torch.long)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        token_level[row, length - 1] = float(reward)
        if valid is None or valid[row]:
            mask[row, :length] = 1
    config = {
        "refbase": options,
        "gvpo": {"size_correction": False},
    }  # its factor 1/(k-1) is the loss's, not the case's
    history.reset()
    index = np.fromiter(groups, dtype=object, count=len(groups))
    advantages, _ = adapters.ESTIMATORS[verl_name(name)](token_level, mask, config, index)
    assert (advantages[mask == 0] == 0).all()
    assert (advantages == advantages[:, :1] * mask).all()
    return advantages[:, 0].tolist()


@pytest.fixture(params=["spec", "kernel", "adapter"])
def run(request):
    """``run(name, rewards, groups, valid=None, **options)`` -> list of advantages."""
    return {"spec": _spec, "kernel": _kernel, "adapter": _adapter}[request.param]


@pytest.fixture
def approx():
    """Near in the units of float32, the type in which kernels are called here."""

    def near(expected, tolerance=1e-6):
        flat = [abs(value) for value in np.ravel(expected) if math.isfinite(value)]
        return pytest.approx(expected, rel=tolerance, abs=tolerance * max([1.0, *flat]), nan_ok=False)

    return near


@pytest.fixture
def names():
    """Every estimator of the catalogue."""
    return list(refbase.CATALOG)


@pytest.fixture
def all_cases():
    return CASES
