"""Exact numbers about the shrinkage baseline, among them the cases in which it loses to rloo.

Every figure here was found elsewhere first, by other code; the enumeration has to agree to the last digit.
"""

import json
import subprocess
import sys
from fractions import Fraction as F
from pathlib import Path

import refbase
from refbase.exact import Problem, Prompt, evaluate


def bernoulli(*rates, m, offsets=None):
    offsets = offsets or (0,) * len(rates)
    return Problem([Prompt.bernoulli(p, m, offset=c) for p, c in zip(rates, offsets, strict=True)])


def both(problem):
    """Reports of rloo and of the paper's plug-in; both unbiased, so only spread and error differ."""
    reports = [evaluate(problem, e, symmetric=True) for e in (refbase.rloo, refbase.shrinkage)]
    assert [report.largest_bias for report in reports] == [0, 0]
    return reports


def test_error_worse_variance_better():
    rloo, plug_in = both(bernoulli("1/50", "49/50", "1/50", m=2))
    assert (rloo.mse, plug_in.mse) == (F(49, 2500), F(1918796341, 79101562500))
    assert (rloo.variance, plug_in.variance) == (F(176547, 3125000), F(149751558299, 2746582031250))
    assert round(float(plug_in.mse), 5) == 0.02426
    assert round(float(plug_in.variance), 5) == 0.05452
    assert round(float(rloo.variance), 5) == 0.05650
    assert round(float(plug_in.variance / rloo.variance), 3) == 0.965


def test_error_worse_variance_better_with_two_prompts():
    rloo, plug_in = both(bernoulli("1/5", "1/20", m=4))
    assert (rloo.mse, plug_in.mse) == (F(83, 2400), F(3370121, 96000000))
    assert round(float(plug_in.variance / rloo.variance), 3) == 0.907


def test_both_worse():
    rloo, plug_in = both(bernoulli("1/2", "1/2", "1/2", m=2, offsets=(0, 0, 3)))
    assert (rloo.mse, plug_in.mse) == (F(1, 4), F(93937793, 113767740))
    assert (rloo.variance, plug_in.variance) == (F(3, 8), F(128537159, 168544800))


def test_both_better():
    rloo, plug_in = both(bernoulli("1/10", "9/10", "1/2", m=2))
    assert (rloo.mse, plug_in.mse) == (F(43, 300), F(8711, 67500))
    assert (rloo.variance, plug_in.variance) == (F(1363, 5000), F(6039, 31250))
    assert (round(float(plug_in.mse), 4), round(float(plug_in.variance), 4)) == (0.1291, 0.1932)


def test_both_worse_with_many_rollouts():
    rloo, plug_in = both(bernoulli("1/3", "1/20", m=20))
    assert round(float(plug_in.variance / rloo.variance), 4) == 1.0118
    assert round(float(plug_in.mse / rloo.mse), 3) == 2.835  # 0/1 rewards, and both are worse
    assert rloo.outcomes == 21**2


def test_variance_worse_although_the_error_is_better():
    problem = bernoulli("1/5", "1/5", "1/20", m=14)  # in rationals half a minute
    rloo, plug_in = (
        evaluate(problem, e, symmetric=True, arithmetic="float") for e in (refbase.rloo, refbase.shrinkage)
    )
    assert plug_in.largest_bias < 1e-12
    assert round(float(plug_in.variance / rloo.variance), 4) == 1.0055
    assert round(float(plug_in.mse / rloo.mse), 3) == 0.792


# --- found by benchmarks/counterexamples.py, smaller than the ones above --------------------------------


def test_error_worse_even_for_two_equal_prompts():
    """With n = 2 the spread of "the others" is that of one mean, so λ is 1/2 whenever the other prompt varies."""
    rloo, plug_in = both(bernoulli("1/20", "1/20", m=2))
    assert (rloo.mse, plug_in.mse) == (F(1900, 40000), F(1957, 40000))
    assert plug_in.variance < rloo.variance


def test_both_worse_with_two_prompts():
    rloo, plug_in = both(bernoulli("1/2", "1/2", m=2, offsets=(0, 3)))
    assert (rloo.mse, plug_in.mse) == (F(1, 4), F(41, 32))
    assert (rloo.variance, plug_in.variance) == (F(1, 4), F(23, 32))


def test_variance_worse_although_the_error_is_better_at_m_2():
    rloo, plug_in = both(bernoulli("49/50", "49/50", "1/5", m=2, offsets=(0, 0, 1)))
    assert (rloo.mse, plug_in.mse) == (F(83, 1250), F(24768440467, 382851562500))
    assert (rloo.variance, plug_in.variance) == (F(228849, 1562500), F(8955549896968, 59820556640625))
    assert plug_in.mse < rloo.mse
    assert plug_in.variance > rloo.variance


def test_the_search_finds_these_again(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "counterexamples.py"
    out = tmp_path / "found.json"
    subprocess.run([sys.executable, script, "--quick", "--out", out], check=True, capture_output=True)
    families = json.loads(out.read_text())
    simplest = {
        (family, item["kind"]): item
        for family, result in families.items()
        for item in result["found"]
        if item["role"] == "simplest"
    }
    binary = simplest["0/1 rewards", "error worse, variance better"]
    assert (binary["problem"], binary["mse"]["shrinkage"]) == ("p = (1/20, 1/20), m = 2", "1957/40000")
    moved = simplest["one prompt moved", "both worse"]
    assert (moved["problem"], moved["mse"]["shrinkage"]) == ("p = (1/2, 1/2), m = 2, last prompt + 3", "41/32")
    assert simplest["one prompt moved", "variance worse, error better"]["rates"] == ["49/50", "49/50", "1/5"]
