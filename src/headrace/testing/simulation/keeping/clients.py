"""Clients that stay for weeks: each producer has a topic of its own, consumers follow it and never begin anew."""

import asyncio
from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.runtime.clock import Clock
from headrace.runtime.rng import Rng
from headrace.testing.simulation.clients import MAX_PRODUCERS, REQUEST_TIMEOUT_SECONDS
from headrace.testing.simulation.compaction.clients import HoleConsumer, KeyedProducer, key_and_value
from headrace.testing.simulation.tables.broker import TableBroker
from headrace.testing.simulation.tables.clients import TopicConsumer
from headrace.testing.simulation.tables.history import TableHistory
from headrace.testing.simulation.tables.records import Sent

ROUNDS_PER_ID = 8
MAX_BURST = 4
BETWEEN_BURSTS_SECONDS = 9.0
"""At most; four hours of the wall clock on average."""

BETWEEN_READS_SECONDS = 4.0


class WeeksProducer(KeyedProducer):
    """An idempotent producer of one topic."""

    def __init__(
        self,
        number: int,
        topic: Topic,
        *,
        brokers: Callable[[], list[TableBroker]],
        clock: Clock,
        rng: Rng,
        history: TableHistory,
    ) -> None:
        super().__init__(number, is_idempotent=True, brokers=brokers, clock=clock, rng=rng, history=history)
        self._topic = topic

    def _any_stream(self) -> StreamId:
        return self._topic.streams[self._rng.randrange(0, len(self._topic.streams))]

    async def run_until(self, end_at: float) -> None:
        """Send small bursts until the clock says so; begin anew under another id now and then."""
        number = 0
        while self._clock.monotonic() < end_at:
            if number % ROUNDS_PER_ID == 0:
                self._producer_id = self._number + number * MAX_PRODUCERS
                self._sequences.clear()
            number += 1
            stream = self._any_stream()
            burst = [self._next(stream) for _ in range(self._rng.randrange(1, MAX_BURST + 1))]
            broker = self._any_broker()
            answers = await asyncio.gather(*(self._send(broker, stream, sent) for sent in burst))
            for sent, answer in zip(burst, answers, strict=True):
                await self._finish(stream, sent, answer)
            await self._clock.sleep(self._rng.uniform(0, BETWEEN_BURSTS_SECONDS))

    def _next(self, stream: StreamId) -> Sent:
        sent = super()._next(stream)
        self._history.idempotent_values.update(sent.imprints)
        self._history.timestamps.update((imprint, key_and_value(imprint)[0]) for imprint in sent.imprints)
        return sent


class Follower(TopicConsumer):
    """Reads every stream of one topic once, in order, and goes on for as long as there is something to come."""

    def __init__(
        self,
        topic: Topic,
        *,
        brokers: Callable[[], list[TableBroker]],
        clock: Clock,
        rng: Rng,
        history: TableHistory,
    ) -> None:
        super().__init__(brokers=brokers, clock=clock, rng=rng, history=history)
        self._topic = topic
        self.positions: dict[StreamId, int] = dict.fromkeys(topic.streams, 0)

    async def run_until(self, end_at: float) -> None:
        """Read a little of each stream, again and again; in the end, read all that is left."""
        while self._clock.monotonic() < end_at:
            for stream, position in self.positions.items():
                self.positions[stream] = await self._advance(stream, position)
            await self._clock.sleep(self._rng.uniform(0, BETWEEN_READS_SECONDS))
        await self.read_all()

    async def read_all(self) -> None:
        """Read on to the end of each stream, however often brokers fail."""
        for stream in self.positions:
            while not await self._is_at_end(stream):
                position = self.positions[stream]
                self.positions[stream] = await self._advance(stream, position)
                if self.positions[stream] == position:
                    await self._pause()

    async def _is_at_end(self, stream: StreamId) -> bool:
        broker = self._any_broker()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                head = await broker.process.call(broker.head(stream))
        except (HeadraceError, TimeoutError):
            return False
        return head is not None and self.positions[stream] >= head.high_watermark


class HoleFollower(HoleConsumer, Follower):
    """Reads a compacted topic: offsets may be left out."""
