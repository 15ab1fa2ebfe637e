"""How far each stream of a topic is compacted by key, and since when: what decides when a tombstone may go.

Structs are arrays at rest: a field is never moved or removed, a new one goes last and has a default.

A *mark* says: below this offset the log was clean at that time. A tombstone is kept until the first mark behind it is
`delete.retention.ms` old, so that a reader who saw the deleted key has that long to learn of its end.

Must stay true: marks are few (`MAX_MARKS`), in the order of offsets and of times; where two become one, tombstones
are kept longer, never shorter.
"""

from collections.abc import Mapping

import msgspec

from headrace.metadata.values import ValueCodec

MAX_MARKS = 16
"""How many marks a stream has. With more rounds than that within `delete.retention.ms`, neighbours are joined."""


class CleanMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Up to `cleaned_to` the log was clean at `at_ms`; between the mark before and this one it kept `tombstones`.

    The number is an upper bound: later records may have taken some of these away.
    """

    cleaned_to: int
    at_ms: int
    tombstones: int


class StreamCompaction(msgspec.Struct, frozen=True, array_like=True):
    """One stream: below `cleaned_to` there is one record per key, but for files that could not be rewritten."""

    cleaned_to: int = 0
    marks: tuple[CleanMark, ...] = ()


class CompactionState(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a topic's compaction; its key holds the topic's id. `streams` go by partition."""

    topic_name: str
    streams: dict[int, StreamCompaction] = {}
    rounds: int = 0
    dropped_rows: int = 0
    compacted_at_ms: int = 0


class StreamRound(msgspec.Struct, frozen=True, array_like=True):
    """What one round means for one stream, once the index has it.

    `tombstones` are left between the old `cleaned_to` and the new one; below `expired_to` only `expired_left` are.
    """

    cleaned_to: int
    tombstones: int
    expired_to: int = 0
    expired_left: int = 0


COMPACTION_STATE = ValueCodec(CompactionState)


def expired_to(stream: StreamCompaction, *, now_ms: int, delete_retention_ms: int) -> int:
    """Return the offset below which tombstones have been kept for long enough; 0 if there is none."""
    old = [mark.cleaned_to for mark in stream.marks if now_ms - mark.at_ms >= delete_retention_ms]
    return max(old, default=0)


def tombstones_below(stream: StreamCompaction, offset: int) -> int:
    """Return how many tombstones lie below an offset at most."""
    return sum(mark.tombstones for mark in stream.marks if mark.cleaned_to <= offset)


def advanced(stream: StreamCompaction, done: StreamRound, *, at_ms: int) -> StreamCompaction:
    """Return a stream's state after a round. It never goes back, whatever the clocks of two pipelines say."""
    marks = [_emptied(mark, done) for mark in stream.marks]
    cleaned_to = max(stream.cleaned_to, done.cleaned_to)
    if cleaned_to > stream.cleaned_to:
        since_ms = max([at_ms, *(mark.at_ms for mark in marks)])
        marks.append(CleanMark(cleaned_to, since_ms, done.tombstones))
    return StreamCompaction(cleaned_to, tuple(_joined(marks)))


def after_round(
    state: CompactionState, rounds: Mapping[int, StreamRound], *, at_ms: int, dropped_rows: int
) -> CompactionState:
    """Return a topic's state after a round over some of its partitions."""
    moved = {
        partition: advanced(state.streams.get(partition, StreamCompaction()), done, at_ms=at_ms)
        for partition, done in rounds.items()
    }
    return msgspec.structs.replace(
        state,
        streams={**state.streams, **moved},
        rounds=state.rounds + 1,
        dropped_rows=state.dropped_rows + dropped_rows,
        compacted_at_ms=max(state.compacted_at_ms, at_ms),
    )


def _emptied(mark: CleanMark, done: StreamRound) -> CleanMark:
    if mark.cleaned_to > done.expired_to or not mark.tombstones:
        return mark
    return msgspec.structs.replace(mark, tombstones=min(mark.tombstones, done.expired_left))


def _joined(marks: list[CleanMark]) -> list[CleanMark]:
    """Join marks without tombstones with their successors, then others, until there are few enough.

    What a mark was joined of waits for its last part. So those two are joined that make the shortest stretch of time,
    and never the oldest mark: it would be put off by every round, and its tombstones would stay for ever.
    """
    kept: list[CleanMark] = []
    for number, mark in enumerate(marks):
        if mark.tombstones or number == len(marks) - 1:
            kept.append(mark)
    while len(kept) > MAX_MARKS:
        first = min(range(1, len(kept) - 1), key=lambda number: kept[number + 1].at_ms - kept[number - 1].at_ms)
        one, next_one = kept[first : first + 2]
        later = msgspec.structs.replace(next_one, tombstones=one.tombstones + next_one.tombstones)
        kept[first : first + 2] = [later]
    return kept
