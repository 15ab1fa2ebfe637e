"""Forget what has been silent for too long, in bounded steps: idempotent producers, sinks, and writes of sinks.

Commits treat an expired producer as absent already; this only frees the space. See `index/trim.py` for the rule. What
sinks are forgotten by is in `index/sinks.py`.
"""

from collections.abc import Awaitable, Callable, Sequence

from headrace.errors import HeadraceError
from headrace.index.sinks import expire_sinks, expire_writes
from headrace.index.trim import expire_producers
from headrace.index.values import SINK_WRITE, SinkWrite
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.port import Key, MetadataStore
from headrace.model.ids import StreamId
from headrace.runtime.metrics import Metrics

MAX_SHOWN_WRITES = 1_000


class ProducerExpirer:
    """Walks the streams of this broker's topics, some per tick, round and round. Any number of brokers may do it.

    It goes by a time that all brokers agree on (`clocks.py`), and rests while there is none: one clock that is ahead
    would forget producers that are alive, and their retries would be appended twice.
    """

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        agreed_ms: Callable[[], Awaitable[int | None]],
        streams: Callable[[], Sequence[StreamId]],
        expiration_ms: int,
        streams_per_tick: int,
        producers_per_step: int,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._agreed_ms = agreed_ms
        self._streams = streams
        self._expiration_ms = expiration_ms
        self._streams_per_tick = streams_per_tick
        self._producers_per_step = producers_per_step
        self._ahead: list[StreamId] = []
        self._after: Key | None = None

    async def tick(self) -> int:
        """Look at the next streams, or at the rest of a large one; return how many producers were forgotten.

        A stream that fails holds up no other; the first failure is raised in the end.
        """
        now_ms = await self._agreed_ms()
        if now_ms is None:
            return 0
        forgotten = 0
        failures: list[HeadraceError] = []
        for _ in range(self._streams_per_tick):
            if not self._ahead:
                self._ahead = sorted(self._streams(), reverse=True)
                if not self._ahead:
                    break
            try:
                forgotten += await self._step(self._ahead[-1], now_ms)
            except HeadraceError as error:
                failures.append(error)
                self._ahead.pop()
                self._after = None
        if failures:
            raise failures[0]
        return forgotten

    async def _step(self, stream: StreamId, now_ms: int) -> int:
        rule = expire_producers(
            self._keys,
            stream,
            now_ms=now_ms,
            expiration_ms=self._expiration_ms,
            max_keys=self._producers_per_step,
            after=self._after,
        )
        step = await rule.apply(self._metadata)
        self._after = step.next_after
        if step.next_after is None:
            self._ahead.pop()
        return step.expired_count


class SinkMetrics:
    """What brokers see of Spark's sink, whose drivers and tasks are processes of their own."""

    def __init__(self, metrics: Metrics) -> None:
        self._live = metrics.gauges(
            "sink_writes_live", f"Writes of Spark's sink that are under way, up to {MAX_SHOWN_WRITES}."
        ).of()
        self._oldest = metrics.gauges(
            "sink_writes_oldest_age_seconds", "The age of the oldest of them; 0 for none."
        ).of()
        self.expired = metrics.counters(
            "sink_writes_expired",
            "Writes that this broker has ended at their age: their drivers are gone, or too slow.",
        ).of()
        self.forgotten = metrics.counters("sinks_forgotten", "Idle sinks that this broker has forgotten.").of()

    def show(self, writes: Sequence[SinkWrite], now_ms: int) -> None:
        """Show the writes that are under way."""
        oldest_ms = min((write.started_at_ms for write in writes), default=now_ms)
        self._live.set(len(writes))
        self._oldest.set(max(0, now_ms - oldest_ms) / 1000)


class SinkExpirer:
    """Walks the sinks and their writes, a page of each per tick, round and round. Any number of brokers may do it.

    It goes by a time that all brokers agree on (`clocks.py`), and rests while there is none: a sink that is forgotten
    early would append a repeated batch once more.
    """

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        agreed_ms: Callable[[], Awaitable[int | None]],
        expiration_ms: int,
        sinks_per_step: int,
        metrics: SinkMetrics | None = None,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._agreed_ms = agreed_ms
        self._expiration_ms = expiration_ms
        self._sinks_per_step = sinks_per_step
        self._metrics = metrics
        self._after_write: Key | None = None
        self._after_sink: Key | None = None

    async def tick(self) -> int:
        """Look at the next page; return how many sinks were forgotten and writes ended."""
        now_ms, limit = await self._agreed_ms(), self._sinks_per_step
        if now_ms is None:
            return 0
        writes = expire_writes(self._keys, now_ms=now_ms, max_keys=limit, after=self._after_write)
        ended = await writes.apply(self._metadata)
        self._after_write = ended.next_after
        sinks = expire_sinks(
            self._keys, now_ms=now_ms, expiration_ms=self._expiration_ms, max_keys=limit, after=self._after_sink
        )
        forgotten = await sinks.apply(self._metadata)
        self._after_sink = forgotten.next_after
        if self._metrics is not None:
            self._metrics.expired.inc(ended.expired_count)
            self._metrics.forgotten.inc(forgotten.expired_count)
            self._metrics.show(await self._live_writes(), now_ms)
        return ended.expired_count + forgotten.expired_count

    async def _live_writes(self) -> list[SinkWrite]:
        found = await self._metadata.range(prefix_range(self._keys.sink_writes_prefix, limit=MAX_SHOWN_WRITES))
        return [SINK_WRITE.decode(item.value, item.key) for item in found]
