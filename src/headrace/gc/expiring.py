"""Forget what has been silent for too long, in bounded steps: idempotent producers, sinks, and writes of sinks.

Commits treat an expired producer as absent already; this only frees the space. See `index/trim.py` for the rule. What
sinks are forgotten by is in `index/sinks.py`.
"""

from collections.abc import Callable, Sequence

from headrace.index.sinks import expire_sinks, expire_writes
from headrace.index.trim import expire_producers
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Key, MetadataStore
from headrace.model.ids import StreamId
from headrace.runtime.clock import Clock


class ProducerExpirer:
    """Walks the streams of this broker's topics, some per tick, round and round. Any number of brokers may do it."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        clock: Clock,
        streams: Callable[[], Sequence[StreamId]],
        expiration_ms: int,
        streams_per_tick: int,
        producers_per_step: int,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._clock = clock
        self._streams = streams
        self._expiration_ms = expiration_ms
        self._streams_per_tick = streams_per_tick
        self._producers_per_step = producers_per_step
        self._ahead: list[StreamId] = []
        self._after: Key | None = None

    async def tick(self) -> int:
        """Look at the next streams, or at the rest of a large one; return how many producers were forgotten."""
        forgotten = 0
        for _ in range(self._streams_per_tick):
            if not self._ahead:
                self._ahead = sorted(self._streams(), reverse=True)
                if not self._ahead:
                    break
            forgotten += await self._step(self._ahead[-1])
        return forgotten

    async def _step(self, stream: StreamId) -> int:
        rule = expire_producers(
            self._keys,
            stream,
            now_ms=self._clock.now_ms(),
            expiration_ms=self._expiration_ms,
            max_keys=self._producers_per_step,
            after=self._after,
        )
        step = await rule.apply(self._metadata)
        self._after = step.next_after
        if step.next_after is None:
            self._ahead.pop()
        return step.expired_count


class SinkExpirer:
    """Walks the sinks and their writes, a page of each per tick, round and round. Any number of brokers may do it."""

    def __init__(
        self, *, keys: DomainKeys, metadata: MetadataStore, clock: Clock, expiration_ms: int, sinks_per_step: int
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._clock = clock
        self._expiration_ms = expiration_ms
        self._sinks_per_step = sinks_per_step
        self._after_write: Key | None = None
        self._after_sink: Key | None = None

    async def tick(self) -> int:
        """Look at the next page; return how many sinks were forgotten and writes ended."""
        now_ms, limit = self._clock.now_ms(), self._sinks_per_step
        writes = expire_writes(self._keys, now_ms=now_ms, max_keys=limit, after=self._after_write)
        ended = await writes.apply(self._metadata)
        self._after_write = ended.next_after
        sinks = expire_sinks(
            self._keys, now_ms=now_ms, expiration_ms=self._expiration_ms, max_keys=limit, after=self._after_sink
        )
        forgotten = await sinks.apply(self._metadata)
        self._after_sink = forgotten.next_after
        return ended.expired_count + forgotten.expired_count
