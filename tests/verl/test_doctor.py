"""``python -m verl_ext.doctor``: what it sees, what it says, how it ends."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytest.importorskip("verl")

from verl_ext import doctor, register, seams
from verl_ext.doctor import Report, compose, examine, examine_installation, main

pytestmark = pytest.mark.verl

#: What verl itself needs to be told beyond its defaults.
GOOD = ["actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.rollout.n=4"]
OURS = [*GOOD, "trainer.v1.trainer_mode=refbase"]
STOCK_GVPO = [
    "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
    "actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}",
]


def run(capsys, *arguments):
    code = main(["--plain", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def rows(*overrides, name="refbase_trainer"):
    report = Report()
    examine(compose(name, overrides), report)
    return [(row.topic, row.status, row.text) for row in report.rows if row.topic != "device"]


def texts(found, status):
    return [text for _, got, text in found if got == status]


def test_all_is_well(capsys):
    code, out, _ = run(capsys, "algorithm.adv_estimator=shrinkage", *OURS)
    assert code == 0
    assert "verl 0.9.1" in out
    assert "loaded by `import verl`" in out
    assert "shrinkage, shrinkage_js, bvblend, bvblend_eb, shrinkage_history, gvpo" in out
    assert f"all {len(seams.SEAMS)} places" in out
    assert "James-Stein blend" in out
    assert "accepts the configuration" in out
    assert "0 errors" in out


def test_what_is_wrong_is_said_and_counted(capsys):
    code, out, _ = run(capsys, "algorithm.adv_estimator=gvpo", *GOOD)
    assert code == 1
    assert "loss_agg_mode=seq-mean-token-sum" in out
    assert "This will not do what it says" in out


@pytest.mark.parametrize("arguments", [["--config-name", "no_such"], ["nonsense=1"], ["a b"], ["trainer.nnodes"]])
def test_what_cannot_be_composed(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert "no configuration to look at" in err
    assert "0 errors" not in out


def test_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "verl_ext.doctor", "+algorithm.shrinkage.weight=2", "algorithm.adv_estimator=shrinkage"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "loaded by `import verl`" in done.stdout
    assert "algorithm.shrinkage: `weight` must be" in " ".join(done.stdout.replace("│", " ").split())
    assert done.stderr == ""


def test_without_verl(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "verl" else find(name, *a))
    assert run(capsys)[0] == 2


# -- installation ---------------------------------------------------------------------------------------------


def installation():
    report = Report()
    examine_installation(report)
    return [(row.topic, row.status, row.text) for row in report.rows]


def test_this_installation():
    assert texts(installation(), "error") == []


def test_a_plugin_that_failed(monkeypatch):
    monkeypatch.setattr(register, "errors", [("register its trainer", RuntimeError("boom"))])
    assert ("plug-in", "error", "failed to register its trainer: RuntimeError: boom") in installation()


def test_a_plugin_that_is_not_there(monkeypatch):
    monkeypatch.setattr(doctor, "entry_points", lambda group: ())
    monkeypatch.delitem(sys.modules, "verl_ext.register")
    found = texts(installation(), "error")
    assert any("is missing" in text for text in found)
    assert any("VERL_USE_EXTERNAL_MODULES" in text for text in found)


def test_names_that_are_taken(monkeypatch):
    from verl.trainer.ppo import core_algos

    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, "shrinkage", lambda: None)
    assert ("names", "error", "estimators not registered: shrinkage") in installation()


def test_another_verl(monkeypatch):
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "0.10.0" if name == "verl" else known(name))
    assert any("verl 0.10.0: refbase is tested with 0.9.1" in text for text in texts(installation(), "warning"))


def test_a_seam_that_moved(monkeypatch):
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    monkeypatch.setattr(PPOTrainer, "_load_checkpoint", lambda self, path: None)
    assert any("_load_checkpoint` does not mention" in text for text in texts(installation(), "error"))


# -- configurations -------------------------------------------------------------------------------------------


def test_names_of_verls_own_are_told_apart():
    assert any(
        "rloo is verl's own, not refbase's; refbase's is `refbase_rloo`" in text
        for _, _, text in rows("algorithm.adv_estimator=rloo", *GOOD)
    )


def test_unknown_estimator_has_the_closest():
    assert any("did you mean 'shrinkage'" in t for t in texts(rows("algorithm.adv_estimator=shrinkge", *GOOD), "error"))


def test_unknown_trainer_has_the_closest():
    found = texts(rows("algorithm.adv_estimator=shrinkage", *GOOD, "trainer.v1.trainer_mode=refbas"), "error")
    assert any("did you mean 'refbase'" in text for text in found)


def test_what_verl_refuses_is_shown():
    found = texts(rows("algorithm.adv_estimator=shrinkage"), "error")
    assert any("ppo_micro_batch_size" in text and "AssertionError" in text for text in found)


def test_interpolation_that_leads_nowhere():
    assert any("nowhere" in text for text in texts(rows("trainer.project_name=${nowhere.at.all}"), "error"))


BVBLEND = "algorithm.adv_estimator=bvblend_eb"
#: overrides -> statuses of the estimator's rows, and a word of each.
MODES = {
    "legacy": ([*GOOD, BVBLEND, "trainer.use_v1=false"], []),
    "legacy with our trainer": ([*OURS, BVBLEND, "trainer.use_v1=false"], [("error", "use_v1=True")]),
    "sync": ([*GOOD, BVBLEND], []),
    "sync, saved": ([*GOOD, BVBLEND, "trainer.save_freq=5"], [("warning", "trainer_mode=refbase")]),
    "sync, keys": (
        [*GOOD, BVBLEND, "algorithm.bvblend.history_key=data_source"],
        [("error", "trainer_mode=refbase")],
    ),
    "refbase": ([*OURS, BVBLEND, "trainer.save_freq=5", "algorithm.bvblend.history_key=data_source"], []),
    "refbase, no such function": (
        [*OURS, BVBLEND, "algorithm.bvblend.history_key='os:no_such_key'"],
        [("error", "without 'no_such_key'")],
    ),
    "colocate_async": ([*GOOD, BVBLEND, "trainer.v1.trainer_mode=colocate_async"], []),
    "separate_async": (
        [*GOOD, BVBLEND, "trainer.v1.trainer_mode=separate_async"],
        [("warning", "not been tested")],
    ),
    "separate_async, gvpo": (
        [*GOOD, *STOCK_GVPO, "algorithm.adv_estimator=gvpo", "trainer.v1.trainer_mode=separate_async"],
        [("warning", "not been tested"), ("error", "ahead of")],
    ),
    "legacy, gvpo": ([*GOOD, *STOCK_GVPO, "algorithm.adv_estimator=gvpo", "trainer.use_v1=false"], []),
    "sync, gvpo": ([*GOOD, *STOCK_GVPO, "algorithm.adv_estimator=gvpo"], []),
    "gvpo's loss alone": (
        [*OURS, "algorithm.adv_estimator=shrinkage", "actor_rollout_ref.actor.policy_loss.loss_mode=gvpo"],
        [("error", "Set both or neither")],
    ),
    "multi-turn, stock": (
        [*GOOD, "algorithm.adv_estimator=refbase_rloo", "actor_rollout_ref.rollout.multi_turn.enable=true"],
        [("warning", "a rollout counts once")],
    ),
    "multi-turn, ours": (
        [*OURS, "algorithm.adv_estimator=refbase_rloo", "actor_rollout_ref.rollout.multi_turn.enable=true"],
        [],
    ),
    "multi-turn, verl's own": (
        [*GOOD, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.multi_turn.enable=true"],
        [],
    ),
    "one rollout": (
        [*OURS, "algorithm.adv_estimator=refbase_rloo", "actor_rollout_ref.rollout.n=1"],
        [("warning", "groups of one")],
    ),
    "one prompt": (
        [*OURS, "algorithm.adv_estimator=shrinkage", "data.train_batch_size=1"],
        [("warning", "no other prompt")],
    ),
}


@pytest.mark.parametrize("case", MODES)
def test_what_a_trainer_can_do_for_an_estimator(case):
    overrides, expected = MODES[case]
    found = [(s, t) for topic, s, t in rows(*overrides) if topic == "estimator" and s in ("warning", "error")]
    assert [status for status, _ in found] == [status for status, _ in expected], found
    for (_, text), (_, word) in zip(found, expected, strict=True):
        assert word in text


def test_a_stock_trainer_that_would_resume_without_history(tmp_path):
    (tmp_path / "global_step_7").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    overrides = [*GOOD, BVBLEND, f"trainer.default_local_dir={tmp_path}"]
    assert any("resumes without the history" in text for text in texts(rows(*overrides), "error"))
    assert texts(rows(*overrides, "algorithm.bvblend.allow_cold_history=true"), "error") == []
    assert texts(rows(*overrides, "trainer.resume_mode=disable"), "error") == []
    assert texts(rows(*overrides, "trainer.v1.trainer_mode=refbase"), "error") == []


def test_the_configuration_for_a_cpu(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    report = Report()
    examine(compose("refbase_cpu", ["algorithm.adv_estimator=shrinkage"]), report)
    assert [row for row in report.rows if row.status in ("warning", "error")] == []
    assert any(row.topic == "device" and "CPU, 2 training ranks, rollouts by hf" in row.text for row in report.rows)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("trainer.device=cuda", "trainer.device"),
        ("actor_rollout_ref.actor.strategy=fsdp", "FSDP1"),
        ("actor_rollout_ref.rollout.name=sglang", "rollout.name"),
        ("actor_rollout_ref.ref.fsdp_config.dtype=bfloat16", "must be the actor's"),
        ("trainer.v1.trainer_mode=separate_async", "none of which a CPU job has"),
    ],
)
def test_what_a_cpu_cannot_do(monkeypatch, override, word):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    assert any(word in text for text in texts(rows(override, name="refbase_cpu"), "error"))


def test_a_cpu_job_without_its_launcher(monkeypatch):
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    report = Report()
    examine(compose("refbase_cpu", []), report)
    assert report.exit_code == 0
    assert any("verl_ext.cpu.run" in row.text for row in report.rows if row.status == "warning")


def test_config_directories(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [refbase_trainer, _self_]\n"
        "algorithm: {adv_estimator: shrinkage}\n"
        "actor_rollout_ref: {actor: {use_dynamic_bsz: true}, rollout: {n: 4}}\n"
    )
    code, out, _ = run(capsys, "--config-dir", str(tmp_path), "--config-name", "mine.yaml")
    assert (code, "James-Stein" in out) == (0, True)
    code, out, _ = run(capsys, "--config-path=config", "-cn", "ppo_trainer", "algorithm.adv_estimator=shrinkage", *GOOD)
    assert code == 0


def test_the_table_of_rich(capsys):
    pytest.importorskip("rich")
    assert main(["algorithm.adv_estimator=shrinkage", *OURS]) == 0
    out = capsys.readouterr().out
    assert "finding" in out
    assert "0 errors" in out
