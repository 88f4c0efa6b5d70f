"""What the advantages of one group add up to."""

from __future__ import annotations

from refbase.checks.law import Law
from refbase.checks.laws._common import require_equal, without_baseline
from refbase.checks.strategies import batches
from refbase.checks.subject import Batch, Probe


def _zero_sum(probe: Probe, batch: Batch) -> None:
    answer = probe(batch)
    bare = without_baseline(batch, answer)
    bound = len(batch) * probe.bound(batch, answer)
    for label, rows in batch.groups.items():
        if bare.isdisjoint(rows):
            total = sum(answer.advantages[row] for row in rows)
            require_equal(f"sum of A over group {label!r}", [0], [total], bound)


LAWS = (
    Law(
        "zero_sum",
        "the advantages of each group sum to 0",
        frozenset({"zero_sum"}),
        lambda subject: batches(subject, masks=True),
        _zero_sum,
    ),
)
