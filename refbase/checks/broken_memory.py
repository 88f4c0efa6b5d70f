"""Wrong ways to remember: one running mean per key, kept in a dict, with one mistake each."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refbase.checks.subject import Memory, Subject
from refbase.estimate import Estimate

DECAY = 0.75
_SERIAL = itertools.count()


@dataclass(frozen=True)
class MemoryMistake:
    """`kind` names the mistake in the code below."""

    kind: str
    what: str
    source: str
    laws: tuple[str, ...]


MEMORIES = (
    MemoryMistake(
        "seeded_by_process",
        "the state holds something that no replay reproduces",
        "verl#2653 (state that lives in the process)",
        ("history_replay",),
    ),
    MemoryMistake(
        "updated_on_read",
        "reading the baseline updates it",
        "DLR-RM/rl-baselines3-zoo#276",
        ("history_immutable", "history_predictable"),
    ),
    MemoryMistake(
        "own_step_included",
        "the running mean already holds the step that it judges",
        "jsboige/CoursIA#15256 (a baseline that contains what it judges)",
        ("history_predictable",),
    ),
    MemoryMistake(
        "one_update_per_row",
        "one moving-average update per reward, in row order",
        "Metta-AI/metta#902",
        ("history_order_free",),
    ),
    MemoryMistake(
        "masked_rows_remembered",
        "padding rows enter the running statistics",
        "verl#5969",
        ("history_masked",),
    ),
    MemoryMistake(
        "count_not_saved",
        "the running mean is stored, the count behind it is not",
        "verl#2653",
        ("history_resumed",),
    ),
    MemoryMistake(
        "reset_on_reload",
        "the running mean starts again after a checkpoint is loaded",
        "Metta-AI/metta#902",
        ("history_round_trip",),
    ),
    MemoryMistake(
        "retries_count",
        "a step that is recorded twice counts twice",
        "DLR-RM/rl-baselines3-zoo#276",
        ("history_once_per_step",),
    ),
    MemoryMistake(
        "one_memory_for_all",
        "all keys share one running mean",
        "linkedin/Liger-Kernel#553 (one statistic for all prompts)",
        ("history_key_local",),
    ),
    MemoryMistake(
        "starts_at_zero",
        "a moving average that starts at 0 and is not corrected for it",
        "pytorch/examples#140",
        ("history_affine",),
    ),
    MemoryMistake(
        "no_floor",
        "divided by a deviation that may be 0, with an epsilon only",
        "NVIDIA-NeMo/RL#1518",
        ("history_in_range",),
    ),
    MemoryMistake(
        "never_forgets",
        "an entry per key for ever",
        "PrimeIntellect-ai/prime-rl#1936",
        ("history_bounded",),
    ),
)


class RunningMean:
    """Decayed mean of group means per key; an honest one with ``kind=""``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def empty(self, window: int, max_keys: int) -> dict[str, Any]:
        state: dict[str, Any] = {"max_keys": max_keys, "step": None, "keys": {}}
        if self.kind == "seeded_by_process":
            state["serial"] = next(_SERIAL)
        return state

    def update(
        self, state: Any, rewards: Any, group_ids: Any, valid: Any, history_keys: Any, step: int | None
    ) -> dict[str, Any]:
        if step is not None and state["step"] is not None and step <= state["step"] and self.kind != "retries_count":
            return state
        state = copy.deepcopy(state)
        state["step"] = state["step"] if step is None else step
        self._record(state, rewards, group_ids, valid, history_keys)
        return state

    def _record(self, state: Any, rewards: Any, group_ids: Any, valid: Any, history_keys: Any) -> None:
        means: dict[str, list[float]] = {}
        for rows in self._members(group_ids, valid).values():
            values = [float(rewards[row]) for row in rows]
            if self.kind == "one_update_per_row":
                means.setdefault(self._key(history_keys[rows[0]]), []).extend(values)
            else:
                means.setdefault(self._key(history_keys[rows[0]]), []).append(sum(sorted(values)) / len(values))
        for key, listed in sorted(means.items()):
            past = state["keys"].pop(key, {"mean": 0.0, "count": 0.0})
            if self.kind == "one_update_per_row":
                for value in listed:
                    past = {"mean": DECAY * past["mean"] + (1 - DECAY) * value, "count": past["count"] + 1}
            elif self.kind == "starts_at_zero":
                mean = sum(sorted(listed)) / len(listed)
                past = {"mean": DECAY * past["mean"] + (1 - DECAY) * mean, "count": past["count"] + 1}
            else:
                old = DECAY * past["count"]
                new = old + len(listed)
                past = {"mean": (old * past["mean"] + sum(sorted(listed))) / new, "count": new}
            state["keys"][key] = past
        while len(state["keys"]) > state["max_keys"] and self.kind != "never_forgets":
            del state["keys"][next(iter(state["keys"]))]

    def estimate(
        self, state: Any, rewards: Any, group_ids: Any, valid: Any, history_keys: Any, **options: Any
    ) -> Estimate:
        if self.kind == "updated_on_read":
            self._record(state, rewards, group_ids, valid, history_keys)
        elif self.kind == "own_step_included":
            state = self.update(state, rewards, group_ids, valid, history_keys, None)
        n = len(group_ids)
        advantages, baseline, weight = [0.0] * n, [0.0] * n, [0.0] * n
        target: list[float | None] = [None] * n
        scale: list[float | None] = [None] * n
        for rows in self._members(group_ids, valid, honest=True).values():
            past = state["keys"].get(self._key(history_keys[rows[0]]))
            values = [float(rewards[row]) for row in rows]
            spread = (sum((v - values[0]) ** 2 for v in values) / len(values)) ** 0.5
            for row, value in zip(rows, values, strict=True):
                if past is None:
                    advantages[row] = value
                    continue
                baseline[row], target[row], weight[row] = past["mean"], past["mean"], 1.0
                scale[row] = spread + 1e-6 if self.kind == "no_floor" else 1.0
                advantages[row] = (value - past["mean"]) / scale[row]
        return Estimate(advantages, baseline, weight, None, target, scale)

    def dump(self, state: Any) -> Any:
        keys = [[key, dict(past)] for key, past in state["keys"].items()]  # in the order of their last use
        if self.kind == "count_not_saved":
            keys = [[key, {"mean": past["mean"]}] for key, past in keys]
        return {**state, "keys": keys}

    def load(self, data: Any) -> Any:
        keys = {} if self.kind == "reset_on_reload" else {key: {"count": 1.0, **past} for key, past in data["keys"]}
        return {**data, "keys": keys}

    def _key(self, key: Any) -> str:
        return "all" if self.kind == "one_memory_for_all" else f"{type(key).__name__} {key}"

    def _members(self, group_ids: Sequence[Any], valid: Any, honest: bool = False) -> dict[Any, list[int]]:
        members: dict[Any, list[int]] = {}
        for row, label in enumerate(group_ids):
            if valid is None or valid[row] or (self.kind == "masked_rows_remembered" and not honest):
                members.setdefault(label, []).append(row)
        return members


def memory_subject(mistake: MemoryMistake | None) -> Subject:
    """A subject with that mistake, or the honest one."""
    kind = "" if mistake is None else mistake.kind
    running = RunningMean(kind)
    code = f"from refbase.checks.broken_memory import RunningMean\nmemory = RunningMean({kind!r})"
    memory = Memory(running.empty, running.update, running.estimate, running.dump, running.load, code)

    def call(rewards: Any, group_ids: Any, valid: Any = None, **options: Any) -> Estimate:
        return running.estimate(running.empty(1, 1), rewards, group_ids, valid, [None] * len(group_ids))

    return Subject(
        name=kind or "honest_running_mean",
        call=call,
        claims=frozenset({"history"}),
        numbers="float",
        code="",
        parts=True,
        memory=memory,
    )
