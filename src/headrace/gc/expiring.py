"""Forget what has been silent for too long, in bounded steps: idempotent producers, sinks, and writes of sinks.

Commits treat an expired producer as absent already; this only frees the space. See `index/trim.py` for the rule. What
sinks are forgotten by is in `index/sinks.py`.

Both walk in rounds, and a tick is one step of a round. What there is to forget is looked for in plain reads: where
there is nothing, nobody's commit waits for a transaction.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from headrace.errors import Corrupt
from headrace.index.sinks import expire_sinks, expire_writes
from headrace.index.trim import forget_producers, is_silent
from headrace.index.values import PRODUCER_STATE, SINK_WRITE, SinkWrite
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.port import Key, MetadataStore, Versioned
from headrace.model.ids import StreamId
from headrace.runtime.metrics import Metrics

MAX_SHOWN_WRITES = 1_000


@dataclass(slots=True)
class _Looked:
    """What one step has found: who is silent, what is damaged, how many streams were seen to their end."""

    silent: list[Key] = field(default_factory=list)
    damaged: list[Corrupt] = field(default_factory=list)
    ended_streams: int = 0
    after: Key | None = None


class ProducerExpirer:
    """Walks the streams of this broker's topics in rounds. Any number of brokers may do it.

    A tick looks at some streams, and at some producers of them; one transaction forgets those that are silent. It
    goes by the time that all brokers agreed on when the round began (`clocks.py`), and rests while there is none: one
    clock that is ahead would forget producers that are alive, and their retries would be appended twice.
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
        self._now_ms = 0
        self._ahead: list[StreamId] = []
        self._after: Key | None = None

    @property
    def is_round_over(self) -> bool:
        """Whether the next tick begins with the first stream again."""
        return not self._ahead

    async def tick(self) -> int:
        """Make the next step; return how many producers were forgotten.

        A producer whose state is damaged holds up no other; the first damage is raised in the end.
        """
        if not self._ahead:
            now_ms = await self._agreed_ms()
            if now_ms is None:
                return 0
            self._now_ms = now_ms
            self._ahead = list(reversed(self._streams()))
        looked = await self._look()
        forgotten = 0
        if looked.silent:
            rule = forget_producers(self._keys, looked.silent, now_ms=self._now_ms, expiration_ms=self._expiration_ms)
            forgotten = await rule.apply(self._metadata)
        # Only now: a step that failed is made again.
        del self._ahead[len(self._ahead) - looked.ended_streams :]
        self._after = looked.after
        if looked.damaged:
            raise looked.damaged[0]
        return forgotten

    async def _look(self) -> _Looked:
        """Read the producers of the next streams, as many as one step may have."""
        looked = _Looked(after=self._after)
        room = self._producers_per_step
        for stream in self._ahead[: -self._streams_per_tick - 1 : -1]:
            prefix = self._keys.producers_prefix(stream)
            page = await self._metadata.range(prefix_range(prefix, limit=room, after=looked.after))
            for item in page:
                self._look_at(item, looked)
            if len(page) == room:
                looked.after = page[-1].key
                break
            looked.after = None
            looked.ended_streams += 1
            room -= len(page)
        return looked

    def _look_at(self, item: Versioned, looked: _Looked) -> None:
        try:
            state = PRODUCER_STATE.decode(item.value, item.key)
        except Corrupt as error:
            looked.damaged.append(error)
            return
        if is_silent(state, now_ms=self._now_ms, expiration_ms=self._expiration_ms):
            looked.silent.append(item.key)


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
    """Walks the sinks and their writes in rounds, a page of each per tick. Any number of brokers may do it.

    It goes by the time that all brokers agreed on when the round began (`clocks.py`), and rests while there is none:
    a sink that is forgotten early would append a repeated batch once more.
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
        self._now_ms: int | None = None
        self._after_write: Key | None = None
        self._after_sink: Key | None = None

    @property
    def is_round_over(self) -> bool:
        """Whether the next tick begins with the first sink and the first write again."""
        return self._after_write is None and self._after_sink is None

    async def tick(self) -> int:
        """Look at the next page; return how many sinks were forgotten and writes ended."""
        is_first = self.is_round_over
        if is_first:
            self._now_ms = await self._agreed_ms()
        if self._now_ms is None:
            return 0
        ended = await self._end_writes(self._now_ms) if is_first or self._after_write is not None else 0
        forgotten = await self._forget_sinks(self._now_ms) if is_first or self._after_sink is not None else 0
        if self._metrics is not None:
            self._metrics.expired.inc(ended)
            self._metrics.forgotten.inc(forgotten)
            if self.is_round_over:
                self._metrics.show(await self._live_writes(), self._now_ms)
        return ended + forgotten

    async def _end_writes(self, now_ms: int) -> int:
        limit, after = self._sinks_per_step, self._after_write
        step = await expire_writes(self._keys, now_ms=now_ms, max_keys=limit, after=after).apply(self._metadata)
        self._after_write = step.next_after
        return step.expired_count

    async def _forget_sinks(self, now_ms: int) -> int:
        rule = expire_sinks(
            self._keys,
            now_ms=now_ms,
            expiration_ms=self._expiration_ms,
            max_keys=self._sinks_per_step,
            after=self._after_sink,
        )
        step = await rule.apply(self._metadata)
        self._after_sink = step.next_after
        return step.expired_count

    async def _live_writes(self) -> list[SinkWrite]:
        found = await self._metadata.range(prefix_range(self._keys.sink_writes_prefix, limit=MAX_SHOWN_WRITES))
        return [SINK_WRITE.decode(item.value, item.key) for item in found]
