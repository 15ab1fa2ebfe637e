"""Tasks of a read over real bytes: the WAL, Parquet with small row groups, and both, give the same rows."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Corrupt, Missing
from headrace.index.cache import IndexCache
from headrace.index.objects import wal_object_key
from headrace.model.extents import WalExtent
from headrace.objects.port import object_key
from headrace.pipeline.scan.conditions import Condition, parse_condition
from headrace.pipeline.scan.options import COLUMNS
from headrace.pipeline.scan.planning import ScannedRange, TaskLimits, plan_tasks
from headrace.pipeline.scan.reading import ScanReader, new_builders
from headrace.pipeline.scan.tasks import ScanTask
from headrace.records.batch import Codec
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.testing.batches import make_batch
from tests.unit.pipeline.test_runner import unreadable
from tests.unit.pipeline.workshop import NOON_MS, Workshop

BATCHES = 30
RECORDS = 10
COUNT = BATCHES * RECORDS


@pytest.fixture
async def workshop(tmp_path: Path) -> AsyncIterator[Workshop]:
    made = Workshop(tmp_path)
    yield made
    await made.close()


def batch(number: int, *, codec: Codec = Codec.NONE) -> bytes:
    records = [
        Record(
            offset=n,
            timestamp_ms=NOON_MS + 1000 * (number * RECORDS + n),
            key=None if n % 3 == 0 else b"k%d" % n,
            value=None if n % 5 == 0 else b"v%d" % (number * RECORDS + n) * 10,
            headers=() if n % 2 else ((b"a", b"1"), (b"\xff", None)),
        )
        for n in range(RECORDS)
    ]
    return bytes(BatchEncoder(codec=codec).encode(columns_of(records)))


async def logged(workshop: Workshop, first: int, end: int) -> None:
    for number in range(first, end):
        await workshop.put(
            workshop.topic.streams[0], batch(number, codec=Codec.GZIP if number % 4 == 1 else Codec.NONE)
        )


async def planned(
    workshop: Workshop, start: int, end: int, *, condition: Condition, min_tasks: int
) -> list[ScanTask]:
    index = IndexCache(workshop.store, workshop.keys, max_folded_entries=1000)
    await index.refresh()
    entries = []
    at = start
    while at < end:
        page = await index.locate(workshop.topic.streams[0], at, limit=7)
        entries += page
        at = page[-1].end_offset
    range_ = ScannedRange(topic="orders", partition=0, start_offset=start, end_offset=end, entries=entries)
    limits = TaskLimits(task_bytes=1_000_000, min_tasks=min_tasks)
    return plan_tasks([range_], condition=condition, limits=limits, domain=workshop.keys.domain)


async def rows(
    workshop: Workshop,
    start: int = 0,
    end: int = COUNT,
    *,
    columns: tuple[str, ...] = COLUMNS,
    where: str = "",
    min_tasks: int = 1,
) -> list[dict[str, Any]]:
    condition = parse_condition(where)
    found: list[dict[str, Any]] = []
    for task in await planned(workshop, start, end, condition=condition, min_tasks=min_tasks):
        reader = ScanReader(task, workshop.objects, columns=columns, condition=condition, batch_rows=64)
        async for some in reader.rows():
            some.validate(full=True)
            assert some.schema.names == list(columns)
            found += some.to_pylist()
    return found


def model() -> list[dict[str, Any]]:
    """Return the rows as Spark's Kafka source would make them."""
    made = []
    for offset in range(COUNT):
        n = offset % RECORDS
        made.append(
            {
                "key": None if n % 3 == 0 else b"k%d" % n,
                "value": None if n % 5 == 0 else b"v%d" % offset * 10,
                "topic": "orders",
                "partition": 0,
                "offset": offset,
                "timestamp": datetime.fromtimestamp((NOON_MS + 1000 * offset) / 1000, tz=UTC),
                "timestampType": 0,
                "headers": None if n % 2 else [{"key": "a", "value": b"1"}, {"key": "�", "value": None}],
            }
        )
    return made


