"""The actor's accumulated gradient is that of `refbase.gvpo_loss` on the mini-batch, however it is split.

verl's real worker trains on fixed rows, in one and in two processes (`actor_harness`). The reference is
autograd in float64 through a plain transformers model, at the parameters that each optimizer step started from.
"""

from __future__ import annotations

import random

import pytest
import torch

import refbase

pytest.importorskip("verl", reason="needs verl")

import actor_harness as harness
from actor_harness import Case, Row

pytestmark = [pytest.mark.verl, pytest.mark.slow]

BETA = 0.5
MINI_BATCH = 12
#: Rows per session of each group's sessions: ragged groups, a group of one, rollouts of several rows.
GROUPS = {"a": [1, 1, 1, 1], "b": [1, 1, 1], "c": [1, 1], "d": [3, 1, 2], "e": [1], "f": [1, 1]}


def make_rows(model, reference) -> list[Row]:
    rng = random.Random(1)
    rows = []
    for group, sessions in GROUPS.items():
        for session, n_rows in enumerate(sessions):
            score = rng.choice([0.0, 0.5, 1.0]) + rng.random() / 4
            for index in range(n_rows):
                length = rng.randint(2, 7)
                mask = [1] + [int(rng.random() < 0.8) for _ in range(length - 1)]
                rows.append(
                    Row(
                        uid=group,
                        key=f"{group}_{session}_{index}",
                        prompt=[rng.randrange(3, harness.VOCABULARY) for _ in range(rng.randint(3, 6))],
                        response=[rng.randrange(3, harness.VOCABULARY) for _ in range(length)],
                        mask=mask,
                        reward=score,
                    )
                )
    # The last row of the three-row session was rejected; what it holds must not matter.
    masked = next(row for row in rows if row.key == "d_0_2")
    masked.mask, masked.reward = [0] * len(masked.mask), 7.0
    while len(rows) % (2 * MINI_BATCH):
        number = len(rows)
        padding = [2] * harness.PADDING_PROMPT
        rows.append(Row("pad0", f"pad0_{number}_0", padding, [2], [0], 0.0, padding=True))
    with torch.no_grad():
        for row in rows:
            row.old_log_probs = harness.token_log_probs(model, row).tolist()
            row.ref_log_probs = harness.token_log_probs(reference, row).tolist()
    return rows


def advantages(rows, *, kl: bool, sessions: bool) -> list[float]:
    """What the estimator writes, KL penalty as verl puts it into the reward."""
    from verl_ext.adapters import ESTIMATORS
    from verl_ext.sessions import Sessions
    from verl_ext.step import Step, active

    width = max(len(row.response) for row in rows)
    mask, scores, penalty = (torch.zeros(len(rows), width) for _ in range(3))
    for i, row in enumerate(rows):
        n = len(row.response)
        mask[i, :n] = torch.tensor(row.mask, dtype=torch.float32)
        scores[i, n - 1] = row.reward
        penalty[i, :n] = BETA * (torch.tensor(row.old_log_probs) - torch.tensor(row.ref_log_probs))
    rewards = scores - penalty * mask if kl else scores
    step = Step(1, tuple(row.key for row in rows), exact_gvpo=True)
    if sessions:
        step.sessions = Sessions.of(step.keys)
        step.scores = scores if kl else None
    with active(step):
        out, _ = ESTIMATORS["gvpo"](
            token_level_rewards=rewards, response_mask=mask, config={}, index=[row.uid for row in rows]
        )
    return [float(values[m != 0][0]) if bool(m.any()) else 0.0 for values, m in zip(out, mask, strict=True)]


