"""Segments on local disk: files that one process appends to, with an fdatasync for each append.

The file is filled with zeros ahead of the appends, off their path. An append then changes no size and takes no new
blocks, so its fdatasync has only the bytes to write: about half of what a growing file costs. A large append gains
nothing from that and would write its bytes twice, so it simply lets the file grow.

Several appends are under way at once, each at its own place: while one waits for the disk, the next is copied to the
kernel. That is worth a factor of 1.5 to 2 (measured from 64 KiB to 4 MiB).

Must stay true:
- Zeros are written behind `prepared` only, and nothing is appended there before they are done.
- After any error no further append begins. Those under way end as they end: each has its own place and its own sync.
- The kernel tells a failed write-back once per open file. So each append under way syncs through a file of its own,
  and none can swallow the error that another must hear of.
- Files are never used a second time: a slow reader that still holds an old path open would get foreign bytes.
"""

import asyncio
import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from headrace.errors import Corrupt, Exists, Invalid, Missing, OutcomeUnknown
from headrace.model.ids import ObjectKey
from headrace.objects.cancellation import run_or_undo
from headrace.objects.disk import DISK_FULL, Disk, SyncFailed, refusal
from headrace.objects.port import Buffer
from headrace.objects.publishing import Publisher, require_file
from headrace.runtime.executor import Executor

# How far ahead of the appends the file is filled; it is filled up again when half of it is used.
PREPARED_WINDOW_BYTES = 2 * 1024 * 1024

# Appends above this let the file grow: writing the bytes takes longer than what preparing would save.
MAX_PREPARED_APPEND_BYTES = 128 * 1024

APPENDS_AT_ONCE = 3

_ZEROS = bytes(256 * 1024)


class LocalSegments:
    """The appending capability of a local store."""

    def __init__(self, publisher: Publisher, executor: Executor, *, drops_cache: bool) -> None:
        self._publisher = publisher
        self._executor = executor
        self._drops_cache = drops_cache
        self._open: set[LocalSegment] = set()

    async def create_segment(self, key: ObjectKey, *, capacity_bytes: int) -> "LocalSegment":
        prepared_bytes = min(PREPARED_WINDOW_BYTES, capacity_bytes)
        # A cancelled caller leaves the segment behind, as a crash would, but not the open file.
        create = partial(self._create, key, prepared_bytes)
        path, fds = await run_or_undo(self._executor, create, lambda made: _close_all(self._publisher.disk, made[1]))
        segment = LocalSegment(
            key,
            path,
            fds,
            publisher=self._publisher,
            executor=self._executor,
            prepared_bytes=prepared_bytes,
            capacity_bytes=capacity_bytes,
            drops_cache=self._drops_cache,
        )
        self._open = {other for other in self._open if not other.is_closed}
        self._open.add(segment)
        return segment

    async def seal_segment(self, key: ObjectKey, *, size_bytes: int) -> None:
        await self._executor.run(partial(self._seal, key, size_bytes))

    async def release(self) -> None:
        """Close the files of all segments and leave them unsealed, as a crash would."""
        for segment in self._open:
            await segment.release()
        self._open.clear()

    def _create(self, key: ObjectKey, prepared_bytes: int) -> tuple[Path, list[int]]:
        disk = self._publisher.disk
        self._publisher.trust.require()
        path = self._publisher.make_way(key)
        with self._publisher.refusing(key):
            try:
                fd = disk.create(path)
            except FileExistsError as error:
                require_file(path)
                raise Exists(f"segment {key} is there already") from error
        fds = [fd]
        try:
            with self._publisher.refusing(key, path):
                _fill(disk, fd, 0, prepared_bytes)
                disk.sync(fd)
                while len(fds) < APPENDS_AT_ONCE:
                    fds.append(disk.open_to_write(path))
            self._publisher.sync_directory(path.parent)
        except BaseException:
            _close_all(disk, fds)
            raise
        return path, fds

    def _seal(self, key: ObjectKey, size_bytes: int) -> None:
        disk = self._publisher.disk
        self._publisher.trust.require()
        with self._publisher.refusing(key):
            try:
                fd = disk.open_to_write(self._publisher.path(key))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise Missing(f"segment {key} is not there") from error
            try:
                found_bytes = os.fstat(fd).st_size
                if found_bytes < size_bytes:
                    raise Corrupt(f"segment {key} has {found_bytes} bytes, but {size_bytes} are said to be committed")
                _cut(disk, fd, key, size_bytes)
            finally:
                disk.close(fd)


