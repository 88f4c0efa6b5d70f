"""BV-Blend's memory in verl's checkpoints: all of it or nothing, and the same after a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("verl")

import memory_job
from memory_job import Job, config

from refbase import InputError
from verl_ext import checkpoint, history

pytestmark = pytest.mark.verl


@pytest.fixture(autouse=True)
def queue_put_back(monkeypatch):
    """A `Job` has a queue of its own; other tests shall not."""
    import verl.trainer.ppo.v1.trainer_base as base

    import verl_ext.trainer as ours

    for module in (base, ours):
        monkeypatch.setattr(module, "tq", module.tq)


def memory_of(directory: Path, step: int) -> bytes:
    return (directory / f"global_step_{step}" / checkpoint.FILE).read_bytes()


def fresh(directory, **options):
    history.reset()
    return Job(config(directory, **options))


@pytest.fixture
def saved(tmp_path):
    """A directory with the checkpoints of steps 2 and 4."""
    fresh(tmp_path).run(4)
    return tmp_path


# -- killed and resumed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["bvblend", "shrinkage_history"])
def test_killed_after_a_checkpoint_and_resumed_as_if_nothing_had_been(tmp_path, estimator):
    def run(*arguments):
        command = [sys.executable, memory_job.__file__, str(tmp_path / "killed"), "8", "--estimator", estimator]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=300)

    killed = run("--kill-after", "4")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "killed/latest_checkpointed_iteration.txt").read_text() == "4"
    resumed = run()
    assert resumed.returncode == 0, resumed.stderr
    assert "history of 2 keys and 4 steps restored" in resumed.stderr

    straight = fresh(tmp_path / "straight", estimator=estimator).run(8)
    assert json.loads((tmp_path / "killed/advantages.json").read_text()) == straight[4:]
    for step in (2, 4, 6, 8):
        assert memory_of(tmp_path / "killed", step) == memory_of(tmp_path / "straight", step)
    assert straight[4:] != fresh(tmp_path / "cold", estimator=estimator, history_key="none").run(8)[4:]


def test_a_file_is_whole_whenever_its_writer_is_killed(tmp_path):
    path = tmp_path / "global_step_1" / checkpoint.FILE
    code = (
        "import sys; from pathlib import Path; from verl_ext import checkpoint\n"
        f"path = Path({str(path)!r})\n"
        "i = 0\n"
        "while True:\n"
        "    i += 1\n"
        "    checkpoint.write(path, {'global_step': 1, 'history_key': 'none', 'state': [i] * 20000})\n"
    )
    rng, seen = random.Random(0), set()
    for _ in range(5):
        before = path.stat().st_mtime_ns if path.exists() else None
        writer = subprocess.Popen([sys.executable, "-c", code])
        deadline = time.monotonic() + 120
        while (path.stat().st_mtime_ns if path.exists() else None) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.05))
        writer.kill()
        writer.wait()
        state = checkpoint.read(path)["state"]
        assert state == [state[0]] * 20000
        seen.add(state[0])
    assert seen


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / checkpoint.FILE
    content = {"global_step": 1, "history_key": "none", "state": {}}
    checkpoint.write(path, content)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        checkpoint.write(path, {**content, "global_step": 2})
    assert checkpoint.read(path) == content
    assert os.listdir(tmp_path) == [checkpoint.FILE]


# -- where and when it is written -----------------------------------------------------------------------------


def test_the_file_is_there_before_anything_of_verls(tmp_path):
    """What dies while models are saved, and asynchronous checkpoints, whose tracker comes later."""
    job = fresh(tmp_path)
    there = []
    job.trainer.actor_rollout_wg.save_checkpoint = lambda path, *_args, **_kwargs: there.append(
        (Path(path).parent / checkpoint.FILE).exists()
    )
    job.trainer.config.actor_rollout_ref.actor.checkpoint.async_save = True
    job.run(2)
    assert there == [True]
    assert not (tmp_path / "latest_checkpointed_iteration.txt").exists()
    # Megatron's workers name it when their writes have ended.
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("2")
    resumed = fresh(tmp_path)
    resumed.run(4)
    straight = fresh(tmp_path / "straight")
    straight.run(4)
    assert memory_of(tmp_path, 4) == memory_of(tmp_path / "straight", 4)


def test_other_estimators_write_nothing(tmp_path):
    fresh(tmp_path, estimator="shrinkage").run(2)
    assert sorted(os.listdir(tmp_path / "global_step_2")) == ["data.pt"]


# -- resuming -------------------------------------------------------------------------------------------------


def test_resume_path_wins_over_the_latest(saved, capfd):
    job = fresh(saved)
    job.trainer.config.trainer.resume_mode = "resume_path"
    job.trainer.config.trainer.resume_from_path = f"{saved}/global_step_2"
    job.trainer._load_checkpoint()
    assert job.trainer.global_steps == 2
    assert "history of 2 keys and 2 steps restored" in capfd.readouterr().err
    assert history.history_for(job.trainer.memory.memory).current.last_step == 2


def test_relative_directories(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    job = fresh(Path(saved.name))
    job.trainer._load_checkpoint()
    assert history.history_for(job.trainer.memory.memory).current.last_step == 4


def test_disabled_resume_reads_nothing(saved):
    (saved / "global_step_4" / checkpoint.FILE).write_text("broken")
    job = fresh(saved)
    job.trainer.config.trainer.resume_mode = "disable"
    job.trainer._load_checkpoint()
    assert job.trainer.global_steps == 0


def test_without_the_file_resuming_is_an_error_unless_allowed(saved, capfd):
    (saved / "global_step_4" / checkpoint.FILE).unlink()
    with pytest.raises(InputError, match=r"holds no history .*allow_cold_history=true"):
        fresh(saved).trainer._load_checkpoint()
    job = fresh(saved, allow_cold_history=True)
    job.trainer._load_checkpoint()
    assert job.trainer.global_steps == 4
    assert "starts without one" in capfd.readouterr().err
    assert history.history_for(job.trainer.memory.memory).current.updates == 0


def edit(path: Path, change) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def resign(document) -> None:
    document["sha256"] = checkpoint._digest(document["content"])


def first_key(document):
    return document["content"]["state"]["keys"][0]


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {
    "empty": (lambda path: path.write_text(""), "no JSON"),
    "truncated": (half, "no JSON"),
    "binary": (lambda path: path.write_bytes(b"\x80\x04\x95"), "no JSON"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
    "a list": (lambda path: path.write_text("[]"), "not a history of refbase"),
    "another program's": (lambda path: path.write_text('{"format": "x"}'), "not a history of refbase"),
    "another version": (lambda path: edit(path, lambda d: d.update(version=2)), "version 2"),
    "an edited number": (
        lambda path: edit(path, lambda d: first_key(d).update(mean=first_key(d)["mean"] + 2**-40)),
        "checksum",
    ),
    "a removed key": (lambda path: edit(path, lambda d: d["content"]["state"]["keys"].pop()), "checksum"),
    "an added field": (lambda path: edit(path, lambda d: d.update(more=1)), "missing or added"),
    "signed nonsense": (
        lambda path: edit(path, lambda d: (first_key(d).update(groups=-1.0), resign(d))),
        "must be positive",
    ),
    "signed leftovers": (
        lambda path: edit(path, lambda d: (d["content"]["state"].pop("decay"), resign(d))),
        "missing decay",
    ),
    "another step's": (
        lambda path: path.write_bytes((path.parent.parent / "global_step_2" / checkpoint.FILE).read_bytes()),
        "belongs to step 2",
    ),
    "a future": (
        lambda path: edit(path, lambda d: (d["content"]["state"].update(last_step=9), resign(d))),
        "holds step 9",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("cold", [False, True])
def test_a_file_that_is_not_the_saved_one_is_refused_whole(saved, damage, cold):
    """`allow_cold_history` is for a checkpoint without memory, not for one with a broken one."""
    spoil, reason = DAMAGE[damage]
    path = saved / "global_step_4" / checkpoint.FILE
    spoil(path)
    job = fresh(saved, allow_cold_history=cold)
    with pytest.raises(InputError) as caught:
        job.trainer._load_checkpoint()
    message = str(caught.value)
    assert reason in message
    assert str(path) in message
    assert "Nothing was loaded" in message
    assert history.history_for(job.trainer.memory.memory).current.updates == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": 4}, "`window` must be what it was"),
        ({"decay": 0.5}, "`decay` must be what it was"),
        ({"max_keys": 7}, "`max_keys` must be what it was"),
        ({"history_key": "extra_info.level"}, "history_key=data_source"),
    ],
)
def test_other_options_do_not_take_the_history_over(saved, options, reason):
    with pytest.raises(InputError, match=reason):
        fresh(saved, **options).trainer._load_checkpoint()


def test_both_estimators_read_the_same_memory(saved):
    job = fresh(saved, estimator="bvblend")
    job.trainer._load_checkpoint()
    assert history.history_for(job.trainer.memory.memory).current.updates == 4


# -- keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "keys"),
    [("none", {None}), ("data_source", {"math", "code"}), ("extra_info.level", {0, 1, 2, 3, 4})],
)
def test_keys_reach_the_history_without_padding(tmp_path, source, keys):
    job = fresh(tmp_path, history_key=source)
    job.run(4)
    state = history.history_for(job.trainer.memory.memory).current
    assert set(state.keys) == keys
    assert state.updates == 4  # step 3 was tried twice


def test_least_recently_used_keys_go(tmp_path):
    job = fresh(tmp_path, history_key="memory_keys:by_step", max_keys=3)
    sys.modules["memory_keys"] = type(sys)("memory_keys")
    sys.modules["memory_keys"].by_step = lambda prompt: job.loader.position
    try:
        job.run(6)
    finally:
        del sys.modules["memory_keys"]
    assert set(history.history_for(job.trainer.memory.memory).current.keys) == {4, 5, 6}
