"""What the training comparison says: tables and figures from its JSON."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import figure, table
from benchmarks.training import summary
from benchmarks.training.plan import ESTIMATORS, LR
from benchmarks.training.summary import Outcome

Results = Mapping[str, Any]
Group = tuple[str, int, float]

TITLES = {"warm": "warm start", "cold": "cold start"}


def jobs(results: Results) -> dict[Group, list[Outcome]]:
    """Runs of verl by (task, rollouts, lr)."""
    found: dict[Group, list[Outcome]] = defaultdict(list)
    for record in results["cells"]:
        cell = record["cell"]
        found[cell["task"], cell["rollouts"], cell["lr"]].append(summary.outcome_of_job(record))
    return dict(found)


def replicas(results: Results) -> dict[Group, list[Outcome]]:
    """Runs without verl by (task, rollouts, lr)."""
    found: dict[Group, list[Outcome]] = defaultdict(list)
    for record in results["replicas"]:
        found[record["task"], record["rollouts"], record["lr"]].append(summary.outcome_of_replica(record))
    return dict(found)


def section(results: Results) -> str:
    size = results["size"]
    parts = [
        "## Training",
        f"""Real jobs of verl on a CPU (`python -m benchmarks.training`): a Qwen2 model of 0.1 million weights answers
sums of one-digit terms, reward 1 for the right answer and 0 otherwise; {size["rows"]} rollouts a step,
{size["steps"]} steps, one update a batch, AdamW, gradients clipped at 1, the loss summed over the tokens of a
response. *Warm*: the model solves about a fifth of the problems at first; *cold*: fewer than one in twenty.
Estimators share model, problems and seeds. Held-out success is exact: the probability of each right answer
under the final model. Every ± is a standard error over seeds, and differences are between runs of the same seed.

* *reward*: mean over all steps, the area under the curve; *to grpo*: difference to `grpo`.
* *steps*: until the mean of five steps reaches what `grpo`'s mean curve has reached after three quarters of the
  run; {size["steps"] + 1} where that never happens.
* *greedy*, *sampled*: success on 400 held-out problems; *stuck*: share of those that sampling solves less often
  than one time in twenty.
* *zero signal*: share of the groups whose rewards are all equal; *roughness*: variance of a batch's mean reward
  about its trend, over that of `grpo`; *entropy*: of a response, nats, in the last five steps.
* *gradient noise*: variance of the batch's gradient over its mean's squared norm, both from the gradients of two
  micro-batches at every step, over that of `grpo`; each run at the policies that it visited. – where the mean
  gradient cannot be told from 0. Much rougher than the noise at a policy that stands still, below.""",
        "### Jobs of verl",
        *(block(group, runs, size["steps"]) for group, runs in sorted(jobs(results).items(), key=order)),
        "![Reward curves of the jobs](figures/training.png)",
        *replica_part(results),
        gradient_part(results["gradients"]),
        overhead_part(results["overhead"]),
        claims_part(results),
        left_out(results),
    ]
    return "\n\n".join(parts) + "\n"


def order(item: tuple[Group, Any]) -> tuple[bool, int, float]:
    (task, rollouts, lr), _ = item
    return task == "cold", -rollouts, lr


def block(group: Group, runs: Sequence[Outcome], steps: int) -> str:
    """A paragraph and a table on runs that differ in estimator and seed only."""
    task, rollouts, lr = group
    level = summary.threshold(runs) if any(run.estimator == summary.REFERENCE for run in runs) else None
    rows = []
    has_entropy = any("entropy" in run.values for run in runs)
    has_gradient = any(run.gradient is not None for run in runs)
    reference = summary.by_estimator(runs).get(summary.REFERENCE, [])
    rough = summary.mean(map(summary.roughness, reference))
    for estimator, own in summary.by_estimator(runs).items():
        known: dict[str, summary.Mean] = {
            name: summary.average([run.values[name] for run in own])
            for name in ("greedy", "sampled", "stuck", "zero_signal")
        }
        rows.append(
            [
                f"`{estimator}`",
                len(own),
                summary.average([summary.area(run) for run in own]).text(),
                "" if estimator == summary.REFERENCE else summary.paired(runs, estimator, summary.area).text(sign=True),
                summary.average([summary.steps_to(run, level) for run in own]).text(1) if level is not None else "",
                known["greedy"].text(),
                known["sampled"].text(),
                known["stuck"].text(),
                known["zero_signal"].text(2),
                f"{summary.mean(map(summary.roughness, own)) / rough:.2f}" if rough else "",
                *([entropy(own)] if has_entropy else []),
                *([noise(own, reference)] if has_gradient else []),
            ]
        )
    head = ["", "runs", "reward", "to grpo", "steps", "greedy", "sampled", "stuck", "zero signal", "roughness"]
    head += ["entropy"] if has_entropy else []
    head += ["gradient noise"] if has_gradient else []
    threshold = "" if level is None else f", threshold {level:.2f}"
    return f"{TITLES[task].capitalize()}, m = {rollouts}, learning rate {lr:g}{threshold}:\n\n{table(head, rows)}"


def entropy(runs: Sequence[Outcome]) -> str:
    known = [run.values["entropy"] for run in runs if "entropy" in run.values]
    return summary.average(known).text(2) if known else ""


def noise(runs: Sequence[Outcome], reference: Sequence[Outcome]) -> str:
    found = summary.gradient_noise(runs, reference)
    return "–" if math.isnan(found.error) else found.text(2)


def replica_part(results: Results) -> Iterable[str]:
    found = replicas(results)
    if not found:
        return
    size = results["size"]
    yield f"""### More seeds, without verl

