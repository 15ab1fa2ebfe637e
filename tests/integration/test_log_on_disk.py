"""The whole log over SQLite and local disk: real threads, real processes, real kills."""

import asyncio
import hashlib
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.index.values import OBJECT_RECORD, WRITER_STATE, ObjectRecord, ObjectState
from headrace.metadata.keys import prefix_range
from headrace.model.ids import ObjectKey, SessionId, StreamId, WriterId
from headrace.records.stamping import stamp_offset
from headrace.runtime.crash_points import CrashPoint
from headrace.testing.batches import make_batch
from tests.integration.log_process import OLD_RECORDS, PROCESSES, STREAMS, DiskLog

LIMIT_S = 120.0
"""A generous limit for a shared machine; nothing waits for it to pass."""


async def object_records(log: DiskLog) -> list[ObjectRecord]:
    found = await log.metadata.range(prefix_range(log.keys.objects_prefix, limit=1000))
    return [OBJECT_RECORD.decode(item.value, item.key) for item in found]


async def writers(log: DiskLog) -> dict[WriterId, SessionId]:
    found = await log.metadata.range(prefix_range(log.keys.writers_prefix, limit=1000))
    return {
        WriterId(item.key.removeprefix(log.keys.writers_prefix)): WRITER_STATE.decode(item.value, item.key).session
        for item in found
    }


# One process after another


@pytest.mark.parametrize("kind", ["segments", "objects"])
async def test_what_many_tasks_append_is_read_back_byte_for_byte_now_and_after_a_restart(
    tmp_path: Path, kind: str
) -> None:
    log = await DiskLog.open(tmp_path, kind=kind)
    await log.create_streams()
    stored: defaultdict[StreamId, dict[int, bytes]] = defaultdict(dict)

    async def produce(task: int) -> None:
        for n in range(30):
            stream = STREAMS[(task + n) % len(STREAMS)]
            batch = make_batch([b"%d/%d/%d" % (task, n, one) for one in range(1 + n % 3)], at_ms=n)
            result = await log.append_bytes(stream, batch)
            stamped = bytearray(batch)
            stamp_offset(memoryview(stamped), base_offset=result.base_offset, leader_epoch=-1)
            assert result.base_offset not in stored[stream]
            stored[stream][result.base_offset] = bytes(stamped)

    await asyncio.gather(*(produce(task) for task in range(12)))
    expected = {stream: b"".join(batch for _, batch in sorted(stored[stream].items())) for stream in STREAMS}
    assert {stream: await log.read(stream) for stream in STREAMS} == expected
    assert await log.folder().tick() > 0
    assert {stream: await log.read(stream) for stream in STREAMS} == expected, "folding changes no byte"
    await log.close()

    again = await DiskLog.open(tmp_path, kind=kind)
    assert again.writer_id != log.writer_id
    assert {stream: await again.read(stream) for stream in STREAMS} == expected
    assert {record.state for record in await object_records(again)} <= {ObjectState.SEALED, ObjectState.STAGED}
    ends = [len(await again.values(stream)) for stream in STREAMS]
    appended = [await again.append(stream, [b"new"]) for stream in STREAMS]
    assert [result.base_offset for result in appended] == ends
    await again.close()


# Processes that die


class Child:
    """Another process that appends; what it was told is kept by stream."""

    def __init__(self, process: asyncio.subprocess.Process, writer: str, session: str) -> None:
        self.process = process
        self.writer = WriterId(writer)
        self.session = SessionId(session)
        self.acknowledged: defaultdict[StreamId, list[tuple[int, bytes]]] = defaultdict(list)
        self.digest = ""

    async def read_answers(self, count: int | None = None) -> None:
        """Take so many acknowledgements, or all there are until the process ends."""
        assert self.process.stdout is not None
        while count is None or sum(map(len, self.acknowledged.values())) < count:
            line = await self.process.stdout.readline()
            if not line.endswith(b"\n"):
                return  # the last line of a process that was killed may be cut short
            first, *rest = line.split()
            if first == b"digest":
                self.digest = rest[0].decode()
                continue
            assert first.isdigit(), line
            self.acknowledged[StreamId(int(first))].append((int(rest[0]), rest[1]))

    async def exit_code(self) -> int:
        await self.read_answers()
        return await self.process.wait()