def reference(folder, rows, numbers, parameters, *, kl: bool, sessions: bool):
    """Loss and gradient of `refbase.gvpo_loss` for these rows of the batch, in float64."""
    model = harness.load(folder, parameters)
    rollouts: dict[str, list[Row]] = {}
    for i in numbers:
        if any(rows[i].mask):
            rollouts.setdefault(rows[i].key.rpartition("_")[0] if sessions else str(i), []).append(rows[i])
    log_probs, base, rewards, labels = [], [], [], []
    for parts in rollouts.values():
        parts.sort(key=lambda row: row.key)
        masks = [torch.tensor(row.mask, dtype=torch.float64) for row in parts]
        log_probs.append(sum((harness.token_log_probs(model, r) * m).sum() for r, m in zip(parts, masks, strict=True)))
        known = [row.ref_log_probs if kl else row.old_log_probs for row in parts]
        base.append(sum((torch.tensor(k).double() * m).sum() for k, m in zip(known, masks, strict=True)))
        rewards.append(parts[-1].reward)
        labels.append(parts[-1].uid)
    loss = refbase.gvpo_loss(
        torch.tensor(rewards, dtype=torch.float64), labels, torch.stack(log_probs), torch.stack(base), BETA
    )
    loss.backward()
    return float(loss), {name: p.grad for name, p in model.named_parameters()}


def distance(a, b) -> float:
    """Relative, over all parameters together."""
    difference = sum(float((a[name].double() - b[name].double()).square().sum()) for name in b)
    return (difference / sum(float(b[name].double().square().sum()) for name in b)) ** 0.5


def by_rank(mini_batches, ranks, rng=None):
    """Order of the batch in which these are the mini-batches; rows go to ranks in turn or at random."""
    parts = [[] for _ in range(ranks)]
    for rows in mini_batches:
        rows = list(rows)
        if rng is not None:
            rng.shuffle(rows)
        for rank in range(ranks):
            parts[rank] += rows[rank::ranks]
    return [row for part in parts for row in part]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """All cases, run once."""
    from verl_ext.packing import pack_groups

    folder = tmp_path_factory.mktemp("gvpo")
    path = harness.tiny_model(folder / "model")
    rows = make_rows(harness.load(path), harness.load(harness.tiny_model(folder / "reference", seed=5)))
    packed = pack_groups(
        [row.uid for row in rows],
        [row.key.rpartition("_")[0] for row in rows],
        [row.padding for row in rows],
        len(rows) // MINI_BATCH,
    )
    rng = random.Random(2)
    plain, kl = (advantages(rows, kl=kl, sessions=False) for kl in (False, True))
    session, session_kl = (advantages(rows, kl=kl, sessions=True) for kl in (False, True))
    scattered = list(range(len(rows)))
    rng.shuffle(scattered)

    def case(name, order, values=plain, **kwargs):
        return Case(name, order, values, MINI_BATCH, **{"epochs": 2, **kwargs})

    cases = [
        # The same mini-batches, split in different ways.
        case("same: whole", by_rank(packed, 1), micro_batch=12, infer_micro_batch=12),
        case("same: micro-batch 1", by_rank(packed, 1, rng), micro_batch=1, infer_micro_batch=3),
        case("same: dynamic", by_rank(packed, 1, rng), tokens=200),
        case("same: two ranks", by_rank(packed, 2), ranks=2, micro_batch=6, infer_micro_batch=5),
        case("same: two ranks, micro-batch 1", by_rank(packed, 2, rng), ranks=2, micro_batch=1),
        case("same: two ranks, dynamic", by_rank(packed, 2, rng), ranks=2, tokens=150),
        case("same: checkpointing", by_rank(packed, 2, rng), ranks=2, checkpointing=True),
        case("same: pass at every step", by_rank(packed, 1), settings={"beta": BETA, "first_pass": True}),
        # Other mini-batches: groups torn apart.
        case("shuffled rows", by_rank(packed, 1), shuffle=True, micro_batch=3),
        case("shuffled rows, two ranks", by_rank(packed, 2), ranks=2, shuffle=True, micro_batch=3, epochs=3),
        case("scattered groups, two ranks", scattered, ranks=2, micro_batch=2),
        # Reference policy in the reward; rollouts of several rows.
        case("kl", by_rank(packed, 1), kl, micro_batch=4),
        case("kl, two ranks", by_rank(packed, 2, rng), kl, ranks=2, micro_batch=3),
        case("sessions, two ranks", by_rank(packed, 2, rng), session, ranks=2, sessions=True),
        case("sessions, kl", by_rank(packed, 1, rng), session_kl, sessions=True),
        case("divided by beta", by_rank(packed, 1), settings={"beta": BETA, "divide_by_beta": True}, epochs=1),
        # Wrong on purpose.
        case("wrong: rank means", by_rank(packed, 2), ranks=2, worker="rank means"),
        case("wrong: old means", by_rank(packed, 1), worker="old means"),
    ]
    records = harness.run(folder, path, rows, cases)
    return path, rows, {case.name: (case, records[case.name]) for case in cases}