The same updates in one process without verl (`benchmarks/training/replica.py`): as many seeds as three jobs of
verl cannot give. Where both ran, the mean reward over all estimators differs by {agreement(results):.3f} at most."""
    yield from (block(group, runs, size["steps"]) for group, runs in sorted(found.items(), key=order))
    best = best_rates(found)
    if best:
        head = ["", "best rate", "reward", "to grpo at its best", "greedy", "sampled", "stuck"]
        yield "Each at its own best rate (by mean reward; warm start, m = 8):\n\n" + table(head, best)
    yield "![Reward curves of the runs without verl](figures/training-seeds.png)"


def agreement(results: Results) -> float:
    """Largest difference of mean reward, over all estimators, between verl and the replicas."""
    real, others = jobs(results), replicas(results)
    gaps = []
    for group in real.keys() & others.keys():
        names = {run.estimator for run in real[group]}
        same = [run for run in others[group] if run.estimator in names]
        gaps.append(abs(summary.mean(map(summary.area, real[group])) - summary.mean(map(summary.area, same))))
    return max(gaps, default=float("nan"))


def best_rates(found: Mapping[Group, Sequence[Outcome]]) -> list[list[Any]]:
    rates = {lr: runs for (task, rollouts, lr), runs in found.items() if (task, rollouts) == ("warm", 8)}
    if len(rates) < 2:
        return []
    best: dict[str, list[Outcome]] = {}
    chosen: dict[str, float] = {}
    for estimator in dict.fromkeys(run.estimator for runs in rates.values() for run in runs):
        of_rate = {lr: [run for run in runs if run.estimator == estimator] for lr, runs in rates.items()}
        lr = max(of_rate, key=lambda lr: summary.mean(map(summary.area, of_rate[lr])))
        best[estimator], chosen[estimator] = of_rate[lr], lr
    everything = [run for runs in best.values() for run in runs]
    return [
        [
            f"`{estimator}`",
            f"{chosen[estimator]:g}",
            summary.average([summary.area(run) for run in runs]).text(),
            "" if estimator == "grpo" else summary.paired(everything, estimator, summary.area).text(sign=True),
            *(summary.average([run.values[name] for run in runs]).text() for name in ("greedy", "sampled", "stuck")),
        ]
        for estimator, runs in best.items()
    ]


def gradient_part(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0]["relative"])
    body = []
    for row in rows:
        ratios = ["{:.3f} ± {:.3f}".format(*pair) if (pair := row["relative"][name]) else "–" for name in names]
        body.append([row["model"], row["rollouts"], f"{row['success']:.2f}", f"{row['zero_signal']:.2f}", *ratios])
    head = ["policy", "m", "success", "zero signal", *(f"`{name}`" for name in names)]
    return f"""### Gradient noise

Policies stand still here: {rows[0]["batches"]} batches of {rows[0]["rows"]} rollouts from one model, gradients over
all its weights by backpropagation. Noise is the trace of the gradient's covariance over the squared norm of its
mean, so that no rescaling counts; relative to `rloo` on the same rollouts, ± by the jackknife. Dr.GRPO, and GVPO at
its first update, are `rloo` times a constant.

{table(head, body)}"""


def overhead_part(timing: Mapping[str, Any]) -> str:
    seconds = {name: median(values) for name, values in timing["seconds"].items()}
    step, reference = median(timing["step_seconds"]), seconds["grpo"]
    rows = [
        [f"`{name}`", f"{1e3 * value:.2f}", f"{value / reference:.2f}", f"{value / step:.2%}"]
        for name, value in seconds.items()
    ]
    head = ["", "ms", "of verl's `grpo`", "of the step"]
    share = median(timing["advantage_seconds"]) / step
    return f"""### Overhead

In one job of verl each estimator computes the advantages of the same batches ({timing["prompts"]} prompts,
{timing["rollouts"]} rollouts each; medians). Names without `refbase_` that verl has are verl's own. verl's whole
advantage phase, which fetches the batch and stores the result, takes {share:.1%} of this job's step of
{step:.2f} s.

