"""The training benchmark: its measures are right, and a tiny size of it runs with verl."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A model that has learned next to nothing, with its problems."""
    pytest.importorskip("reasoning_gym")
    sys.path.insert(0, str(ROOT))
    from benchmarks.training.job import recipe
    from examples.first_run.prepare import prepare

    return prepare(recipe("warm", 1, quick=True), tmp_path_factory.mktemp("models"))


def test_plan_has_every_estimator_at_every_seed_and_no_job_twice():
    from benchmarks.training import plan

    cells = list(plan.cells(plan.FULL))
    assert len(set(cells)) == len(cells) == len({cell.name for cell in cells})
    for task, rollouts in (("warm", 8), ("cold", 8), ("warm", 2)):
        block = [c for c in cells if (c.task, c.rollouts, c.lr) == (task, rollouts, plan.LR[task])]
        assert {(c.estimator, c.seed) for c in block} == {(e, s) for e in plan.ESTIMATORS for s in (1, 2, 3)}


def test_other_seeds_run_at_the_rate_that_was_best():
    from benchmarks.training.plan import FULL, LR, Cell, at_best_rate, best_rate

    area = {Cell("warm", "rloo", lr=lr): value for lr, value in ((1e-4, 0.2), (LR["warm"], 0.3), (1e-3, 0.4))}
    area |= {Cell("warm", "grpo", lr=lr): value for lr, value in ((1e-4, 0.2), (LR["warm"], 0.3), (1e-3, 0.1))}
    assert best_rate("rloo", area) == 1e-3
    found = list(at_best_rate(FULL, area))
    assert found == [Cell("warm", "rloo", lr=1e-3, seed=seed) for seed in (2, 3)]


def test_noise_of_gradients_with_known_moments():
    from benchmarks.training.gradient import leave_one_out_noise, ratio

    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([3.0, 4.0])
    vectors = mean + 5 * torch.randn(4000, 2, generator=generator, dtype=torch.float64)
    noise = leave_one_out_noise(vectors)
    assert noise[0] == pytest.approx(2.0, rel=0.1)  # trace 2 * 25 over squared norm 25
    value, error = ratio(noise, leave_one_out_noise(10 * vectors))
    assert value == pytest.approx(1.0)
    assert error == pytest.approx(0.0, abs=1e-6)
    assert ratio(leave_one_out_noise(torch.zeros(5, 2)), noise[:6]) is None  # no reward, no gradient, no noise
    part = leave_one_out_noise(vectors[1:])
    assert noise[1] == pytest.approx(part[0])  # entry 1 leaves batch 0 out


def test_log_probabilities_are_those_of_the_sampled_tokens(prepared):
    """Against the model called on one unpadded row at a time."""
    from benchmarks.training.gradient import Sampler

    sampler = Sampler(prepared.folder, seed=3)
    tokens, labels, rewards = sampler.batch(4, 3)
    log_probs = sampler.log_probs(tokens, labels)
    assert set(rewards.tolist()) <= {0.0, 1.0}
    for row in range(12):
        response = labels[row][labels[row] != -100]
        first = int((labels[row] != -100).nonzero()[0])
        prompt = tokens[row, :first]
        whole = torch.cat([prompt[prompt != sampler.pad], response])
        logits = sampler.model(input_ids=whole[None]).logits[0, -len(response) - 1 : -1]
        direct = logits.log_softmax(-1).gather(-1, response[:, None]).sum()
        assert log_probs[row].item() == pytest.approx(direct.item(), abs=1e-4)
        assert (response[:-1] != sampler.end).all()  # nothing after the end counts


