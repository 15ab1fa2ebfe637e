"""Pins: put once, judged by revisions, and dead when nobody is left who reads."""

import pytest

from headrace.errors import Exists, Invalid, Retryable
from headrace.index import pins
from headrace.index.pins import (
    Pin,
    PinLimits,
    floor_of,
    is_dead,
    list_pins,
    put_pin,
    read_pin_floor,
    release_pin,
)
from headrace.index.values import PinRecord
from headrace.model.ids import PinId
from tests.log_kit import LogKit

FIRST, SECOND = PinId("a" * 32), PinId("b" * 32)
RECORD = PinRecord(1_000, 61_000, 2, "a read of orders")
LIMITS = PinLimits(max_age_ms=600_000, skew_ms=5_000)


async def test_pin_is_put_listed_and_released() -> None:
    kit = LogKit()
    await put_pin(kit.keys, FIRST, RECORD).apply(kit.store)
    (found,) = await list_pins(kit.store, kit.keys)
    assert (found.id, found.record) == (FIRST, RECORD)
    assert await release_pin(kit.keys, FIRST).apply(kit.store)
    assert not await release_pin(kit.keys, FIRST).apply(kit.store)
    assert await list_pins(kit.store, kit.keys) == []


async def test_putting_it_again_keeps_the_revision() -> None:
    kit = LogKit()
    await put_pin(kit.keys, FIRST, RECORD).apply(kit.store)
    before = await list_pins(kit.store, kit.keys)
    await kit.streams(1)
    await put_pin(kit.keys, FIRST, RECORD).apply(kit.store)
    assert await list_pins(kit.store, kit.keys) == before


async def test_id_of_another_read_is_refused() -> None:
    kit = LogKit()
    await put_pin(kit.keys, FIRST, RECORD).apply(kit.store)
    with pytest.raises(Exists, match="take an id that was never used"):
        await put_pin(kit.keys, FIRST, PinRecord(1_000, 61_000, 2, "another")).apply(kit.store)


async def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "MAX_PINS", 1)
    kit = LogKit()
    await put_pin(kit.keys, FIRST, RECORD).apply(kit.store)
    with pytest.raises(Retryable, match="1 reads are pinned already"):
        await put_pin(kit.keys, SECOND, RECORD).apply(kit.store)
    await put_pin(kit.keys, FIRST, RECORD).apply(kit.store)


@pytest.mark.parametrize("record", [PinRecord(5, 5, 0, "x"), PinRecord(0, 1, 0, "x" * 1000)])
def test_senseless_pin_is_refused(record: PinRecord) -> None:
    with pytest.raises(Invalid):
        put_pin(LogKit().keys, FIRST, record)


async def test_floor_is_that_of_the_oldest() -> None:
    kit = LogKit()
    assert not (await read_pin_floor(kit.store, kit.keys)).holds(1)
    await put_pin(kit.keys, FIRST, RECORD).apply(kit.store)
    await put_pin(kit.keys, SECOND, RECORD).apply(kit.store)
    first, second = await list_pins(kit.store, kit.keys)
    floor = await read_pin_floor(kit.store, kit.keys)
    assert floor.revision == first.revision < second.revision
    assert not floor.holds(first.revision - 1) and floor.holds(first.revision + 1)
    assert floor_of([second]).revision == second.revision
    assert floor_of(list[Pin]()).revision is None


@pytest.mark.parametrize(
    ("now_ms", "done_count", "last_beat_ms", "expected"),
    [
        pytest.param(2_000, 0, None, False, id="young"),
        pytest.param(2_000, 1, 2_000, False, id="one task is left"),
        pytest.param(2_000, 2, 2_000, True, id="all tasks are done"),
        pytest.param(65_999, 0, None, False, id="expired by less than clocks may differ"),
        pytest.param(66_000, 0, None, True, id="expired and nobody ever beat"),
        pytest.param(66_000, 0, 50_000, False, id="expired and a task is at work"),
        pytest.param(115_000, 0, 50_000, True, id="the last beat is too long ago"),
        pytest.param(606_000, 0, 605_999, True, id="older than any pin may be"),
    ],
)
def test_when_a_pin_is_dead(now_ms: int, done_count: int, last_beat_ms: int | None, expected: bool) -> None:
    dead = is_dead(RECORD, done_count=done_count, last_beat_ms=last_beat_ms, now_ms=now_ms, limits=LIMITS)
    assert dead is expected


def test_unknown_number_of_tasks_is_never_done() -> None:
    record = PinRecord(0, 60_000, 0, "a stream")
    assert not is_dead(record, done_count=7, last_beat_ms=1, now_ms=1, limits=LIMITS)
