"""Files below a table that nothing names are found, and not one that anything names."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyiceberg.table.statistics import StatisticsFile

from headrace.errors import HeadraceError, Retryable
from headrace.gc.removed import Why
from headrace.index.pins import put_pin, release_pin
from headrace.index.values import INDEX_ENTRY, IndexEntry, PinRecord
from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Decision, Key, Reads
from headrace.model.extents import TableExtent, TableFile
from headrace.model.ids import DomainId, ObjectKey, PinId, StreamId
from headrace.model.topics import Topic, TopicRules
from headrace.objects.open import open_objects
from headrace.objects.port import ObjectStore
from headrace.objects.retrying import RetryPolicy
from headrace.pipeline.orphans import OrphanLimits, TableOrphanSweeper
from headrace.pipeline.records import (
    CONDEMNED_FILES,
    SAGA_RECORD,
    TABLE_STATE,
    TIDY_RECORD,
    CondemnedFiles,
    SagaRecord,
    SagaState,
    TableState,
    TidyRecord,
)
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import seeded_rng
from headrace.tables.iceberg.locations import objects_root
from headrace.tables.port import TableNames, TopicTable
from headrace.testing.clock import ManualClock
from tests.contract.tables.kit import Place, Runs, append_as_a_person, new_topic

DAY_MS = 86_400_000
KEYS = DomainKeys(DomainId(0))
STREAM = StreamId(4)


@dataclass(slots=True)
class Litter:
    """A table with runs, a person's files, and a place for more."""

    place: Place
    runs: Runs
    metadata: MemoryMetadata
    objects: ObjectStore
    clock: ManualClock

    @property
    def below(self) -> str:
        return self.runs.info.data_prefix.removesuffix("data/")

    def topic(self, table: TopicTable | None = None) -> Topic:
        of = table or self.runs.table
        return Topic(id=of.topic_id, name=of.topic_name, streams=(STREAM,), rules=TopicRules(max_message_bytes=1000))

    def sweeper(
        self, *, topics: list[Topic] | None = None, names: TableNames | None = None, files: int = 10_000
    ) -> TableOrphanSweeper:
        known = [self.topic()] if topics is None else topics
        return TableOrphanSweeper(
            keys=KEYS,
            metadata=self.metadata,
            objects=self.objects,
            names=names or self.runs.catalog,
            topics=lambda: known,
            clock=self.clock,
            limits=OrphanLimits(age_floor_ms=DAY_MS, files_per_tick=files),
        )

    async def put(self, *keys: str) -> None:
        for key in keys:
            await self.objects.put(ObjectKey(key), [b"bytes"])

    async def note(self, puts: dict[Key, bytes]) -> None:
        await self.metadata.transact([KEYS.unit], Reads(), lambda _: Decision(result=None, puts=puts))

    async def stored(self) -> set[str]:
        return {info.key async for info in self.objects.list("tables/")}


@pytest.fixture
async def litter(local_place: Place, catalog_executor: ThreadExecutor) -> AsyncIterator[Litter]:
    clock = ManualClock(now_ms=SystemClock().now_ms())
    objects = open_objects(
        local_place.objects_url,
        executor=catalog_executor,
        clock=SystemClock(),
        rng=seeded_rng(5),
        crash_points=NoCrashes(),
        drops_cache=False,
        policy=RetryPolicy(),
    )
    runs = await Runs.begin(local_place.open(), new_topic())
    made = Litter(local_place, runs, MemoryMetadata(seeded_rng(4)), objects, clock)
    for number in range(4):
        await runs.do(runs.plan(f"saga-{number}"))
    await made.put(*runs.paths)
    state = TableState(runs.table.topic_name, runs.info.identifier, runs.info.uuid, runs.info.location)
    await made.note({KEYS.table(runs.table.topic_id): TABLE_STATE.encode(state)})
    yield made
    await objects.close()