def test_centring_is_rloo_times_a_constant(prepared):
    import refbase
    from benchmarks.training.gradient import Sampler

    sampler = Sampler(prepared.folder, seed=0)
    tokens, labels, _ = sampler.batch(4, 4)
    rewards = torch.arange(16, dtype=torch.float64).remainder(3)
    groups = [row // 4 for row in range(16)]
    log_probs = sampler.log_probs(tokens, labels)
    centred = sampler.gradient(log_probs, refbase.group_mean(rewards, groups).advantages)
    rloo = sampler.gradient(log_probs, refbase.rloo(rewards, groups).advantages)
    torch.testing.assert_close(centred, rloo * 3 / 4, rtol=1e-4, atol=1e-7)


def test_replica_is_reproducible_and_learns(prepared):
    from benchmarks.training.replica import Replica, train
    from benchmarks.training.summary import outcome_of_replica

    one = Replica("warm", "shrinkage_js", 4, 1e-3, 1, 0)
    first, again = (train(one, prepared.folder, rows=32, steps=3) for _ in range(2))
    assert first == again
    assert len(first["reward"]) == 3
    outcome = outcome_of_replica({**asdict(one), **first})
    assert outcome.reward == tuple(first["reward"])
    assert outcome.values["zero_signal"] == pytest.approx(sum(first["zero_signal"]) / 3)
    assert outcome.gradient == (first["gradient_variance"], first["gradient_square"])
    other = train(Replica("warm", "shrinkage_js", 4, 1e-1, 1, 0), prepared.folder, rows=32, steps=3)
    assert other["reward"][0] == first["reward"][0]  # same first batch
    assert other["sampled"] != first["sampled"]


def test_moments_of_a_gradient_from_two_micro_batches(prepared):
    """Against the gradients of the halves, each from a pass of its own."""
    from benchmarks.training.gradient import Sampler
    from benchmarks.training.replica import backward

    sampler = Sampler(prepared.folder, seed=0)
    tokens, labels, _ = sampler.batch(4, 4)
    advantages = torch.arange(16, dtype=torch.float32).sub(7)
    halves = []
    for rows in (slice(0, 8), slice(8, 16)):
        kept = torch.zeros(16)
        kept[rows] = 1
        halves.append(sampler.gradient(sampler.log_probs(tokens, labels), advantages * kept))
    variance, square = backward(sampler, advantages * sampler.log_probs(tokens, labels) / 16)
    assert variance == pytest.approx((halves[0] - halves[1]).square().sum().item(), rel=1e-3)
    assert square == pytest.approx(4 * (halves[0] @ halves[1]).item(), rel=1e-3)
    whole = torch.cat([weight.grad.reshape(-1) for weight in sampler.model.parameters()])
    torch.testing.assert_close(whole, halves[0] + halves[1], rtol=1e-3, atol=1e-6)


def test_gradient_noise_is_a_ratio_that_no_rescaling_changes():
    from benchmarks.training.summary import Outcome, gradient_noise

    def run(estimator, pair, variance, square):
        return Outcome(estimator, (pair, 0), (0.0,), {}, (variance, square))

    grpo = [run("grpo", 1, 8.0, 2.0), run("grpo", 2, 4.0, 2.0)]
    scaled = [run("rloo", 1, 32.0, 8.0), run("rloo", 2, 16.0, 8.0)]
    assert (gradient_noise(scaled, grpo).value, gradient_noise(scaled, grpo).error) == (1.0, 0.0)
    found = gradient_noise([run("rloo", 1, 4.0, 2.0), run("rloo", 2, 4.0, 2.0), run("rloo", 3, 9.0, 1.0)], grpo)
    assert found.value == pytest.approx((8 / 4) / (12 / 4))  # the third has no partner
    assert found.error == pytest.approx(0.25)  # 1 without the first pair, 1/2 without the second
    assert math.isnan(gradient_noise([run("rloo", 1, 4.0, -1.0)], grpo).value)


def test_summary_of_runs():
    from benchmarks.training import summary

    def run(estimator, pair, reward):
        return summary.Outcome(estimator, (pair, 0), tuple(reward), {})

    rising = [step / 20 for step in range(20)]
    runs = [run("grpo", 1, rising), run("grpo", 2, rising), run("rloo", 1, [r + 0.1 for r in rising])]
    level = summary.threshold(runs)
    assert level == pytest.approx(sum(rising[10:15]) / 5)
    assert summary.steps_to(runs[0], level) == 15
    assert summary.steps_to(runs[2], level) == 13
    assert summary.steps_to(run("rloo", 1, [0.0] * 20), level) == 21
    assert summary.paired(runs, "rloo", summary.area).value == pytest.approx(0.1)
    assert math.isnan(summary.paired(runs, "rloo", summary.area).error)
    assert summary.roughness(run("grpo", 1, [0, 1, 0, 1])) == pytest.approx(0.5)


@pytest.mark.e2e
def test_tiny_size_runs_with_verl_and_resumes(tmp_path):
    pytest.importorskip("verl")
    out = tmp_path / "training.json"
    command = [sys.executable, "-m", "benchmarks.training", "--quick", "--jobs", "1", "--seeds", "1", "--out", str(out),
               "--figures", str(tmp_path), "--folder", str(tmp_path / "runs")]  # fmt: skip
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert first.returncode == 0, first.stderr[-3000:]
    results = json.loads(out.read_text())
    assert {record["cell"]["estimator"] for record in results["cells"]} == {"rloo", "shrinkage_js"}
    for record in results["cells"]:
        assert len(record["curves"]["reward"]) == 2
        assert [point["step"] for point in record["held_out"]] == [0, 2]
        assert all(0 <= value <= 1 for value in record["curves"]["zero_signal"])
    assert set(results["overhead"]["seconds"]) >= {"grpo", "shrinkage_js", "bvblend_eb"}
    assert all(len(times) == 2 and min(times) > 0 for times in results["overhead"]["seconds"].values())
    assert (tmp_path / "training.png").stat().st_size > 0
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr[-3000:]  # no job within two minutes: all was kept
    assert json.loads(out.read_text())["cells"] == results["cells"]
