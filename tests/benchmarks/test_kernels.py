"""The kernel benchmark runs, with verl's figures where verl is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc")
def test_runs_and_reports(tmp_path):
    command = [sys.executable, "-m", "benchmarks.kernels", "--quick", "--out", str(tmp_path / "k.json")]
    done = subprocess.run(
        [*command, "--figures", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    results = json.loads((tmp_path / "k.json").read_text())
    rollouts, tokens = results["rollouts"][0]["times"], results["tokens"][0]["times"]
    assert all(entry["wall_ms"] > 0 for entry in (*rollouts.values(), *tokens.values()))
    assert {"refbase rloo", "refbase shrinkage_js"} <= set(rollouts)
    assert {"floor", "stage"} <= set(tokens)
    if find_spec("verl"):
        assert {"verl grpo", "verl rloo_vectorized"} <= set(rollouts)
        assert "refbase rloo in verl" in tokens
    assert (tmp_path / "k.png").stat().st_size > 1000
    assert "Per-token stage" in done.stdout