@pytest.mark.parametrize("in_table", [0, 17, BATCHES], ids=["wal", "both", "table"])
async def test_rows_are_the_same_wherever_they_lie(workshop: Workshop, in_table: int) -> None:
    await workshop.begin()
    await logged(workshop, 0, in_table)
    if in_table:
        await workshop.run()
    await logged(workshop, in_table, BATCHES)
    wanted = model()
    assert await rows(workshop) == wanted
    for start, end, min_tasks in ((3, 5, 1), (163, 177, 9), (0, 171, 4), (165, COUNT - 1, 40), (5, 295, 100)):
        assert await rows(workshop, start, end, min_tasks=min_tasks) == wanted[start:end]
    some = await rows(workshop, columns=("offset", "value"))
    assert some == [{"offset": row["offset"], "value": row["value"]} for row in wanted]
    late = NOON_MS + 1000 * 160
    after = await rows(workshop, columns=("value",), where=f"timestamp >= {late} and timestamp < {late + 15_000}")
    assert after == [{"value": row["value"]} for row in wanted[160:175]]
    listed = await rows(workshop, columns=("offset",), where="offset in (4, 170, 171)")
    assert [row["offset"] for row in listed] == [4, 170, 171]


async def test_row_groups_outside_of_the_times_are_not_read(workshop: Workshop, monkeypatch: Any) -> None:
    await workshop.begin()
    await logged(workshop, 0, BATCHES)
    await workshop.run()
    read: list[int] = []
    through = workshop.objects.get_ranges

    async def counted(key: Any, ranges: Any) -> Any:
        read.append(len(ranges))
        return await through(key, ranges)

    monkeypatch.setattr(workshop.objects, "get_ranges", counted)
    await rows(workshop)
    assert len(read) > 10, "one read per group"
    read.clear()
    early = NOON_MS + 1000 * 20
    assert len(await rows(workshop, where=f"timestamp < {early}")) == 20
    assert len(read) == 2, "of all groups the footer's statistics leave one"


async def test_a_batch_that_cannot_be_opened_fails_the_task_and_is_named(workshop: Workshop) -> None:
    await workshop.begin()
    await logged(workshop, 0, 1)
    await workshop.put(workshop.topic.streams[0], unreadable(b"x", b"y"))
    await logged(workshop, 1, 2)
    with pytest.raises(Corrupt, match="partition 0 of orders: the batch at offsets 10 to 11 cannot be opened"):
        await rows(workshop, 0, 22)
    assert len(await rows(workshop, 0, 10)) + len(await rows(workshop, 12, 22)) == 20


async def test_an_object_that_is_gone_says_to_load_again(workshop: Workshop) -> None:
    await workshop.begin()
    await workshop.put(workshop.topic.streams[0], make_batch([b"x"]))
    [task] = await planned(workshop, 0, 1, condition=Condition(), min_tasks=1)
    extent = task.parts[0].piece.extent  # type: ignore[union-attr]
    assert isinstance(extent, WalExtent)
    await workshop.objects.delete([wal_object_key(workshop.keys.domain, extent.object_id)])
    reader = ScanReader(task, workshop.objects, columns=COLUMNS, condition=Condition())
    with pytest.raises(Missing, match="load the frame again"):
        async for _ in reader.rows():
            pass


async def test_flipped_bytes_are_damage_and_never_rows(workshop: Workshop) -> None:
    await workshop.begin()
    await logged(workshop, 0, 3)
    await workshop.run()
    [task] = await planned(workshop, 0, 30, condition=Condition(), min_tasks=1)
    file = task.parts[0].file  # type: ignore[union-attr]
    whole = bytearray(await workshop.objects.get(object_key(file.path)))
    whole[file.row_groups[0].start_byte + 20] ^= 1
    await workshop.objects.put(object_key(file.path), [bytes(whole)])
    reader = ScanReader(task, workshop.objects, columns=COLUMNS, condition=Condition())
    with pytest.raises(Corrupt, match="CRC-32C"):
        async for _ in reader.rows():
            pass


async def test_builders_of_an_ended_reader_leave_its_rows_alone(workshop: Workshop) -> None:
    await workshop.begin()
    await logged(workshop, 0, 3)
    tasks = await planned(workshop, 0, 30, condition=Condition(), min_tasks=2)
    assert len(tasks) > 1
    builders = new_builders()
    held: list[Any] = []
    for task in [tasks[0], *tasks]:  # the first one is given up after some rows
        reader = ScanReader(
            task, workshop.objects, columns=COLUMNS, condition=Condition(), builders=builders, batch_rows=4
        )
        async with aclosing(reader.rows()) as some:
            async for rows_ in some:
                held.append(rows_)
                if len(held) == 1:
                    break
    assert [row for rows_ in held[1:] for row in rows_.to_pylist()] == model()[:30]
    assert held[0].to_pylist() == model()[: held[0].num_rows]