def errors(trained, name):
    path, rows, results = trained
    case, records = results[name]
    scale = case.settings["beta"] if case.settings.get("divide_by_beta") else 1.0
    for record in records:
        loss, gradient = reference(
            path, rows, record.rows, record.parameters, kl=name.find("kl") >= 0, sessions=case.sessions
        )
        yield record, loss, distance({n: g * scale for n, g in record.gradient.items()}, gradient)


EXACT = [
    "same: whole",
    "same: micro-batch 1",
    "same: dynamic",
    "same: two ranks",
    "same: two ranks, micro-batch 1",
    "same: two ranks, dynamic",
    "same: checkpointing",
    "same: pass at every step",
    "shuffled rows",
    "shuffled rows, two ranks",
    "scattered groups, two ranks",
    "kl",
    "kl, two ranks",
    "sessions, two ranks",
    "sessions, kl",
    "divided by beta",
]


@pytest.mark.parametrize("name", EXACT)
def test_gradient_is_that_of_the_loss(trained, name, record_property):
    case, records = trained[2][name]
    assert len(records) == 2 * case.epochs
    worst = 0.0
    for record, loss, error in errors(trained, name):
        worst = max(worst, error)
        assert record.metrics["gvpo/loss"] == pytest.approx(loss, rel=1e-5)
        assert record.metrics["gvpo/weight_sum_max"] < 1e-12
    record_property("worst relative error", worst)
    print(f"{name}: {worst:.2e}")
    assert worst < 1e-5


def test_a_split_changes_nothing(trained):
    """Same mini-batches, one rank or two, micro-batches of 12, 6, 2, 1 or by tokens: the same gradients."""
    results = trained[2]
    _, first = results["same: whole"]
    others = [name for name in results if name.startswith("same: ") and name != "same: whole"]
    assert len(others) == 7
    for name in others:
        for one, other in zip(first, results[name][1], strict=True):
            assert sorted(one.rows) == sorted(other.rows)
            assert distance(other.gradient, one.gradient) < 1e-5, name


@pytest.mark.parametrize("name", ["wrong: rank means", "wrong: old means"])
def test_the_test_can_fail(trained, name):
    worst = max(error for _, _, error in errors(trained, name))
    print(f"{name}: {worst:.2e}")
    assert worst > 0.05


def test_the_policy_moved(trained):
    """Later steps must be far enough from the first for stale weights to matter."""
    _, records = trained[2]["same: whole"]
    assert records[0].metrics["gvpo/implicit_reward_std"] == 0
    assert records[-1].metrics["gvpo/implicit_reward_std"] > 0.1


def test_groups_are_kept_whole_and_counted(trained):
    results = trained[2]
    _, packed = results["same: whole"]
    assert [record.metrics["gvpo/groups_of_one"] for record in packed] in ([1, 0, 1, 0], [0, 1, 0, 1])
    _, scattered = results["scattered groups, two ranks"]
    assert sum(record.metrics["gvpo/groups_of_one"] for record in scattered) > 2
    _, sessions = results["sessions, two ranks"]
    assert all(record.metrics["gvpo/split_sessions"] == 0 for record in sessions)
