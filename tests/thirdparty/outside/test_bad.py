from refbase.checks import parametrize_with_checks


@parametrize_with_checks(["acme_rl.advantages:whole_batch"], signature="matrix", claims=["zero_sum"])
def test_conformance(check):
    check()
