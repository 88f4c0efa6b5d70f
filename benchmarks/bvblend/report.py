"""The section on BV-Blend and history, and its figure, from the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import figure, table

Cell = Mapping[str, Any]
Results = Mapping[str, Any]

SHOWN = ("shrinkage", "shrinkage_js", "bvblend", "bvblend_eb", "shrinkage_history")
MOVING = ("rising", "falling", "cold start")


def cells(results: Results, **wanted: Any) -> list[Cell]:
    return [c for c in results["cells"] if all(c[key] == value for key, value in wanted.items())]


def value(cell: Cell, name: str, quantity: str = "mse") -> float:
    return cell["results"][name][quantity][0]


def error(cell: Cell, name: str, quantity: str = "mse") -> float:
    return cell["results"][name][quantity][1]


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(x) for x in values]
    return math.exp(sum(logs) / len(logs))


def pair(measured: Sequence[float] | None, digits: int = 3) -> str:
    return "–" if measured is None else f"{measured[0]:.{digits}f} ± {measured[1]:.{digits}f}"


def place(cell: Cell) -> list[str]:
    return [cell["stream"], str(cell["prompts"]), str(cell["rollouts"])]


def errors(results: Results) -> str:
    rows = []
    for cell in cells(results, rollouts=4):
        rows.append([*place(cell), *[f"{value(cell, name):.3f}" for name in SHOWN]])
        rows[-1].append(f"{max(error(cell, name) for name in SHOWN):.3f}")
    return table(["stream", "n", "m", *[f"`{name}`" for name in SHOWN], "largest s.e."], rows)


def efficiencies(results: Results) -> str:
    shown = ("grpo", *SHOWN)
    rows = []
    for cell in cells(results, rollouts=4):
        row = place(cell)
        for quantity in ("efficiency", "wide"):
            row += [f"{value(cell, name, quantity):.2f}" for name in shown]
        rows.append(row)
    head = ["stream", "n", "m", *[f"{name} {model}" for model in ("logit", "wide") for name in shown]]
    return table(head, rows)


def weights(results: Results) -> str:
    rows = []
    for cell in results["cells"]:
        if cell["prompts"] == max(c["prompts"] for c in results["cells"]) and cell["stream"] not in MOVING:
            row = place(cell)
            for name in ("bvblend", "bvblend_eb"):
                row += [f"{value(cell, name, q):.3f}" for q in ("weight", "best weight")]
            rows.append(row)
    return table(["stream", "n", "m", "`bvblend`", "best", "`bvblend_eb`", "best"], rows)


def options(results: Results) -> str:
    names = list(dict.fromkeys(name for c in cells(results, rollouts=4) for name in c["results"]))
    rows = []
    for name in names:
        row = [f"`{name}`"]
        for kind in (False, True):
            chosen = [c for c in cells(results, rollouts=4) if (c["stream"] in MOVING) == kind]
            for quantity in ("mse", "efficiency", "wide"):
                row.append(f"{geometric_mean(value(c, name, quantity) for c in chosen):.3f}" if chosen else "–")
        every = cells(results, rollouts=4)
        row.append(f"{max(c['results'][name]['peak'] for c in every):.3g}")
        row.append(f"{sum(value(c, name, 'zero') for c in every) / len(every):.2f}")
        rows.append(row)
    kinds = [f"{quantity}, {kind}" for kind in ("still", "moving") for quantity in ("error", "logit", "wide")]
    return table(["", *kinds, "largest \\|A\\|", "no signal"], rows)


def signals(results: Results) -> str:
    """Factor on the gradient of hard, middling and easy prompts: equal factors are a matter of step size."""
    names = ("group_mean", "grpo", "bvblend", "bvblend scale=group", "bvblend scale=none", "bvblend scale=none, loo")
    names = (*names, "bvblend_eb", "shrinkage_history")
    largest = max(c["prompts"] for c in results["cells"])
    rows = []
    for cell in cells(results, rollouts=4, prompts=largest):
        if all(f"signal {k}" in cell["results"]["rloo"] for k in range(3)) and cell["stream"] in (
            "Beta(1, 1)",
            *MOVING,
        ):
            for name in names:
                found = cell["results"][name]
                rows.append([cell["stream"], f"`{name}`", *[pair(found[f"signal {k}"], 2) for k in range(3)]])
    return table(["stream", "", "p < 0.2", "0.2 to 0.8", "p ≥ 0.8"], rows) if rows else ""


def losses(results: Results) -> list[tuple[Cell, float, float]]:
    """`shrinkage_history` against the better of its two ends: (cell, excess error, standard error)."""
    return [(c, *c["results"]["shrinkage_history"]["loss"]) for c in results["cells"]]


def requirement(results: Results) -> str:
    rows = []
    for n in dict.fromkeys(c["prompts"] for c in results["cells"]):
        for kind, moving in (("still", False), ("moving", True)):
            chosen = [x for x in losses(results) if x[0]["prompts"] == n and (x[0]["stream"] in MOVING) == moving]
            if chosen:
                beyond = sum(excess > 2 * s for _, excess, s in chosen)
                below = sum(excess < -2 * s for _, excess, s in chosen)
                worst, best = max(chosen, key=lambda x: x[1]), min(chosen, key=lambda x: x[1])
                rows.append(
                    [str(n), kind, str(len(chosen)), str(beyond), str(below)]
                    + [f"{x[1]:+.4f} ± {x[2]:.4f} ({x[0]['stream']}, m = {x[0]['rollouts']})" for x in (worst, best)]
                )
    return table(["n", "streams", "cells", "above", "below", "largest excess", "largest gain"], rows)


def learning(results: Results) -> str:
    rows = []
    for run in results["lessons"]:
        best = run["rates"][run["best"]]
        row = [run["setting"], f"`{run['contestant']}`", run["best"], pair(best["steps"], 0), pair(best["success"])]
        row += [pair(best["stuck"]), pair(best["wrong"]), pair(best["entropy there"]), f"{best['zero'][0]:.2f}"]
        rows.append(row)
    head = ["setting", "", "rate", "steps", "final success", "stuck", "collapsed", "entropy at threshold", "no signal"]
    return table(head, rows)


def lesson(results: Results, setting: str, name: str, quantity: str) -> list[float] | None:
    for run in results["lessons"]:
        if (run["setting"], run["contestant"]) == (setting, name):
            return run["rates"][run["best"]][quantity]
    return None


def statements(results: Results) -> str:
    """What was said before, and what this benchmark finds."""

    def at(stream: str, n: int, m: int, name: str, quantity: str, digits: int = 3) -> str:
        found = cells(results, stream=stream, prompts=n, rollouts=m)
        return pair(found[0]["results"][name][quantity], digits) if found and name in found[0]["results"] else "–"

    def beta(stream: str) -> str:
        return f"{at(stream, 64, 8, 'bvblend', 'weight')}, best {at(stream, 64, 8, 'bvblend', 'best weight')}"

    def several(names: Sequence[str], write: Callable[[str], str]) -> str:
        return ", ".join(f"`{name}` {write(name)}" for name in names)

    def stuck(setting: str) -> str:
        names = (
            "rloo",
            "grpo",
            "bvblend",
            "bvblend scale=none, loo",
            "bvblend scale=none, loo, key=class",
            "bvblend_eb",
        )
        return several(names, lambda name: pair(lesson(results, setting, name, "stuck")))

    def steps(setting: str) -> str:
        names = ("grpo", "shrinkage", "bvblend", "bvblend_eb", "shrinkage_history")
        return several(names, lambda name: pair(lesson(results, setting, name, "steps"), 0))

    def jitter(setting: str) -> str:
        names = ("grpo", "bvblend", "shrinkage", "bvblend_eb")
        return several(names, lambda name: pair(lesson(results, setting, name, "jitter"), 4))

    exploded = max(
        (c["results"]["bvblend scale=group, min_scale=1e-6"]["peak"] for c in cells(results, rollouts=4)),
        default=math.nan,
    )
    rows = [
        [
            "β about 0.40–0.60 where 0.048 is best: Beta(0.2, 0.2), m = 8",
            beta("Beta(0.2, 0.2)"),
        ],
        [
            "β 0.02–0.045 where 0.56 is best: Beta(0.3, 9.7), m = 8",
            beta("Beta(0.3, 9.7)"),
        ],
        [
            "mixed difficulty and one key cost 24 % of gradient efficiency",
            "wide model, m = 8: "
            + "; ".join(
                f"{stream} {at(stream, 64, 8, 'bvblend', 'wide')}"
                for stream in ("Beta(0.2, 0.2)", "Beta(1, 1)", "{0.02, 0.98}")
            )
            + f"; logit model: {at('Beta(1, 1)', 64, 8, 'bvblend', 'efficiency', 2)} at Beta(1, 1)",
        ],
        ["stuck prompts 2.7 % → 12 % with mixed difficulty", stuck("mixed difficulty")],
        ["the same from a cold start", stuck("cold start")],
        [
            "efficiency at Beta(0.3, 9.7), m = 4: `bvblend_eb` 1.21, `shrinkage` 1.125, `bvblend` 0.94",
            "wide: "
            + several(("bvblend_eb", "shrinkage", "bvblend"), lambda name: at("Beta(0.3, 9.7)", 64, 4, name, "wide"))
            + "; logit: "
            + several(
                ("bvblend_eb", "shrinkage", "bvblend"), lambda name: at("Beta(0.3, 9.7)", 64, 4, name, "efficiency", 2)
            ),
        ],
        [
            "`bvblend_eb` 1.21 at Beta(20, 20), m = 4",
            f"wide {at('Beta(20, 20)', 64, 4, 'bvblend_eb', 'wide')}; "
            f"logit {at('Beta(20, 20)', 64, 4, 'bvblend_eb', 'efficiency', 1)}",
        ],
        ["two prompts a step: `bvblend_eb` 27 % fewer steps than GRPO, shrinkage 3 %", steps("two prompts a step")],
        [
            "15 % fewer steps than GRPO from a cold start with shared parameters",
            steps("cold start, shared parameters"),
        ],
        ["variance of the step's mean reward −40 %", jitter("cold start, shared parameters")],
        [
            "all-fail groups carry 2–3 % of the useful gradient",
            several(
                ("bvblend", "bvblend_eb", "shrinkage_history"), lambda name: at("cold start", 64, 4, name, "all-fail")
            )
            + " over a cold start, m = 4",
        ],
        ['the literal `scale="group"` explodes', f"largest advantage {exploded:.3g} with a floor of 1e-6"],
    ]
    return table(["said", "measured here"], rows)


def average(results: Results, name: str, quantity: str = "mse", moving: bool = False) -> str:
    """Geometric mean over streams at m = 4."""
    chosen = [c for c in cells(results, rollouts=4) if (c["stream"] in MOVING) == moving]
    return f"{geometric_mean(value(c, name, quantity) for c in chosen):.2f}" if chosen else "–"


def recommendation(results: Results) -> str:
    def both(name: str) -> str:
        return f"({average(results, name)} and {average(results, name, moving=True)})"

    def stuck(name: str) -> str:
        return pair(lesson(results, "mixed difficulty", name, "stuck"))

    pooled, fast = both("shrinkage_history"), both("shrinkage_history decay=0.8")
    short, keyed = both("shrinkage_history window=10")[1:-1], both("shrinkage_history key=class")
    return f"""In brackets: error relative to rloo's, geometric means over streams that stand still and that move.

