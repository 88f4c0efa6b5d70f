"""The section on estimation quality, and its figure, from the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import figure, table

ORDER = ("rloo", "batch_mean", "shrinkage", "shrinkage_js", "oracle")
VARIANTS = ("prompt out", "sample out")

Cell = Mapping[str, Any]


def value(cell: Cell, rule: str, quantity: str = "mse") -> float:
    return cell["relative"][rule][quantity][0]


def error(cell: Cell, rule: str, quantity: str = "mse") -> float:
    return cell["relative"][rule][quantity][1]


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(x) for x in values]
    return math.exp(sum(logs) / len(logs))


def above_rloo(cell: Cell, rule: str, quantity: str = "mse") -> bool:
    """Beyond two standard errors."""
    return value(cell, rule, quantity) > 1 + 2 * error(cell, rule, quantity)


def by_prompts(results: Mapping[str, Any]) -> dict[int, list[Cell]]:
    groups: dict[int, list[Cell]] = {}
    for cell in results["cells"]:
        groups.setdefault(cell["prompts"], []).append(cell)
    return groups


def shape(cell: Cell) -> str:
    return f"{cell['family']}, {cell['prompts']} prompts, m = {cell['rollouts']}"


def overview(results: Mapping[str, Any], quantity: str) -> str:
    rows = []
    for n, cells in by_prompts(results).items():
        means = [f"{geometric_mean(value(c, rule, quantity) for c in cells):.3f}" for rule in ORDER[1:]]
        worst = [f"{max(value(c, rule, quantity) for c in cells):.3f}" for rule in ("shrinkage", "shrinkage_js")]
        lost = [str(sum(above_rloo(c, rule, quantity) for c in cells)) for rule in ("shrinkage", "shrinkage_js")]
        means[-1:-1] = [f"{geometric_mean(value(c, rule, quantity) for c in cells):.3f}" for rule in VARIANTS]
        rows.append([str(n), str(len(cells)), *means, *worst, *lost])
    head = ["prompts", "cells", *[f"`{rule}`" if rule != "oracle" else rule for rule in ORDER[1:]]]
    head[-1:-1] = VARIANTS
    head += ["worst `shrinkage`", "worst `shrinkage_js`", "`shrinkage` above", "`shrinkage_js` above"]
    return table(head, rows)


def targets(results: Mapping[str, Any]) -> str:
    """How often each target is missed, and by how much at worst."""
    rows = []
    for n, cells in by_prompts(results).items():
        rows.append(
            [str(n), *_misses(cells, above_rloo_js), *_misses(cells, beyond_oracle), *_misses(cells, beyond_best)]
        )
    return table(
        ["prompts", "above `rloo`", "worst", "10 % above oracle", "worst", "5 % above the best of three", "worst"], rows
    )


def above_rloo_js(cell: Cell) -> tuple[bool, float] | None:
    return above_rloo(cell, "shrinkage_js"), value(cell, "shrinkage_js")


def beyond_oracle(cell: Cell) -> tuple[bool, float] | None:
    """Only where the oracle's error is at least 3 % of rloo's, and from 64 prompts on."""
    if cell["prompts"] < 64 or value(cell, "oracle") < 0.03:
        return None
    ratio = value(cell, "shrinkage_js") / value(cell, "oracle")
    return ratio > 1.1, ratio


def beyond_best(cell: Cell) -> tuple[bool, float] | None:
    if cell["prompts"] > 16:
        return None
    ratio = value(cell, "shrinkage_js") / min(value(cell, rule) for rule in ("shrinkage", *VARIANTS))
    return ratio > 1.05, ratio


def _misses(cells: Sequence[Cell], judge: Callable[[Cell], tuple[bool, float] | None]) -> list[str]:
    judged = [(*verdict, cell) for cell in cells if (verdict := judge(cell)) is not None]
    if not judged:
        return ["–", "–"]
    worst = max(judged, key=lambda item: item[1])
    missed = sum(item[0] for item in judged)
    where = f"{worst[2]['family']}, m = {worst[2]['rollouts']}"
    return [f"{missed} of {len(judged)}", f"{worst[1]:.3f} ({where})"]


def details(cells: Sequence[Cell]) -> str:
    rows = []
    for cell in cells:
        row = [cell["family"], str(cell["prompts"]), str(cell["rollouts"])]
        row += [f"{value(cell, rule):.3f}" for rule in ORDER[1:]]
        row += [f"{error(cell, 'shrinkage_js'):.3f}"]
        for quantity in ("logit", "wide"):
            row += [f"{value(cell, rule, quantity):.3f}" for rule in ("shrinkage", "shrinkage_js", "oracle")]
        rows.append(row)
    head = ["rewards", "n", "m", "batch_mean", "shrinkage", "shrinkage_js", "oracle", "s.e. of js"]
    head += [f"{rule} {q}" for q in ("logit", "wide") for rule in ("shrinkage", "js", "oracle")]
    return table(head, rows)


def section(results: Mapping[str, Any]) -> str:
    shown = [c for c in results["cells"] if c["prompts"] in (16, 64) and c["rollouts"] in (2, 8)]
    frontier = table(
        ["prompts", "m", "no rule below", "reached by", "`shrinkage_js`", "`shrinkage`"],
        [
            [
                str(int(b["prompts"])),
                str(int(b["rollouts"])),
                f"{b['lower_bound']:.3f}",
                f"{b['minimax']:.3f}",
                f"{b['shrinkage_js']:.3f}",
                f"{b['shrinkage']:.2f}",
            ]
            for b in results["bounds"]
        ],
    )
    return f"""## Estimation quality

