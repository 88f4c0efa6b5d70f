# ruff: noqa: E501  (the table of messages)
"""Options: typed, checked, and reaching an estimator in every way that is documented."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest

from refbase import CATALOG, InputError, InputTypeError

pytest.importorskip("verl")

from hydra import compose, initialize_config_module
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from verl_seam import advantages, algorithm, batch

from verl_ext.options import BLOCKS, BVBlendOptions, ShrinkageOptions, parse

pytestmark = pytest.mark.verl


@pytest.fixture
def hydra_compose():
    """Compose from verl's own configuration directory, as its entry point does."""
    import verl.trainer.ppo.core_algos  # noqa: F401  (verl loads the plug-in, the plug-in stores its files)

    with initialize_config_module("verl.trainer.config", version_base=None):
        yield lambda name, *overrides: compose(name, overrides=list(overrides))


def test_defaults_without_any_section():
    assert parse("shrinkage", None) == ShrinkageOptions()
    assert parse("bvblend", algorithm()) == BVBlendOptions()
    assert parse("bvblend", {"bvblend": None}) == BVBlendOptions()


def test_verls_dataclass_is_accepted():
    from verl.trainer.config import AlgoConfig

    assert parse("shrinkage", AlgoConfig()) == ShrinkageOptions()


@pytest.mark.parametrize("block", BLOCKS)
def test_the_shipped_file_has_every_option_with_its_default(hydra_compose, block):
    section = OmegaConf.to_container(hydra_compose("refbase_trainer").algorithm[block])
    assert section == {f.name: f.default for f in fields(BLOCKS[block])}


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("config", ["refbase_trainer", "refbase_cpu"])
def test_the_shipped_files_parse_for_every_estimator(hydra_compose, config, name):
    assert parse(name, hydra_compose(config).algorithm).nonfinite == "raise"


