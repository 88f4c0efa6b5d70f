"""The section on speed and memory, and its figure, from the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import figure, table

LOOPS = ("verl grpo", "verl rloo", "verl opo", "verl reinforce_plus_plus_baseline")
VECTORISED = ("verl grpo_vectorized", "verl rloo_vectorized")
OURS = ("refbase rloo", "refbase grpo", "refbase opo", "refbase shrinkage", "refbase shrinkage_js")


def time(stage: Mapping[str, Any], name: str, clock: str) -> float | None:
    """Milliseconds, or None where it was not run."""
    entry = stage["times"].get(name)
    return None if entry is None else entry[clock]


def clock(results: Mapping[str, Any]) -> str:
    """Processor time on a shared CPU, wall time on a GPU."""
    return "cpu_ms" if results["device"] == "cpu" else "wall_ms"


def shown(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def rollouts(results: Mapping[str, Any]) -> str:
    used = clock(results)
    stages = results["rollouts"]
    names = [n for n in (*OURS, *VECTORISED, *LOOPS) if any(n in s["times"] for s in stages)]
    head = ["ms per batch", *[f"{s['prompts']} × {s['each']}" for s in stages]]
    return table(head, [[f"`{name}`", *[shown(time(s, name, used)) for s in stages]] for name in names])


def ratios(results: Mapping[str, Any]) -> str:
    """How many times as long verl takes for the same estimator."""
    used = clock(results)
    pairs = [
        ("grpo", "verl grpo"),
        ("grpo", "verl grpo_vectorized"),
        ("rloo", "verl rloo"),
        ("rloo", "verl rloo_vectorized"),
        ("opo", "verl opo"),
        ("shrinkage_js", "verl rloo"),
        ("shrinkage_js", "verl rloo_vectorized"),
    ]
    stages = results["rollouts"]
    rows = []
    for ours, theirs in pairs:
        cells = []
        for stage in stages:
            peer, own = time(stage, theirs, used), time(stage, f"refbase {ours}", used)
            cells.append("–" if peer is None or own is None else f"{peer / own:.1f}")
        rows.append([f"`{theirs}` / `refbase {ours}`", *cells])
    return table(["times as long", *[f"{s['prompts']} × {s['each']}" for s in stages]], rows)


def tokens(results: Mapping[str, Any]) -> str:
    used = clock(results)
    stages = results["tokens"]
    names = list(dict.fromkeys(name for s in stages for name in s["times"]))
    rows = []
    for name in names:
        cells = []
        for stage in stages:
            own, floor = time(stage, name, used), time(stage, "floor", used)
            if own is None or not floor:
                cells.append("–")
            elif name == "floor":
                cells.append(f"{own:.3g} ms")
            else:
                cells.append(f"{own / floor:.2f} ({stage['peak_memory'][name]:.2f})")
        rows.append([f"`{name}`", *cells])
    return table(["times the floor (memory)", *[f"{s['rows']} × {s['width']}" for s in stages]], rows)


def section(results: Mapping[str, Any]) -> str:
    clock_name = "processor time" if results["device"] == "cpu" else "wall time"
    where = "one CPU" if results["device"] == "cpu" else results["device"]
    quadratic = ""
    if "quadratic" in results:
        stage = results["quadratic"]
        loop, kernel = (time(stage, f"{name} shrinkage", clock(results)) for name in ("spec", "kernel"))
        if loop and kernel:
            quadratic = f"""
### Against recomputing every statistic for every rollout

The authors' released shrinkage code does that. `refbase.spec.shrinkage`, equally quadratic in the number of prompts,
takes {loop:.0f} ms for 128 prompts of 8 rollouts, the kernel {kernel:.2g} ms: a factor of {loop / kernel:.0f}.
"""
    return f"""## Speed and memory of the kernels

On {where}, {results["threads"]} thread(s); medians of {clock_name}, contestants in turn in one run.

### Per-rollout stage

Rewards and labels (one uuid string per prompt, rows shuffled) to advantages, factorisation of the labels included.
verl's functions get responses of one token.

{rollouts(results)}

{ratios(results)}

![Time per batch](figures/kernels.png)

### Per-token stage

Token-level rewards (float32) and mask (int64, as verl's) to a tensor of advantages. *Floor* is a copy that moves the
bytes the stage must move: rewards and mask read once, one tensor written. Other rows are multiples of it; in
brackets, memory at the peak beyond the inputs, in tensors of the output's size, the result included. *Stage* is the
returns, the valid rows and the broadcast; the last rows are whole calls as verl makes them, estimator and label
factorisation included. The plug-in's have two results, advantages and returns, in separate memory; verl's return
one tensor twice.

{tokens(results)}
{quadratic}"""


def draw_figure(results: Mapping[str, Any], path: Path) -> None:
    pyplot = figure()
    drawing, axis = pyplot.subplots(figsize=(6, 4.2))
    used = clock(results)
    styles = {**dict.fromkeys(OURS, "-"), **dict.fromkeys(VECTORISED, "--"), **dict.fromkeys(LOOPS, ":")}
    for name, style in styles.items():
        points = [(s["prompts"] * s["each"], time(s, name, used)) for s in results["rollouts"] if name in s["times"]]
        if points:
            axis.plot(*zip(*points, strict=True), style, marker="o", ms=3, label=name)
    axis.set(xscale="log", yscale="log", xlabel="rollouts per batch", ylabel="ms per batch")
    axis.legend(fontsize=7)
    drawing.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)
