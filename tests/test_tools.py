"""tools/mutate.py: what it tries, what it keeps of a stopped run, and the page that it writes."""

import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "mutation.md"


@pytest.fixture(scope="module")
def mutate():
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "tools" / "mutate.py")
    module = sys.modules["mutate"] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutate"]


@pytest.fixture(scope="module")
def mutants(mutate):
    return [m for path in mutate.all_paths() for m in mutate.mutants_of(path)]


def test_mutants_are_told_apart_by_their_keys(mutants):
    assert len(mutants) > 900
    assert not any("\n" in m.key for m in mutants)
    assert [key for key, count in Counter(m.key for m in mutants).items() if count > 1] == []
    assert {m.path.split("/")[1] for m in mutants} == {"spec", "kernels"}


def test_every_reason_is_about_a_mutant_that_exists(mutate, mutants):
    reasons = mutate.known_reasons()
    assert reasons
    assert set(reasons) <= {m.key for m in mutants}
    assert all(len(reason) > 20 for reason in reasons.values())


def test_every_mutant_changes_its_file_and_is_python(mutate, mutants):
    originals = {path: mutate.ast.unparse(mutate.ast.parse((ROOT / path).read_text())) for path in mutate.all_paths()}
    for mutant in mutants[::25]:
        compile(mutant.source, mutant.path, "exec")
        assert mutant.source != originals[mutant.path]


def test_the_page_gives_a_reason_for_every_survivor(mutate):
    text = PAGE.read_text()
    total, dead, known, missing = map(int, re.search(
        r"^(\d+) mutants.*?: (\d+) die .*?, (\d+) cannot be told.*?^(\d+) survive", text, re.M | re.S
    ).groups())  # fmt: skip
    survivors = re.findall(r"^\* `refbase/", text, re.M)
    assert (total, missing, len(survivors)) == (dead + known, 0, known)
    assert sum(int(n) for n in re.findall(r"^\| `[^`]+` \| (\d+) \|", text, re.M)) == total


def test_a_stopped_run_is_taken_up_where_it_was(mutate, mutants, tmp_path, monkeypatch):
    path = tmp_path / "below" / "ledger.jsonl"
    first = mutate.Ledger(path, resume=False)
    first.add(mutants[0], "pytest")
    first.add(mutants[1], "")
    with path.open("a") as file:
        file.write('{"mutant": "cut o')  # the machine went down while this was written
    resumed = mutate.Ledger(path, resume=True)
    assert resumed.verdicts == {mutants[0].key: "pytest", mutants[1].key: ""}
    resumed.add(mutants[2], "reference on rloo[kernel]")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry.get("mutant") for entry in entries] == [None, *(m.key for m in mutants[:3])]
    assert mutate.Ledger(path, resume=True).verdicts == resumed.verdicts
    assert mutate.Ledger(path, resume=False).verdicts == {}


@pytest.mark.parametrize("changed", ["CODE", "TESTS"])
def test_verdicts_of_other_code_are_not_kept_and_of_other_tests_only_deaths(
    mutate, mutants, tmp_path, monkeypatch, changed
):
    path, original = tmp_path / "ledger.jsonl", mutate.fingerprint
    first = mutate.Ledger(path, resume=False)
    first.add(mutants[0], "pytest")
    first.add(mutants[1], "")
    monkeypatch.setattr(
        mutate, "fingerprint", lambda files: "other" if files == getattr(mutate, changed) else original(files)
    )
    with pytest.raises(SystemExit, match="of other code, tests or versions; run again without --resume"):
        mutate.Ledger(path, resume=True)
    if changed == "CODE":
        with pytest.raises(SystemExit, match="of other code"):
            mutate.Ledger(path, resume=False, retry=True)
    else:
        assert mutate.Ledger(path, resume=False, retry=True).verdicts == {mutants[0].key: "pytest"}
        assert mutate.Ledger(path, resume=True).verdicts == {mutants[0].key: "pytest"}  # it is of these tests now


def test_the_fingerprint_is_of_all_files(mutate, tmp_path, monkeypatch):
    assert mutate.fingerprint(mutate.CODE) == mutate.fingerprint(mutate.CODE) != mutate.fingerprint(mutate.TESTS)
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    (tmp_path / "refbase" / "kernels").mkdir(parents=True)
    empty = mutate.fingerprint(mutate.CODE)
    (tmp_path / "refbase" / "kernels" / "new.py").write_text("x = 1\n")
    one = mutate.fingerprint(mutate.CODE)
    (tmp_path / "refbase" / "kernels" / "new.py").write_text("x = 2\n")
    assert len({empty, one, mutate.fingerprint(mutate.CODE)}) == 3


def test_time_left(mutate):
    assert mutate.time_left([1.0, 3.0], 10) == "20 s left"
    assert mutate.time_left([60.0], 10) == "10 min left"


def test_the_report_names_what_no_test_sees(mutate, mutants):
    results = [(mutants[0], "pytest"), (mutants[1], ""), (mutants[2], "")]
    text = mutate.report(results, {mutants[1].key: "Nothing reads it."}, len(mutants))
    assert f"3 mutants, a sample of the {len(mutants)}: 1 die (33.3 %), 1 cannot be told from the original," in text
    assert "1 survive for want of a test." in text
    assert "Nothing reads it." in text
    assert "**no reason known: a test is missing**" in text


@pytest.mark.slow
def test_a_mutant_dies_and_an_unchanged_file_does_not(tmp_path):
    """One file end to end: the unchanged code passes, its mutants die, and a second run has nothing to do."""
    ledger = tmp_path / "ledger.jsonl"
    command = [sys.executable, "tools/mutate.py", "refbase/kernels/batch_mean.py", "--ledger", str(ledger)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    count = int(re.match(r"(\d+) mutants, 0 of them with a verdict already", lines[0])[1])
    assert lines[-1] == f"{count} of {count} die"
    assert all(re.match(r"\d+/\d+ [\d.]+s, \d+ (s|min) left: killed by ", line) for line in lines[1:-1])
    again = subprocess.run([*command, "--resume"], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0
    assert again.stdout.splitlines() == [f"{count} mutants, {count} of them with a verdict already", lines[-1]]
