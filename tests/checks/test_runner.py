"""What running a law yields: verdicts, counterexamples, and clear words where an estimator misbehaves."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

import refbase
from refbase.checks import (
    LAWS,
    Batch,
    Law,
    Probe,
    Subject,
    SubjectError,
    Violation,
    binding_laws,
    catalogue_subject,
    run_law,
    run_laws,
    tolerance,
)
from refbase.checks.subject import read_answer, smallest_group


def rewards_plus_one(rewards, group_ids, valid=None):
    return rewards + 1


SUBJECT = Subject("plus_one", rewards_plus_one, frozenset({"shift"}), code="from here import estimator")


def test_a_failed_law_prints_everything_needed():
    result = run_law(SUBJECT, LAWS["shift"])
    assert result.status == "fails"
    text = result.report()
    assert "plus_one: law `shift` fails" in text
    assert "A(r + c) = A(r) for every constant c" in text
    assert "from here import estimator" in text
    assert "import torch" in text
    assert text.count("print(estimator(torch.tensor([") == 2
    assert "# expected [1]" in text or "# expected [1.0]" in text
    assert "# got      [2]" in text or "# got      [2.0]" in text


def test_the_counterexample_is_the_smallest():
    result = run_law(SUBJECT, LAWS["shift"])
    assert "torch.tensor([0.0], dtype=torch.float32), ['a']" in result.code
    assert "torch.tensor([1.0], dtype=torch.float32), ['a']" in result.code


def test_a_law_that_holds():
    result = run_law(catalogue_subject("rloo", "exact"), LAWS["zero_sum"])
    assert result.holds
    assert result.claimed
    assert result.examples >= 40
    assert result.report().splitlines()[0] == "rloo[spec, exact]: law `zero_sum` holds"


def test_a_law_that_does_not_apply():
    result = run_law(replace(SUBJECT, masks=False), LAWS["masked_inert"])
    assert result.status == "not_applicable"
    assert result.reason == "its signature takes no validity flags"
    assert run_law(catalogue_subject("rloo", "exact"), LAWS["strided"]).reason == "it takes no tensors"
    assert run_law(SUBJECT, LAWS["baseline_identity"]).reason == "it returns advantages only"
    assert run_law(SUBJECT, LAWS["reference"]).reason == "it has no exact counterpart here"
    assert run_law(SUBJECT, LAWS["history_replay"]).reason == "it gives no access to its state"


def test_conditions_that_no_input_meets():
    def never(probe, case):
        from hypothesis import reject

        reject()

    law = Law("never", "never", frozenset(), lambda subject: st.integers(), never)
    assert run_law(SUBJECT, law).status == "not_applicable"


CRASHES = {
    "raised ZeroDivisionError": lambda r, g, v=None: 1 / 0,
    "returned advantages of shape \\(2, .*\\) for .* rollouts": lambda r, g, v=None: torch.stack([r, r]),
    "returned advantages of type str": lambda r, g, v=None: "advantages",
    "returned None where advantages belong": lambda r, g, v=None: None,
    "an Estimate whose `weight` is None": lambda r, g, v=None: refbase.Estimate(r, r, None),
}


@pytest.mark.parametrize("message", CRASHES)
def test_misbehaviour_is_an_error_with_the_call_that_caused_it(message):
    import re

    result = run_law(replace(SUBJECT, call=CRASHES[message]), LAWS["permutation"])
    assert result.status == "error"
    assert re.search(message, result.reason), result.reason
    assert "estimator(torch.tensor(" in result.code
    assert "# expected" not in result.report()


def test_an_estimator_that_is_not_deterministic():
    generator = torch.Generator().manual_seed(0)
    noisy = replace(SUBJECT, call=lambda r, g, v=None: r + torch.rand(len(r), generator=generator).to(r.dtype))
    result = run_law(noisy, LAWS["deterministic"])
    assert result.status in ("fails", "error")
    calls = iter(range(10**6))
    flaky = replace(SUBJECT, call=lambda r, g, v=None: r * (next(calls) % 7 == 0))
    result = run_law(flaky, LAWS["permutation"])
    assert result.status == "error"
    assert "not deterministic" in result.reason


def test_results_repeat_and_seeds_differ():
    assert run_law(SUBJECT, LAWS["shift"]).code == run_law(SUBJECT, LAWS["shift"]).code
    assert run_law(SUBJECT, LAWS["shift"], seed=1).status == "fails"
    assert run_law(SUBJECT, LAWS["shift"], derandomize=False).status == "fails"


def test_laws_bind_by_claims():
    bare = {law.id for law in binding_laws(replace(SUBJECT, claims=frozenset()))}
    assert "permutation" in bare
    assert "shift" not in bare
    shifted = {law.id for law in binding_laws(SUBJECT)}
    assert shifted - bare == {"shift", "large_offset"}  # constant_batch needs scale as well
    results = run_laws(SUBJECT, [LAWS["shift"], LAWS["zero_sum"]], max_examples=5)
    assert [(r.law.id, r.claimed) for r in results] == [("shift", True), ("zero_sum", False)]
    assert len(run_laws(replace(SUBJECT, claims=frozenset()), max_examples=1)) == len(bare)


def test_small_groups_are_left_out_where_a_subject_cannot_take_them():
    def refuses_singles(rewards, group_ids, valid=None):
        assert all(list(group_ids).count(label) > 1 for label in group_ids)
        return rewards * 0

    subject = Subject("pairs", refuses_singles, min_group=2, masks=False)
    result = run_law(subject, LAWS["permutation"])
    assert result.holds
    assert smallest_group(Batch((0, 0, 0), ("a", "b", "b"), (True, True, False))) == 1
    assert smallest_group(Batch((), ())) > 10**6


def test_reading_answers():
    listed = read_answer([1, Fraction(1, 2)], 2)
    assert listed.advantages == [1, Fraction(1, 2)]
    assert listed.eps == 0
    assert read_answer([0.5, 1], 2).eps == np.finfo(float).eps
    assert read_answer(np.array([0.5], dtype=np.float32), 1).eps == np.finfo(np.float32).eps
    assert read_answer(np.array([1], dtype=np.int64), 1).eps == 0
    assert read_answer((torch.tensor([1.0]), None), 1).advantages == [1]
    assert read_answer(torch.tensor([1]), 1).eps == 0
    for wrong in (np.zeros((1, 1)), torch.zeros(()), [1, 2], 3.0):
        with pytest.raises(SubjectError, match="returned advantages of"):
            read_answer(wrong, 1)


def test_a_probe_shows_what_the_subject_sees():
    tenth = Batch((Fraction(1, 10),), ("a",), None, "bfloat16")
    probe = Probe(SUBJECT)
    assert not probe.exact(tenth)
    assert probe.seen(tenth).rewards == (Fraction(torch.tensor(0.1).bfloat16().item()),)
    assert Probe(replace(SUBJECT, numbers="float")).seen(tenth).rewards == (Fraction(0.1),)
    assert Probe(replace(SUBJECT, numbers="exact")).exact(tenth)
    shown = Probe(replace(SUBJECT, numbers="float", options={"beta": 2})).render(
        Batch((Fraction(1), float("nan")), ("a", "b"), (True, False)), {"eps": 1}
    )
    assert shown == "estimator([1.0, float(\"nan\")], ['a', 'b'], valid=[True, False], beta=2, eps=1)"
    whole = Probe(SUBJECT).render(Batch((Fraction(1),), ("a",), None, "int64"), {})
    assert whole == "estimator(torch.tensor([1], dtype=torch.int64), ['a'])"
    exact = Probe(replace(SUBJECT, numbers="exact")).render(Batch((Fraction(1, 3), Fraction(2)), ("a", "b")), {})
    assert exact == "estimator([Fraction(1, 3), Fraction(2)], ['a', 'b'])"


def test_tolerances_follow_from_the_input():
    assert tolerance.algebraic([Fraction(1), Fraction(2)], 0) == 0
    assert tolerance.extent([Fraction(3), Fraction(-5), Fraction(3), float("nan")]) == (5, 8, 8, 3)
    assert tolerance.extent([]) == (0, 0, 0, 0)
    eps = 2.0**-23
    flat = tolerance.algebraic([Fraction(7)] * 4, eps)
    assert flat == 4 * 4 * eps * 7  # a sum of N numbers of size R: N*eps*R, and no division by a deviation
    near, far = ([Fraction(offset), Fraction(offset + 1)] for offset in (0, 10**6))
    assert tolerance.algebraic(far, eps) > 10**5 * tolerance.algebraic(near, eps)
    assert tolerance.accurate(far, 0.5, eps) < 1e-6  # statistics in float64, one rounding
    assert tolerance.accurate(near, 0.0, eps, smallest=0.25) > 0.25
    assert tolerance.close(1, Fraction(1), 0)
    assert not tolerance.close(float("nan"), float("nan"), 1)
    assert not tolerance.close(1, None, 1)
    assert tolerance.close(None, None, 0)
    assert tolerance.close(1.0, 1.25, 0.25)


def test_a_violation_is_an_assertion():
    with pytest.raises(AssertionError, match="broken"):
        raise Violation("broken", 1, 2)


@pytest.mark.parametrize("law", ["unbiased", "unbiased_up_to_factor"])
def test_non_finite_advantages_fail_the_laws_by_enumeration(law):
    def standardised(rewards, group_ids, valid=None):
        return (rewards - rewards.mean()) / rewards.std()  # NaN for one rollout

    subject = Subject("standardised", standardised, frozenset({law}), code="")
    assert run_law(subject, LAWS[law]).status == "fails"


def test_what_a_type_cannot_hold_is_infinite_in_it():
    """float16 ends at 65504: a difference of two float16 rewards may not be one."""
    half = replace(catalogue_subject("rloo"), dtypes=("float16",))
    edge = Batch((Fraction(60000), Fraction(-60000)), ("a", "a"), None, "float16")
    assert Probe(half)(edge).advantages == [math.inf, -math.inf]
    LAWS["reference"].check(Probe(half), edge)  # the rounded values of 120000 and -120000
    with pytest.raises(UnsatisfiedAssumption):  # the law promises nothing about such a range
        LAWS["finite"].check(Probe(half), edge)
    assert run_law(half, LAWS["finite"]).holds
    assert run_law(half, LAWS["reference"]).holds
    wide = replace(edge, dtype="float32")
    assert Probe(half)(wide).advantages == [120000, -120000]

    def saturates(rewards, group_ids, valid=None):
        return refbase.rloo(rewards, group_ids, valid).advantages.clamp(-65504, 65504)

    wrong = replace(half, call=saturates, parts=False)
    with pytest.raises(Violation, match="advantages of rollout 0 against the exact formula"):
        LAWS["reference"].check(Probe(wrong), edge)
    nothing = replace(half, call=lambda rewards, *_: rewards / 0, parts=False)
    with pytest.raises(Violation, match="non-finite advantages of rewards up to 1"):
        LAWS["finite"].check(Probe(nothing), Batch((Fraction(1),), ("a",), None, "float16"))


def test_tolerance_scales_with_the_rewards():
    rewards, eps = [Fraction(0), Fraction(1)] * 4, 2.0**-23
    small = [r / 10**9 for r in rewards]
    assert tolerance.algebraic(small, eps, 0) == pytest.approx(tolerance.algebraic(rewards, eps, 0) / 1e9)
    assert tolerance.algebraic(rewards, eps, 0) < 1e-4


def test_an_estimator_that_exits_has_failed():
    def leave(rewards, group_ids, valid=None):
        raise SystemExit(0)

    results = run_laws(replace(SUBJECT, call=leave), max_examples=5)
    assert {result.status for result in results} <= {"error", "fails", "not_applicable"}