{table(head, rows)}"""


def claims_part(results: Results) -> str:
    """The published ratios beside those found here."""
    found = replicas(results) or jobs(results)
    noise = {(row["model"], row["rollouts"]): row["relative"] for row in results["gradients"]}
    rows = [
        [
            "shrinkage: gradient variance down by up to 67 %",
            "noise of `shrinkage` / `shrinkage_js` over `rloo`, "
            + ", ".join(
                f"{model} m = {m}: {values['shrinkage'][0]:.2f} / {values['shrinkage_js'][0]:.2f}"
                for (model, m), values in noise.items()
                if values["shrinkage"] and values["shrinkage_js"]
            ),
        ]
    ]
    for group, runs in sorted(found.items(), key=order):
        names = summary.by_estimator(runs)
        if "bvblend" not in names or "grpo" not in names or group[2] != common_rate(group[0]):
            continue
        where = f"{group[0]} m = {group[1]}"
        level = summary.threshold(runs)
        steps = {name: summary.mean(summary.steps_to(run, level) for run in own) for name, own in names.items()}
        rough = {name: summary.mean(map(summary.roughness, own)) for name, own in names.items()}
        inside = {name: summary.mean(run.values["reward_variance"] for run in own) for name, own in names.items()}
        for name in ("bvblend", "bvblend_eb"):
            rows.append(
                [
                    f"BV-Blend: reward variance −40 %, steps to threshold −15 % ({where})",
                    f"`{name}` to `grpo`: roughness {rough[name] / rough['grpo'] - 1:+.0%}, variance inside a batch "
                    f"{inside[name] / inside['grpo'] - 1:+.0%}, steps {steps[name] / steps['grpo'] - 1:+.0%}",
                ]
            )
        if "gvpo" in names:
            final = {
                name: summary.average([run.values["greedy"] for run in names[name]]).text()
                for name in ("gvpo", "grpo", "drgrpo")
                if name in names
            }
            rows.append(
                [
                    f"GVPO: final accuracy above GRPO and Dr.GRPO (AIME24 20.7 to 14.8 and 16.6) ({where})",
                    "greedy success " + ", ".join(f"`{name}` {text}" for name, text in final.items()),
                ]
            )
    return "### Against the published claims\n\n" + table(["published", "here"], rows) + "\n\n" + CAVEAT


CAVEAT = """What this scale can show: the direction and size of statistical effects, with a model whose gradients can be
computed hundreds of times. What it cannot: whether a gain survives a large model, long answers, several updates per
batch or thousands of steps. A difference below two of its standard errors decides nothing, and with as many
comparisons as here some above are chance too. A rule that helps against noise helps where there is most of it: compare
m = 2 with m = 8 here and in the table of gradient noise."""


def common_rate(task: str) -> float:
    return LR[task]


def left_out(results: Results) -> str:
    text = """### Left out

Several ranks, vLLM, KL in the loss and several updates per batch; learning rates between those tried; rates for the
cold task and for m = 2; m = 4 (gradient noise only)."""
    missing = results["not_run"]
    if missing:
        text += f" Planned and not run: {len(missing)} jobs of verl ({', '.join(f'`{name}`' for name in missing[:4])}"
        text += ", …)" if len(missing) > 4 else ")"
        text += "; the runs without verl cover them." if results["replicas"] else "."
    return text


def draw_figures(results: Results, folder: Path) -> None:
    """Mean reward curves: ``training.png`` of verl's jobs, ``training-seeds.png`` of the runs without verl."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in (("training", jobs(results)), ("training-seeds", replicas(results))):
        panels = sorted(found.items(), key=order)
        several = [panel for panel in panels if len({run.pair for run in panel[1]}) > 1] or panels
        if several:
            draw(several, folder / f"{name}.png")


def draw(panels: Sequence[tuple[Group, Sequence[Outcome]]], path: Path) -> None:
    plt = figure()
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    picture, axes = plt.subplots(
        lines, columns, figsize=(5 * columns, 3.6 * lines), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, ((task, rollouts, lr), runs) in zip(axes.flat, panels, strict=False):
        for index, estimator in enumerate(ESTIMATORS):
            curves = [summary.smoothed(run.reward) for run in runs if run.estimator == estimator]
            if curves:
                line = [summary.mean(values) for values in zip(*curves, strict=True)]
                steps = range(summary.SMOOTH, summary.SMOOTH + len(line))
                axis.plot(steps, line, label=estimator, color=f"C{index}", lw=1.2)
        axis.set(xlabel="step", ylabel="training reward", title=f"{TITLES[task]}, m = {rollouts}, lr {lr:g}")
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=7)
    picture.savefig(path, dpi=110)
    plt.close(picture)
