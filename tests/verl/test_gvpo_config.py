"""Wrong settings for GVPO are refused, each with its remedy; right ones pass."""

from __future__ import annotations

import warnings

import pytest
from omegaconf import OmegaConf

from refbase.validate import InputError
from verl_ext import gvpo_config
from verl_ext.gvpo_loss import Row, policy_loss, weigh

GOOD = {
    "algorithm": {
        "adv_estimator": "gvpo",
        "use_kl_in_reward": False,
        "kl_penalty": "kl",
        "kl_ctrl": {"type": "fixed", "kl_coef": 0.001},
        "gvpo": {"beta": 0.1},
        "rollout_correction": {"rollout_is": None, "rollout_rs": None, "bypass_mode": False},
    },
    "data": {"train_batch_size": 8},
    "actor_rollout_ref": {
        "actor": {
            "strategy": "fsdp2",
            "loss_agg_mode": "seq-mean-token-sum",
            "policy_loss": {"loss_mode": "gvpo"},
            "ppo_mini_batch_size": 4,
            "ppo_epochs": 2,
            "use_kl_loss": False,
            "entropy_coeff": 0,
        }
    },
    "trainer": {"use_v1": True, "v1": {"trainer_mode": "refbase"}},
}
ACTOR = "actor_rollout_ref.actor"
STOCK = {f"{ACTOR}.policy_loss.loss_mode": "vanilla", f"{ACTOR}.ppo_mini_batch_size": 8, f"{ACTOR}.ppo_epochs": 1}


def config(changes=()):
    out = OmegaConf.create(GOOD)
    for key, value in dict(changes).items():
        OmegaConf.update(out, key, value, force_add=True)
    return out


def test_a_good_configuration_passes():
    assert gvpo_config.findings(config(), exact=True) == []
    assert gvpo_config.findings(config(STOCK), exact=False) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gvpo_config.enforce([])


EXACT = [
    ({f"{ACTOR}.policy_loss.loss_mode": "vanilla"}, "clips", "loss_mode=gvpo"),
    ({f"{ACTOR}.loss_agg_mode": "token-mean"}, "whole sequences", "loss_agg_mode=seq-mean-token-sum"),
    ({f"{ACTOR}.strategy": "megatron"}, "fsdp2", "trainer_mode=sync"),
    ({"algorithm.gvpo.beta": None}, "reference policy is then", "algorithm.gvpo.beta=0.1"),
    ({"algorithm.gvpo.beta": -1.0}, "positive", "strength"),
    ({"algorithm.use_kl_in_reward": True}, "equal `algorithm.kl_ctrl.kl_coef`", "Leave `algorithm.gvpo.beta` out"),
    ({"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive"}, "change β", "type=fixed"),
    ({"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": "low_var_kl"}, "be 'kl'", "kl_penalty=kl"),
    ({"algorithm.rollout_correction.rollout_rs": "token_k1"}, "whole sequences", "'seq_' criteria"),
    ({"algorithm.rollout_correction.rollout_rs": "seq_sum_k1,token_k1"}, "whole sequences", "'seq_' criteria"),
    ({"algorithm.rollout_correction.rollout_is": "sequence"}, "importance weights", "rollout_is=null"),
    ({"distillation.enabled": True}, "loss of its own", "distillation.enabled=False"),
]


@pytest.mark.parametrize(("changes", "reason", "remedy"), EXACT, ids=lambda v: str(v)[:60])
def test_refused_by_our_trainer(changes, reason, remedy):
    with pytest.raises(InputError) as caught:
        gvpo_config.enforce(gvpo_config.findings(config(changes), exact=True))
    assert reason in str(caught.value)
    assert remedy in str(caught.value)


STOCK_CASES = [
    ({f"{ACTOR}.ppo_mini_batch_size": 4}, "2 updates", "trainer.v1.trainer_mode=refbase"),
    ({f"{ACTOR}.ppo_epochs": 3}, "3 updates", "ppo_epochs=1"),
    ({f"{ACTOR}.policy_loss.loss_mode": "gvpo"}, "be 'vanilla'", "trainer.v1.trainer_mode=refbase"),
    ({"algorithm.rollout_correction.bypass_mode": True}, "differs from the one", "Set it to False"),
    ({"trainer.v1.trainer_mode": "separate_async"}, "ahead of", "trainer_mode=refbase"),
    ({"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive"}, "change β", "type=fixed"),
]


@pytest.mark.parametrize(("changes", "reason", "remedy"), STOCK_CASES, ids=lambda v: str(v)[:60])
def test_refused_in_a_stock_trainer(changes, reason, remedy):
    with pytest.raises(InputError) as caught:
        gvpo_config.enforce(gvpo_config.findings(config({**STOCK, **changes}), exact=False))
    assert reason in str(caught.value)
    assert remedy in str(caught.value)


def test_the_estimator_itself_refuses_in_a_stock_trainer():
    """verl hands it ``algorithm`` alone, and that is enough."""
    torch = pytest.importorskip("torch")
    from verl_ext.adapters import ESTIMATORS
    from verl_ext.step import Step, active

    batch = {
        "token_level_rewards": torch.tensor([[1.0], [0.0]]),
        "response_mask": torch.ones(2, 1),
        "index": ["a", "a"],
    }
    wrong, right = config(), config(STOCK)
    with pytest.raises(InputError, match="4 updates"):
        ESTIMATORS["gvpo"](**batch, config=wrong.algorithm)
    assert ESTIMATORS["gvpo"](**batch, config=right.algorithm)[0].tolist() == [[0.5], [-0.5]]
    with active(Step(1, ("a_0_0", "a_1_0"), exact_gvpo=True)):  # the actor does the rest
        assert ESTIMATORS["gvpo"](**batch, config=wrong.algorithm)[0].tolist() == [[0.5], [-0.5]]


