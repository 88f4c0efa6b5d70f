"""Outside signatures as subjects of the laws."""

import functools
import re
from fractions import Fraction

import pytest
import torch

from refbase.catalog import CATALOG
from refbase.checks import LAWS, Batch, Probe, Subject, SubjectError, as_subject, run_law, run_same_as
from refbase.checks.laws._common import show
from refbase.checks.trial import first_trouble
from refbase.validate import InputError, InputTypeError


def status(subject, law, **how):
    return run_law(subject, LAWS[law], **how).status


def batch(rewards, group_ids, valid=None):
    return Batch(tuple(rewards), tuple(group_ids), valid, "float64")


@pytest.mark.parametrize(
    ("target", "how"),
    [
        ("toys:flat", {"arrays": "exact"}),
        ("toys:flat", {"arrays": "float"}),
        ("toys:flat_without_valid", {"arrays": "exact"}),
        ("toys:torch_matrix", {"signature": "matrix"}),
        ("toys:numpy_matrix", {"signature": "matrix", "arrays": "numpy"}),
        ("toys:Namespace.centred", {"signature": "matrix", "arrays": "numpy"}),
        ("toys:list_matrix", {"signature": "matrix", "arrays": "exact"}),
        ("toys:as_verl", {"signature": "verl"}),
    ],
)
def test_good_ones_hold(target, how):
    subject = as_subject(target, claims=["shift"], **how)
    assert first_trouble(subject) is None
    assert subject.claims == {"shift"}
    for law in ("shift", "permutation", "relabel"):
        assert status(subject, law, max_examples=30) == "holds"


def test_rows_go_to_their_groups():
    """Interleaved rows reach a matrix function sorted, and come back in the caller's order."""
    interleaved = batch([2.0, 0.0, 1.0, 4.0], "abab")
    for how in ({"signature": "matrix"}, {"signature": "matrix", "arrays": "numpy"}):
        name = "toys:numpy_matrix" if "arrays" in how else "toys:torch_matrix"
        assert Probe(as_subject(name, **how))(interleaved).advantages == [0.5, -2.0, -0.5, 2.0]


def test_masks_only_where_the_signature_has_them():
    assert as_subject("toys:flat", arrays="exact").masks
    assert not as_subject("toys:flat_without_valid", arrays="exact").masks
    assert not as_subject("toys:torch_matrix", signature="matrix").masks
    assert not as_subject("toys:torch_matrix", signature="matrix").ragged
    verl = as_subject("toys:as_verl", signature="verl")
    assert verl.masks
    masked = Probe(verl)(batch([1.0, 5.0, 0.0], "aaa", (True, False, True)))
    assert masked.advantages == [0.5, 0.0, -0.5]


