"""The proof: clean where all is well, at every state of a saga; and each kind of damage is found and named."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from crc32c import crc32c
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from headrace.index.objects import wal_object_key
from headrace.index.streams import advance_log_start
from headrace.index.trim import plan_trim, trim_entries
from headrace.index.values import INDEX_ENTRY, IndexEntry
from headrace.metadata.port import Decision, Key, Reads, Seen
from headrace.model.extents import TableExtent, WalExtent
from headrace.model.ids import ObjectKey, StreamId
from headrace.objects.port import Buffer, ByteRange, object_key
from headrace.pipeline.keeping import KeepLimits
from headrace.pipeline.merging import MergeLimits
from headrace.pipeline.records import TABLE_STATE
from headrace.pipeline.verify_report import Kind, VerifyReport
from headrace.records.batch import Codec
from headrace.runtime.crash_points import CrashPoint
from headrace.tables.iceberg.scan import IcebergLook
from headrace.tables.port import LOG_BRANCH, Appended, ExpiryRule, TableAppend, TopicTable
from headrace.testing.batches import make_batch
from tests.unit.pipeline.workshop import NOON_MS, TOPIC_ID, CutAt, PowerCut, Workshop

MERGING = KeepLimits(merge=MergeLimits(min_files=3))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Workshop]:
    made = Workshop(tmp_path)
    await made.begin(partitions=2)
    yield made
    await made.close()


@pytest.fixture
async def users_shop(tmp_path: Path) -> AsyncIterator[Workshop]:
    """A table that PyIceberg alone can write to: days need a further library."""
    made = Workshop(tmp_path)
    await made.begin(partitions=2, **{"headrace.table.partition.by": "partition"})
    yield made
    await made.close()


async def _filled(shop: Workshop, *, runs: int = 2) -> None:
    """Bring two partitions into the table, in several runs."""
    for run in range(runs):
        for number, stream in enumerate(shop.topic.streams):
            for n in range(3):
                values = [b"%d-%d-%d" % (run, number, n) * 40 for _ in range(10 + n)]
                await shop.put(stream, make_batch(values, at_ms=NOON_MS))
        await shop.run()


def _damage(report: VerifyReport) -> set[Kind]:
    return {finding.kind for finding in report.findings if finding.severity == "damage"}


def _warnings(report: VerifyReport) -> dict[Kind, int]:
    return {finding.kind: finding.count for finding in report.findings if finding.severity == "warning"}


async def _change_entry(shop: Workshop, stream: StreamId, number: int, change: IndexEntry | None) -> None:
    """Write over an entry of the index, or take it away."""
    entry = (await shop.index(stream))[number]
    await _overwrite(
        shop, shop.keys.entry(stream, entry.end_offset), None if change is None else INDEX_ENTRY.encode(change)
    )


async def _overwrite(shop: Workshop, key: Key, value: bytes | None) -> None:
    """Put a value past all rules, or delete it."""

    def decide(_: Seen) -> Decision[None]:
        if value is None:
            return Decision(result=None, deletes=[key])
        return Decision(result=None, puts={key: value})

    await shop.store.transact([shop.keys.unit], Reads(keys=[key]), decide)


async def test_a_topic_without_a_table_is_clean(shop: Workshop) -> None:
    await shop.put(shop.topic.streams[0], make_batch([b"a"]))
    report = await shop.verify()
    assert report.is_clean and report.table is None and report.tally.entries == 1


async def test_a_table_that_holds_its_log_is_clean_and_everything_was_looked_at(shop: Workshop) -> None:
    await _filled(shop)
    await shop.put(shop.topic.streams[0], make_batch([b"not in the table yet"]))
    report = await shop.verify()
    assert report.findings == [] and report.is_clean
    assert report.table == "topics.orders"
    tally = report.tally
    assert tally.log_rows == tally.branch_rows == tally.main_rows == 2 * 2 * 33
    assert tally.files == 2 and tally.row_groups > 4 and tally.read_bytes > 1000


@pytest.mark.parametrize(
    ("point", "arrival"),
    [
        (CrashPoint.SAGA_AFTER_PLAN, 1),
        (CrashPoint.SAGA_AFTER_FILES, 1),
        (CrashPoint.SAGA_AFTER_WRITTEN, 1),
        (CrashPoint.SAGA_AFTER_APPEND, 1),
        (CrashPoint.SAGA_AFTER_IN_TABLE, 1),
        (CrashPoint.SWAP_AFTER_STEP, 1),
        (CrashPoint.SWAP_AFTER_STEP, 3),
        (CrashPoint.SAGA_AFTER_SWAPPED, 1),
        (CrashPoint.SAGA_AFTER_DONE, 1),
    ],
)
async def test_it_is_clean_wherever_a_run_was_cut_off(shop: Workshop, point: CrashPoint, arrival: int) -> None:
    await _filled(shop, runs=1)
    for stream in shop.topic.streams:
        for n in range(3):
            await shop.put(stream, make_batch([b"%d" % n * 50] * 20, at_ms=NOON_MS))
    with pytest.raises(PowerCut):
        await shop.run(crash_points=CutAt(point, arrival=arrival))
    report = await shop.verify()
    assert _damage(report) == set(), report.findings
    if point in (CrashPoint.SAGA_AFTER_APPEND, CrashPoint.SAGA_AFTER_IN_TABLE, CrashPoint.SWAP_AFTER_STEP):
        assert report.tally.compared_records > 0
        assert report.tally.branch_rows == 66 + 120


@pytest.mark.parametrize(
    ("point", "arrival"),
    [
        (CrashPoint.SAGA_AFTER_WRITTEN, 1),
        (CrashPoint.SAGA_AFTER_APPEND, 1),
        (CrashPoint.SAGA_AFTER_IN_TABLE, 1),
        (CrashPoint.SWAP_AFTER_STEP, 1),
        (CrashPoint.SAGA_AFTER_SWAPPED, 1),
        (CrashPoint.SAGA_AFTER_DONE, 1),
    ],
)
async def test_it_is_clean_wherever_a_merge_was_cut_off(shop: Workshop, point: CrashPoint, arrival: int) -> None:
    await _filled(shop, runs=3)
    with pytest.raises(PowerCut):
        await shop.keep(MERGING, crash_points=CutAt(point, arrival=arrival))
    report = await shop.verify()
    assert _damage(report) == set() and _warnings(report) == {}, report.findings
    await shop.keep(MERGING)
    report = await shop.verify()
    assert report.findings == [] and report.tally.files == 1
    assert report.tally.log_rows == report.tally.branch_rows == report.tally.main_rows == 3 * 2 * 33


async def test_rows_that_main_keeps_after_a_release_are_only_noted(shop: Workshop) -> None:
    await _filled(shop, runs=3)
    for stream in shop.topic.streams:
        await advance_log_start(shop.keys, stream, 40, now_ms=NOON_MS).apply(shop.store)
        entries = await plan_trim(shop.store, shop.keys, stream, max_entries=10)
        await trim_entries(shop.keys, stream, entries, now_ms=NOON_MS).apply(shop.store)
    kept = await shop.keep(KeepLimits(merge=MergeLimits(min_files=100)))
    assert kept.released_files == 1
    report = await shop.verify()
    assert report.is_clean and _warnings(report) == {}
    assert report.tally.files == 2 and report.tally.main_rows == report.tally.branch_rows + 66
    assert report.counts[Kind.EXPIRED] > 66


async def test_a_look_is_taken_again_until_nothing_moved_meanwhile(shop: Workshop) -> None:
    """A run goes on while the proof looks at the index; what it sees in the end is of one moment."""
    await _filled(shop, runs=1)
    await shop.put(shop.topic.streams[0], make_batch([b"more"] * 20, at_ms=NOON_MS))
    scanner, looks = shop.catalog.look, 0

    async def look(table: TopicTable) -> IcebergLook | None:
        nonlocal looks
        looks += 1
        if looks == 1:
            await shop.run()
        return await scanner(table)

    shop.catalog.look = look  # type: ignore[method-assign]
    proof = asyncio.create_task(shop.verify())
    while not proof.done():
        await shop.clock.advance(1.0)
    report = await proof
    assert looks == 2 and report.findings == [] and report.tally.branch_rows == 66 + 20


async def test_a_proof_is_begun_anew_when_what_it_reads_is_swapped_and_collected_meanwhile(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.put(shop.topic.streams[0], make_batch([b"a"] * 20, at_ms=NOON_MS))
    with pytest.raises(PowerCut):
        await shop.run(crash_points=CutAt(CrashPoint.SAGA_AFTER_IN_TABLE))
    get_ranges, is_first = shop.objects.get_ranges, True

    async def collected_first(key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        nonlocal is_first
        if is_first and key.startswith("wal/"):
            is_first = False
            await shop.run()
            await shop.objects.delete([key])
        return await get_ranges(key, ranges)

    monkeypatch.setattr(shop.objects, "get_ranges", collected_first)
    report = await shop.verify()
    assert not is_first and report.findings == [] and report.tally.branch_rows == 20


async def test_a_damaged_file_of_a_run_under_way_is_found_against_the_wal(shop: Workshop) -> None:
    await shop.put(shop.topic.streams[0], make_batch([b"a"] * 20, at_ms=NOON_MS))
    with pytest.raises(PowerCut):
        await shop.run(crash_points=CutAt(CrashPoint.SAGA_AFTER_IN_TABLE))
    [path] = [named.key async for named in shop.objects.list("tables/") if named.key.endswith(".parquet")]
    flipped = bytearray(await shop.objects.get(path))
    flipped[-12] ^= 1
    await shop.objects.put(path, [flipped])
    assert Kind.BYTES in _damage(await shop.verify())


async def test_a_wal_object_that_is_gone_though_the_index_names_it_is_damage(shop: Workshop) -> None:
    await shop.put(shop.topic.streams[0], make_batch([b"a"] * 20, at_ms=NOON_MS))
    with pytest.raises(PowerCut):
        await shop.run(crash_points=CutAt(CrashPoint.SAGA_AFTER_IN_TABLE))
    [entry] = await shop.index(shop.topic.streams[0])
    assert isinstance(entry.extent, WalExtent)
    await shop.objects.delete([wal_object_key(shop.keys.domain, entry.extent.object_id)])
    assert Kind.BYTES in _damage(await shop.verify())


async def test_batches_that_cannot_be_opened_are_named_with_their_offsets(shop: Workshop) -> None:
    stream = shop.topic.streams[0]
    await shop.put(stream, make_batch([b"a", b"b"]), _unopenable(3), make_batch([b"c"]))
    await shop.run()
    report = await shop.verify()
    assert report.is_clean
    assert _warnings(report) == {Kind.HELD_BACK: 3}
    [finding] = [finding for finding in report.findings if finding.kind is Kind.HELD_BACK]
    assert "offsets 2–4" in finding.message and report.tally.held_back_batches == 1
    assert report.tally.branch_rows == 3


async def test_rows_older_than_the_log_start_are_only_noted(shop: Workshop) -> None:
    await _filled(shop)
    stream = shop.topic.streams[0]
    await advance_log_start(shop.keys, stream, 40, now_ms=NOON_MS).apply(shop.store)
    report = await shop.verify()
    assert report.is_clean and _warnings(report) == {}
    assert report.counts == {Kind.EXPIRED: 40}


async def test_a_missing_index_entry_is_a_gap_and_its_rows_are_unknown_to_the_log(shop: Workshop) -> None:
    await _filled(shop)
    await _change_entry(shop, shop.topic.streams[0], 0, None)
    report = await shop.verify()
    assert _damage(report) == {Kind.GAP, Kind.UNKNOWN_ROW}
    assert "0–32" in report.findings[0].message


async def test_an_overlap_is_found(shop: Workshop) -> None:
    await _filled(shop)
    stream = shop.topic.streams[0]
    entry = (await shop.index(stream))[1]
    await _change_entry(shop, stream, 1, msgspec.structs.replace(entry, start_offset=entry.start_offset - 5))
    assert Kind.OVERLAP in _damage(await shop.verify())


async def test_a_flipped_bit_anywhere_in_a_file_is_found_and_kills_nobody(shop: Workshop) -> None:
    await _filled(shop, runs=1)
    [path] = {
        file.path
        for stream in shop.topic.streams
        for entry in await shop.index(stream)
        if isinstance(entry.extent, TableExtent)
        for file in entry.extent.files
    }
    whole = bytes(await shop.objects.get(object_key(path)))
    for at_byte in (10, len(whole) // 2, len(whole) - 300, len(whole) - 9):
        flipped = bytearray(whole)
        flipped[at_byte] ^= 0x10
        await shop.objects.put(object_key(path), [flipped])
        report = await shop.verify()
        assert Kind.BYTES in _damage(report), at_byte
        assert path in report.findings[0].message
    await shop.objects.put(object_key(path), [whole])
    assert (await shop.verify()).is_clean


async def test_a_file_that_is_gone_or_cut_short_is_damage(shop: Workshop) -> None:
    await _filled(shop, runs=1)
    entry = (await shop.index(shop.topic.streams[0]))[0]
    assert isinstance(entry.extent, TableExtent)
    key = object_key(entry.extent.files[0].path)
    whole = bytes(await shop.objects.get(key))
    await shop.objects.put(key, [whole[:-1]])
    assert Kind.BYTES in _damage(await shop.verify())
    await shop.objects.delete([key])
    assert Kind.BYTES in _damage(await shop.verify())


async def test_a_record_that_never_came_into_the_table_is_lost(users_shop: Workshop) -> None:
    """The table's vector is past a WAL entry that no batch was held back of."""
    await _filled(users_shop, runs=1)
    stream = users_shop.topic.streams[0]
    entry = (await users_shop.index(stream))[0]
    await users_shop.put(stream, make_batch([b"x"] * entry.record_count))
    tail = (await users_shop.log())[-1]
    replaced = msgspec.structs.replace(
        entry, extent=WalExtent(tail.object_id, tail.entries[0].start_byte, tail.entries[0].size_bytes)
    )
    await _change_entry(users_shop, stream, 0, replaced)
    loaded = _users_table(users_shop)
    loaded.delete("partition = 0", branch=LOG_BRANCH, snapshot_properties=_said_by_head(loaded))
    report = await users_shop.verify()
    assert {Kind.LOST} <= _damage(report)
    assert Kind.UNSWAPPED in _warnings(report)