def test_stock_configuration_takes_options_with_a_plus(hydra_compose):
    config = hydra_compose("ppo_trainer", "+algorithm.shrinkage.weight=0.5").algorithm
    assert parse("shrinkage", config).weight == 0.5
    found = advantages("shrinkage", batch([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"]), config)[:, 0]
    # local means 0, 1, 1, 1; other prompt's mean 1, 1, 1/2, 1/2
    assert found.tolist() == pytest.approx([0.5, -1.0, 0.25, 0.25])


def test_our_configuration_takes_options_without_a_plus(hydra_compose):
    config = hydra_compose("refbase_trainer", "algorithm.bvblend.window=200", "algorithm.shrinkage.variant=released")
    assert parse("bvblend", config.algorithm).window == 200
    assert parse("shrinkage", config.algorithm).variant == "released"
    with pytest.raises(ConfigCompositionException, match=r"algorithm\.shrinkage\.wieght"):
        hydra_compose("refbase_trainer", "algorithm.shrinkage.wieght=0.5")


def test_our_configuration_changes_nothing_else_of_verls(hydra_compose):
    ours = OmegaConf.to_container(hydra_compose("refbase_trainer", "actor_rollout_ref.rollout.name=vllm"))
    stock = OmegaConf.to_container(hydra_compose("ppo_trainer", "actor_rollout_ref.rollout.name=vllm"))
    for block in BLOCKS:
        del ours["algorithm"][block]
    assert ours == stock


def test_interpolations_are_resolved():
    root = OmegaConf.create({"mine": 0.25, "algorithm": {"shrinkage": {"weight": "${mine}"}}})
    assert parse("shrinkage", root.algorithm).weight == 0.25


@pytest.mark.parametrize(
    ("name", "section", "error", "message"),
    [
        ("shrinkage", {"shrinkage": {"wieght": 1}}, InputError, r"algorithm\.shrinkage: unknown option 'wieght'; did you mean 'weight'\? Valid: masked_rewards, nonfinite, variant, weight\."),
        ("bvblend", {"bvblend": {"windw": 1}}, InputError, "did you mean 'window'"),
        ("shrinkage", {"shrinkge": {"weight": 1}}, InputError, "unknown block 'shrinkge'; did you mean 'shrinkage'"),
        ("shrinkage", {"shrinkage": 0.5}, InputTypeError, r"`shrinkage` must be a mapping.*algorithm\.shrinkage\.<option>"),
        ("shrinkage", {"shrinkage": {"weight": "half"}}, InputTypeError, "`weight` must be a real number; got 'half' of type str"),
        ("shrinkage", {"shrinkage": {"weight": True}}, InputTypeError, "`weight` must be a real number; got True"),
        ("shrinkage", {"shrinkage": {"weight": 1.5}}, InputError, "0 <= weight <= 1; got 1.5"),
        ("shrinkage", {"shrinkage": {"variant": "papre"}}, InputError, "Did you mean 'paper'"),
        ("shrinkage_js", {"shrinkage": {"weight": 0.5}}, InputError, "must stay unset unless adv_estimator is shrinkage; got 0.5"),
        ("bvblend", {"bvblend": {"window": 2.5}}, InputTypeError, "`window` must be an integer; got 2.5"),
        ("bvblend", {"bvblend": {"window": 0}}, InputError, "`window` must be at least 1"),
        ("bvblend", {"bvblend": {"decay": 1.0}}, InputError, "0 <= decay < 1; got 1.0"),
        ("bvblend", {"bvblend": {"decay": -0.1}}, InputError, "0 <= decay < 1; got -0.1"),
        ("bvblend", {"bvblend": {"decay": float("nan")}}, InputError, "finite"),
        ("bvblend", {"bvblend": {"max_keys": 0}}, InputError, "`max_keys` must be at least 1"),
        ("bvblend", {"bvblend": {"min_scale": 0}}, InputError, "`min_scale`"),
        ("bvblend", {"bvblend": {"local": None}}, InputError, "`local` must be one of"),
        ("bvblend", {"bvblend": {"scale": "history"}}, InputError, r"adv_estimator=bvblend.*`scale` must be one of 'blend', 'group', 'none'"),
        ("bvblend_eb", {"bvblend": {"scale": "blend"}}, InputError, "`scale` must be one of 'none', 'history'"),
        ("bvblend_eb", {"bvblend": {"local": "loo"}}, InputError, "must stay unset unless adv_estimator is bvblend"),
        ("shrinkage_history", {"bvblend": {"scale": "history"}}, InputError, "adv_estimator is bvblend or bvblend_eb"),
        ("shrinkage_history", {"bvblend": {"min_scale": 1.0}}, InputError, "adv_estimator is bvblend or bvblend_eb"),
        ("bvblend", {"bvblend": {"min_groups": 3}}, InputError, "must stay unset unless adv_estimator is bvblend_eb"),
        ("gvpo", {"gvpo": {"size_correction": "yes"}}, InputTypeError, "must be true or false"),
        ("gvpo", {"gvpo": {"beta": -0.1}}, InputError, "0 < beta; got -0.1"),
        ("rloo", {"refbase": {"singletons": "drop"}}, InputError, "`singletons` must be one of"),
        ("gvpo", {"gvpo": {"nonfinite": "ignore"}}, InputError, "`nonfinite` must be one of 'raise', 'exclude'"),
        ("opo", {"refbase": {"masked_rewards": "keep"}}, InputError, "`masked_rewards` must be one of 'count', 'drop'"),
    ],
)  # fmt: skip
def test_bad_options_are_explained(name, section, error, message):
    for config in (section, OmegaConf.create(section)):
        with pytest.raises(error, match=message):
            parse(name, config)


UNRESOLVED = {
    "an option": (
        {"shrinkage": {"weight": "${nope}"}},
        r"algorithm\.shrinkage: `weight` must have a value; got .*nope",
    ),
    "inside a text": ({"shrinkage": {"variant": "re${nope}"}}, r"algorithm\.shrinkage: `variant` must have a value"),
    "a block": ({"shrinkage": "${nope}"}, "algorithm: `shrinkage` must have a value; got .*nope"),
    "the environment": ({"shrinkage": {"weight": "${oc.env:SURELY_NOT_SET_ANYWHERE}"}}, r"`weight` must have a value"),
    "a missing value": ({"shrinkage": {"weight": "???"}}, r"`weight` must have a value; got the unresolved '\?\?\?'"),
}


@pytest.mark.parametrize("case", UNRESOLVED)
def test_interpolations_that_lead_nowhere_are_named(case):
    section, message = UNRESOLVED[case]
    nodes = {key: OmegaConf.create(value) if isinstance(value, dict) else value for key, value in section.items()}
    root = OmegaConf.create({"algorithm": section})
    for config in (section, nodes, SimpleNamespace(**section), OmegaConf.create(section), root.algorithm):
        with pytest.raises(InputError, match=rf"{message}.*Set algorithm\.shrinkage.*, or define what it refers to\."):
            parse("shrinkage", config)


def test_what_is_unresolved_elsewhere_is_left_alone():
    root = OmegaConf.create(
        {"algorithm": {"mine": "${nope}", "kl": {"coef": "${nope}"}, "shrinkage": {"weight": 0.25}}}
    )
    assert parse("shrinkage", root.algorithm).weight == 0.25


def test_bad_options_stop_the_advantage_step():
    with pytest.raises(InputError, match="unknown option 'wieght'"):
        advantages("shrinkage", batch([1.0, 0.0], ["a", "a"]), algorithm(shrinkage={"wieght": 1}))


def test_norm_adv_by_std_and_scale_must_agree():
    off = {"norm_adv_by_std_in_grpo": False}
    assert parse("bvblend", algorithm(**off)).kernel("bvblend")["scale"] == "none"
    assert parse("bvblend", algorithm(**off, bvblend={"scale": "none"})).scale == "none"
    with pytest.raises(InputError, match="must agree with norm_adv_by_std_in_grpo; got 'group'"):
        parse("bvblend", algorithm(**off, bvblend={"scale": "group"}))
    assert "scale" not in parse("bvblend", algorithm()).kernel("bvblend")


def test_other_custom_blocks_are_left_alone():
    assert parse("shrinkage", algorithm(my_plugin={"x": 1}, gvpo={"size_correction": False})) == ShrinkageOptions()


@pytest.mark.parametrize("name", ["shrinkage", "bvblend", "bvblend_eb", "shrinkage_history", "gvpo"])
def test_options_reach_the_kernel(name):
    """Each option that has another legal value changes the advantages of a batch made to show it."""
    changes = {
        "shrinkage": {"weight": 0.9, "variant": "released"},
        "bvblend": {"local": "loo", "scale": "none", "min_scale": 5.0, "weight": 0.9, "window": 1, "decay": 0.1},
        "bvblend_eb": {"scale": "history", "min_groups": 0, "decay": 0.1},
        "shrinkage_history": {"min_groups": 0, "decay": 0.1},
        "gvpo": {"size_correction": False},
    }
    from verl_ext import history
    from verl_ext.options import BLOCKS

    block = next(block for block, cls in BLOCKS.items() if name in cls.estimators)
    steps = [
        ([1.0, 0.0, 0.25, 0.5, 1.0], ["a", "a", "b", "b", "b"]),
        ([0.0, 0.0, 1.0, 0.0, 0.0], ["c", "c", "d", "d", "d"]),
        ([1.0, 0.5, 1.0, 0.0, 1.0], ["e", "e", "f", "f", "f"]),
    ]

    def last_advantages(**options):
        history.reset()
        config = algorithm(**{block: options})
        return [advantages(name, batch(*step), config) for step in steps][-1]

    bases = {"bvblend_eb": {"scale": "history", "min_groups": 0}, "shrinkage_history": {"min_groups": 0}}
    base = bases.get(name, {})
    plain = last_advantages(**base)
    for option, value in changes[name].items():
        if base.get(option) == value:
            changed = last_advantages(**{k: v for k, v in base.items() if k != option})
        else:
            changed = last_advantages(**base, **{option: value})
        assert not changed.equal(plain), option


@pytest.mark.parametrize(
    ("estimator", "section"),
    [
        ("gvpo", {"gvop": {"beta": 0.1}}),
        ("gvpo", {"GVPO": {"beta": 0.1}}),
        ("gvpo", {"group_mean": {"nonfinite": "exclude"}}),
        ("bvblend", {"BVBlend": {"window": 3}}),
        ("bvblend_eb", {"bvblend_eb": {"window": 3}}),
        ("rloo", {"rloo": {"singletons": "zero"}}),
        ("rloo", {"refbase_rloo": {"singletons": "zero"}}),
        ("shrinkage", {"shrinkage_weight": 0.3}),
        ("shrinkage", {"shrinkge": 0.3}),
    ],
    ids=str,
)
def test_a_misnamed_block_is_not_ignored(estimator, section):
    with pytest.raises(InputError, match=r"algorithm.*(block)"):
        parse(estimator, section)


def test_what_is_no_section_and_no_estimator():
    with pytest.raises(InputTypeError, match="section"):
        parse("gvpo", 5)
    with pytest.raises(InputError, match="Valid"):
        parse("nope", {})
