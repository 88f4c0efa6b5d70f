from refbase.checks import parametrize_with_checks

CLAIMS = ["shift", "scale", "zero_sum", "own_reward_independent", "unbiased", "group_local"]


@parametrize_with_checks(["acme_rl.advantages:leave_one_out"], signature="matrix", claims=CLAIMS, max_examples=5)
def test_conformance(check):
    check()
