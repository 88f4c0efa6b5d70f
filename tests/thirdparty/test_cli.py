"""``python -m refbase.checks``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from refbase.checks import __main__ as cli
from refbase.checks import report

SOME = ["--laws", "shift,permutation,zero_sum", "--max-examples", "30"]


def run(capsys, *arguments):
    code = cli.main([*arguments])
    return code, capsys.readouterr().out


def usage(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_own_estimator_holds(capsys):
    code, out = run(capsys, "refbase:shrinkage", *SOME)
    assert code == 0
    assert "all 2 claimed laws hold" in out
    assert "zero_sum     not claimed (fails)" in out


def test_failure_shows_code(capsys):
    code, out = run(capsys, "toys:sorted_rows", "--arrays", "float", "--claims", "shift,zero_sum", *SOME)
    assert code == 1
    assert "permutation  fails" in out
    assert "from toys import sorted_rows as estimator" in out
    assert "# expected" in out
    assert "Broken: " in out
    assert "permutation" in out.split("Broken: ")[1]


def test_laws_that_bind_every_estimator_count_without_claims(capsys):
    code, out = run(capsys, "toys:sorted_rows", "--arrays", "float", *SOME)
    assert code == 1
    assert "permutation  fails" in out
    assert "shift        not claimed (" in out
    assert "--- permutation" in out
    assert "Say with --claims what else it should satisfy" in out


def test_a_baseline_of_undeclared_parts_is_a_baseline(capsys):
    claims = "shift,zero_sum,constant_zero"
    code, out = run(capsys, "toys:half_centred", "--arrays", "exact", "--claims", claims, "--laws", claims)
    assert code == 1
    assert "0 of 3 claimed laws hold" in out


def test_claims_that_cannot_be_checked_are_not_kept(capsys):
    code, out = run(capsys, "toys:flat", "--arrays", "exact", "--claims", "convex_weight", "--laws", "convex_weight")
    assert code == 1
    assert "nothing that is claimed could be checked" in out


def test_a_claim_that_cannot_be_checked_does_not_pass_beside_others(capsys):
    code, out = run(
        capsys, "toys:flat", "--arrays", "exact", "--claims", "shift,convex_weight", "--laws", "shift,convex_weight"
    )
    assert code == 1
    assert "Claimed, and could not be checked: convex_weight (it returns advantages only)." in out
    code, out = run(
        capsys, "refbase:shrinkage", "--arrays", "exact", "--laws", "shift,reference"
    )  # the catalogue's claims
    assert code == 0


@pytest.mark.parametrize(
    ("last", "code", "message"),
    [("sys.exit(0)", 2, "exits when it is imported"), ("1 / 0", 2, "ZeroDivisionError")],
)
def test_a_module_that_does_not_get_through_its_import(tmp_path, monkeypatch, capsys, last, code, message):
    (tmp_path / f"script{code}{len(last)}.py").write_text(f"import sys\n\ndef centred(r, g):\n    return r\n\n{last}\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        found = cli.main([f"script{code}{len(last)}:centred", "--json"])
    except SystemExit as error:  # argparse's way
        found = error.code
    assert found == code
    assert message in capsys.readouterr().err


def test_what_the_estimator_prints_is_not_in_the_object(tmp_path, monkeypatch, capsys):
    (tmp_path / "chatty.py").write_text("def f(r, g):\n    print('debug')\n    return [x * 0 for x in r]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["chatty:f", "--arrays", "float", "--json", "--laws", "permutation"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == 0
    assert "debug" in err


def test_without_torch_it_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr("refbase.checks.adapters.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["toys:flat"])
    assert stopped.value.code == 2
    assert "torch, which is not installed. Install it, or say arrays 'numpy'" in capsys.readouterr().err


def test_unclaimed_laws_that_hold_are_mentioned(capsys):
    code, out = run(capsys, "toys:flat", "--arrays", "exact", "--claims", "shift", *SOME)
    assert code == 0
    assert "zero_sum     not claimed (" in out
    code, out = run(capsys, "toys:list_matrix", "--signature", "matrix", "--arrays", "exact", "--claims", "", *SOME)
    assert code == 0
    assert "Not claimed, yet no counterexample was found: shift, zero_sum." in out


def test_matrix_and_verl_signatures(capsys):
    assert run(capsys, "toys:torch_matrix", "--signature", "matrix", "--claims", "shift,zero_sum", *SOME)[0] == 0
    assert run(capsys, "toys:as_verl", "--signature", "verl", "--claims", "shift", *SOME)[0] == 0


def test_json(capsys):
    code, out = run(capsys, "toys:sorted_rows", "--arrays", "float", "--claims", "", "--json", "--seed", "4", *SOME)
    record = json.loads(out)
    assert code == record["exit_code"] == 1
    assert record["seed"] == 4
    laws = {law["law"]: law for law in record["laws"]}
    assert laws["permutation"]["status"] == "fails"
    assert laws["permutation"]["claimed"] is True
    assert laws["shift"]["claimed"] is False
    assert "estimator(" in laws["permutation"]["code"]


def test_same_seed_same_counterexample(capsys):
    first, again = (run(capsys, "toys:sorted_rows", "--arrays", "float", "--seed", "7", *SOME)[1] for _ in range(2))
    assert first == again


def test_same_as(capsys):
    code, out = run(capsys, "refbase:rloo", "--same-as", "refbase:group_mean", *SOME)
    assert code == 1
    assert "same_as      fails" in out


def test_option(capsys):
    assert run(capsys, "refbase:rloo", "--option", "singletons='zero'", *SOME)[0] == 0
    assert run(capsys, "refbase:rloo", "--option", "singletons=zero", *SOME)[0] == 0


@pytest.mark.parametrize("name", ["crashes", "wrong_shape", "not_deterministic"])
def test_what_cannot_be_checked(capsys, name):
    code, out = run(capsys, f"toys:{name}", "--arrays", "float")
    assert code == 1
    assert f"toys:{name}: cannot be checked. On two groups of 2 rollouts it " in out
    code, out = run(capsys, f"toys:{name}", "--arrays", "float", "--json")
    assert code == 1
    assert json.loads(out)["error"]


def test_crash_shows_where(capsys):
    _, out = run(capsys, "toys:crashes", "--arrays", "float")
    assert "toys.py" in out
    assert "return rewards[len(rewards)]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an estimator, or use --list"),
        (["toys:flat", "--claims", "unbaised"], "did you mean 'unbiased'"),
        (["toys:flat", "--claims", "unbaised"], "Valid: constant_zero"),
        (["toys:flat", "--laws", "shfit"], "did you mean 'shift'"),
        (["toys:flat", "--laws", ""], "--laws names no law"),
        (["toys:flat", "--laws", " ,"], "--laws names no law"),
        (["toys:flat", "--signature", "rows"], "unknown signature 'rows'"),
        (["refbase:shrink"], "did you mean 'shrinkage'"),
        (["toys:flat", "--option", "x"], "--option takes key=value"),
        (["toys:flat", "--option", "factr=2"], "toys:flat takes no argument 'factr'"),
        (["toys:flat", "--option", "claims=shift"], "'claims' is one of the suite's; use --claims"),
        (["toys:flat", "--option", "min_group=2"], "'min_group' is one of the suite's; use --min-group"),
        (["toys:flat", "--option", "name=mine"], "'name' is one of the suite's"),
        (["toys:flat", "--max-examples", "0"], "must be a whole number from 1; got '0'"),
        (["toys:flat", "--min-group", "two"], "must be a whole number from 1; got 'two'"),
        (["nothing_here:f"], "no module named 'nothing_here'"),
    ],
)
def test_usage(capsys, arguments, message):
    assert message in usage(capsys, *arguments)


def test_list(capsys):
    code, out = run(capsys, "--list")
    assert code == 0
    for word in ("permutation", "own_reward_independent", "shrinkage_js", "rloo_vectorized"):
        assert word in out


def test_as_a_command():
    """From the author's directory, with the exit status of the verdict."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "refbase.checks", "toys:sorted_rows", "--arrays", "float", "--claims", "shift"]
    done = subprocess.run([*command, *SOME], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Broken:" in done.stdout


def test_on_a_terminal(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code = cli.main(["toys:sorted_rows", "--arrays", "float", "--claims", "shift", *SOME])
    out = capsys.readouterr().out
    assert code == 1
    for word in ("verdict", "permutation", "fails", "sorted_rows", "Broken"):
        assert word in out
    monkeypatch.setattr(report, "_write_rich", lambda *_: (_ for _ in ()).throw(ImportError()))
    cli.main(["toys:sorted_rows", "--arrays", "float", *SOME])
    assert "Broken: permutation." in capsys.readouterr().out


def test_no_claims_is_a_claim(capsys):
    """Unlike no laws: the laws that bind every estimator are left."""
    code, out = run(capsys, "refbase:rloo", "--claims", "", *SOME)
    assert code == 0
    assert "all 1 claimed laws hold" in out


def test_laws_that_nobody_claimed_are_not_counted_as_kept(capsys):
    code, out = run(capsys, "toys:flat", "--arrays", "exact", "--laws", "zero_sum")
    assert code == 0
    assert "toys:flat: none of these laws is claimed." in out


REFUSING = [
    (["toys:refuses_one", "--arrays", "exact"], "raised ValueError: group 'a' has one rollout; two are needed"),
    (["toys:refuses_one_as_verl", "--signature", "verl"], "raised ValueError: a group has one rollout"),
    (["toys:bessel_matrix", "--signature", "matrix"], "gave advantages [nan, nan]"),
    (["refbase:rloo", "--arrays", "exact", "--option", "singletons=error"], "raised InputError: "),
]


@pytest.mark.parametrize(("arguments", "what"), REFUSING)
def test_who_refuses_groups_of_one_is_told_of_min_group(capsys, arguments, what):
    some = ["--laws", "permutation,finite,deterministic", "--max-examples", "20"]
    code, out = run(capsys, *arguments, *some)
    assert code == 1
    assert out.count("--min-group") == 1
    assert f"On groups of one rollout it {what}" in out
    _, out = run(capsys, *arguments, *some, "--json")
    assert "--min-group 2" in json.loads(out)["hint"]
    code, out = run(capsys, *arguments, *some, "--min-group", "2")
    assert code == 0, out
    assert "--min-group" not in out


def test_the_smallest_group_is_found_where_two_are_too_few(capsys):
    """The first trial is on groups of two."""
    arguments = ["toys:refuses_two", "--signature", "matrix", "--arrays", "exact"]
    hint = "On groups of 2 rollouts it raised ValueError: three rollouts are needed; on groups of 3 it works."
    code, out = run(capsys, *arguments)
    assert code == 1
    assert "cannot be checked" in out
    assert f"{hint} If it is not meant for smaller groups, say so with --min-group 3." in out
    _, out = run(capsys, *arguments, "--json")
    assert hint in json.loads(out)["hint"]
    assert run(capsys, *arguments, *SOME, "--min-group", "3")[0] == 0


@pytest.mark.parametrize("name", ["sorted_rows", "sorted_labels", "flat", "crashes_when_empty"])
def test_others_are_not(capsys, name):
    laws = ["--laws", "permutation,relabel,empty_batch", "--max-examples", "20"]
    _, out = run(capsys, f"toys:{name}", "--arrays", "exact", *laws)
    assert "--min-group" not in out
    _, out = run(capsys, f"toys:{name}", "--arrays", "exact", *laws, "--json")
    assert json.loads(out)["hint"] is None


def test_the_hint_is_shown_on_a_terminal(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    cli.main(["toys:refuses_one", "--arrays", "exact", *SOME])
    assert capsys.readouterr().out.count("--min-group") == 1