* **With a history that is stored with the checkpoints: `shrinkage_history`** {pooled}. Where nothing moves it is
  `bvblend_eb` {both("bvblend_eb")}; where the level moves it is better than that and than
  `shrinkage_js` {both("shrinkage_js")}, most with eight prompts a step. Leave `decay` at 0.95, or take 0.8 {fast}
  where success changes within tens of steps. Leave `window` at 100: the drift is seen in it (10 steps: {short}).
* **If the difficulty of prompts is known, make it the history key** {keyed}; here thirds of the true
  success rate or ease, better keys than a data set will have.
* **Without a history, from 16 prompts a step on: `shrinkage_js`.** With two or three it is `rloo`.
* **`bvblend_eb`** where prompts are to be judged by history alone. `scale="history"` only where the level stands still.
* **`bvblend`** {both("bvblend")} to compare with the article. Its default weighs hard and easy
  prompts differently; `local="loo", scale="none"` is unbiased but has the same weight. In pools of mixed difficulty
  {stuck("bvblend")} of the prompts end stuck under it, {stuck("bvblend scale=none, loo")} under the unbiased one, and
  {stuck("rloo")} under `rloo`. If it must be used: keys by difficulty, and a floor of 0.1 under any scale."""


def section(results: Results) -> str:
    return f"""## BV-Blend and history

