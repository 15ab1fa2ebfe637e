"""Objects in S3, GCS or Azure through `obstore`. Nothing is tried twice here: `retrying.py` decides about that.

Must stay true: a write without a clear answer is `OutcomeUnknown`, so the store handed over must not retry by itself.
For multipart uploads there is a second handle that may: a part that is sent twice is still one part.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.errors import Corrupt, Exists, HeadraceError, Invalid, Missing, OutcomeUnknown, Retryable
from headrace.model.ids import ObjectKey
from headrace.objects.port import Buffer, ByteRange, ObjectInfo, object_key
from headrace.objects.remote_errors import RAISED, is_past_the_end, read_error, write_error
from headrace.objects.walk import Level, directory_of, walk

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Handle

# An upload is cut into parts of this size; S3 allows 10,000 of them, which makes 80 GB.
UPLOAD_PART_BYTES = 8 * 1024 * 1024
# How many parts travel at once. Together with the one that is being filled this bounds an upload's memory.
UPLOAD_PARTS_IN_FLIGHT = 4
# An upload that must not replace an object is one conditional put if it is no larger than this.
GUARDED_PUT_BYTES = 16 * 1024 * 1024
# How many ranges of one call are read at once.
MAX_RANGES_IN_FLIGHT = 16


class RemoteObjects:
    """An object store behind HTTP."""

    segments: Final = None

    def __init__(self, store: "Handle", *, uploads: "Handle | None" = None, lists_by_key: bool = True) -> None:
        """Use `store` for single requests and `uploads` (by default the same) for multipart uploads.

        `lists_by_key` is false for servers that list directory by directory; the probe finds out.
        """
        self._store = store
        self._uploads = uploads or store
        self._lists_by_key = lists_by_key

    async def put(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        try:
            await self._store.put_async(object_key(key), list(data), use_multipart=False)
        except RAISED as error:
            raise write_error(error, f"put {key}") from error

    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        try:
            await self._store.put_async(object_key(key), list(data), mode="create", use_multipart=False)
        except RAISED as error:
            raise write_error(error, f"put {key} if absent") from error

    async def get(self, key: ObjectKey) -> Buffer:
        try:
            answer = await self._store.get_async(object_key(key))
            found = memoryview(await answer.bytes_async())
        except RAISED as error:
            raise read_error(error, f"get {key}") from error
        if found.nbytes != answer.meta["size"]:
            raise Retryable(f"get {key}: {found.nbytes} bytes came instead of {answer.meta['size']}")
        return found

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        # obstore's own get_ranges panics when the object is too short, so each range is a request of its own.
        if not any(wanted.size_bytes for wanted in ranges):
            await self.head(key)
        slots = asyncio.Semaphore(MAX_RANGES_IN_FLIGHT)
        return await asyncio.gather(*(self._get_range(key, wanted, slots) for wanted in ranges))

    async def head(self, key: ObjectKey) -> ObjectInfo:
        try:
            return _info(await self._store.head_async(object_key(key)))
        except RAISED as error:
            raise read_error(error, f"head {key}") from error

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if self._lists_by_key:
            return self._list_flat(prefix, start_after)
        return walk(self._read_level, prefix, start_after)

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        paths = [object_key(key) for key in keys]
        if not paths:
            return
        try:
            await self._store.delete_async(paths)
        except FileNotFoundError:
            # Some stores complain about an absent key and leave the rest undone; then they go one by one.
            for path in paths:
                await self._delete_one(path)
        except RAISED as error:
            raise write_error(error, f"delete {len(paths)} objects from {paths[0]} on") from error

    async def upload(self, key: ObjectKey, *, if_absent: bool = False) -> "RemoteUpload | GuardedUpload":
        if if_absent:
            return GuardedUpload(self, object_key(key))
        return self.begin_parts(object_key(key))

    def begin_parts(self, key: ObjectKey) -> "RemoteUpload":
        """Begin a multipart upload, whatever lies under the key."""
        return RemoteUpload(self._uploads, key)

    async def close(self) -> None:
        """Do nothing: obstore frees its connections with the handle."""

    async def _get_range(self, key: ObjectKey, wanted: ByteRange, slots: asyncio.Semaphore) -> Buffer:
        if wanted.size_bytes == 0:
            return b""
        async with slots:
            try:
                found = memoryview(
                    await self._store.get_range_async(object_key(key), start=wanted.start_byte, end=wanted.end_byte)
                )
            except RAISED as error:
                if not is_past_the_end(error):
                    raise read_error(error, f"get {wanted} of {key}") from error
                found = memoryview(b"")
        if found.nbytes != wanted.size_bytes:
            raise await self._too_short(key, wanted, found.nbytes)
        return found

    async def _too_short(self, key: ObjectKey, wanted: ByteRange, found_bytes: int) -> HeadraceError:
        """Tell an object that is too short from an answer that was cut on its way."""
        size_bytes = (await self.head(key)).size_bytes
        told = f"object {key} of {size_bytes} bytes gives {found_bytes} bytes for {wanted}"
        return Corrupt(told) if size_bytes < wanted.end_byte else Retryable(told)

    async def _delete_one(self, path: str) -> None:
        try:
            await self._store.delete_async(path)
        except FileNotFoundError:
            return
        except RAISED as error:
            raise write_error(error, f"delete {path}") from error

    async def _list_flat(self, prefix: str, start_after: str) -> AsyncIterator[ObjectInfo]:
        # obstore compares prefixes by whole path segments and rounds the offset down to one, so both are compared
        # again here. For a prefix that ends within a segment, the offset lets the server begin near it.
        offset = start_after if prefix.endswith("/") else max(start_after, prefix[:-1])
        try:
            chunks = self._store.list_async(directory_of(prefix) or None, offset=offset or None)
            async for chunk in chunks:
                for found in map(_info, chunk):
                    if found.key > prefix and not found.key.startswith(prefix):
                        return
                    if found.key.startswith(prefix) and found.key > start_after:
                        yield found
        except RAISED as error:
            raise read_error(error, f"list {prefix}") from error

    async def _read_level(self, directory: str) -> Level:
        try:
            found = await self._store.list_with_delimiter_async(directory or None)
        except RAISED as error:
            raise read_error(error, f"list {directory}") from error
        directories = [path.rstrip("/") + "/" for path in found["common_prefixes"]]
        # An empty directory may show itself in its own listing; it is not an object.
        objects = [_info(each) for each in found["objects"] if each["path"].startswith(directory)]
        return Level(directories=directories, objects=objects)


class RemoteUpload:
    """A multipart upload, fed through a queue of one piece: a fast caller waits for the network."""

    def __init__(self, store: "Handle", key: ObjectKey) -> None:
        self._key = key
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._open = True
        self._aborted = False
        self._sending = asyncio.create_task(self._send(store))

    async def write(self, data: Buffer) -> None:
        self._require_open()
        # A copy, because the caller may use its buffer again while the piece still waits to be sent.
        await self._hand_over(bytes(data))
        if self._sending.done():
            await self._sending

    async def complete(self) -> None:
        self._require_open()
        self._open = False
        await self._hand_over(None)
        await self._sending

    async def abort(self) -> None:
        if self._open:
            self._open = False
            self._aborted = True
            await self._hand_over(None)
            with contextlib.suppress(_Aborted, HeadraceError):
                await self._sending

    async def _hand_over(self, piece: bytes | None) -> None:
        if not self._sending.done():
            try:
                await self._pieces.put(piece)
            except asyncio.CancelledError:
                # Without the end of its pieces the upload would wait for ever, and nobody can give it any more.
                if piece is None:
                    self._sending.cancel()
                raise

    async def _send(self, store: "Handle") -> None:
        try:
            await store.put_async(
                self._key,
                self._taken(),
                use_multipart=True,
                chunk_size=UPLOAD_PART_BYTES,
                max_concurrency=UPLOAD_PARTS_IN_FLIGHT,
            )
        except RAISED as error:
            raise self._failure(error) from error
        finally:
            # Nobody takes from the queue any more, and a caller that waits for room must hear of it.
            while not self._pieces.empty():
                self._pieces.get_nowait()

    async def _taken(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece
        if self._aborted:
            # obstore gives the parts back when its source fails.
            raise _Aborted

    def _failure(self, error: Exception) -> HeadraceError:
        what = f"upload {self._key}"
        if not self._open:
            # Also a 404 here may follow our own success: the second try to complete finds no upload any more.
            return OutcomeUnknown(f"{what}: {write_error(error, 'complete')}")
        failure = write_error(error, what)
        return failure if isinstance(failure, Invalid) else Retryable(str(failure))

    def _require_open(self) -> None:
        if not self._open:
            raise Invalid(f"the upload of {self._key} is over: begin another")


class GuardedUpload:
    """An upload that must not replace an object.

    What is small enough is kept until the end and put if absent. What is larger becomes a multipart upload, after a
    look that says that the key is free: most stores take no condition when the parts are put together. Between look
    and end somebody else may take the key; keys that are meant to be unique make that a mistake of ours, and the
    look is there to find such mistakes.
    """

    def __init__(self, store: RemoteObjects, key: ObjectKey) -> None:
        self._store = store
        self._key = key
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._parts: RemoteUpload | None = None
        self._open = True

    async def write(self, data: Buffer) -> None:
        self._require_open()
        if self._parts is None:
            self._kept.append(bytes(data))
            self._kept_bytes += len(self._kept[-1])
            if self._kept_bytes > GUARDED_PUT_BYTES:
                await self._begin_parts()
            return
        await self._parts.write(data)

    async def complete(self) -> None:
        self._require_open()
        self._open = False
        if self._parts is None:
            kept, self._kept = self._kept, []
            await self._store.put_if_absent(self._key, kept)
        else:
            await self._parts.complete()

    async def abort(self) -> None:
        self._open = False
        self._kept.clear()
        if self._parts is not None:
            await self._parts.abort()

    async def _begin_parts(self) -> None:
        try:
            await self._store.head(self._key)
        except Missing:
            pass
        else:
            await self.abort()
            raise Exists(f"object {self._key} is there already")
        self._parts = self._store.begin_parts(self._key)
        kept, self._kept = self._kept, []
        for piece in kept:
            await self._parts.write(piece)

    def _require_open(self) -> None:
        if not self._open:
            raise Invalid(f"the upload of {self._key} is over: begin another")


class _Aborted(Exception):
    """The caller has given the upload up."""


def _info(found: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(
        key=ObjectKey(found["path"]),
        size_bytes=found["size"],
        modified_at_ms=int(found["last_modified"].timestamp() * 1000),
    )