async def test_a_vector_that_is_not_the_states_is_damage(shop: Workshop) -> None:
    await _filled(shop)
    key = shop.keys.table(TOPIC_ID)
    raw = await shop.store.get(key)
    assert raw is not None
    state = TABLE_STATE.decode(raw.value, raw.key)
    await _overwrite(shop, key, TABLE_STATE.encode(msgspec.structs.replace(state, ends={**state.ends, 0: 1})))
    assert _damage(await shop.verify()) == {Kind.VECTOR}


async def test_what_users_did_to_main_is_named_and_is_no_damage(users_shop: Workshop) -> None:
    await _filled(users_shop)
    loaded = _users_table(users_shop)
    foreign = loaded.scan(row_filter="partition = 0 and offset < 2").to_arrow()
    loaded.delete("partition = 0 and offset < 5")
    moved = foreign.set_column(1, foreign.schema.field("offset"), pa.array([9000, 9001], pa.int64()))
    loaded.append(moved)
    report = await users_shop.verify()
    assert report.is_clean, report.findings
    assert _warnings(report) == {Kind.FOREIGN_ROW: 2, Kind.MISSING_ON_MAIN: 5}
    messages = " ".join(finding.message for finding in report.findings)
    assert "9000–9001" in messages and "0–4" in messages
    # The next run goes on as if nothing had happened.
    await _filled(users_shop, runs=1)
    assert (await users_shop.verify()).is_clean


