"""The folder works in bounded steps, leaves the lag, and shrugs at a plan that grew stale."""

import asyncio

import pytest

from headrace.errors import OutcomeUnknown
from headrace.gc.folding import Folder, FoldLimits
from headrace.index.values import DOMAIN_STATE
from headrace.runtime.crash_points import NoCrashes
from tests.unit.produce.scripted import Hold, Lose, WriterKit


def folder_of(kit: WriterKit, *, records_per_step: int = 4, steps_per_tick: int = 2, lag_records: int = 0) -> Folder:
    return Folder(
        keys=kit.keys,
        metadata=kit.metadata,
        clock=kit.clock,
        crash_points=NoCrashes(),
        limits=FoldLimits(records_per_step=records_per_step, steps_per_tick=steps_per_tick, lag_records=lag_records),
    )


async def logged(count: int) -> tuple[WriterKit, list[bytes | None]]:
    """Return a log with `count` commits besides the creation of its stream."""
    kit = WriterKit()
    (stream,) = await kit.start()
    values: list[bytes | None] = []
    for n in range(count):
        values.append(b"%d" % n)
        await kit.append(stream, b"%d" % n)
    return kit, values


async def folded_to(kit: WriterKit) -> int:
    raw = await kit.metadata.get(kit.keys.state)
    assert raw is not None
    return DOMAIN_STATE.decode(raw.value, raw.key).folded_to


async def test_tick_folds_at_most_so_many_steps_of_so_many_records() -> None:
    kit, values = await logged(19)
    folder = folder_of(kit)
    assert [await folder.tick() for _ in range(4)] == [8, 8, 4, 0]
    assert await folded_to(kit) == 20
    assert await kit.values(kit.streams[0]) == values


async def test_newest_records_are_left_in_the_tail() -> None:
    kit, values = await logged(9)
    folder = folder_of(kit, lag_records=5)
    assert [await folder.tick() for _ in range(2)] == [5, 0]
    assert await folded_to(kit) == 5
    assert await kit.values(kit.streams[0]) == values


async def test_empty_domain_needs_no_folding() -> None:
    assert await folder_of(WriterKit()).tick() == 0


async def test_stale_plan_is_harmless() -> None:
    kit, values = await logged(3)
    late = Hold()
    kit.script.plan("fold_records", late)
    slow = asyncio.create_task(folder_of(kit).tick())
    await kit.clock.settle()
    assert await folder_of(kit).tick() == 4
    late.release()
    assert await slow == 0
    assert await kit.values(kit.streams[0]) == values


async def test_fold_with_an_unknown_outcome_can_be_repeated() -> None:
    kit, values = await logged(3)
    kit.script.plan("fold_records", Lose(OutcomeUnknown("reset")))
    folder = folder_of(kit)
    with pytest.raises(OutcomeUnknown):
        await folder.tick()
    assert await folder.tick() == 0
    assert await folded_to(kit) == 4
    assert await kit.values(kit.streams[0]) == values


async def test_appends_go_on_while_records_are_folded() -> None:
    kit, values = await logged(3)
    late = Hold()
    kit.script.plan("fold_records", late)
    folding = asyncio.create_task(folder_of(kit).tick())
    await kit.clock.settle()
    await kit.append(kit.streams[0], b"meanwhile")
    late.release()
    assert await folding == 5, "the second step finds the record that came meanwhile"
    assert await kit.values(kit.streams[0]) == [*values, b"meanwhile"]
