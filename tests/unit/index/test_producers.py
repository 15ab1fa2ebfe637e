import pytest

from headrace.index.producers import Refused, find_duplicate, living, next_sequence, remember
from headrace.index.values import PartStatus, ProducerState
from tests.log_kit import batch

LAST_SEQUENCE = 2**31 - 1


def state_after(*sequences: int, count: int = 1, epoch: int = 0) -> ProducerState:
    state = None
    for n, sequence in enumerate(sequences):
        produced = batch(count, producer=1, epoch=epoch, sequence=sequence)
        state = remember(state, produced, base_offset=n * count, append_time_ms=n)
    assert state is not None
    return state


def refusal(state: ProducerState | None, sequence: int, *, epoch: int = 0, count: int = 1) -> PartStatus | None:
    try:
        find_duplicate(state, batch(count, producer=1, epoch=epoch, sequence=sequence))
    except Refused as refused:
        return refused.status
    return None


def test_unknown_producer_may_begin_anywhere() -> None:
    assert refusal(None, 0) is None
    assert refusal(None, 17) is None


def test_next_sequence_is_accepted_and_a_gap_is_not() -> None:
    state = state_after(0, 1)
    assert refusal(state, 2) is None
    assert refusal(state, 3) is PartStatus.OUT_OF_ORDER_SEQUENCE


def test_each_of_the_last_five_batches_is_recognised_with_its_first_offset() -> None:
    state = state_after(*range(7))
    for sequence in range(2, 7):
        found = find_duplicate(state, batch(producer=1, sequence=sequence))
        assert found is not None and found.base_offset == sequence
    assert refusal(state, 1) is PartStatus.OUT_OF_ORDER_SEQUENCE


def test_same_sequence_with_another_count_is_out_of_order() -> None:
    assert refusal(state_after(0, count=3), 0, count=2) is PartStatus.OUT_OF_ORDER_SEQUENCE


def test_sequences_wrap_around() -> None:
    assert next_sequence(LAST_SEQUENCE, 1) == 0
    assert next_sequence(LAST_SEQUENCE - 1, 5) == 3
    assert refusal(state_after(LAST_SEQUENCE), 0) is None
    assert refusal(state_after(LAST_SEQUENCE), 1) is PartStatus.OUT_OF_ORDER_SEQUENCE


def test_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    state = state_after(0, 1, epoch=3)
    assert refusal(state, 2, epoch=2) is PartStatus.FENCED_PRODUCER
    assert refusal(state, 2, epoch=4) is PartStatus.OUT_OF_ORDER_SEQUENCE
    assert refusal(state, 0, epoch=4) is None
    newer = remember(state, batch(producer=1, epoch=4, sequence=0), base_offset=9, append_time_ms=9)
    assert [known.base_offset for known in newer.batches] == [9]


def test_producer_id_without_a_sequence_is_invalid() -> None:
    assert refusal(None, -1) is PartStatus.INVALID_SEQUENCE


@pytest.mark.parametrize(("silent_ms", "is_alive"), [(99, True), (100, False)])
def test_state_expires_exactly_when_due(silent_ms: int, is_alive: bool) -> None:
    state = state_after(0)
    found = living(state, now_ms=state.last_append_ms + silent_ms, expiration_ms=100)
    assert (found is not None) is is_alive


def test_producer_inside_a_transaction_never_expires() -> None:
    state = ProducerState(0, (), 0, transaction_start_offset=5)
    assert living(state, now_ms=10**12, expiration_ms=100) is state
