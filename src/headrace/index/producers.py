"""The idempotent producer's check: is this batch new, a repetition, or out of order?

Kafka's rules, per (stream, producer id):
- the last five batches are remembered; a batch that equals one of them is answered with its first offset
- otherwise its sequence must follow the last one; sequences wrap from 2³¹ − 1 to 0
- a newer epoch begins at sequence 0; an older epoch is fenced
- a producer that is unknown here, or whose state has expired, may begin anywhere; except where the writer knows
  that an earlier batch of it was given up: then that one must come first, or the order would be lost for good
"""

from headrace.index.values import PartStatus, ProducedBatch, ProducerState
from headrace.model.batches import BatchSummary

REMEMBERED_BATCHES = 5
_SEQUENCES = 2**31


class Refused(Exception):
    """A part cannot be accepted; it fails alone. Only raised and caught inside a commit's decision."""

    def __init__(self, status: PartStatus) -> None:
        super().__init__(status.name)
        self.status = status


def next_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence that follows a batch."""
    return (base_sequence + record_count) % _SEQUENCES


def living(state: ProducerState | None, *, now_ms: int, expiration_ms: int) -> ProducerState | None:
    """Return the state unless it has expired. A producer inside a transaction never expires."""
    if state is None or state.transaction_start_offset is not None:
        return state
    return None if now_ms - state.last_append_ms >= expiration_ms else state


def find_duplicate(
    state: ProducerState | None, batch: BatchSummary, *, begins_by: int | None = None
) -> ProducedBatch | None:
    """Return the remembered batch that this one repeats, if there is one; raise `Refused` if it cannot be next.

    A producer without a state begins at `begins_by` or before, if that is given.
    """
    if batch.base_sequence < 0:
        raise Refused(PartStatus.INVALID_SEQUENCE)
    if state is None:
        if begins_by is not None and batch.base_sequence > begins_by:
            raise Refused(PartStatus.OUT_OF_ORDER_SEQUENCE)
        return None
    if batch.producer_epoch < state.epoch:
        raise Refused(PartStatus.FENCED_PRODUCER)
    if batch.producer_epoch > state.epoch:
        if batch.base_sequence != 0:
            raise Refused(PartStatus.OUT_OF_ORDER_SEQUENCE)
        return None
    for known in state.batches:
        if known.base_sequence == batch.base_sequence and known.record_count == batch.record_count:
            return known
    if state.batches:
        last = state.batches[-1]
        if batch.base_sequence != next_sequence(last.base_sequence, last.record_count):
            raise Refused(PartStatus.OUT_OF_ORDER_SEQUENCE)
    return None


def remember(
    state: ProducerState | None, batch: BatchSummary, *, base_offset: int, append_time_ms: int
) -> ProducerState:
    """Return the state after a batch was accepted."""
    kept: tuple[ProducedBatch, ...] = ()
    transaction_start_offset = None
    if state is not None and state.epoch == batch.producer_epoch:
        kept = state.batches[-(REMEMBERED_BATCHES - 1) :]
        transaction_start_offset = state.transaction_start_offset
    produced = ProducedBatch(batch.base_sequence, batch.record_count, base_offset, append_time_ms)
    return ProducerState(batch.producer_epoch, (*kept, produced), append_time_ms, transaction_start_offset)
