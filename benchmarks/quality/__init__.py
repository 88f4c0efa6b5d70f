"""Error of the baselines and variance of the policy gradient, on rewards whose true means are known."""
