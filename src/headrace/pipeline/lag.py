"""How far a topic's table is behind its log: in records, in time and in bytes.

What waits begins at the table's end, or at the log start where retention has gone further: what expired will not
come any more. `lag_of` is pure; `measure_lag` asks the index, folded or not, so it tells what producers wrote and not
what the pipeline could take.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.index.cache import IndexCache
from headrace.index.values import IndexEntry, StreamHead
from headrace.model.extents import WalExtent
from headrace.model.topics import Topic
from headrace.pipeline.records import TableState


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLag:
    """What is not in the table yet. All are zero where it has caught up."""

    records: int = 0
    age_ms: int = 0
    """How long ago the oldest record that waits was appended."""
    size_bytes: int = 0
    """Bytes of the log, as they were produced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingStream:
    """One stream: its head, where its rows in the table end, and the entry that holds the first offset that waits.

    `oldest` is `None` where none waits, or where it was trimmed away while we looked.
    """

    head: StreamHead
    start_offset: int
    oldest: IndexEntry | None


def first_waiting(head: StreamHead, after: int | None) -> int:
    """Return the first offset that is not in the table and still in the log; `after` is the table's end, if any."""
    return head.log_start if after is None else max(after, head.log_start)


def lag_of(streams: Iterable[WaitingStream], *, now_ms: int) -> TableLag:
    """Return how far a table is behind the streams of its topic, taken together."""
    records = size_bytes = age_ms = 0
    for stream in streams:
        waiting = stream.head.high_watermark - stream.start_offset
        if waiting <= 0 or stream.oldest is None:
            continue
        oldest = stream.oldest
        # The entry counts as a whole: where exactly in it the log start lies is known to its batches only.
        begun_at_bytes = oldest.cumulative_bytes
        if isinstance(oldest.extent, WalExtent):
            begun_at_bytes -= oldest.extent.size_bytes
        records += waiting
        size_bytes += max(0, stream.head.cumulative_bytes - begun_at_bytes)
        age_ms = max(age_ms, now_ms - oldest.append_time_ms)
    return TableLag(records=records, age_ms=age_ms, size_bytes=size_bytes)


async def measure_lag(index: IndexCache, topic: Topic, state: TableState | None, *, now_ms: int) -> TableLag:
    """Return how far a topic's table is behind, as far as `index` knows: refresh that before."""
    ends = {} if state is None else state.ends
    waiting: list[WaitingStream] = []
    for partition, stream in enumerate(topic.streams):
        head = index.view.head(stream) or await index.fresh_head(stream)
        if head is None or head.is_deleted:
            continue
        start_offset = first_waiting(head, ends.get(partition))
        if start_offset < head.high_watermark:
            found = await index.locate(stream, start_offset, limit=1)
            oldest = found[0] if found else None
            waiting.append(WaitingStream(head=head, start_offset=start_offset, oldest=oldest))
    return lag_of(waiting, now_ms=now_ms)