def test_verls_default_aggregation_is_warned_of_in_a_stock_trainer():
    """``algorithm.adv_estimator=gvpo`` alone must run there."""
    found = gvpo_config.findings(config({**STOCK, f"{ACTOR}.loss_agg_mode": "token-mean"}), exact=False)
    assert [finding.severity for finding in found] == ["warning"]
    with pytest.warns(UserWarning, match="loss_agg_mode=seq-mean-token-sum"):
        gvpo_config.enforce(found)


@pytest.mark.parametrize("setting", ["use_kl_loss", "entropy_coeff"])
def test_a_second_term_is_only_warned_of(setting):
    found = gvpo_config.findings(config({f"{ACTOR}.{setting}": True}), exact=True)
    assert [finding.severity for finding in found] == ["warning"]
    with pytest.warns(UserWarning, match=setting):
        gvpo_config.enforce(found)


def test_all_errors_at_once():
    wrong = config({f"{ACTOR}.policy_loss.loss_mode": "vanilla", f"{ACTOR}.loss_agg_mode": "token-mean"})
    with pytest.raises(InputError, match=r"(?s)loss_agg_mode.*loss_mode"):
        gvpo_config.enforce(gvpo_config.findings(wrong, exact=True))


def test_beta_comes_from_the_kl_penalty():
    changes = {"algorithm.use_kl_in_reward": True, "algorithm.gvpo.beta": None, "algorithm.kl_ctrl.kl_coef": 0.02}
    assert gvpo_config.findings(config(changes), exact=True) == []
    assert gvpo_config.settings(config(changes)).beta == 0.02
    assert gvpo_config.settings(config()).beta == 0.1


def test_bypass_needs_a_pass_at_the_first_step_too():
    changes = {"algorithm.rollout_correction.bypass_mode": True}
    assert gvpo_config.findings(config(changes), exact=True) == []
    assert gvpo_config.settings(config(changes)).first_pass


def test_unknown_option_lists_the_valid_ones():
    with pytest.raises(InputError, match="divide_by_beta"):
        gvpo_config.settings(config({"algorithm.gvpo.divide_beta": True}))


def test_sequence_level_rejection_is_fine():
    changes = {"algorithm.rollout_correction.rollout_rs": "seq_sum_k1, seq_mean_k3"}
    assert gvpo_config.findings(config(changes), exact=True) == []


def test_the_loss_refuses_to_run_without_the_worker():
    torch = pytest.importorskip("torch")
    ones = torch.ones(1, 1)
    with pytest.raises(InputError, match="trainer_mode=refbase"):
        policy_loss(ones, ones, ones, ones, "seq-mean-token-sum")


def row(group, session=0, rows=1, log_ratio=0.0, advantage=0.0):
    return Row(group, session, rows, log_ratio, advantage)


def test_weights_of_a_mini_batch():
    """k = 2 and 3: -∇L/G has coefficients β/(k-1)/G · w."""
    rows = [
        row("a", 0, log_ratio=0.5, advantage=1.0),
        row("b", 0, advantage=3.0),
        row("a", 1, advantage=0.0),
        row("b", 1, advantage=0.0),
        row("b", 2, advantage=0.0),
        row("c", 0, advantage=5.0),  # alone
        row("pad", 0, advantage=None),
    ]
    out = weigh(rows, beta=0.2)
    # a: w = ±((1 - 0) / 2 - 0.2 * 0.5 / 2) = ±0.45;  b: w = 2, -1, -1
    assert out.coefficients == pytest.approx([0.045, 0.1, -0.045, -0.05, -0.05, 0, 0])
    assert out.metrics["gvpo/groups"] == 2
    assert out.metrics["gvpo/groups_of_one"] == 1
    assert out.metrics["gvpo/loss"] == pytest.approx((0.45**2 + 6 / 4) / 2)
    assert weigh(rows, beta=0.2, divide_by_beta=True).coefficients == pytest.approx(
        [value / 0.2 for value in out.coefficients]
    )


def test_a_constant_of_the_group_does_not_matter():
    one = weigh([row("a", 0, advantage=1.0), row("a", 1, log_ratio=0.3)], beta=0.5)
    other = weigh([row("a", 0, advantage=8.0), row("a", 1, log_ratio=0.3, advantage=7.0)], beta=0.5)
    assert one.coefficients == pytest.approx(other.coefficients)


def test_rows_of_a_session_share_weight_and_log_ratio():
    apart = [row("a", 0, 2, 0.1, 1.0), row("a", 0, 2, 0.2, 1.0), row("a", 1)]
    whole = [row("a", 0, 1, 0.3, 1.0), row("a", 1)]
    out, expected = weigh(apart, beta=0.5), weigh(whole, beta=0.5)
    assert out.coefficients == pytest.approx([expected.coefficients[0]] * 2 + [expected.coefficients[1]])
    assert out.metrics == pytest.approx(expected.metrics)


def test_a_session_that_is_not_all_here_teaches_nothing():
    out = weigh([row("a", 0, 2, 0.1, 9.0), row("a", 1, advantage=1.0), row("a", 2)], beta=0.5)
    assert out.coefficients == pytest.approx([0.0, 0.25, -0.25])
    assert out.metrics["gvpo/split_sessions"] == 1


def test_nothing_valid():
    out = weigh([row("pad", 0, advantage=None), row("pad", 1, advantage=None)], beta=0.5)
    assert out.coefficients == [0, 0]
    assert out.metrics["gvpo/loss"] == 0
