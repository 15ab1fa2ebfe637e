"""Pins live while their tasks say so, and go with all that the tasks have left."""

from headrace.gc.pins import PinBeat, PinKeeper, PinKeeperLimits, PinMetrics
from headrace.gc.removed import Why
from headrace.index.pins import PinLimits, list_pins, put_pin, release_pin
from headrace.index.values import PinRecord
from headrace.model.ids import ObjectKey, PinId
from headrace.runtime.metrics import Metrics
from tests.unit.produce.scripted import WriterKit

PIN, OTHER = PinId("a1" * 16), PinId("b2" * 16)
TIME_TO_LIVE_MS = 60_000
LIMITS = PinLimits(max_age_ms=600_000, skew_ms=1_000)


def keeper_of(kit: WriterKit, *, metrics: PinMetrics | None = None, per_tick: int = 100) -> PinKeeper:
    return PinKeeper(
        keys=kit.keys,
        metadata=kit.metadata,
        objects=kit.objects,
        clock=kit.clock,
        limits=PinKeeperLimits(pins=LIMITS, pins_per_tick=per_tick, objects_per_tick=per_tick),
        metrics=metrics,
    )


async def pin(kit: WriterKit, pin_id: PinId = PIN, *, task_count: int = 2) -> None:
    now_ms = kit.clock.now_ms()
    record = PinRecord(now_ms, now_ms + TIME_TO_LIVE_MS, task_count, "a test")
    await put_pin(kit.keys, pin_id, record).apply(kit.metadata)


async def living(kit: WriterKit) -> list[PinId]:
    return [found.id for found in await list_pins(kit.metadata, kit.keys)]


async def stored(kit: WriterKit) -> list[ObjectKey]:
    return [info.key async for info in kit.objects.list("")]


async def test_pin_of_a_task_that_beats_outlives_its_time() -> None:
    kit = WriterKit()
    await pin(kit)
    for _ in range(5):
        await PinBeat(kit.objects, PIN, 0).beat()
        await kit.clock.advance(TIME_TO_LIVE_MS / 2000)
        await keeper_of(kit).tick()
    assert await living(kit) == [PIN]
    await kit.clock.advance(2 * TIME_TO_LIVE_MS / 1000)
    await keeper_of(kit).tick()
    assert await living(kit) == [] and await stored(kit) == []


async def test_pin_ends_when_all_its_tasks_are_done() -> None:
    kit = WriterKit()
    await pin(kit)
    for task in range(2):
        assert await living(kit) == [PIN]
        await PinBeat(kit.objects, PIN, task).beat()
        await PinBeat(kit.objects, PIN, task).done()
        await keeper_of(kit).tick()
    assert await living(kit) == [] and await stored(kit) == []


async def test_no_pin_lives_for_ever() -> None:
    kit = WriterKit()
    await pin(kit)
    for _ in range(11):
        await kit.clock.advance(60)
        await PinBeat(kit.objects, PIN, "driver").beat()
    await keeper_of(kit).tick()
    assert await living(kit) == []


async def test_what_a_late_task_leaves_behind_its_pin_is_swept() -> None:
    kit = WriterKit()
    await pin(kit)
    await PinBeat(kit.objects, PIN, 0).beat()
    await release_pin(kit.keys, PIN).apply(kit.metadata)
    await kit.objects.put(ObjectKey(f"pins/{PIN}/notes.txt"), [b"not ours"])
    removed = await keeper_of(kit).tick()
    assert [(one.key, one.why) for one in removed] == [(f"pins/{PIN}/alive-0", Why.PIN)]
    assert await stored(kit) == [f"pins/{PIN}/notes.txt"]


async def test_work_per_tick_is_bounded_and_goes_round() -> None:
    kit = WriterKit()
    await pin(kit)
    await pin(kit, OTHER, task_count=1)
    for task in range(5):
        await PinBeat(kit.objects, OTHER, task).done()
    keeper = keeper_of(kit, per_tick=1)
    for _ in range(20):
        await keeper.tick()
    assert await living(kit) == [PIN]
    assert await stored(kit) == []


async def test_survey_touches_nothing() -> None:
    kit = WriterKit()
    await pin(kit, task_count=1)
    await PinBeat(kit.objects, PIN, 0).done()
    await PinBeat(kit.objects, OTHER, 0).beat()
    found = await keeper_of(kit).survey()
    assert {one.key for one in found} == set(await stored(kit))
    assert len(await stored(kit)) == 2 and await living(kit) == [PIN]


async def test_metrics_tell_how_many_and_how_old() -> None:
    kit = WriterKit()
    metrics = Metrics()
    shown = PinMetrics(metrics)
    await pin(kit)
    await kit.clock.advance(7)
    await keeper_of(kit, metrics=shown).tick()
    text = metrics.render().decode()
    assert "headrace_pins_live 1.0" in text and "headrace_pins_oldest_age_seconds 7.0" in text
