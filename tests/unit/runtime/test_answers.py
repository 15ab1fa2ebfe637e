"""Memory for answers: small ones never wait, large ones get smaller, then wait in turn; nothing is counted twice."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.answers import (
    ENDLESS_ROOM,
    FIRST_ANSWER_BYTES,
    PROVEN_BYTES,
    SMALL_ANSWER_BYTES,
    TURN_BYTES,
    AnswerBudget,
    AnswerRoom,
)

MIB = 1024 * 1024


def proven(budget: AnswerBudget) -> AnswerRoom:
    """Return the room of a client that has taken much."""
    room = AnswerRoom(budget)
    room.answered(400 * MIB)
    room.count(0)
    return room


def test_answer_counts_from_before_it_is_read_until_it_was_sent() -> None:
    budget = AnswerBudget(256 * MIB)
    room = AnswerRoom(budget)
    assert room.take(3 * MIB) and budget.taken_bytes == 3 * MIB
    room.shrink(MIB)
    assert budget.taken_bytes == MIB
    room.answered(MIB + 50)
    assert budget.taken_bytes == room.unsent_bytes == MIB + 50
    room.count(1)
    assert budget.taken_bytes == MIB + 50, "its last byte keeps all of it"
    room.count(0)
    assert budget.taken_bytes == room.unsent_bytes == 0


def test_only_the_answers_that_were_not_sent_whole_count() -> None:
    budget = AnswerBudget(256 * MIB)
    room = AnswerRoom(budget)
    room.answered(5 * MIB)
    room.answered_beside(2 * MIB)
    room.count(3 * MIB)
    assert budget.taken_bytes == 7 * MIB
    room.count(MIB)
    assert budget.taken_bytes == 2 * MIB


def test_client_gets_as_much_as_it_has_shown_to_take() -> None:
    budget = AnswerBudget(1024 * MIB)
    room = AnswerRoom(budget)
    assert room.allowance_bytes == FIRST_ANSWER_BYTES
    room.answered(PROVEN_BYTES)
    room.count(PROVEN_BYTES)
    assert room.allowance_bytes == FIRST_ANSWER_BYTES, "it has taken nothing of it"
    room.count(0)
    room.answered(100 * MIB)
    room.count(0)
    assert room.allowance_bytes == (100 * MIB + PROVEN_BYTES) // 4


def test_answers_get_smaller_as_memory_gets_short_and_small_ones_never_wait() -> None:
    budget = AnswerBudget(64 * MIB)
    room = proven(budget)
    budget.change(56 * MIB)
    assert room.allowance_bytes == 2 * MIB
    budget.change(8 * MIB)
    assert room.allowance_bytes == SMALL_ANSWER_BYTES
    assert room.take(SMALL_ANSWER_BYTES)
    room.release()
    assert not room.take(SMALL_ANSWER_BYTES + 1)
    assert budget.taken_bytes == 64 * MIB


def test_clients_that_have_not_taken_much_leave_half_for_the_others() -> None:
    budget = AnswerBudget(64 * MIB)
    silent = [AnswerRoom(budget) for _ in range(200)]
    for room in silent:
        size = room.allowance_bytes
        if room.take(size):
            room.answered(size)
            room.count(size)
    assert 30 * MIB < budget.taken_bytes < 44 * MIB
    assert proven(budget).allowance_bytes > 4 * MIB


async def test_fetches_wait_in_order_and_those_of_proven_clients_go_first() -> None:
    budget = AnswerBudget(8 * MIB)
    served: list[str] = []

    async def fetch(name: str, room: AnswerRoom) -> None:
        await room.turn()
        assert room.allowance_bytes == TURN_BYTES and room.take(TURN_BYTES)
        served.append(name)

    budget.change(8 * MIB)
    rooms = [AnswerRoom(budget), AnswerRoom(budget), proven_later(budget)]
    tasks = [asyncio.create_task(fetch(name, room)) for name, room in zip(("a", "b", "proven"), rooms, strict=True)]
    await asyncio.sleep(0)
    assert budget.waiting_count == 3 and budget.is_pressed
    budget.change(-TURN_BYTES)
    await asyncio.sleep(0)
    assert served == ["proven"]
    budget.change(-6 * TURN_BYTES)
    await asyncio.gather(*tasks)
    assert served == ["proven", "a", "b"]
    assert budget.taken_bytes == 4 * TURN_BYTES


def proven_later(budget: AnswerBudget) -> AnswerRoom:
    room = AnswerRoom(budget)
    room.is_proven = True
    return room


async def test_fetch_that_is_cancelled_in_line_leaves_nothing_behind() -> None:
    budget = AnswerBudget(8 * MIB)
    budget.change(8 * MIB)
    for is_let_on in (False, True):
        room = AnswerRoom(budget)
        waiting = asyncio.create_task(room.turn())
        await asyncio.sleep(0)
        if is_let_on:
            budget.change(-6 * MIB)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        room.release()
        assert budget.waiting_count == 0
    assert budget.taken_bytes == 2 * MIB


def test_lost_connection_gives_everything_back_and_takes_no_more() -> None:
    budget = AnswerBudget(64 * MIB)
    room = AnswerRoom(budget)
    room.answered(MIB)
    assert room.take(2 * MIB)
    room.close()
    assert budget.taken_bytes == 0
    room.take(MIB)
    room.release()
    room.close()
    assert budget.taken_bytes == 0


def test_memory_that_looks_short_is_counted_again_first() -> None:
    rooms: list[AnswerRoom] = []

    def recount() -> None:
        for room in rooms:
            room.count(0)

    budget = AnswerBudget(8 * MIB, recount=recount)
    rooms += [AnswerRoom(budget) for _ in range(8)]
    for room in rooms:
        room.answered(MIB)
    assert rooms[0].take(MIB), "all of it has been sent"
    assert budget.taken_bytes == MIB


def test_reader_is_too_slow_only_if_it_takes_little_while_it_is_watched() -> None:
    room = AnswerRoom(AnswerBudget(64 * MIB))
    room.answered(10 * MIB)
    room.count(10 * MIB)
    judged = []
    for now, left in ((0.0, 10), (0.3, 10), (0.6, 8), (1.2, 8), (100.0, 8), (100.6, 8)):
        room.count(left * MIB)
        judged.append(room.is_too_slow(now, patience_s=0.5, bytes_per_second=MIB))
    assert judged == [False, False, False, True, False, True]
    room.count(0)
    assert not room.is_too_slow(101.2, patience_s=0.5, bytes_per_second=MIB)


def test_room_without_a_connection_has_no_limit() -> None:
    assert ENDLESS_ROOM.take(1 << 40) and ENDLESS_ROOM.allowance_bytes > 1 << 40


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fetch", "found", "answer", "beside", "send", "park", "lose"]),
            st.integers(0, 7),
            st.integers(0, 6 * MIB),
        ),
        max_size=150,
    )
)
def test_what_is_taken_is_what_rooms_hold_and_large_answers_respect_the_limit(
    steps: list[tuple[str, int, int]],
) -> None:
    budget = AnswerBudget(16 * MIB)
    rooms = [AnswerRoom(budget) for _ in range(8)]
    reserved = [0] * 8
    for step, which, size in steps:
        room = rooms[which]
        if step == "fetch" and not reserved[which]:
            wanted = min(size, room.allowance_bytes)
            before = budget.taken_bytes
            if room.take(wanted):
                reserved[which] = room._reserved_bytes
                assert reserved[which] == wanted or wanted <= SMALL_ANSWER_BYTES
                assert wanted <= SMALL_ANSWER_BYTES or before + wanted <= budget.limit_bytes
        elif step == "found":
            reserved[which] = min(size, reserved[which])
            room.shrink(reserved[which])
        elif step == "answer":
            room.answered(reserved[which])
            reserved[which] = 0
        elif step == "beside":
            room.answered_beside(min(size, 1000))
        elif step == "send":
            room.count(min(size, room._left_bytes))
        elif step == "park":
            room.release()
            reserved[which] = 0
        elif step == "lose":
            room.close()
            rooms[which], reserved[which] = AnswerRoom(budget), 0
        assert budget.taken_bytes == sum(reserved) + sum(one.unsent_bytes for one in rooms)
        assert all(one.unsent_bytes >= one._left_bytes for one in rooms)
    for room in rooms:
        room.close()
    assert budget.taken_bytes == 0