Streams of 100 training steps, every step n new prompts with m rollouts of reward 0 or 1; estimators are called as in
training, on a `HistoryState` of the steps before. Streams that stand still draw success rates from Beta(a, b) or from
{{0.02, 0.98}} at every step alike, and are measured from step 60 on. *Rising* and *falling*: logits N(level, 1) with a
level from −3 to 3 or back; *cold start*: from a mean success of 1.4 %, at the pace of a policy that climbs its
gradient; these are measured from the first step. Everything is relative to `rloo` on the same rewards.

### Which one, and with which options

{recommendation(results)}

### What was said, and what is measured

{statements(results)}

### Error of the baseline

{errors(results)}

![Error by stream](figures/bvblend.png)

### `shrinkage_history` against the better of `shrinkage_js` and `bvblend_eb`

Difference of the errors on the same rewards, in units of `rloo`'s; *above* and *below* count cells beyond two standard
errors. All n and m.

{requirement(results)}

### Efficiency of the gradient

Signal² over noise, which a factor common to all advantages does not change and a factor that differs between prompts
lowers; larger is better. *Logit*: one parameter per prompt, in which reward and score are as dependent as they can be.
*Wide*: noise of scores that have nothing to do with the reward. A language model lies between.

{efficiencies(results)}

### Weights