async def name_in_every_way(litter: Litter) -> set[str]:
    """Name files by everything that can name one, and return those that the table itself does not know."""
    below, data = litter.below, litter.runs.info.data_prefix
    topic_id = litter.runs.table.topic_id
    indexed, freed, going = f"{data}s9/0.parquet", f"{below}metadata/freed.avro", f"{below}metadata/going.avro"
    under_way, lost, hint = f"{data}now/3.parquet", f"{data}over/7.parquet", f"{below}metadata/version-hint.text"
    named = {indexed, freed, going, under_way, lost, hint}
    await litter.put(*named)
    extent = TableExtent((TableFile(indexed, 5, 1, 1, ()),))
    entry = IndexEntry(0, 10, 10, 100, 0, 0, 0, 0, 0, 0, extent)
    saga = SagaRecord("now", 1, SagaState.PLANNED, "t", data, {}, {}, 0, 0, 0, 0, freed=(freed,))
    await litter.note(
        {
            KEYS.entry(STREAM, 10): INDEX_ENTRY.encode(entry),
            KEYS.saga(topic_id): SAGA_RECORD.encode(saga),
            KEYS.tidy("over"): TIDY_RECORD.encode(TidyRecord(topic_id, f"{data}over/", (), 0)),
            KEYS.condemned("s"): CONDEMNED_FILES.encode(CondemnedFiles(topic_id, (going,), 0)),
        }
    )
    return named


async def persons_files(litter: Litter) -> set[str]:
    """Let a person add, tag, and describe files of the table; return what they have written."""
    below = litter.below
    with litter.place.loaded(litter.runs.info) as table:
        append_as_a_person(table, "theirs")
        append_as_a_person(table, "tagged")
        table.manage_snapshots().create_tag(table.refresh().metadata.current_snapshot_id or 0, "keep").commit()
        statistics = StatisticsFile.model_validate(
            {
                "snapshot-id": table.metadata.current_snapshot_id,
                # As an engine spells it that knows local files by Hadoop's names.
                "statistics-path": f"{table.location()}/metadata/theirs.stats".replace("file:///", "file:/"),
                "file-size-in-bytes": 5,
                "file-footer-size-in-bytes": 1,
                "blob-metadata": [],
            }
        )
        table.update_statistics().set_statistics(statistics).commit()
    written = {f"{below}data/theirs.parquet", f"{below}data/tagged.parquet", f"{below}metadata/theirs.stats"}
    await litter.put(*written)
    return written


async def plant(litter: Litter) -> set[str]:
    """Leave one orphan of every kind."""
    planted = {
        f"{litter.below}data/lost/0.parquet",
        f"{litter.below}data/append_time_day=2026-01-01/0-deletes.parquet",
        f"{litter.below}metadata/lost-m0.avro",
        f"{litter.below}metadata/snap-1-lost.avro",
        f"{litter.below}metadata/00099-lost.metadata.json",
        f"{litter.below}metadata/lost.stats",
        f"{litter.below}elsewhere/lost.orc",
    }
    await litter.put(*planted)
    return planted


async def sweep(sweeper: TableOrphanSweeper, *, dry: bool = False) -> set[str]:
    found: set[str] = set()
    is_first = True
    while is_first or not sweeper.is_round_over:
        is_first = False
        page = await (sweeper.survey() if dry else sweeper.tick())
        assert all(one.why is Why.TABLE_ORPHAN for one in page)
        found |= {one.key for one in page}
    return found


async def test_every_orphan_goes_and_nothing_that_is_named(litter: Litter) -> None:
    await name_in_every_way(litter)
    await persons_files(litter)
    before = await litter.stored()
    planted = await plant(litter)
    assert await sweep(litter.sweeper()) == set(), "all of it is young"
    await litter.clock.advance(2 * DAY_MS / 1000)
    assert await sweep(litter.sweeper(), dry=True) == planted
    assert await litter.stored() == before | planted, "a survey touches nothing"
    assert await sweep(litter.sweeper(files=3)) == planted
    assert await litter.stored() == before
    assert await sweep(litter.sweeper()) == set()
    named = await litter.runs.catalog.data_files(litter.runs.table, ref="headrace_log")
    assert sorted(named) == sorted(litter.runs.paths)


