"""One process's log on local disk, opened as a broker opens it; and, as a program, a process to be killed.

    python -m tests.integration.log_process DIRECTORY KIND COUNT

It appends to every stream, one batch after another, and prints `stream offset value` for each that is acknowledged.
Without COUNT (0) it goes on for ever. With one it then waits until its own reader has seen what was there before and
COUNT records of each process, and prints `digest` and what it has read. `HEADRACE_CRASH_AT` makes it kill itself.
"""

import asyncio
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import OutcomeUnknown, Retryable
from headrace.fetch.reader import LogReader
from headrace.gc.collecting import Collector, CollectorLimits
from headrace.gc.folding import Folder, FoldLimits
from headrace.index.cache import IndexCache
from headrace.index.objects import CollectingAges
from headrace.index.streams import create_streams
from headrace.index.values import PartResult, StreamKind
from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionKeeper
from headrace.model.ids import DomainId, StreamId, WriterId
from headrace.objects.local import LocalObjects
from headrace.objects.port import ObjectStore
from headrace.produce.placement import PlacementLimits, open_placement
from headrace.produce.settlement import WriterLimits
from headrace.produce.writer import LogWriter
from headrace.records.batch import iter_batches
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import CrashPoints, NoCrashes, crash_points_from
from headrace.runtime.executor import Executor, ThreadExecutor
from headrace.runtime.rng import system_rng
from headrace.testing.batches import make_batch, read_batches

STREAMS = [StreamId(0), StreamId(1), StreamId(2)]
PROCESSES = 2
OLD_RECORDS = 1
"""How many records each stream holds before the processes begin."""

SESSION_TIMEOUT_MS = 60_000
STAGED_MAX_AGE_MS = 600_000


class ObjectsOnly(LocalObjects):
    """Local disk that hides its segments, so that every frame is an object of its own, as on a remote store."""

    @property
    def segments(self) -> None:  # type: ignore[override]
        return None


KINDS: dict[str, type[LocalObjects]] = {"segments": LocalObjects, "objects": ObjectsOnly}


