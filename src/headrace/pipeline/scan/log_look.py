"""Look into the log as it is now: which partitions there are, what they hold, and where their entries lie.

The tail is part of it: entries that are not folded yet come from the commit records, which the index cache follows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from headrace.errors import Invalid
from headrace.fetch.timestamps import TimestampFinder
from headrace.index.cache import IndexCache
from headrace.index.values import IndexEntry
from headrace.model.ids import StreamId
from headrace.pipeline.scan.offsets import LogBounds, Losses, Place, Position
from headrace.pipeline.scan.options import TopicChoice
from headrace.pipeline.scan.planning import ScannedRange
from headrace.topics.directory import TopicDirectory

K = TypeVar("K")
V = TypeVar("V")

STREAMS_AT_ONCE = 32
ENTRIES_PER_PAGE = 500


@dataclass(frozen=True, slots=True)
class Chosen:
    """The partitions that are read, and the ids of their topics."""

    streams: dict[Place, StreamId]
    topic_ids: dict[str, str]


class LogLook:
    """Reads what reads are planned from. Every answer holds for the log as it was after the call began."""

    def __init__(self, *, topics: TopicDirectory, index: IndexCache, times: TimestampFinder) -> None:
        self._topics = topics
        self._index = index
        self._times = times

    async def partitions(self, choice: TopicChoice, *, must_exist: bool) -> Chosen:
        """Return the partitions that were chosen. Raises `Invalid` for a topic that is named and not there."""
        await self._topics.refresh()
        found: dict[Place, StreamId] = {}
        topics = [topic for topic in self._topics.known() if choice.takes(topic.name)]
        missing = sorted(set(choice.named) - {topic.name for topic in topics})
        if missing and must_exist:
            raise Invalid(f"there is no topic {', '.join(missing)}: create it, or correct the option")
        for topic in topics:
            for partition in choice.partitions_of(topic.name, len(topic.streams)):
                found[topic.name, partition] = topic.streams[partition]
        return Chosen(found, {topic.name: str(UUID(bytes=topic.id)) for topic in topics})

    async def bounds(self, streams: Mapping[Place, StreamId]) -> dict[Place, LogBounds]:
        """Return what the partitions hold; one that is being deleted is left out."""
        heads = await _for_all(streams, self._index.fresh_head)
        return {
            place: LogBounds(log_start=head.log_start, high_watermark=head.high_watermark)
            for place, head in heads.items()
            if head is not None
        }

    async def by_time(self, position: Position, streams: Mapping[Place, StreamId]) -> dict[Place, int | None]:
        """Return the first offset since a position's time, of the partitions for which it names one."""
        timed = {place: time_ms for place in streams if (time_ms := position.time_of(place)) is not None}

        async def first(place: Place) -> int | None:
            found = await self._times.first_since(streams[place], timed[place])
            return None if found is None else found.offset

        return await _for_all({place: place for place in timed}, first)

    async def ranges(
        self, wanted: Mapping[Place, tuple[int, int]], streams: Mapping[Place, StreamId], losses: Losses
    ) -> list[ScannedRange]:
        """Return the entries that cover some offsets; what is trimmed meanwhile is noted as lost."""

        async def read(place: Place) -> ScannedRange:
            return await self._range(place, streams[place], *wanted[place], losses)

        found = await _for_all({place: place for place in sorted(wanted)}, read)
        return list(found.values())

    async def _range(self, place: Place, stream: StreamId, start: int, end: int, losses: Losses) -> ScannedRange:
        topic, partition = place
        entries: list[IndexEntry] = []
        next_offset = start
        while next_offset < end:
            page = await self._index.locate(stream, next_offset, limit=ENTRIES_PER_PAGE)
            if page:
                entries += [entry for entry in page if entry.start_offset < end]
                next_offset = page[-1].end_offset
                continue
            head = await self._index.fresh_head(stream)
            log_start = end if head is None else min(end, head.log_start)
            losses.note(f"partition {partition} of {topic} lost its offsets {start} to {log_start - 1} just now")
            entries, start, next_offset = [], log_start, log_start
        return ScannedRange(topic=topic, partition=partition, start_offset=start, end_offset=end, entries=entries)


async def _for_all(items: Mapping[Place, K], work: Callable[[K], Awaitable[V]]) -> dict[Place, V]:
    """Do some work for every place, a bounded number at once."""
    done: dict[Place, V] = {}
    places = list(items)
    for first in range(0, len(places), STREAMS_AT_ONCE):
        some = places[first : first + STREAMS_AT_ONCE]
        found = await asyncio.gather(*(work(items[place]) for place in some))
        done.update(zip(some, found, strict=True))
    return done
