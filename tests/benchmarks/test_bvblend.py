"""The BV-Blend benchmark runs, and measures what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import refbase  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::refbase.DegenerateBatchWarning")


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def measured(name, n=8, m=4, streams=24, seed=1, contestants=None, every=1):
    from benchmarks.bvblend.contestants import MAIN
    from benchmarks.bvblend.measure import cell
    from benchmarks.bvblend.streams import STREAMS

    return cell(STREAMS[name], n, m, streams, seed, MAIN if contestants is None else contestants, every)


@pytest.fixture(scope="module")
def like_prompts():
    sys.path.insert(0, str(ROOT))
    return measured("Beta(5, 5)")


def test_streams_are_what_they_are_called():
    from benchmarks.bvblend.streams import STEPS, STREAMS

    def level(name, step):
        rates, ease = STREAMS[name].rates(step, (500, 40), torch.Generator().manual_seed(step))
        assert rates.shape == ease.shape == (500, 40)
        return float(rates.mean())

    assert level("cold start", 0) < 0.05
    assert level("cold start", STEPS) > 0.7
    assert level("rising", 0) == pytest.approx(level("falling", STEPS), abs=0.01)
    assert [level("rising", t) < level("rising", t + 10) for t in (0, 40, 80)] == [True] * 3
    assert level("Beta(0.3, 9.7)", 3) == pytest.approx(0.03, abs=0.002)
    # climbing the exact gradient: dx/dt is proportional to p(1 - p)
    pace = STREAMS["cold start"].level
    slope = [(pace(s + 1e-4) - pace(s - 1e-4)) / 2e-4 for s in (0.3, 0.9)]
    logistic = [1 / (2 + 2 * torch.tensor(pace(s)).cosh().item()) for s in (0.3, 0.9)]
    assert slope[0] / slope[1] == pytest.approx(logistic[0] / logistic[1], rel=1e-3)


def test_one_call_for_all_streams_is_a_call_for_each():
    """With one history key per stream, and by the rules of the quality benchmark where prompts matter to each other."""
    from benchmarks.bvblend.contestants import MAIN, OPTIONS, Histories, Step

    names = ("grpo", "shrinkage", "shrinkage_js", "bvblend", "bvblend_eb", "shrinkage_history")
    names = (*names, "bvblend scale=none, loo, key=class", "shrinkage_history key=class")
    contestants = {name: {**MAIN, **OPTIONS}[name] for name in names}
    generator, streams, n, m = torch.Generator().manual_seed(0), 3, 9, 3
    together = Histories(contestants)
    apart = [{c.memory: refbase.HistoryState.empty() for c in contestants.values()} for _ in range(streams)]
    blended = set()
    for _ in range(6):
        step = Step(
            torch.randint(0, m + 1, (streams, n), generator=generator).double(),
            m,
            torch.randint(0, 3, (streams, n), generator=generator),
        )
        for name, contestant in contestants.items():
            outcome = contestant(step, together)
            for k in range(streams):
                rewards, ids = step.rewards[k].flatten(), torch.arange(n).repeat_interleave(m)
                history = {}
                if contestant.memory is not None:
                    keys = step.classes[k].repeat_interleave(m).tolist() if contestant.memory.by_class else None
                    history = {"state": apart[k][contestant.memory], "history_keys": keys}
                alone = getattr(refbase, contestant.estimator)(rewards, ids, **history, **contestant.options)
                torch.testing.assert_close(outcome.advantages[k].flatten(), alone.advantages, rtol=1e-9, atol=1e-12)
                torch.testing.assert_close(outcome.weight[k].flatten(), alone.weight, rtol=1e-9, atol=1e-12)
                if bool(((alone.weight > 0) & (alone.weight < 1)).any()):
                    blended.add(name)
        for k in range(streams):
            for memory in apart[k]:
                if memory is not None:
                    keys = step.classes[k].repeat_interleave(m).tolist() if memory.by_class else None
                    rewards, ids = step.rewards[k].flatten(), torch.arange(n).repeat_interleave(m)
                    apart[k][memory] = refbase.update_history(apart[k][memory], rewards, ids, history_keys=keys)
        together.update(step)
    assert blended == set(names) - {"grpo"}


def test_rloo_is_the_unit(like_prompts):
    for quantity in ("mse", "efficiency", "wide", "A2"):
        assert like_prompts["rloo"][quantity] == pytest.approx([1, 0], abs=1e-9)
    assert like_prompts["group_mean"]["efficiency"] == pytest.approx([1, 0], abs=1e-9)  # a factor, no more


def test_rloo_has_its_known_error():
    """Before any control variate: E (b - p)^2 = p(1 - p)/(m - 1)."""
    from benchmarks.bvblend.contestants import MAIN, Histories, Step
    from benchmarks.bvblend.measure import observe

    rates = torch.rand((400, 30), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    successes = torch.binomial(torch.full_like(rates, 4), rates, torch.Generator().manual_seed(3))
    step = Step(successes, 4, torch.zeros_like(rates).long())
    tally = observe(MAIN["rloo"](step, Histories({})), step, rates)
    excess = tally["error"] - tally["exact error"]
    assert abs(float(excess.mean())) < 4 * float(excess.std()) / 400**0.5
    assert float(excess.std()) / 400**0.5 < 0.02 * float(tally["exact error"].mean())


def test_factors_on_the_gradient(like_prompts):
    for name, factor in (("rloo", 1), ("group_mean", 3 / 4), ("shrinkage_js", 1), ("bvblend_eb", 1)):
        value, error = like_prompts[name]["signal"]
        assert value == pytest.approx(factor, abs=4 * error)
        assert error < 0.03


def test_nobody_beats_the_oracle(like_prompts):
    """Who knows the mean of means and both variances has the error tau^2/(v + tau^2) of rloo's."""
    between = 1 / 44
    within = 1 / 4 - between
    oracle = between / (within / 3 + between)
    for name, found in like_prompts.items():
        if name not in ("grpo", "group_mean"):  # their baselines contain the own reward
            assert found["mse"][0] > oracle - 2 * found["mse"][1], name
    assert like_prompts["bvblend_eb"]["mse"][0] < 1.2 * oracle
    assert like_prompts["shrinkage_js"]["mse"][0] > 1.2 * oracle  # eight prompts only


