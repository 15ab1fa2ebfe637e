"""Objects as files on local disk, durable when a write returns.

`publishing.py` says how an object is written, `reading.py` how it is read, `segments.py` how one is appended to;
here the event loop meets them. A crash between any two steps leaves at most a temporary file, which the next
store that is opened here removes (`temporary.py`). Deleting leaves empty directories behind: removing one would
race with a writer that has just been told that it is durable.
"""

import contextlib
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from pathlib import Path

from headrace.errors import HeadraceError, Invalid
from headrace.model.ids import ObjectKey
from headrace.objects import reading
from headrace.objects.cancellation import run_or_undo
from headrace.objects.disk import Disk, refusal
from headrace.objects.port import Buffer, ByteRange, ObjectInfo
from headrace.objects.publishing import Publisher
from headrace.objects.segments import LocalSegments
from headrace.objects.walk import Level, walk
from headrace.runtime.crash_points import CrashPoints, NoCrashes
from headrace.runtime.executor import Executor

SYNC_EVERY_BYTES = 32 * 1024 * 1024
"""How much of an upload goes to the disk at once, where the caller that opens the store does not say."""


class LocalObjects:
    """An object store below one directory, shared by any number of processes of one host."""

    def __init__(
        self,
        root: Path,
        *,
        executor: Executor,
        crash_points: CrashPoints | None = None,
        disk: Disk | None = None,
        drops_cache: bool = False,
        sync_every_bytes: int = SYNC_EVERY_BYTES,
    ) -> None:
        """Open the store and remove what dead processes left half-written. Blocks for some milliseconds.

        With `drops_cache`, what was appended to segments or uploaded is not kept in the kernel's page cache. An
        upload is synced every `sync_every_bytes`: appends beside it wait for what the kernel writes back at once.
        """
        self._root = root.absolute()
        self._executor = executor
        self._publisher = Publisher(self._root, disk=disk or Disk(), crash_points=crash_points or NoCrashes())
        self._segments = LocalSegments(self._publisher, executor, drops_cache=drops_cache)
        self._drops_cache = drops_cache
        self._sync_every_bytes = sync_every_bytes

    @property
    def segments(self) -> LocalSegments:
        return self._segments

    async def put(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        await self._executor.run(partial(self._publisher.write, key, data, exclusive=False))

    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        await self._executor.run(partial(self._publisher.write, key, data, exclusive=True))

    async def get(self, key: ObjectKey) -> Buffer:
        return await self._executor.run(partial(reading.read_whole, self._root, key))

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return await self._executor.run(partial(reading.read_ranges, self._root, key, ranges))

    async def head(self, key: ObjectKey) -> ObjectInfo:
        return await self._executor.run(partial(reading.stat_object, self._root, key))

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        return walk(self._read_level, prefix, start_after)

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        await self._executor.run(partial(_delete, self._publisher, [*keys]))

    async def upload(self, key: ObjectKey, *, if_absent: bool = False) -> "LocalUpload":
        begin = partial(
            LocalUpload,
            key,
            self._publisher,
            self._executor,
            exclusive=if_absent,
            drops_cache=self._drops_cache,
            sync_every_bytes=self._sync_every_bytes,
        )
        return await run_or_undo(self._executor, begin, LocalUpload.discard)

    async def close(self) -> None:
        """Close what is open. Segments stay as they are: whoever wants them sealed seals them first."""
        await self._segments.release()
        self._publisher.close()

    async def _read_level(self, directory: str) -> Level:
        return await self._executor.run(partial(reading.read_level, self._root, directory))


class LocalUpload:
    """A temporary file that grows until it is published. Bytes go to the disk as they come."""

    def __init__(
        self,
        key: ObjectKey,
        publisher: Publisher,
        executor: Executor,
        *,
        exclusive: bool = False,
        drops_cache: bool = False,
        sync_every_bytes: int = SYNC_EVERY_BYTES,
    ) -> None:
        publisher.trust.require()
        self._exclusive = exclusive
        self._drops_cache = drops_cache
        self._sync_every_bytes = sync_every_bytes
        self._synced_bytes = 0
        self._key = key
        self._publisher = publisher
        self._executor = executor
        self._final = publisher.make_way(key)
        self._temporary, self._fd = publisher.create_temporary(key)
        self._size_bytes = 0
        self._open = True
        # A cancelled caller leaves its thread at work: whoever closes the file waits for that thread.
        self._lock = threading.Lock()

    async def write(self, data: Buffer) -> None:
        await self._executor.run(partial(self._write, data))

    async def complete(self) -> None:
        await self._executor.run(self._complete)

    async def abort(self) -> None:
        await self._executor.run(self.discard)

    def _write(self, data: Buffer) -> None:
        with self._lock:
            self._require_open()
            try:
                self._publisher.disk.write(self._fd, [data], self._size_bytes)
            except OSError as error:
                self._end()
                self._publisher.discard(self._temporary)
                raise refusal(error, self._key) from error
            self._size_bytes += memoryview(data).nbytes
            if self._size_bytes - self._synced_bytes >= self._sync_every_bytes:
                self._sync_behind()

    def _sync_behind(self) -> None:
        """Bring to the disk what is not there yet, which has to happen anyway."""
        try:
            with self._publisher.refusing(self._key, self._temporary):
                self._publisher.disk.sync_data(self._fd)
        except HeadraceError:
            self._end()
            raise
        self._drop_synced()

    def _drop_synced(self) -> None:
        """Take note of what is on the disk, and give its pages back if that is asked for."""
        if self._drops_cache:
            self._publisher.disk.drop_cached(self._fd, self._synced_bytes, self._size_bytes)
        self._synced_bytes = self._size_bytes

    def _complete(self) -> None:
        with self._lock:
            self._require_open()
            self._publisher.trust.require()
            try:
                with self._publisher.refusing(self._key, self._temporary):
                    self._publisher.disk.sync(self._fd)
                self._drop_synced()
            finally:
                self._end()
            self._publisher.publish(self._key, self._temporary, self._final, exclusive=self._exclusive)

    def discard(self) -> None:
        """Give the temporary file back. Blocks."""
        with self._lock:
            if self._open:
                self._end()
                self._publisher.discard(self._temporary)

    def _end(self) -> None:
        self._open = False
        self._publisher.disk.close(self._fd)

    def _require_open(self) -> None:
        if not self._open:
            raise Invalid(f"the upload of {self._key} is over: begin another")


def _delete(publisher: Publisher, keys: Sequence[ObjectKey]) -> None:
    publisher.trust.require()
    touched: set[Path] = set()
    for key in keys:
        path = publisher.path(key)
        with publisher.refusing(key), contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            # Also where it is gone already: whoever removed it may have died before that was durable.
            touched.add(path.parent)
            publisher.disk.unlink(path)
    for directory in sorted(touched):
        if directory.is_dir():
            publisher.sync_directory(directory)