class LocalSegment:
    """One open segment. Places are given in the order of the calls; appends may end in another."""

    def __init__(
        self,
        key: ObjectKey,
        path: Path,
        fds: Sequence[int],
        *,
        publisher: Publisher,
        executor: Executor,
        prepared_bytes: int,
        capacity_bytes: int,
        drops_cache: bool,
    ) -> None:
        self._key = key
        self._path = path
        self._drops_cache = drops_cache
        self._publisher = publisher
        self._executor = executor
        self._size_bytes = 0
        self._durable_bytes = 0
        self._prepared_bytes = prepared_bytes
        self._capacity_bytes = capacity_bytes
        self._preparing: asyncio.Task[None] | None = None
        self._takes_appends = True
        self._closed = False
        self._abreast = asyncio.Semaphore(len(fds))
        self._appends = 0
        self._no_appends = asyncio.Event()
        self._no_appends.set()
        # A cancelled append leaves its thread at work. Whoever closes the files collects all of them first, and so
        # waits for threads, not for callers; a thread that comes later finds `None`.
        self._fd_count = len(fds)
        self._free_fds: SimpleQueue[int | None] = SimpleQueue()
        for fd in fds:
            self._free_fds.put(fd)
        self._closing = threading.Lock()

    @property
    def key(self) -> ObjectKey:
        return self._key

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def append(self, data: Sequence[Buffer]) -> int:
        self._require_open()
        added_bytes = sum(memoryview(buffer).nbytes for buffer in data)
        position, zeros = self._take_place(added_bytes)
        self._appends += 1
        self._no_appends.clear()
        try:
            if zeros is not None:
                await asyncio.shield(zeros)
            async with self._abreast:
                self._require_open()
                await self._executor.run(partial(self._write, position, data))
            self._durable_bytes = max(self._durable_bytes, position + added_bytes)
        except BaseException:
            # An error and a cancelled caller both end the segment.
            self._takes_appends = False
            raise
        finally:
            self._appends -= 1
            if not self._appends:
                self._no_appends.set()
        self._prepare_ahead(added_bytes)
        return position

    def _take_place(self, added_bytes: int) -> "tuple[int, asyncio.Task[None] | None]":
        """Return where an append goes, and the zeros it has to wait for because they fall there, too."""
        position = self._size_bytes
        self._size_bytes += added_bytes
        zeros = self._preparing if self._size_bytes > self._prepared_bytes else None
        # From now on no zeros are begun below its end.
        self._prepared_bytes = max(self._prepared_bytes, self._size_bytes)
        return position, zeros

    async def seal(self) -> None:
        self._takes_appends = False
        await self._come_to_rest()
        if not self._closed:
            await self._executor.run(partial(self._seal, self._durable_bytes))

    async def release(self) -> None:
        """Close the files and leave the segment as it is, for `seal_segment`."""
        self._takes_appends = False
        await self._come_to_rest()
        if not self._closed:
            await self._executor.run(partial(self._close, None))

    async def _come_to_rest(self) -> None:
        """Wait until no append is under way whose success somebody will hear of, and no zeros are written."""
        await self._no_appends.wait()
        if self._preparing is not None:
            await asyncio.shield(self._preparing)

    def _require_open(self) -> None:
        self._publisher.trust.require()
        if not self._takes_appends:
            raise Invalid(f"segment {self._key} takes no more appends: seal it and begin another")

    def _write(self, position: int, data: Sequence[Buffer]) -> None:
        fd = self._free_fds.get()
        if fd is None:
            # A cancelled append may come here after the seal, when the descriptor's number is another file's.
            self._free_fds.put(None)
            raise Invalid(f"segment {self._key} was closed before the append began: begin another")
        try:
            self._publisher.disk.write(fd, data, position)
            self._publisher.disk.sync_data(fd)
            if self._drops_cache:
                self._drop_cached(fd, position, sum(memoryview(buffer).nbytes for buffer in data))
        except SyncFailed as error:
            if error.errno in DISK_FULL:
                raise OutcomeUnknown(f"segment {self._key}: fdatasync: {error.strerror}; seal it") from error
            raise self._publisher.trust.lose(error, self._key) from error
        except OSError as error:
            if error.errno in DISK_FULL:
                # Some bytes may lie there, but not all of them: the append certainly did not happen.
                raise refusal(error, f"segment {self._key}") from error
            raise OutcomeUnknown(f"segment {self._key}: write: {error.strerror}; seal it") from error
        finally:
            self._free_fds.put(fd)

    def _drop_cached(self, fd: int, position: int, size_bytes: int) -> None:
        """Let the kernel use the pages of a large append for the next one: fresh ones cost it several times as much.

        Readers who are close behind are served from the tail cache.
        """
        if size_bytes > MAX_PREPARED_APPEND_BYTES:
            self._publisher.disk.drop_cached(fd, position, position + size_bytes)

    def _seal(self, size_bytes: int) -> None:
        self._publisher.trust.require()
        with self._publisher.refusing(self._key):
            self._close(size_bytes)

    def _close(self, cut_to_bytes: int | None) -> None:
        """Wait for the threads of all appends, cut the file if asked to, close it; a failed cut closes nothing."""
        disk = self._publisher.disk
        with self._closing:
            # A cancelled caller may have left another thread that closes.
            if self._closed:
                return
            fds = [fd for fd in (self._free_fds.get() for _ in range(self._fd_count)) if fd is not None]
            try:
                if cut_to_bytes is not None:
                    _cut(disk, fds[0], self._key, cut_to_bytes)
            except BaseException:
                for fd in fds:
                    self._free_fds.put(fd)
                raise
            self._closed = True
            self._free_fds.put(None)
            _close_all(disk, fds)

    def _prepare_ahead(self, last_append_bytes: int) -> None:
        """Begin to write zeros when half of the window is used, unless that is under way."""
        if self._preparing is not None or last_append_bytes > MAX_PREPARED_APPEND_BYTES:
            return
        end_byte = min(self._size_bytes + PREPARED_WINDOW_BYTES, self._capacity_bytes)
        if self._prepared_bytes - self._size_bytes <= PREPARED_WINDOW_BYTES // 2 and end_byte > self._prepared_bytes:
            self._preparing = asyncio.create_task(self._prepare(self._prepared_bytes, end_byte))

    async def _prepare(self, start_byte: int, end_byte: int) -> None:
        try:
            await self._executor.run(partial(self._write_zeros, start_byte, end_byte))
            self._prepared_bytes = max(self._prepared_bytes, end_byte)
        except (OSError, OutcomeUnknown):
            # The disk is full or worse. The file may still grow, so the next append finds out and tells its caller.
            self._capacity_bytes = 0
        except BaseException:
            # The thread may still be writing zeros, and nothing may be appended where they fall.
            self._takes_appends = False
            raise
        finally:
            self._preparing = None

    def _write_zeros(self, start_byte: int, end_byte: int) -> None:
        # The kernel tells a write error once per open file. With a file of its own, this fdatasync cannot swallow
        # the error that an append must hear of.
        disk = self._publisher.disk
        fd = disk.open_to_write(self._path)
        try:
            _fill(disk, fd, start_byte, end_byte)
            disk.sync_data(fd)
        except SyncFailed as error:
            if error.errno in DISK_FULL:
                # Nobody relies on these zeros.
                raise
            raise self._publisher.trust.lose(error, self._key) from error
        finally:
            disk.close(fd)


def _close_all(disk: Disk, fds: Sequence[int]) -> None:
    for fd in fds:
        disk.close(fd)


def _cut(disk: Disk, fd: int, key: ObjectKey, size_bytes: int) -> None:
    """Give back what lies behind the committed bytes. Those are durable already, so a full disk costs no trust."""
    disk.truncate(fd, size_bytes)
    try:
        disk.sync(fd)
    except SyncFailed as error:
        if error.errno in DISK_FULL:
            raise refusal(error, f"segment {key}") from error
        raise


def _fill(disk: Disk, fd: int, start_byte: int, end_byte: int) -> None:
    for position in range(start_byte, end_byte, len(_ZEROS)):
        disk.write(fd, [memoryview(_ZEROS)[: end_byte - position]], position)