@asynccontextmanager
async def child(
    directory: Path, *, kind: str = "segments", count: int = 0, crash_at: str = ""
) -> AsyncIterator[Child]:
    """Start another process, and see it gone in the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.log_process",
        str(directory),
        kind,
        str(count),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "HEADRACE_CRASH_AT": crash_at},
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            assert process.stdout is not None
            ready, writer, session = (await process.stdout.readline()).decode().split()
            assert ready == "ready"
            yield Child(process, writer, session)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def prepare(directory: Path, kind: str) -> None:
    """Create the streams, each with one record that must survive everything."""
    log = await DiskLog.open(directory, kind=kind)
    await log.create_streams()
    for stream in STREAMS:
        await log.append(stream, [b"old"])
    await log.close()


async def check_aftermath(directory: Path, kind: str, dead: Child) -> None:
    """Look at the log as the next process does: nothing acknowledged is lost, and the log goes on."""
    log = await DiskLog.open(directory, kind=kind)
    for stream in STREAMS:
        acknowledged = dead.acknowledged[stream]
        values = await log.values(stream)
        assert [values[offset] for offset, _ in acknowledged] == [value for _, value in acknowledged]
        # The process sent the next batch when it had the answer to the last one: one may be stored unheard of.
        sent = [b"%s/%d" % (dead.writer.encode(), number) for number in range(len(acknowledged) + 1)]
        assert values in ([b"old", *sent], [b"old", *sent[:-1]])
    await check_collected(log, dead)
    before = {stream: await log.values(stream) for stream in STREAMS}
    for stream in STREAMS:
        assert (await log.append(stream, [b"new"])).base_offset == len(before[stream])
        assert await log.values(stream) == [*before[stream], b"new"]
    await log.folder().tick()
    await log.collector().tick()
    assert [await log.values(stream) for stream in STREAMS] == [[*before[stream], b"new"] for stream in STREAMS]
    await log.close()


async def check_collected(log: DiskLog, dead: Child) -> None:
    """See the dead writer left alone while its session lives, and its segments sealed when that has ended."""
    before = await object_records(log)
    left_open = {record.path for record in before if record.state is ObjectState.OPEN}
    await log.collector().tick()
    assert await object_records(log) == before
    assert (await writers(log))[dead.writer] == dead.session
    await log.metadata.end_session(dead.session)
    await log.collector().tick()
    assert dead.writer not in await writers(log)
    for record in await object_records(log):
        assert record.state in (ObjectState.SEALED, ObjectState.STAGED), record
        if record.path in left_open:
            size_bytes = (await log.objects.head(ObjectKey(record.path))).size_bytes
            assert size_bytes == record.size_bytes, "the prepared tail is given back"


@pytest.mark.parametrize("kind", ["segments", "objects"])
async def test_process_killed_at_any_moment_loses_nothing_it_acknowledged(tmp_path: Path, kind: str) -> None:
    await prepare(tmp_path, kind)
    async with child(tmp_path, kind=kind) as victim:
        await victim.read_answers(40)
        victim.process.kill()
        assert await victim.exit_code() == -9
    await check_aftermath(tmp_path, kind, victim)


@pytest.mark.parametrize(
    ("kind", "point", "arrival"),
    [
        ("segments", CrashPoint.WRITER_AFTER_STAGE, 2),
        ("segments", CrashPoint.WRITER_AFTER_WRITE, 5),
        ("segments", CrashPoint.WRITER_AFTER_COMMIT, 5),
        ("segments", CrashPoint.WRITER_AFTER_SEAL, 1),
        ("segments", CrashPoint.METADATA_BEFORE_COMMIT, 9),
        ("objects", CrashPoint.WRITER_AFTER_WRITE, 5),
        ("objects", CrashPoint.WRITER_AFTER_COMMIT, 5),
        ("objects", CrashPoint.OBJECT_AFTER_TEMPORARY, 5),
        ("objects", CrashPoint.OBJECT_AFTER_RENAME, 5),
    ],
)
async def test_process_killed_between_two_steps_loses_nothing_it_acknowledged(
    tmp_path: Path, kind: str, point: CrashPoint, arrival: int
) -> None:
    await prepare(tmp_path, kind)
    async with child(tmp_path, kind=kind, crash_at=f"{point}:{arrival}") as victim:
        assert await victim.exit_code() == -9
    assert any(victim.acknowledged.values()), "it died before it did anything"
    await check_aftermath(tmp_path, kind, victim)


# Processes side by side


async def test_two_processes_append_at_once_and_both_read_everything(tmp_path: Path) -> None:
    count = 40
    await prepare(tmp_path, "segments")
    async with child(tmp_path, count=count) as one, child(tmp_path, count=count) as two:
        codes = await asyncio.gather(one.exit_code(), two.exit_code())
    assert list(codes) == [0, 0]
    log = await DiskLog.open(tmp_path)
    digest = hashlib.sha256()
    for stream in STREAMS:
        values = await log.values(stream)
        assert len(values) == OLD_RECORDS + PROCESSES * count
        told = [*one.acknowledged[stream], *two.acknowledged[stream]]
        assert sorted(offset for offset, _ in told) == list(range(OLD_RECORDS, len(values))), "contiguous and unique"
        assert [values[offset] for offset, _ in told] == [value for _, value in told]
        digest.update(await log.read(stream))
    assert (one.digest, two.digest) == (digest.hexdigest(), digest.hexdigest())
    assert {record.state for record in await object_records(log)} == {ObjectState.SEALED}, "both left cleanly"
    assert await writers(log) == {log.writer_id: log.keeper.session}
    await log.close()