Mean weight over groups with both outcomes, and the constant weight of least error for the same means.

{weights(results)}

### One option at a time

Geometric means over streams, m = 4; error (smaller is better) and the two efficiencies (larger is better), the largest
advantage met, and the share of groups without any.

{options(results)}

### Bias by difficulty

Factor on the expected gradient of hard, middling and easy prompts.

{signals(results)}

### Policies that learn

Pools of prompts, each a softmax over four answers; learning rates from a grid, each estimator at its best. *Steps* to
the threshold of mean success, a run that does not reach it counting in full; *stuck*: prompts below 5 % success at the
end; *collapsed*: on a wrong answer, with more than 95 %; entropy in nats when the threshold is reached.

{learning(results)}
"""


def draw_figure(results: Results, path: Path) -> None:
    pyplot = figure()
    colours = {
        "shrinkage_js": "tab:blue",
        "bvblend": "tab:grey",
        "bvblend_eb": "tab:orange",
        "shrinkage_history": "tab:red",
    }
    prompts = list(dict.fromkeys(c["prompts"] for c in results["cells"]))
    drawing, axes = pyplot.subplots(1, len(prompts), figsize=(4.6 * len(prompts), 4.2), sharey=True, squeeze=False)
    for axis, n in zip(axes[0], prompts, strict=True):
        chosen = cells(results, prompts=n, rollouts=4)
        for name, colour in colours.items():
            shown = [(k, value(c, name), error(c, name)) for k, c in enumerate(chosen)]
            axis.errorbar(*zip(*shown, strict=True), color=colour, fmt="o", ms=4, label=name)
        axis.axhline(1, color="black", lw=0.8, label="rloo")
        axis.set(yscale="log", title=f"{n} prompts a step, 4 rollouts each")
        axis.set_xticks(range(len(chosen)), [c["stream"] for c in chosen], rotation=60, ha="right", fontsize=8)
    axes[0][0].set_ylabel("error relative to rloo")
    axes[0][-1].legend(fontsize=8)
    drawing.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)
