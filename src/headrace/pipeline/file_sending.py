"""A Parquet file on its way into the object store: where it lies, and how its bytes get there as they are made.

Must stay true: no two attempts share a key, and a file exists once its last byte has arrived, not before.
"""

import contextlib
from collections.abc import Iterator
from functools import partial

from headrace.errors import HeadraceError
from headrace.model.ids import ObjectKey
from headrace.objects.port import Buffer, ObjectStore, Upload, object_key
from headrace.pipeline.plans import WriteTask
from headrace.pipeline.rewrites import RewriteTask
from headrace.runtime.executor import Executor
from headrace.tables.files import WrittenFile, WrittenSlice
from headrace.tables.parquet_writing import EncodedGroup, ParquetFileWriter


def table_file_key(task: WriteTask | RewriteTask, attempt: str) -> ObjectKey:
    """Return where an attempt of a task writes its file. No two attempts share a key."""
    first = task.file.slices[0]
    range_ = f"{first.stream}-{first.start_offset}-{first.end_offset}"
    name = f"{task.file.number:05d}-{range_}-{task.epoch}-{attempt}.parquet"
    return object_key(f"{task.data_prefix}{task.saga_id}/{name}")


async def send_all(groups: Iterator[EncodedGroup], sender: "FileSender", worker: Executor) -> None:
    """Let the groups be made one by one, and send each before the next is begun."""
    while (encoded := await worker.run(partial(next, groups, None))) is not None:
        await sender.send(encoded.data)
        del encoded  # Its memory is the next one's.


async def finish_file(
    task: WriteTask | RewriteTask,
    key: ObjectKey,
    parquet: ParquetFileWriter,
    slices: tuple[WrittenSlice, ...],
    sender: "FileSender",
    worker: Executor,
) -> WrittenFile:
    """Write the footer, let the file exist, and return what is known of it; one without rows is not written."""
    if parquet.row_count == 0:
        return WrittenFile(
            path="",
            size_bytes=0,
            footer_bytes=0,
            footer_crc=0,
            row_count=0,
            slices=slices,
            columns=(),
            split_offsets=(),
            bucket=task.file.bucket,
            partition=task.file.partition,
            spec_id=task.format.spec_id,
        )
    footer = await worker.run(parquet.finish)
    await sender.send(footer.data)
    await sender.complete()
    return WrittenFile(
        path=key,
        size_bytes=footer.size_bytes,
        footer_bytes=footer.footer_bytes,
        footer_crc=footer.footer_crc,
        row_count=footer.row_count,
        slices=slices,
        columns=footer.columns,
        split_offsets=footer.split_offsets,
        bucket=task.file.bucket,
        partition=task.file.partition,
        spec_id=task.format.spec_id,
    )


class FileSender:
    """The file on its way. It is begun with its first bytes, so a file without rows leaves nothing."""

    def __init__(self, objects: ObjectStore, key: ObjectKey) -> None:
        self._objects = objects
        self.key = key
        self._upload: Upload | None = None

    async def send(self, data: Buffer) -> None:
        if self._upload is None:
            self._upload = await self._objects.upload(self.key, if_absent=True)
        await self._upload.write(data)

    async def complete(self) -> None:
        assert self._upload is not None, "there are bytes to complete"
        upload, self._upload = self._upload, None
        await upload.complete()

    async def abort(self) -> None:
        if self._upload is not None:
            with contextlib.suppress(HeadraceError):
                await self._upload.abort()
