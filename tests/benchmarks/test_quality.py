"""The quality benchmark runs, and measures the shipped rules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.filterwarnings("ignore::refbase.DegenerateBatchWarning")
@pytest.mark.parametrize("rollouts", [2, 8, "2-16"])
@pytest.mark.parametrize("name", ["Beta(0.5, 0.5)", "{0.02, 0.98}", "Gaussian 1.0"])
@pytest.mark.parametrize("prompts", [3, 4, 8, 33])
def test_weights_are_those_of_the_kernels(name, prompts, rollouts):
    import refbase
    from benchmarks.quality.families import FAMILIES, sizes
    from benchmarks.quality.rules import RULES
    from refbase.kernels._segments import others_moments

    draw = FAMILIES[name].draw(4, sizes(prompts, rollouts), torch.Generator().manual_seed(0))
    target, _ = others_moments(draw.mean)
    for rule in ("rloo", "batch_mean", "shrinkage", "shrinkage_js"):
        weights = RULES[rule](draw, target).expand(draw.times.shape)
        for batch in range(4):
            times = draw.times[batch].long().flatten()
            group_ids = torch.arange(prompts).repeat_interleave(times.view(prompts, -1).sum(-1))
            rewards = draw.reward[batch].flatten().repeat_interleave(times)
            ours = weights[batch].flatten().repeat_interleave(times)
            torch.testing.assert_close(ours, getattr(refbase, rule)(rewards, group_ids).weight, rtol=1e-9, atol=1e-12)


def test_known_error_and_variance_of_a_constant_weight():
    """Monte Carlo against the exact formulas for the oracle's weight."""
    from benchmarks.quality.families import FAMILIES, sizes
    from benchmarks.quality.measure import cell
    from benchmarks.quality.rules import oracle

    family, size = FAMILIES["Beta(2, 2)"], sizes(8, 4)
    within, between = family.moments()
    weight = float(oracle(family, size)[0])
    error = (1 - weight) ** 2 * within / 3 + weight**2 * (between + (between + within / 4) / 7)
    measured = cell(family, size, 4000, seed=1)["oracle"]
    assert measured["mse"].value == pytest.approx(error / (within / 3), abs=4 * measured["mse"].error)
    wide = (within + error) / (within + within / 3)
    assert measured["wide"].value == pytest.approx(wide, abs=4 * measured["wide"].error)
    assert 0 < measured["mse"].error < 0.02


def test_no_rule_is_below_the_bound():
    from benchmarks.quality.bound import frontier

    result = frontier(16, 4, iterations=200)
    assert 1 < result.lower_bound < result.minimax < result.shrinkage_js < result.shrinkage


def test_runs_and_reports(tmp_path):
    command = [sys.executable, "-m", "benchmarks.quality", "--quick", "--out", str(tmp_path / "q.json")]
    done = subprocess.run(
        [*command, "--figures", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    results = json.loads((tmp_path / "q.json").read_text())
    assert {c["prompts"] for c in results["cells"]} == {4, 16}
    assert all(c["relative"]["rloo"]["mse"] == pytest.approx([1, 0], abs=1e-6) for c in results["cells"])
    assert (tmp_path / "quality.png").stat().st_size > 1000
    assert "Where `shrinkage_js` misses its targets" in done.stdout
