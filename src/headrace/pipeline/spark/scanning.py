"""What runs in the executors for a read: one task, from the object store to record batches that Spark takes.

Everything a task needs comes in its message. Nothing here imports broker code, and nothing needs a broker that runs.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing
from typing import Any
from zipimport import zipimporter

import msgspec

from headrace import __version__
from headrace.errors import Unsupported
from headrace.objects.port import ObjectStore
from headrace.pipeline.scan.conditions import Condition
from headrace.pipeline.scan.pinning import BeatBook, PinNote
from headrace.pipeline.scan.reading import ScanReader
from headrace.pipeline.scan.scanner import PlannedScan
from headrace.pipeline.scan.tasks import ScanTask
from headrace.pipeline.spark.executing import ObjectsAddress, open_address
from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import system_rng

DISK_THREADS = 2
"""Threads of one task that read local files ahead."""


class ScanMessage(msgspec.Struct, frozen=True):
    """What goes to an executor."""

    task: ScanTask
    pin: PinNote
    objects: ObjectsAddress
    columns: tuple[str, ...]
    condition: Condition
    max_open_bytes: int
    version: str


MESSAGES = msgspec.msgpack.Decoder(ScanMessage)

_book: BeatBook | None = None


def messages_of(
    planned: PlannedScan,
    *,
    objects: ObjectsAddress,
    columns: tuple[str, ...],
    condition: Condition,
    max_open_bytes: int,
) -> list[bytes]:
    """Pack the tasks of a plan for executors that are to be as this driver is."""
    if planned.pin is None:
        return []
    return [
        msgspec.msgpack.encode(
            ScanMessage(
                task=task,
                pin=planned.pin,
                objects=objects,
                columns=columns,
                condition=condition,
                max_open_bytes=max_open_bytes,
                version=__version__,
            )
        )
        for task in planned.tasks
    ]


def read_rows(packed: bytes) -> Iterator[Any]:
    """Do one task in this process: bring its rows, as record batches of the columns that were asked for."""
    told = MESSAGES.decode(packed)
    if told.version != __version__:
        raise Unsupported(
            f"an executor has Headrace {__version__}, and the driver has {told.version}: install the same release"
        )
    with closing(ThreadExecutor("disk", threads=DISK_THREADS)) as disk, asyncio.Runner() as runner:
        objects = open_address(told.objects, disk)
        rows = _rows(told, objects)
        try:
            while (batch := runner.run(_next(rows))) is not None:
                if batch.num_rows:
                    yield batch
                del batch
        finally:
            runner.run(rows.aclose())
            runner.run(objects.close())
            _forget_zip_files()


def _forget_zip_files() -> None:
    """Let go of what Python remembers of zip files that modules were looked for in.

    Spark's worker has Python look for changed modules before every task. Where PySpark's own zip file is on the
    path, it is read anew for each of its folders: 0.15 CPU seconds per task, as much as decoding 400,000 small
    records. What is not remembered is not looked at, and whoever imports from a zip file later finds it again.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


async def _rows(told: ScanMessage, objects: ObjectStore) -> AsyncGenerator[Any, None]:
    book = _beat_book()
    await book.beat(told.pin, objects)
    reader = ScanReader(
        told.task, objects, columns=told.columns, condition=told.condition, max_open_bytes=told.max_open_bytes
    )
    async with aclosing(reader.rows()) as batches:
        async for batch in batches:
            yield batch
            del batch
            await book.beat(told.pin, objects)


async def _next(rows: AsyncGenerator[Any, None]) -> Any:
    return await anext(rows, None)


def _beat_book() -> BeatBook:
    """Return the book of this process: Python workers do many tasks of a read, and one sign is enough for all."""
    global _book  # noqa: PLW0603
    if _book is None:
        _book = BeatBook(clock=SystemClock(), rng=system_rng())
    return _book
