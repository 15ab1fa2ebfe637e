"""From acknowledgements and looks at the table to lags: when did a record that was acknowledged show as a row?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.table_lag.pacing import Ack

NS_PER_MS = 1_000_000


class RowsDiffer(Exception):
    """What users see does not fit what the table says of itself, or a record never came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What a fresh load showed: the end offset of each partition, and all rows, at a moment after the load."""

    seen_ns: int
    ends: Mapping[int, int]
    rows: int


def check(sightings: Sequence[Sighting]) -> None:
    """Raise `RowsDiffer` unless every look found as many rows on `main` as its offsets promise."""
    for sighting in sightings:
        if sum(sighting.ends.values()) != sighting.rows:
            raise RowsDiffer(f"{sighting.rows} rows are on main, the offsets say {dict(sighting.ends)}")


def lags_ms(acks: Sequence[Ack], sightings: Sequence[Sighting]) -> list[float]:
    """Return the lag of each acknowledged batch, from its acknowledgement to the first look that shows it.

    Looks are some time apart, so a lag is never too small, and too large by at most that time. Raises `RowsDiffer` if
    a batch is in no look.
    """
    lags: list[float] = []
    by_partition: dict[int, list[Ack]] = {}
    for ack in acks:
        by_partition.setdefault(ack.partition, []).append(ack)
    for partition, parts in by_partition.items():
        at = 0
        for ack in sorted(parts, key=lambda part: part.end_offset):
            while at < len(sightings) and sightings[at].ends.get(partition, 0) < ack.end_offset:
                at += 1
            if at == len(sightings):
                raise RowsDiffer(f"partition {partition}: offset {ack.end_offset - 1} never came into the table")
            lags.append(max(0.0, (sightings[at].seen_ns - ack.acked_ns) / NS_PER_MS))
    return lags