async def test_a_row_that_is_twice_on_main_is_damage(users_shop: Workshop) -> None:
    await _filled(users_shop)
    loaded = _users_table(users_shop)
    loaded.append(loaded.scan(row_filter="partition = 1 and offset < 3").to_arrow())
    report = await users_shop.verify()
    assert _damage(report) == {Kind.DOUBLE}
    assert "twice on main" in report.findings[0].message and report.findings[0].count == 3


async def test_a_file_that_the_branch_names_twice_is_found(users_shop: Workshop) -> None:
    await _filled(users_shop)
    loaded = _users_table(users_shop)
    [first, *_] = [task.file.file_path for task in loaded.scan().plan_files()]
    loaded.add_files(
        [first], check_duplicate_files=False, branch=LOG_BRANCH, snapshot_properties=_said_by_head(loaded)
    )
    damage = _damage(await users_shop.verify())
    assert {Kind.FILE_TWICE, Kind.DOUBLE} <= damage


async def test_a_branch_that_somebody_else_moved_is_damage_and_what_it_shows_is_still_proved(
    users_shop: Workshop,
) -> None:
    await _filled(users_shop)
    _users_table(users_shop).delete("partition = 0 and offset < 5", branch=LOG_BRANCH)
    report = await users_shop.verify()
    assert {Kind.TABLE, Kind.LOST} <= _damage(report)
    assert "0–4" in " ".join(finding.message for finding in report.findings if finding.kind is Kind.LOST)


