"""Clients of topics: they produce, read, delete records, and delete and create topics, and take every error.

They insist as those of the log's scenario do (`simulation/clients.py`), until a topic is deleted under them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headrace.errors import Corrupt, Exists, HeadraceError, Missing
from headrace.fetch.runs import Run
from headrace.index.values import PartResult, PartStatus
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.runtime.clock import Clock
from headrace.runtime.rng import Rng
from headrace.testing.simulation.clients import BEGIN_ANEW_RATE, PAUSE_SECONDS, REQUEST_TIMEOUT_SECONDS, ROUNDS_PER_ID
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.tables.broker import TableBroker
from headrace.testing.simulation.tables.history import TableHistory
from headrace.testing.simulation.tables.records import MAX_RECORDS, Sent, make_sent, read_imprints
from headrace.topics.admin import NewTopic

MAX_PRODUCERS = 100

Find = Callable[[str], Awaitable[Topic | None]]
"""Looks for a topic by its name, past all faults."""


class TopicClient:
    """What all clients share: brokers to choose from, time, chance and a memory."""

    def __init__(
        self, *, brokers: Callable[[], list[TableBroker]], clock: Clock, rng: Rng, history: TableHistory
    ) -> None:
        self._brokers = brokers
        self._clock = clock
        self._rng = rng
        self._history = history

    def _any_broker(self) -> TableBroker:
        brokers = self._brokers()
        return brokers[self._rng.randrange(0, len(brokers))]

    def _any_stream(self) -> StreamId:
        streams = self._history.living_streams
        return streams[self._rng.randrange(0, len(streams))]

    async def _pause(self) -> None:
        await self._clock.sleep(self._rng.uniform(0, PAUSE_SECONDS))


class TopicProducer(TopicClient):
    """Sends batches until each has an offset, or its topic is gone."""

    def __init__(
        self,
        number: int,
        *,
        is_idempotent: bool,
        brokers: Callable[[], list[TableBroker]],
        clock: Clock,
        rng: Rng,
        history: TableHistory,
    ) -> None:
        super().__init__(brokers=brokers, clock=clock, rng=rng, history=history)
        self._number = number
        self._producer_id = number
        self._is_idempotent = is_idempotent
        self._sequences: dict[StreamId, int] = {}
        self._name_count = 0

    async def run(self, rounds: int) -> None:
        """Send bursts of up to five batches, each to one stream; begin anew under another id now and then."""
        for number in range(rounds):
            if number % ROUNDS_PER_ID == 0:
                self._producer_id = self._number + number * MAX_PRODUCERS
                self._sequences.clear()
            stream = self._any_stream()
            burst = [self._next(stream) for _ in range(self._rng.randrange(1, 6))]
            broker = self._any_broker()
            answers = await asyncio.gather(*(self._send(broker, stream, sent) for sent in burst))
            for sent, answer in zip(burst, answers, strict=True):
                await self._finish(stream, sent, answer)
            await self._clock.sleep(self._rng.uniform(0, 5 * PAUSE_SECONDS))

    def _next(self, stream: StreamId) -> Sent:
        count = self._rng.randrange(1, MAX_RECORDS)
        names = [b"%d/%d/%d" % (self._producer_id, stream, self._name_count + n) for n in range(count)]
        self._name_count += count
        at_ms = self._clock.now_ms() - self._rng.randrange(0, 5_000)
        if not self._is_idempotent:
            return make_sent(names, rng=self._rng, at_ms=at_ms)
        sequence = self._sequences.get(stream, 0)
        self._sequences[stream] = sequence + count
        sent = make_sent(
            names,
            rng=self._rng,
            at_ms=at_ms,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        self._history.idempotent_values.update(sent.imprints)
        return sent

    async def _send(self, broker: TableBroker, stream: StreamId, sent: Sent) -> PartResult | None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                return await broker.process.call(broker.produce(stream, sent.data, sent.summary))
        except (HeadraceError, TimeoutError):
            return None

    async def _finish(self, stream: StreamId, sent: Sent, answer: PartResult | None) -> None:
        while answer is None or answer.status not in (PartStatus.ACCEPTED, PartStatus.DUPLICATE):
            if stream in self._history.deleted:
                return
            await self._pause()
            answer = await self._send(self._any_broker(), stream, sent)
        self._history.acknowledge(stream, answer.base_offset, list(sent.imprints))


class TopicConsumer(TopicClient):
    """Reads streams from their beginning, from any broker, and insists on every offset, in order, once."""

    async def run(self, rounds: int) -> None:
        """Read a little, again and again; now and then begin anew, where entries have been swapped meanwhile."""
        positions: dict[StreamId, int] = {}
        for _ in range(rounds):
            for stream in self._history.living_streams:
                begins_anew = self._rng.random() < BEGIN_ANEW_RATE
                position = 0 if begins_anew else positions.get(stream, 0)
                positions[stream] = await self._advance(stream, position)
            await self._clock.sleep(self._rng.uniform(0, 3 * PAUSE_SECONDS))

    async def _advance(self, stream: StreamId, position: int) -> int:
        broker = self._any_broker()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                runs = await broker.process.call(broker.read(stream, position))
                if not runs:
                    head = await broker.process.call(broker.head(stream))
                    return position if head is None else max(position, head.log_start)
        except Corrupt as error:
            if stream in self._history.deleted:
                return position
            raise Violation(f"{broker.process.name} found damage: {error}") from error
        except (HeadraceError, TimeoutError):
            return position
        if not runs[0].start_offset <= position < runs[0].end_offset:
            raise Violation(f"stream {stream}: asked for {position}, got {runs[0].start_offset}")
        next_offset = runs[0].start_offset
        for run in runs:
            self._check_run(stream, next_offset, run, broker.process.name)
            next_offset = run.end_offset
        return next_offset

    def _check_run(self, stream: StreamId, next_offset: int, run: Run, who: str) -> None:
        imprints = read_imprints(run.data)
        expected = list(range(next_offset, run.end_offset))
        if [offset for offset, _ in imprints] != expected:
            found = [offset for offset, _ in imprints]
            raise Violation(f"stream {stream}: {who} read {found} where {expected} lie")
        for offset, imprint in imprints:
            self._history.see(stream, offset, imprint)


class RecordDeleter(TopicClient):
    """Moves log starts forward, as retention does; often into the middle of an entry."""

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            await self._clock.sleep(self._rng.uniform(1, 6))
            broker, stream = self._any_broker(), self._any_stream()
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                    head = await broker.process.call(broker.head(stream))
                    if head is None or head.high_watermark == head.log_start:
                        continue
                    offset = self._rng.randrange(head.log_start, head.high_watermark + 1)
                    known = self._history.log_starts.get(stream, 0)
                    self._history.log_starts[stream] = max(known, offset)
                    await broker.process.call(broker.advance_log_start(stream, offset))
            except (HeadraceError, TimeoutError):
                continue


class TopicOwner(TopicClient):
    """Creates topics, and deletes some of them on the way, to create them again under the same name."""

    async def create(self, new: NewTopic, find: Find) -> None:
        """Create a topic through some broker, however often it takes; `find` looks past all faults."""
        while (topic := await find(new.name)) is None:
            broker = self._any_broker()
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                    await broker.process.call(broker.create_topic(new))
            except (HeadraceError, TimeoutError, Exists):
                await self._pause()
        self._history.created(topic)

    async def run(self, again: Sequence[NewTopic], find: Find) -> None:
        """Delete and create anew, one after the other."""
        for new in again:
            await self._clock.sleep(self._rng.uniform(1, 7))
            topic = await find(new.name)
            assert topic is not None, "topics are only deleted here"
            self._history.deletes(topic)
            while (left := await find(new.name)) is not None and left.id == topic.id:
                broker = self._any_broker()
                try:
                    async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                        await broker.process.call(broker.delete_topic(topic.id))
                except (HeadraceError, TimeoutError, Missing):
                    await self._pause()
            await self._clock.sleep(self._rng.uniform(0, 4))
            await self.create(new, find)
