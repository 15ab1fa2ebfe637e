"""What runs in the executors for a read: one task, from the object store to record batches that Spark takes.

Everything a task needs comes in its message. Nothing here imports broker code, and nothing needs a broker that runs.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, closing
from typing import Any

from headrace import __version__
from headrace.errors import Unsupported
from headrace.objects.port import ObjectStore
from headrace.pipeline.scan.pinning import BeatBook
from headrace.pipeline.scan.reading import ScanReader, new_builders
from headrace.pipeline.spark.address import open_address
from headrace.pipeline.spark.scan_messages import MESSAGES, ScanMessage
from headrace.pipeline.spark.workers import spare_next_task
from headrace.records.columns import ColumnBuilder
from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import system_rng

DISK_THREADS = 2
"""Threads of one task that read local files ahead."""

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""How much memory a process keeps from one task for the next; what has grown larger is given up."""


_book: BeatBook | None = None
_spare_builders: dict[int, list[ColumnBuilder]] = {}


def read_rows(packed: bytes) -> Iterator[Any]:
    """Do one task in this process: bring its rows, as record batches of the columns that were asked for."""
    told = MESSAGES.decode(packed)
    if told.version != __version__:
        raise Unsupported(
            f"an executor has Headrace {__version__}, and the driver has {told.version}: install the same release"
        )
    with closing(ThreadExecutor("disk", threads=DISK_THREADS)) as disk, asyncio.Runner() as runner:
        objects = open_address(told.objects, disk)
        builders = _take_builders(told.max_open_bytes)
        rows = _rows(told, objects, builders)
        try:
            while (batch := runner.run(_next(rows))) is not None:
                if batch.num_rows:
                    yield batch
                del batch
        finally:
            runner.run(rows.aclose())
            runner.run(objects.close())
            _give_back(told.max_open_bytes, builders)
            spare_next_task()


async def _rows(
    told: ScanMessage, objects: ObjectStore, builders: Sequence[ColumnBuilder]
) -> AsyncGenerator[Any, None]:
    book = _beat_book()
    await book.beat(told.pin, objects)
    reader = ScanReader(told.task, objects, columns=told.columns, condition=told.condition, builders=builders)
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


def _take_builders(max_open_bytes: int) -> list[ColumnBuilder]:
    """Return builders with the memory of the task before, if that has left some.

    Fresh memory is what the kernel has to clear, page by page as it is touched, and it grows by being copied: a third
    of what a task of 25 MB took.
    """
    return _spare_builders.pop(max_open_bytes, None) or new_builders(max_open_bytes)


def _give_back(max_open_bytes: int, builders: list[ColumnBuilder]) -> None:
    _spare_builders.clear()
    if sum(builder.capacity_bytes for builder in builders) <= MAX_KEPT_BYTES:
        _spare_builders[max_open_bytes] = builders