def test_broken_is_caught_with_code_that_runs(capsys):
    result = run_law(as_subject("toys:sorted_rows", arrays="float"), LAWS["permutation"])
    assert result.status == "fails"
    exec(compile(result.code, "counterexample", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert "from toys import sorted_rows as estimator" in result.code


def runs(result):
    """The two calls of a counterexample to `permutation`, made."""
    assert result.status == "fails"
    results = []
    exec(result.code.replace("print(", "results.append("), {"results": results})
    assert len(results) == 2


@pytest.mark.parametrize("target", ["toys:made", "toys:instance", "toys:instance.method"])
def test_code_imports_the_estimator_by_the_name_that_was_given(target):
    runs(run_law(as_subject(target, arrays="float"), LAWS["permutation"]))


def test_code_finds_the_name_that_an_object_has_in_its_module():
    import toys

    for call in (
        toys.made,
        toys.instance,
        toys.instance.method,
        toys.Instance.of_class,
        functools.partial(toys.sorted_and_scaled, factor=2.0),
        functools.partial(toys.sorted_and_scaled, factor=Fraction(1, 3), offset=-1),
        functools.partial(functools.partial(toys.sorted_and_scaled, offset=1), factor=2),
        functools.partial(toys.instance),
    ):
        runs(run_law(as_subject(call, arrays="exact"), LAWS["permutation"]))


def test_names_say_what_was_wrapped():
    import toys

    def local(rewards, group_ids, model=None):
        return rewards

    names = {
        functools.partial(toys.scaled, factor=3): "partial(scaled, factor=3)",
        functools.partial(functools.partial(toys.scaled, factor=3), factor=4): "partial(scaled, factor=4)",
        functools.partial(toys.instance): "partial(Instance)",
        functools.partial(toys.instance.method): "partial(Instance.method)",
        functools.partial(local, model=object()): f"partial({local.__qualname__}, model=object)",
        functools.partial(local, model=toys.scaled): f"partial({local.__qualname__}, model=scaled)",
        functools.partial(local, model=list(range(99))): f"partial({local.__qualname__}, model=list)",
        toys.Instance(): "Instance",
        toys.instance: "Instance",
        local: local.__qualname__,
    }
    for call, name in names.items():
        assert as_subject(call, arrays="float").name == name


def test_code_says_so_where_an_estimator_has_no_name_to_import():
    import toys

    own = toys.Instance()
    for call, line in {
        own: "# estimator: an object of class toys.Instance",
        own.method: "# estimator: Instance.method of an object of class toys.Instance",
        functools.partial(own): "# estimator: partial(Instance)",
        functools.partial(toys.sorted_and_scaled, factor=float("nan")): "# estimator: partial(sorted_and_scaled, ",
        functools.partial(lambda r, g: toys.sorted_rows(r, g)): "# estimator: partial(test_code_says_so",
    }.items():
        code = as_subject(call, arrays="float").code
        assert code.startswith(line)
        assert " at 0x" not in code


@pytest.mark.parametrize(
    ("target", "how"),
    [
        ("toys:scaled", {"arrays": "torch"}),
        ("toys:scaled", {"arrays": "numpy", "factor": 3}),
        ("toys:scaled", {"arrays": "float"}),
        ("toys:scaled", {"arrays": "exact", "factor": Fraction(1, 3)}),
        ("toys:scaled_twice", {"arrays": "torch"}),
        ("toys:scaled_twice", {"arrays": "exact"}),
        ("toys:torch_matrix", {"signature": "matrix"}),
        ("toys:numpy_matrix", {"signature": "matrix", "arrays": "numpy"}),
        ("toys:list_matrix", {"signature": "matrix", "arrays": "float"}),
        ("toys:list_matrix", {"signature": "matrix", "arrays": "exact"}),
        ("toys:as_verl", {"signature": "verl"}),
        ("toys:with_greedy", {"signature": "verl", "share": 0.5}),
        ("refbase:group_mean", {"arrays": "exact"}),
        ("refbase:group_mean", {"arrays": "float", "singletons": "zero"}),
        ("refbase:grpo", {"arrays": "torch", "eps": 0.5}),
    ],
)
def test_the_counterexample_to_unbiasedness_can_be_pasted(target, how, capsys):
    """It enumerates the same problem without the suite, and prints the gradients that the verdict is about."""
    result = run_law(as_subject(target, **how), LAWS["unbiased"])
    assert result.status == "fails", result.report()
    names = {}
    exec(compile(result.code, "counterexample", "exec"), names)
    printed = capsys.readouterr().out
    assert printed == f"{names['report'].expected_gradient} {names['report'].true_gradient}\n"
    prompt = int(result.reason.rpartition(" ")[2])
    assert show(list(names["report"].expected_gradient[prompt])) == result.got
    assert show(list(names["report"].true_gradient[prompt])) == result.expected != result.got


@pytest.mark.parametrize(
    ("target", "how", "message"),
    [
        ("toys:crashes", {"arrays": "float"}, "raised IndexError: list index out of range\n"),
        ("toys:wrong_shape", {"arrays": "float"}, r"advantages of shape \(5,\) for 4 rollouts; \(4,\) was expected"),
        ("toys:scalar", {"arrays": "float"}, "of type float"),
        ("toys:holds_none", {"arrays": "float"}, "hold None of type NoneType at rollout 0; real numbers were expected"),
        ("toys:holds_lists", {"arrays": "float"}, r"hold \[1.0\] of type list at rollout 0"),
        ("toys:holds_complex", {"arrays": "numpy"}, "hold 1j of type complex at rollout 0"),
        ("toys:not_deterministic", {"arrays": "float"}, "not deterministic, or keeps state"),
        ("toys:wrong_matrix", {"signature": "matrix"}, r"returned shape \(2,\); \(2, 2\) was expected"),
        ("toys:wrong_matrix", {"signature": "matrix", "arrays": "numpy"}, r"returned shape \(2,\)"),
        ("toys:wrong_list_matrix", {"signature": "matrix", "arrays": "exact"}, r"of shape \(2, 2\)"),
        ("toys:verl_alone", {"signature": "verl"}, r"returned Tensor; verl expects \(advantages, returns\)"),
        ("toys:verl_per_row", {"signature": "verl"}, r"shape \(4,\); \(4, 3\) was expected"),
        ("toys:verl_numpy", {"signature": "verl"}, "of type ndarray; a tensor"),
        ("toys:verl_leaks", {"signature": "verl"}, "non-zero advantage on a padding token"),
        ("toys:verl_per_token", {"signature": "verl"}, "differ between the tokens of a row"),
        ("toys:verl_changes_mask", {"signature": "verl"}, "changed its response_mask"),
    ],
)
def test_trouble_is_named(target, how, message):
    trouble = first_trouble(as_subject(target, **how))
    assert trouble is not None
    assert re.search(message, trouble), trouble


def test_change_of_verl_inputs_reaches_the_caller():
    subject = as_subject("toys:verl_changes_rewards", signature="verl")
    rewards = torch.tensor([1.0, 0.0])
    subject.call(rewards, ["a", "a"])
    assert rewards.tolist() == [2.0, 1.0]
    kept = torch.tensor([1.0, 0.0])
    as_subject("toys:as_verl", signature="verl").call(kept, ["a", "a"])
    assert kept.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_own_estimators_by_name(name):
    for arrays in ("torch", "float", "exact"):
        subject = as_subject(f"refbase:{name}", arrays=arrays)
        assert subject.claims == CATALOG[name].traits
        assert first_trouble(subject) is None
    assert as_subject(f"refbase:{name}", claims=["shift"]).claims == {"shift"}


def test_callables_subjects_and_options():
    def scaled(rewards, group_ids, factor=1):
        return [factor * r for r in rewards]

    subject = as_subject(scaled, arrays="float", factor=3)
    assert Probe(subject)(batch([1.0], "a")).advantages == [3.0]
    assert subject.name.endswith("scaled")
    assert as_subject(subject) is subject
    assert isinstance(subject, Subject)
    assert as_subject("refbase:rloo", singletons="zero").options == {"singletons": "zero"}
    assert as_subject(scaled, name="mine").name == "mine"


@pytest.mark.parametrize(
    ("target", "how", "error", "message"),
    [
        ("toys", {}, InputError, "named 'package.module:function'"),
        ("toyz:flat", {}, InputError, "no module named 'toyz'"),
        ("toys:flatt", {}, InputError, "did you mean 'flat'"),
        ("toys:CONSTANT", {}, InputTypeError, "is a int, not a function"),
        ("toys:flat", {"claims": ["shfit"]}, InputError, "did you mean 'shift'.*Valid: .*zero_sum"),
        ("toys:flat", {"signature": "vrel"}, InputError, "did you mean 'verl'"),
        ("toys:flat", {"arrays": "tensor"}, InputError, "Valid: exact, float, numpy, torch"),
        ("refbase:shrinkag", {}, InputError, "did you mean 'shrinkage'"),
        ("refbase:rloo", {"arrays": "numpy"}, InputError, "arrays"),
        ("toys:flat", {"claims": "unbiased"}, InputTypeError, r"`claims` must be a list of traits.*\['unbiased'\]"),
        ("toys:flat", {"claims": "shift, scale"}, InputTypeError, r"Write \['shift', 'scale'\]"),
        ("refbase:rloo", {"claims": "unbiased"}, InputTypeError, "`claims` must be a list of traits"),
        ("toys:flat", {"claims": 0}, InputTypeError, "`claims` must be a list of traits; got 0 of type int"),
        ("toys:flat", {"min_group": 0}, InputError, "`min_group` must be at least 1; got 0"),
        ("refbase:rloo", {"min_group": -1}, InputError, "`min_group` must be at least 1; got -1"),
        ("toys:flat", {"min_group": 2.0}, InputTypeError, "`min_group` must be an integer; got 2.0"),
        ("toys:flat", {"min_valid": -1}, InputError, "`min_valid` must be at least 0; got -1"),
        ("toys:flat", {"clams": ["shift"]}, InputError, "toys:flat takes no argument 'clams'; did you mean 'claims'"),
        (
            "toys:scaled",
            {"factr": 3},
            InputError,
            "takes no argument 'factr'; did you mean 'factor'.*factor, min_group",
        ),
        ("toys:takes_anything", {"clams": []}, InputError, "unknown keyword 'clams'; did you mean 'claims'"),
        ("toys:as_verl", {"signature": "verl", "clams": []}, InputError, "'clams'; did you mean 'claims'"),
        ("refbase:rloo", {"clams": []}, InputError, "refbase:rloo takes no argument 'clams'; did you mean 'claims'"),
        ("refbase:rloo", {"singleton": "zero"}, InputError, "did you mean 'singletons'"),
        ("refbase:bvblend", {"state": None}, InputError, "refbase:bvblend takes no argument 'state'"),
    ],
)
def test_bad_names(target, how, error, message):
    with pytest.raises(error, match=message):
        as_subject(target, **how)


@pytest.mark.parametrize(
    "how",
    [{"claims": []}, {"signature": "matrix"}, {"arrays": "float"}, {"name": "mine"}, {"min_group": 2}, {"share": 1}],
)
def test_nothing_is_said_of_a_subject_in_vain(how):
    subject = as_subject("toys:flat")
    with pytest.raises(InputError, match=f"`{next(iter(how))}` is for functions and names; toys:flat is a Subject"):
        as_subject(subject, **how)


def test_options_that_are_meant():
    """What the estimator names itself, whatever it resembles, and what it takes unnamed."""

    def near(rewards, group_ids, claim=1, **settings):
        return [claim * r for r in rewards]

    assert as_subject(near, arrays="exact", claim=2, temperature=1.0).options == {"claim": 2, "temperature": 1.0}
    assert as_subject("toys:with_greedy", signature="verl", share=0.5).options == {"share": 0.5}
    assert as_subject("refbase:shrinkage", weight=0.5, variant="paper").options["weight"] == 0.5
    assert as_subject("refbase:bvblend", local="loo", arrays="exact").options == {"local": "loo"}


def test_what_is_said_of_a_known_estimator_counts():
    subject = as_subject("refbase:rloo", singletons="error", min_group=2, min_valid=3, name="strict")
    assert (subject.min_group, subject.min_valid, subject.name) == (2, 3, "strict")
    assert status(subject, "permutation", max_examples=20) == "holds"


def test_import_error_inside_a_module_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import surely_not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not"):
        as_subject("half_installed:f")


def test_an_estimate_is_recognised():
    """Laws on baseline and weight apply to outside functions that return them."""
    assert as_subject("toys:returns_estimate", arrays="exact").parts
    assert not as_subject("toys:flat", arrays="exact").parts
    assert not as_subject("toys:crashes", arrays="exact").parts
    assert status(as_subject("toys:returns_estimate", arrays="exact"), "baseline_identity") == "fails"


def test_min_group_is_respected():
    def pairs_only(rewards, group_ids):
        assert min(map(group_ids.count, group_ids)) >= 2
        return [0 * r for r in rewards]

    lonely = run_law(as_subject(pairs_only, arrays="exact"), LAWS["permutation"])
    assert lonely.status == "error"
    assert "AssertionError" in lonely.reason
    assert status(as_subject(pairs_only, arrays="exact", min_group=2), "permutation") == "holds"


def test_same_as():
    ours, exact = as_subject("refbase:rloo", arrays="exact"), as_subject("toys:flat", arrays="exact")
    assert run_same_as(ours, exact, max_examples=30).status == "holds"
    mean = as_subject("toys:torch_matrix", signature="matrix")
    assert run_same_as(mean, as_subject("refbase:gvpo", arrays="exact"), max_examples=30).status == "holds"
    different = run_same_as(mean, as_subject("refbase:rloo"))
    assert different.status == "fails"
    assert "# rloo[kernel]" in different.code
    refuses = as_subject("refbase:rloo", arrays="exact", singletons="error")
    assert run_same_as(refuses, refuses, max_examples=20).status == "holds"
    one_refuses = run_same_as(refuses, ours)
    assert one_refuses.status == "fails"
    assert "only one of the two refuses" in one_refuses.reason


@pytest.mark.verl
def test_verl_names():
    pytest.importorskip("verl")
    subject = as_subject("verl:rloo")
    assert "unbiased" in subject.claims
    assert Probe(subject)(batch([1.0, 0.0, 3.0], "aab")).advantages == [1.0, -1.0, 3.0]
    assert as_subject("verl:grpo_passk").min_group == 2
    assert as_subject("verl:gdpo", min_group=3).min_valid == 1
    assert as_subject("verl:gdpo", min_group=3, min_valid=2, name="mine").min_valid == 2
    assert as_subject("verl:gdpo", min_group=3, name="mine").name == "mine"
    assert as_subject("verl:rloo", claims=[]).claims == frozenset()
    with pytest.raises(InputError, match="did you mean 'rloo'"):
        as_subject("verl:rlo")
    with pytest.raises(InputError, match="needs a critic's values"):
        as_subject("verl:gae")


@pytest.mark.verl
def test_verl_counterexample_runs_and_reads_as_printed(capsys):
    pytest.importorskip("verl")
    result = run_same_as(as_subject("verl:rloo"), as_subject("verl:rloo_vectorized"))
    assert result.status == "fails"
    exec(compile(result.code, "counterexample", "exec"), {})
    assert "tensor([[1., 1., 0.]" in capsys.readouterr().out


def test_outside_errors_name_what_was_wrong():
    with pytest.raises(SubjectError, match="IndexError"):
        Probe(as_subject("toys:crashes", arrays="float"))(batch([1.0], "a"))
