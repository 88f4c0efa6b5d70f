"""BV-Blend's memory: a step reads earlier steps only, whatever the trainer does in between."""

from __future__ import annotations

import json
import random

import pytest

from refbase import HistoryState, InputError, InputTypeError, update_history
from verl_ext import history
from verl_ext.history import History

MEMORY = {"window": 5, "decay": 0.5, "max_keys": 8}


def steps(count, seed=0):
    rng = random.Random(seed)
    for step in range(count):
        uids = [f"{step}.{g}" for g in range(3) for _ in range(2)]
        yield {"rewards": [float(rng.randint(0, 1)) for _ in uids], "group_ids": uids}


def seen(memory, **batch):
    """The state that an estimator is given for this batch."""
    return memory.read(lambda state: state, **batch)


def test_each_step_reads_the_steps_before_it():
    memory, reference = History(**MEMORY), HistoryState.empty(**MEMORY)
    for batch in steps(4):
        assert seen(memory, **batch) == reference
        reference = update_history(reference, batch["rewards"], batch["group_ids"])
        assert memory.current == reference


def test_reading_twice_is_reading_once():
    once, twice = History(**MEMORY), History(**MEMORY)
    for batch in steps(4):
        first = seen(once, **batch)
        order = random.Random(1).sample(range(6), 6)
        shuffled = {key: [values[i] for i in order] for key, values in batch.items()}
        assert seen(twice, **batch) == first
        assert seen(twice, **shuffled) == first
        assert twice.current == once.current


def test_equal_rewards_of_other_prompts_are_another_step():
    memory = History(**MEMORY)
    seen(memory, rewards=[1.0, 1.0], group_ids=["a", "a"])
    assert seen(memory, rewards=[1.0, 1.0], group_ids=["b", "b"]).updates == 1
    assert memory.current.updates == 2


def test_a_step_id_identifies_a_step():
    memory = History(**MEMORY)
    seen(memory, rewards=[1.0, 1.0], group_ids=["a", "a"], step=1)
    assert seen(memory, rewards=[0.0, 0.0], group_ids=["b", "b"], step=1).updates == 0
    assert memory.current.keys[None].mean == 0.0
    assert seen(memory, rewards=[0.0, 0.0], group_ids=["b", "b"], step=2).updates == 1


def test_a_step_that_fails_leaves_no_trace():
    memory = History(**MEMORY)
    with pytest.raises(RuntimeError):
        memory.read(lambda state: (_ for _ in ()).throw(RuntimeError()), rewards=[1.0], group_ids=["a"])
    assert memory.current == HistoryState.empty(**MEMORY)


def test_a_batch_without_valid_rows_changes_nothing():
    memory = History(**MEMORY)
    seen(memory, rewards=[1.0, 0.0], group_ids=["a", "a"])
    before = memory.current
    assert seen(memory, rewards=[], group_ids=[]) == before
    assert memory.current == before


def test_keys():
    memory = History(**MEMORY)
    seen(memory, rewards=[1.0, 0.0], group_ids=["a", "b"], keys=["math", "code"])
    assert set(memory.current.keys) == {"math", "code"}


def test_restored_goes_on_as_uninterrupted():
    straight, broken = History(**MEMORY), History(**MEMORY)
    for i, batch in enumerate(steps(6)):
        want = seen(straight, **batch)
        if i == 3:
            saved = json.loads(json.dumps(broken.snapshot()))
            broken = History(**MEMORY)
            broken.restore(saved)
        assert seen(broken, **batch) == want
    assert broken.snapshot() == straight.snapshot()


def test_a_snapshot_does_not_disturb():
    plain, watched = History(**MEMORY), History(**MEMORY)
    for batch in steps(4):
        watched.snapshot()
        assert seen(watched, **batch) == seen(plain, **batch)
        watched.snapshot()


def test_restoring_something_else_changes_nothing():
    memory = history.history_for(MEMORY)
    seen(memory, rewards=[1.0, 0.0], group_ids=["a", "a"])
    before = memory.current
    good = memory.snapshot()
    for bad in ({}, {**good, "version": 99}, {**good, "decay": 2.0}, {k: good[k] for k in list(good)[:-1]}):
        with pytest.raises((InputError, InputTypeError)):
            history.restore(MEMORY, bad)
    with pytest.raises(InputError, match=r"`window` must be what it was.*saved history has 5"):
        history.restore({**MEMORY, "window": 6}, good)
    assert memory.current == before
    history.restore(MEMORY, good)
    assert memory.current == before


def test_one_history_for_each_configuration():
    assert history.history_for(MEMORY) is history.history_for(dict(reversed(MEMORY.items())))
    assert history.history_for(MEMORY) is not history.history_for({**MEMORY, "decay": 0.25})