class DiskLog:
    """Everything one process needs to append to and read from the log below a directory."""

    def __init__(
        self,
        metadata: MetadataStore,
        objects: ObjectStore,
        executor: Executor,
        keeper: SessionKeeper,
        crash_points: CrashPoints,
    ) -> None:
        self.keys = DomainKeys(DomainId(0))
        self.clock = SystemClock()
        self.metadata = metadata
        self.objects = objects
        self._executor = executor
        self.keeper = keeper
        self.cache = IndexCache(metadata, self.keys, max_folded_entries=1000)
        self.reader = LogReader(domain=self.keys.domain, cache=self.cache, objects=objects)
        self.writer_id = WriterId(f"{system_rng().getrandbits(128):032x}")
        self.writer = LogWriter(
            keys=self.keys,
            writer=self.writer_id,
            metadata=metadata,
            placement=open_placement(
                keys=self.keys,
                writer=self.writer_id,
                metadata=metadata,
                objects=objects,
                clock=self.clock,
                crash_points=crash_points,
                limits=PlacementLimits(
                    segment_max_bytes=4000,
                    segment_max_age_ms=60_000,
                    staged_ahead=4,
                    staged_max_age_ms=STAGED_MAX_AGE_MS,
                ),
            ),
            clock=self.clock,
            crash_points=crash_points,
            limits=WriterLimits(
                buffer_max_bytes=100_000,
                frame_max_bytes=2_000,
                frames_in_flight=3,
                small_frames_in_flight=3,
                linger_ms=0,
                commit_attempts=5,
                retry_backoff_ms=5,
                producer_expiration_ms=86_400_000,
            ),
            cache=self.cache,
        )

    @classmethod
    async def open(
        cls, directory: Path, *, kind: str = "segments", crash_points: CrashPoints | None = None
    ) -> "DiskLog":
        """Open the stores and a session, and start a new incarnation's writer."""
        points = crash_points or NoCrashes()
        clock = SystemClock()
        metadata = await open_metadata(
            f"sqlite:{directory / 'meta.db'}", clock=clock, rng=system_rng(), crash_points=points
        )
        executor = ThreadExecutor("objects", threads=4)
        objects = KINDS[kind](directory / "objects", executor=executor, crash_points=points)
        keeper = await SessionKeeper.open(metadata, clock, timeout_ms=SESSION_TIMEOUT_MS)
        log = cls(metadata, objects, executor, keeper, points)
        await log.writer.start(keeper.session)
        return log

    async def create_streams(self) -> None:
        """Create the streams that all processes of a test use."""
        owners = [f"topic-{stream}" for stream in STREAMS]
        rule = create_streams(self.keys, owners, kind=StreamKind.PARTITION, now_ms=self.clock.now_ms())
        assert await rule.apply(self.metadata) == STREAMS

    async def append(self, stream: StreamId, values: Sequence[bytes]) -> PartResult:
        """Append one batch."""
        return await self.append_bytes(stream, make_batch(values))

    async def append_bytes(self, stream: StreamId, data: bytes) -> PartResult:
        """Append batches as they are."""
        return await self.writer.append(stream, data, [view.summary() for view in iter_batches(memoryview(data))])

    async def read(self, stream: StreamId) -> bytes:
        """Return all batches of a stream, with their offsets."""
        found = bytearray()
        offset = 0
        while runs := await self.reader.read(stream, offset, max_bytes=3_000):
            for run in runs:
                assert run.start_offset == offset, f"a run begins at {run.start_offset}, {offset} was due"
                found += run.data
                offset = run.end_offset
        return bytes(found)

    async def values(self, stream: StreamId) -> list[bytes]:
        """Return all values of a stream; offsets must be contiguous from 0 on."""
        records = read_batches(memoryview(await self.read(stream)))
        assert [record.offset for record in records] == list(range(len(records)))
        return [record.value or b"" for record in records]

    def folder(self) -> Folder:
        """Return what folds all commit records in one tick."""
        limits = FoldLimits(records_per_step=50, steps_per_tick=100, lag_records=0)
        return Folder(
            keys=self.keys, metadata=self.metadata, clock=self.clock, crash_points=NoCrashes(), limits=limits
        )

    def collector(self) -> Collector:
        """Return a collector that goes through everything in one tick."""
        return Collector(
            keys=self.keys,
            metadata=self.metadata,
            objects=self.objects,
            clock=self.clock,
            crash_points=NoCrashes(),
            limits=CollectorLimits(
                ages=CollectingAges(staged_max_age_ms=STAGED_MAX_AGE_MS, sealed_grace_ms=60_000),
                records_per_tick=1000,
                writers_per_tick=1000,
            ),
        )

    async def close(self) -> None:
        """End this incarnation as a broker that was asked to stop does."""
        await self.writer.close()
        await self.keeper.close()
        await self.objects.close()
        await self.metadata.close()
        self._executor.close()


async def _append(log: DiskLog, stream: StreamId, count: int) -> None:
    number = 0
    while number < count or not count:
        value = b"%s/%d" % (log.writer_id.encode(), number)
        try:
            result = await log.append(stream, [value])
        except (Retryable, OutcomeUnknown) as error:
            print("failed", stream, repr(error), flush=True)
            return
        print(stream, result.base_offset, value.decode(), flush=True)
        if stream == STREAMS[0]:
            await log.writer.tick()
        number += 1


async def _wait_for_all(log: DiskLog, count: int) -> str:
    """Wait, by watching, until the streams hold what all processes append, and return a digest of it."""
    watch = log.metadata.watch(log.keys.unit)
    digest = hashlib.sha256()
    for stream in STREAMS:
        while len(await log.values(stream)) < OLD_RECORDS + count * PROCESSES:
            await watch.wait()
        digest.update(await log.read(stream))
    watch.close()
    return digest.hexdigest()


async def main(directory: str, kind: str, count: str) -> None:
    log = await DiskLog.open(Path(directory), kind=kind, crash_points=crash_points_from(os.environ))
    print("ready", log.writer_id, log.keeper.session, flush=True)
    await asyncio.gather(*(_append(log, stream, int(count)) for stream in STREAMS))
    print("digest", await _wait_for_all(log, int(count)), flush=True)
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