All numbers are relative to `rloo` on the same rewards; smaller is better. Populations: 0/1 rewards with success
rates from Beta(a, b) or one of {{0.02, 0.98}}; normal rewards with prompt means N(0, σ²), σ as named, and
log-normal variances of mean 1. Group sizes m, or 2, 4, 8, 16 in turn ("2-16"). *Oracle* is the constant weight
of least expected error, computed from the population's true variances.

*Error* is the mean squared error of the baseline about the prompt's true mean. *Gradient variance* is
the trace of the covariance of the policy gradient, in two score models between which a language model lies:
*logit*, one parameter per prompt that tilts its rewards (score = r − μ); *wide*, scores independent of the
rewards and orthogonal between rollouts. The rewards' own variance is included in both.

### Error: geometric mean over cells

"Above" counts cells beyond two standard errors above `rloo`.

{overview(results, "mse")}

![Error relative to rloo](figures/quality.png)

### Gradient variance: geometric mean over cells

Logit model:

{overview(results, "logit")}

Wide model:

{overview(results, "wide")}

### Where `shrinkage_js` misses its targets

Never above `rloo`; from 64 prompts on at most 10 % above the oracle where that is at least 0.03; up to 16
prompts at most 5 % above the best of `shrinkage` and two plain James–Stein corrections, one that leaves the whole
prompt out of its statistics and one that leaves out only the rollout itself. Cells that miss, and the worst:

{targets(results)}

### What can be reached

Normal rewards with equal variances and sizes: the worst ratio to the oracle's error over all between-prompt
variances at which that error is at least 0.03 of `rloo`'s. *No rule below* holds for every weight that is a
function of the other prompts' observed spread (found as the value of a least favourable prior).

{frontier}

### Cells with 16 and 64 prompts

The others are in `benchmarks/results/quality.json`.

{details(shown)}
"""


def draw_figure(results: Mapping[str, Any], path: Path) -> None:
    pyplot = figure()
    colours = {"shrinkage": "tab:orange", "shrinkage_js": "tab:blue", "oracle": "black", "batch_mean": "tab:grey"}
    panels = [m for m in (2, 8) if any(c["rollouts"] == m for c in results["cells"])]
    drawing, axes = pyplot.subplots(1, len(panels), figsize=(5.5 * len(panels), 4.2), sharey=True, squeeze=False)
    for axis, m in zip(axes[0], panels, strict=True):
        families = list(dict.fromkeys(c["family"] for c in results["cells"]))
        for rule, colour in colours.items():
            points: dict[int, list[float]] = {}
            for cell in results["cells"]:
                if cell["rollouts"] == m:
                    points.setdefault(cell["prompts"], []).append(value(cell, rule))
            if rule != "batch_mean":
                for k in range(len(families)):
                    axis.plot(list(points), [v[k] for v in points.values()], color=colour, alpha=0.15, lw=0.8)
            mean = [geometric_mean(v) for v in points.values()]
            axis.plot(list(points), mean, color=colour, lw=2, marker="o", ms=4, label=rule)
        axis.axhline(1, color="tab:red", lw=0.8, label="rloo")
        axis.set(
            xscale="log", yscale="log", xlabel="prompts per batch", title=f"{m} rollouts per prompt", ylim=(0.02, 4)
        )
    axes[0][0].set_ylabel("error relative to rloo")
    axes[0][0].legend(fontsize=8)
    drawing.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)
