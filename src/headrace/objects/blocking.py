"""An object store for code that blocks: whole small objects, from threads, without an event loop.

Libraries that do their own I/O (PyIceberg) get to the store through this, so that they find it by the same URL and
with the same credentials as everybody else. Nothing is tried twice here but reads.

Must stay true: an object that was written is whole and durable; one that is there is never written over.
"""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

import obstore.store
from obstore.exceptions import BaseError

from headrace.errors import Invalid, Missing, Retryable, Unsupported
from headrace.model.ids import ObjectKey
from headrace.objects.disk import Disk
from headrace.objects.port import object_key
from headrace.objects.publishing import Publisher
from headrace.objects.remote_errors import RAISED, read_error, write_error
from headrace.runtime.crash_points import CrashPoints

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Handle
    from obstore.store import RetryConfig

READ_RETRIES = 2
READ_RETRY_TIMEOUT = timedelta(seconds=30)

_REMOTE_SCHEMES = ("s3", "gs", "az")


class BlockingObjects(Protocol):
    """Whole objects, one at a time. Every method blocks and may be called from several threads."""

    def read(self, key: ObjectKey) -> bytes:
        """Return an object's bytes. Raises `Missing`, or `Retryable`."""
        ...

    def size_bytes(self, key: ObjectKey) -> int:
        """Return an object's size. Raises `Missing`, or `Retryable`."""
        ...

    def write_new(self, key: ObjectKey, content: bytes) -> None:
        """Write an object under a key that is free. Raises `Exists`, `Retryable`, `OutcomeUnknown`."""
        ...

    def delete(self, key: ObjectKey) -> None:
        """Delete an object; one that is not there is as good. Raises `Retryable`, `OutcomeUnknown`."""
        ...

    def close(self) -> None:
        """Free what is held open."""
        ...


def open_blocking_objects(url: str, *, crash_points: CrashPoints) -> BlockingObjects:
    """Return the store that `objects.url` names. Raises `Invalid`, and `Unsupported` for memory."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return _LocalBlocking(Path(unquote(parts.path) if parts.scheme else url), crash_points)
    if parts.scheme in _REMOTE_SCHEMES:
        return _RemoteBlocking(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}")
    raise Unsupported(f"the object store {parts.scheme}: lives in one process only")


class _LocalBlocking:
    def __init__(self, root: Path, crash_points: CrashPoints) -> None:
        self._publisher = Publisher(root.absolute(), disk=Disk(), crash_points=crash_points)

    def read(self, key: ObjectKey) -> bytes:
        try:
            return self._publisher.path(key).read_bytes()
        except FileNotFoundError as error:
            raise Missing(f"object {key} is not there") from error
        except OSError as error:
            raise Retryable(f"cannot read {key}: {error.strerror}") from error

    def size_bytes(self, key: ObjectKey) -> int:
        try:
            return self._publisher.path(key).stat().st_size
        except FileNotFoundError as error:
            raise Missing(f"object {key} is not there") from error
        except OSError as error:
            raise Retryable(f"cannot read {key}: {error.strerror}") from error

    def write_new(self, key: ObjectKey, content: bytes) -> None:
        self._publisher.write(key, [content], exclusive=True)

    def delete(self, key: ObjectKey) -> None:
        try:
            self._publisher.path(key).unlink(missing_ok=True)
        except OSError as error:
            raise Retryable(f"cannot delete {key}: {error.strerror}") from error

    def close(self) -> None:
        self._publisher.close()


class _RemoteBlocking:
    def __init__(self, url: str) -> None:
        once: RetryConfig = {"max_retries": 0}
        again: RetryConfig = {"max_retries": READ_RETRIES, "retry_timeout": READ_RETRY_TIMEOUT}
        try:
            self._writing: Handle = obstore.store.from_url(url, retry_config=once)
            self._reading: Handle = obstore.store.from_url(url, retry_config=again)
        except BaseError as error:
            raise Invalid(f"cannot open {url}: {str(error).partition(chr(10))[0]}") from error

    def read(self, key: ObjectKey) -> bytes:
        try:
            return bytes(self._reading.get(object_key(key)).bytes())
        except RAISED as error:
            raise read_error(error, f"get {key}") from error

    def size_bytes(self, key: ObjectKey) -> int:
        try:
            return self._reading.head(object_key(key))["size"]
        except RAISED as error:
            raise read_error(error, f"head {key}") from error

    def write_new(self, key: ObjectKey, content: bytes) -> None:
        try:
            self._writing.put(object_key(key), content, mode="create", use_multipart=False)
        except RAISED as error:
            raise write_error(error, f"put {key} if absent") from error

    def delete(self, key: ObjectKey) -> None:
        try:
            self._writing.delete(object_key(key))
        except FileNotFoundError:
            return
        except RAISED as error:
            raise write_error(error, f"delete {key}") from error

    def close(self) -> None:
        """Do nothing: obstore frees its connections with the handle."""
