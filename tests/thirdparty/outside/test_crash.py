from refbase.checks import parametrize_with_checks

KNOWN = {"permutation": "the order of the rows mattered once", "deterministic": "kept a state once"}


@parametrize_with_checks(["acme_rl.advantages:needs_two"], signature="matrix", expected_failures=KNOWN)
def test_conformance(check):
    check()


@parametrize_with_checks(
    ["acme_rl.advantages:needs_two"],
    signature="matrix",
    expected_errors={"whole_numbers": "integers have no mean in torch"},
    min_group=2,
)
def test_in_its_domain(check):
    check()