async def test_rows_in_a_file_of_another_day_are_astray_because_queries_silently_miss_them(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = shop.catalog.append

    async def append_astray(wanted: TableAppend, *, now_ms: int, expiry: ExpiryRule) -> Appended:
        files = [msgspec.structs.replace(file, bucket=(file.bucket or 0) + 1) for file in wanted.files]
        return await append(replace(wanted, files=files), now_ms=now_ms, expiry=expiry)

    monkeypatch.setattr(shop.catalog, "append", append_astray)
    await _filled(shop, runs=1)
    report = await shop.verify()
    assert _damage(report) == {Kind.ASTRAY} and report.counts[Kind.ASTRAY] == 66


async def test_a_table_that_is_gone_is_damage_and_a_foreign_one_too(shop: Workshop) -> None:
    await _filled(shop, runs=1)
    users = _users_catalog(shop)
    users.drop_table("topics.orders")
    assert Kind.TABLE in _damage(await shop.verify())
    users.create_table(
        "topics.orders",
        Schema(NestedField(1, "n", LongType())),
        location=f"file://{shop.directory}/elsewhere",
    )
    report = await shop.verify()
    assert Kind.TABLE in _damage(report)
    assert "was not made by Headrace" in report.findings[0].message


def _users_catalog(shop: Workshop) -> SqlCatalog:
    return SqlCatalog("headrace", uri=f"sqlite:///{shop.directory}/catalog.db")


def _users_table(shop: Workshop) -> Table:
    """Load the table as a user of PyIceberg does."""
    return _users_catalog(shop).load_table("topics.orders")


def _said_by_head(table: Table) -> dict[str, str]:
    """Return what the head of our branch says of itself, for whoever pretends to be us."""
    snapshot = table.snapshot_by_name(LOG_BRANCH)
    assert snapshot is not None and snapshot.summary is not None
    said = snapshot.summary.additional_properties
    return {name: value for name, value in said.items() if name.startswith("headrace.")}


def _unopenable(count: int) -> bytes:
    """Return a batch whose CRC is right and whose body is no gzip."""
    batch = bytearray(make_batch([b"x" * 100] * count))
    batch[21:23] = (Codec.GZIP).to_bytes(2, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)