def test_the_articles_weight_is_large_where_history_is_useless():
    found = measured("Beta(0.2, 0.2)", n=8, m=8, streams=12, every=4)["bvblend"]
    assert found["weight"][0] - 2 * found["weight"][1] > 5 * found["best weight"][0]
    assert found["mse"][0] > 5


def test_shrinkage_history_keeps_to_the_better_of_its_ends():
    """Where nothing moves, that of `bvblend_eb`; where the level rises and a step has many prompts, `shrinkage_js`."""
    for name, n in (("Beta(5, 5)", 8), ("rising", 8), ("cold start", 16)):
        found = measured(name, n=n, m=4, streams=12, every=3)
        excess, error = found["shrinkage_history"]["loss"]
        assert excess < 2 * error + 0.002, name
        if name != "Beta(5, 5)":
            assert excess < -2 * error, name


def test_jackknife_of_a_mean_is_its_standard_error():
    from benchmarks.bvblend.measure import jackknife

    values = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = jackknife({"x": values, "one": torch.ones_like(values)}, lambda t: t["x"] / t["one"])
    assert found == pytest.approx([float(values.mean()), float(values.std()) / 50**0.5], rel=1e-2)


def test_policies_climb_the_true_gradient():
    """A small step along rloo's estimate raises the expected success of a pool by rate * |gradient|^2, on average."""
    from benchmarks.bvblend.contestants import MAIN
    from benchmarks.bvblend.learning import Policies, Setting, train

    setting = Setting("test", 6, 6, 4, 1, 0.99, (-1.0, 0.5), (0.05,))
    p = Policies(setting, 400, torch.Generator().manual_seed(5)).probabilities
    after = train(setting, MAIN["rloo"], 400, 5)["rates"]["0.05"]["success"]
    squared = p[..., 0] ** 2 * ((1 - p[..., 0]) ** 2 + (p[..., 1:] ** 2).sum(-1))  # |gradient of p_0|^2
    assert after[0] - float(p[..., 0].mean()) == pytest.approx(0.05 * float(squared.mean()), rel=0.15)
    again = train(setting, MAIN["rloo"], 400, 5)["rates"]["0.05"]["success"]
    assert again == after


@pytest.mark.parametrize("shared", [False, True])
def test_policies_learn(shared):
    from benchmarks.bvblend.contestants import MAIN
    from benchmarks.bvblend.learning import Setting, train

    setting = Setting("test", 8, 4, 4, 60, 0.9, (-1.0, 0.5), (1e-6, 4.0), shared)
    for name in ("rloo", "shrinkage_history"):
        result = train(setting, MAIN[name], 4, 0)
        slow, fast = result["rates"]["1e-06"], result["rates"]["4"]
        assert result["best"] == "4"
        assert fast["success"][0] > 0.9 > slow["success"][0] + 0.3
        assert fast["entropy"][0] < slow["entropy"][0]
        assert slow["steps"] == [60, 0]


def test_runs_and_reports(tmp_path):
    command = [sys.executable, "-m", "benchmarks.bvblend", "--quick", "--out", str(tmp_path / "b.json")]
    done = subprocess.run(
        [*command, "--figures", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    results = json.loads((tmp_path / "b.json").read_text())
    assert {c["stream"] for c in results["cells"]} == {"Beta(5, 5)", "rising"}
    assert len({run["setting"] for run in results["lessons"]}) == 4
    assert (tmp_path / "bvblend.png").stat().st_size > 1000
    assert "### One option at a time" in done.stdout


def test_the_committed_results_have_every_cell():
    from benchmarks.bvblend.report import losses

    results = json.loads((ROOT / "benchmarks" / "results" / "bvblend.json").read_text())
    assert len(results["cells"]) == 9 * 3 * 3
    assert [cell for cell, excess, error in losses(results) if excess > 2 * error] == []