async def test_file_that_only_an_older_snapshot_names_stays(litter: Litter) -> None:
    await litter.clock.advance(2 * DAY_MS / 1000)
    with litter.place.loaded(litter.runs.info) as table:
        append_as_a_person(table, "old")
        table.refresh().delete()
    await litter.put(f"{litter.below}data/old.parquet")
    assert await sweep(litter.sweeper()) == set()


async def test_other_tables_are_never_touched(litter: Litter) -> None:
    """One of a topic that is gone, one that was renamed, and one whose topic has no table any more."""
    await plant(litter)
    await litter.clock.advance(2 * DAY_MS / 1000)
    before = await litter.stored()
    assert await sweep(litter.sweeper(topics=[])) == set()
    later = replace(new_topic(), topic_name=litter.runs.table.topic_name)
    assert await sweep(litter.sweeper(topics=[litter.topic(later)])) == set()
    with litter.place.person() as person:
        person.rename_table(litter.runs.info.identifier, ("topics", "mine_now"))
    assert await sweep(litter.sweeper()) == set()
    with litter.place.person() as person:
        person.drop_table(("topics", "mine_now"))
    assert await sweep(litter.sweeper()) == set()
    assert await litter.stored() == before


class Away:
    """A catalog that cannot be reached."""

    async def unnamed(self, table: TopicTable, keys: object) -> frozenset[str] | None:
        raise Retryable("the catalog is away")


async def test_without_the_catalog_nothing_goes(litter: Litter) -> None:
    await plant(litter)
    await litter.clock.advance(2 * DAY_MS / 1000)
    before = await litter.stored()
    sweeper = litter.sweeper(names=Away())
    with pytest.raises(Retryable):
        await sweeper.tick()
    assert await litter.stored() == before
    assert await sweeper.tick() == [] and sweeper.is_round_over, "the next table, and there is none"


async def test_with_a_manifest_that_cannot_be_read_nothing_goes(litter: Litter) -> None:
    await plant(litter)
    await litter.clock.advance(2 * DAY_MS / 1000)
    with litter.place.loaded(litter.runs.info) as table:
        snapshot = table.metadata.snapshots[0]
        (manifest, *_) = snapshot.manifests(table.io)
    root = Path(objects_root(litter.place.objects_url).uri.removeprefix("file://"))
    key = objects_root(litter.place.objects_url).key_of(manifest.manifest_path)
    assert key is not None
    os.truncate(root / key, 10)
    before = await litter.stored()
    with pytest.raises(HeadraceError):
        await litter.sweeper().tick()
    assert await litter.stored() == before


async def test_data_files_wait_for_the_pins_that_are_there_when_they_are_found(litter: Litter) -> None:
    """The answer of a commit that set them free may be lost: then nothing else keeps them for a pinned read."""

    async def pin(name: str) -> None:
        record = PinRecord(litter.clock.now_ms(), litter.clock.now_ms() + DAY_MS, 0, "a read")
        await put_pin(KEYS, PinId(name), record).apply(litter.metadata)

    lost, metadata = f"{litter.below}data/lost/0.parquet", f"{litter.below}metadata/lost-m0.avro"
    await litter.put(lost, metadata)
    await litter.clock.advance(2 * DAY_MS / 1000)
    await pin("a" * 32)
    sweeper = litter.sweeper()
    assert await sweep(sweeper, dry=True) == {metadata}
    assert await sweep(sweeper) == {metadata}
    await pin("b" * 32)  # Whoever comes now finds no name of it.
    assert await sweep(sweeper) == set()
    await release_pin(KEYS, PinId("a" * 32)).apply(litter.metadata)
    assert await sweep(sweeper) == {lost}
