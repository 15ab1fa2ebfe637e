"""Small runs share jobs, large ones do not wait for them, and everybody gets their own files or their own error."""

import asyncio
from collections.abc import Sequence

import pytest

from headrace.errors import Missing
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId, StreamId
from headrace.pipeline.bundling import SMALL_BYTES, BundlingWriter
from headrace.pipeline.plans import FilePlan, Slice, WalPiece, WriteTask
from headrace.pipeline.rewrites import TableTask
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.tables.files import WrittenFile
from headrace.tables.format import Partitioning, TableFormat

FORMAT = TableFormat(field_ids={}, schema_id=0, spec_id=0, partitioning=Partitioning())


def task(name: str, size_bytes: int = 100) -> WriteTask:
    piece = WalPiece(0, 1, 0, WalExtent(ObjectId("o"), 0, size_bytes))
    file = FilePlan(0, 0, None, (Slice(0, StreamId(1), (piece,)),))
    return WriteTask(saga_id=name, epoch=1, data_prefix="tables/t/data/", format=FORMAT, file=file)


def paths(files: Sequence[WrittenFile]) -> list[str]:
    return [file.path for file in files]


class Jobs:
    """A writer that notes its jobs, waits until it is told to go on, and fails for the tasks it does not like."""

    def __init__(self, *, bad: frozenset[str] = frozenset()) -> None:
        self.jobs: list[list[str]] = []
        self.may_go = asyncio.Event()
        self._bad = bad

    async def write(self, tasks: Sequence[TableTask]) -> list[WrittenFile]:
        self.jobs.append([one.saga_id for one in tasks])
        await self.may_go.wait()
        for one in tasks:
            if one.saga_id in self._bad:
                raise Missing(one.saga_id)
        return [WrittenFile(one.saga_id, 1, 1, 1, 1, (), (), (), None, None, 0) for one in tasks]

    async def scan(self, tasks: Sequence[ScanTask]) -> list[ScannedStream]:
        self.jobs.append([one.saga_id for one in tasks])
        return [ScannedStream(one.partition, one.stream, one.cleanable_end, True) for one in tasks]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_comes_while_a_job_runs_goes_out_together() -> None:
    jobs = Jobs()
    writer = BundlingWriter(jobs, jobs_at_once=1)
    runs = [asyncio.create_task(writer.write([task(name), task(name + name)])) for name in "abc"]
    await settle()
    assert jobs.jobs == [["a", "aa"]]
    jobs.may_go.set()
    assert [paths(await run) for run in runs] == [["a", "aa"], ["b", "bb"], ["c", "cc"]]
    assert jobs.jobs == [["a", "aa"], ["b", "bb", "c", "cc"]]


async def test_a_large_run_has_a_job_of_its_own_at_once() -> None:
    jobs = Jobs()
    writer = BundlingWriter(jobs, jobs_at_once=1)
    small = asyncio.create_task(writer.write([task("small")]))
    large = asyncio.create_task(writer.write([task("large", SMALL_BYTES)]))
    await settle()
    assert sorted(jobs.jobs) == [["large"], ["small"]]
    jobs.may_go.set()
    assert (paths(await small), paths(await large)) == (["small"], ["large"])


async def test_one_that_fails_does_not_fail_the_others_of_its_bundle() -> None:
    jobs = Jobs(bad=frozenset({"b"}))
    writer = BundlingWriter(jobs, jobs_at_once=1)
    runs = [asyncio.create_task(writer.write([task(name)])) for name in "xabc"]
    await settle()
    jobs.may_go.set()
    results = await asyncio.gather(*runs, return_exceptions=True)
    assert [paths(result) if isinstance(result, list) else type(result) for result in results] == [
        ["x"],
        ["a"],
        Missing,
        ["c"],
    ]


async def test_closing_ends_those_who_wait() -> None:
    jobs = Jobs()
    writer = BundlingWriter(jobs, jobs_at_once=1)
    run = asyncio.create_task(writer.write([task("a")]))
    await settle()
    await writer.close()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_key_scan_goes_out_at_once_in_a_job_of_its_own() -> None:
    jobs = Jobs()
    writer = BundlingWriter(jobs, jobs_at_once=1)
    run = asyncio.create_task(writer.write([task("a")]))
    await settle()
    scan = ScanTask("s", 1, "tables/t/data/", 2, StreamId(7), 0, 9, 0, ())
    (scanned,) = await writer.scan([scan])
    assert (scanned.partition, scanned.cleaned_to, jobs.jobs) == (2, 9, [["a"], ["s"]])
    jobs.may_go.set()
    await run
