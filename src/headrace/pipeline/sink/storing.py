"""Write a task's frames to the object store: one is on its way while the next one is made."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Final

from headrace.errors import HeadraceError
from headrace.index.objects import wal_object_key
from headrace.model.ids import DomainId, ObjectId, ObjectKey
from headrace.objects.port import ObjectStore
from headrace.pipeline.spark.address import ObjectsAddress, open_address
from headrace.pipeline.spark.executing import DISK_THREADS
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.runtime.executor import ThreadExecutor
from headrace.wal.frame import SealedFrame

STOP_LIMIT_S: Final = 60.0


class TaskFrames:
    """A `FrameStore` on a thread of its own, whose event loop the object store lives in. One frame is under way."""

    def __init__(self, address: ObjectsAddress, domain: DomainId, *, crash_points: CrashPoints) -> None:
        self._address = address
        self._domain = domain
        self._crash_points = crash_points
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="frames")
        self._disk = ThreadExecutor("disk", threads=DISK_THREADS)
        self._under_way: Future[None] | None = None
        self._keys: list[ObjectKey] = []

    def __enter__(self) -> "TaskFrames":
        self._runner: asyncio.Runner = self._thread.submit(asyncio.Runner).result()
        self._objects: ObjectStore = open_address(self._address, self._disk)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.submit(self._close).result(STOP_LIMIT_S)
        self._thread.shutdown()
        self._disk.close()

    def put(self, object_id: ObjectId, frame: SealedFrame) -> None:
        """Begin to write a frame, once the one before it is durable."""
        self.flush()
        key = wal_object_key(self._domain, object_id)
        self._keys.append(key)
        self._under_way = self._thread.submit(self._write, key, frame)

    def flush(self) -> None:
        """Return when all frames are durable; raise what kept the last one from it."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()
            self._crash_points.reach(CrashPoint.SINK_AFTER_WRITE)

    def discard(self) -> None:
        """Delete all frames, as far as the store lets it; whatever failed before this is what is to be told."""
        with suppress(HeadraceError, TimeoutError):
            self._thread.submit(self._delete).result(STOP_LIMIT_S)

    def _write(self, key: ObjectKey, frame: SealedFrame) -> None:
        self._runner.run(self._objects.put_if_absent(key, frame.buffers))

    def _delete(self) -> None:
        if self._keys:  # the one thread has ended the write that was under way
            self._runner.run(self._objects.delete(self._keys))

    def _close(self) -> None:
        self._runner.run(self._objects.close())
        self._runner.close()
