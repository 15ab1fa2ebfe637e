"""What requests hand to the writer, where the answers go, and what is remembered of what was given up."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.index.values import PartResult, PartStatus
from headrace.model.batches import BatchSummary
from headrace.model.ids import ProducerId, StreamId

MAX_GIVEN_UP = 10_000
"""How many producers' given-up batches a writer remembers."""


@dataclass(frozen=True, slots=True)
class NewPart:
    """Batches of one request for one stream, back to back in `data`, which stays as it is until they are answered.

    Once they are accepted, their offsets are stamped into `data`, and it goes into the tail cache: it must be
    writable, and not be used for anything else.
    """

    stream: StreamId
    data: memoryview
    batches: Sequence[BatchSummary]

    @property
    def producer(self) -> tuple[StreamId, ProducerId] | None:
        """Whose sequence on which stream the batches continue; `None` for a producer without sequences."""
        return _producer(self.stream, self.batches)


class Appended:
    """One request's parts on their way: `done` is set when each of them has its result, in the order of the parts."""

    __slots__ = ("_left", "done", "results")

    def __init__(self, count: int) -> None:
        self.results: list[PartResult | HeadraceError | None] = [None] * count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = count

    def settle(self, position: int, result: PartResult | HeadraceError) -> None:
        """Note the result of one part."""
        assert self.results[position] is None, f"part {position} was answered twice"
        self.results[position] = result
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


class Offer:
    """One part in a frame, and where its answer goes."""

    __slots__ = ("_appended", "_position", "batches", "data", "stream")

    def __init__(self, part: NewPart, appended: Appended, position: int) -> None:
        self.stream = part.stream
        self.data = part.data
        self.batches = part.batches
        self._appended = appended
        self._position = position

    def settle(self, result: PartResult | HeadraceError) -> None:
        self._appended.settle(self._position, result)

    @property
    def producer(self) -> tuple[StreamId, ProducerId] | None:
        """Whose sequence on which stream the batches continue; `None` for a producer without sequences."""
        return _producer(self.stream, self.batches)


class GivenUp:
    """Remembers, per stream and producer, the first batch that was given up and has not come again.

    What the producer sent behind it may come in any time later: it was sent before the producer could know. The rule
    asks only where a stream has no state of the producer, so what is forgotten here, or done through another broker,
    does no harm. All writers of a process share one: what the last one gave up may come to the next.
    """

    def __init__(self) -> None:
        self._first: OrderedDict[tuple[StreamId, ProducerId], BatchSummary] = OrderedDict()

    def note(self, offer: "Offer | NewPart") -> None:
        """Remember an offer that was given up, or never taken, unless an earlier one is remembered."""
        producer = offer.producer
        if producer is None:
            return
        known = self._first.get(producer)
        batch = offer.batches[0]
        if known is None or _comes_before(batch, known):
            self._first[producer] = batch
            if len(self._first) > MAX_GIVEN_UP:
                self._first.popitem(last=False)

    def note_result(self, offer: Offer, result: PartResult) -> None:
        """Forget the producer once the stream knows it."""
        if not self._first:
            return  # as nearly always, and every part of every frame asks
        if offer.producer is not None and result.status in (PartStatus.ACCEPTED, PartStatus.DUPLICATE):
            self._first.pop(offer.producer, None)

    def begins_by(self, offer: Offer) -> int | None:
        """Return the sequence at which the producer must begin on a stream that does not know it."""
        if not self._first or offer.producer is None:
            return None
        known = self._first.get(offer.producer)
        if known is None or known.producer_epoch != offer.batches[0].producer_epoch:
            return None
        return known.base_sequence


def _producer(stream: StreamId, batches: Sequence[BatchSummary]) -> tuple[StreamId, ProducerId] | None:
    producer_id = batches[0].producer_id
    return None if producer_id < 0 else (stream, producer_id)


def _comes_before(batch: BatchSummary, known: BatchSummary) -> bool:
    """Say whether a producer must begin with this batch rather than with the known one: newer epoch, or earlier."""
    if batch.producer_epoch != known.producer_epoch:
        return batch.producer_epoch > known.producer_epoch
    return batch.base_sequence < known.base_sequence
