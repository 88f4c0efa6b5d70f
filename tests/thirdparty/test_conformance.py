"""docs/conformance.md: what it says is what a search finds, and its counterexamples print what it shows."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from refbase.catalog import CATALOG
from refbase.checks import LAWS
from refbase.checks.adapters import VERL_CLAIMS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"
DATA = json.loads((ROOT / "docs" / "conformance.json").read_text())["verdicts"]
VERL = [f"verl:{name}" for name in VERL_CLAIMS]

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def generator():
    pytest.importorskip("verl", reason="the page is about verl's estimators")
    spec = importlib.util.spec_from_file_location("make_conformance", ROOT / "docs" / "make_conformance.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Differences that public reports describe; the search has to come upon them without being told an input.
KNOWN = [
    ("verl:rloo", "same_as"),  # a group of one, in rloo and in rloo_vectorized
    ("verl:rloo", "masked_absent"),  # rejected rows in the group statistics
    ("verl:grpo", "masked_absent"),
    ("verl:opo", "masked_inert"),
    ("verl:grpo", "constant_zero"),  # equal rewards, advantages that are not 0
    ("verl:grpo_vectorized", "relabel"),  # "7" and "007"
    ("verl:rloo_vectorized", "output_dtype"),  # half precision in, float64 out
    ("verl:grpo", "whole_numbers"),  # integer rewards
    ("verl:opo", "whole_numbers"),
    ("verl:grpo", "nan_contained"),  # one NaN, a whole group
    ("verl:rloo", "own_storage"),  # advantages and returns are one tensor
]


@pytest.mark.parametrize(("estimator", "law"), KNOWN)
def test_known_differences_are_rediscovered(estimator, law):
    assert DATA[estimator][law] == "fails"


def test_labels_that_look_alike_as_numbers_are_merged(generator):
    """Not only a crash on odd labels: the search also comes upon two labels that become one group."""
    result = generator.judge(generator.as_subject("verl:grpo_vectorized"), LAWS["relabel"])
    assert result.status == "fails"
    assert "'007'" in result.code or "'07'" in result.code or "'+7'" in result.code or "'7 '" in result.code


def test_the_table_is_complete():
    assert set(DATA) == set(VERL) | {f"refbase:{name}" for name in CATALOG}
    universal = {law.id for law in LAWS.values() if not law.traits}
    for name, laws in DATA.items():
        assert universal <= set(laws), name
    for name, entry in CATALOG.items():
        bound = {law.id for law in LAWS.values() if law.traits <= entry.traits}
        assert set(DATA[f"refbase:{name}"]) == bound


def test_ours_keep_what_they_claim():
    for name in CATALOG:
        assert set(DATA[f"refbase:{name}"].values()) <= {"holds", "n/a"}, name


#: Between them they break every law that any breaks and is held to; a search of all takes minutes.
SEARCHED = ["verl:rloo", "verl:rloo_vectorized", "verl:grpo_vectorized", "verl:opo", "verl:gdpo", "verl:remax"]


def test_those_searched_again_break_every_law_that_any_does():
    words = ("fails", "fails with masked rows")  # of laws that the estimator is held to; others are not searched
    broken = {name: {law for law, word in DATA[name].items() if word in words} for name in VERL}
    assert set().union(*(broken[name] for name in SEARCHED)) == set().union(*broken.values())


@pytest.mark.parametrize("estimator", SEARCHED)
def test_a_new_search_gives_the_same_verdicts(generator, estimator):
    """On the laws that the estimator is held to; ``make_conformance.py --check`` compares all of them."""
    found = generator.search([estimator], claimed_only=True, quiet=True, shrink=False)
    assert len(found[estimator]) > 15
    assert generator.differences({"verdicts": DATA}, found) == []


def test_a_changed_verdict_is_noticed(generator):
    found = generator.search(["verl:remax"], claimed_only=True, quiet=True, shrink=False)
    changed = {"verdicts": {"verl:remax": {**DATA["verl:remax"], "permutation": "fails"}}}
    assert generator.differences(changed, found) == ["verl:remax permutation: fails in conformance.json, holds now"]


BLOCKS = re.findall(r"^### (\w+)$.*?^```py\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", PAGE.read_text(), re.M | re.S)


@pytest.mark.parametrize(("law", "code", "printed"), BLOCKS, ids=[law for law, *_ in BLOCKS])
def test_counterexamples_print_what_is_shown(generator, law, code, printed):
    assert generator.output(code) == printed.rstrip()


def test_every_broken_law_has_a_counterexample():
    broken = {
        law for laws in DATA.values() for law, word in laws.items() if word in ("fails", "fails with masked rows")
    }
    assert {law for law, *_ in BLOCKS} == broken
    assert len(broken) > 5
