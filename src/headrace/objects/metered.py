"""An object store whose calls are counted, timed and weighed.

    headrace_object_store_call_seconds{operation, outcome}     a histogram; its count is the number of calls
    headrace_object_store_bytes_total{operation}               bytes read or written by calls that ended well

An append to a segment is the operation `append`: on local disk its bytes are the WAL's. Put this outside of retries
to see what callers see, inside to see what the store does. Nothing else changes: calls, errors and buffers pass
through.
"""

from collections.abc import AsyncIterator, Iterable, Sequence

from headrace.model.ids import ObjectKey
from headrace.objects.port import Buffer, ByteRange, ObjectInfo, ObjectStore, Segment, SegmentStore, Upload
from headrace.runtime.call_meter import CallMeter
from headrace.runtime.clock import Clock
from headrace.runtime.metrics import Metrics

OPERATIONS = (
    "put",
    "put_if_absent",
    "get",
    "get_ranges",
    "head",
    "list",
    "delete",
    "upload",
    "upload_write",
    "upload_complete",
    "upload_abort",
    "create_segment",
    "seal_segment",
    "append",
    "seal",
)


class MeteredObjects:
    """Passes every call on and takes note of it; see `port.ObjectStore`."""

    def __init__(self, inner: ObjectStore, *, metrics: Metrics, clock: Clock) -> None:
        meter = CallMeter(metrics, clock, store="object_store", operations=OPERATIONS)
        self._inner = inner
        self._meter = meter
        self._segments = None if inner.segments is None else MeteredSegments(inner.segments, meter)
        self._put = meter.operation("put")
        self._put_if_absent = meter.operation("put_if_absent")
        self._get = meter.operation("get")
        self._get_ranges = meter.operation("get_ranges")
        self._head = meter.operation("head")
        self._list = meter.operation("list")
        self._delete = meter.operation("delete")
        self._upload = meter.operation("upload")
        self._put_bytes = meter.bytes_of("put")
        self._put_if_absent_bytes = meter.bytes_of("put_if_absent")
        self._get_bytes = meter.bytes_of("get")
        self._get_ranges_bytes = meter.bytes_of("get_ranges")

    @property
    def segments(self) -> SegmentStore | None:
        return self._segments

    async def put(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        await self._put.timed(self._inner.put(key, data))
        self._put_bytes.inc(_size_bytes(data))

    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        await self._put_if_absent.timed(self._inner.put_if_absent(key, data))
        self._put_if_absent_bytes.inc(_size_bytes(data))

    async def get(self, key: ObjectKey) -> Buffer:
        found = await self._get.timed(self._inner.get(key))
        self._get_bytes.inc(memoryview(found).nbytes)
        return found

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        found = await self._get_ranges.timed(self._inner.get_ranges(key, ranges))
        self._get_ranges_bytes.inc(_size_bytes(found))
        return found

    async def head(self, key: ObjectKey) -> ObjectInfo:
        return await self._head.timed(self._inner.head(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """List; what counts as its time is the waiting for the store, not what the caller does between two keys."""
        now, seconds = self._list.monotonic, 0.0
        asked_at = now()
        try:
            async for info in self._inner.list(prefix, start_after=start_after):
                seconds += now() - asked_at
                yield info
                asked_at = now()
        except GeneratorExit:
            self._list.note_success(seconds)  # The caller has seen enough.
            raise
        except BaseException as error:
            self._list.note_failure(error, seconds + now() - asked_at)
            raise
        self._list.note_success(seconds + now() - asked_at)

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        await self._delete.timed(self._inner.delete(keys))

    async def upload(self, key: ObjectKey, *, if_absent: bool = False) -> Upload:
        begun = self._inner.upload(key, if_absent=if_absent)
        return MeteredUpload(await self._upload.timed(begun), self._meter)

    async def close(self) -> None:
        await self._inner.close()


class MeteredUpload:
    """See `port.Upload`."""

    def __init__(self, inner: Upload, meter: CallMeter) -> None:
        self._inner = inner
        self._write = meter.operation("upload_write")
        self._complete = meter.operation("upload_complete")
        self._abort = meter.operation("upload_abort")
        self._bytes = meter.bytes_of("upload_write")

    async def write(self, data: Buffer) -> None:
        await self._write.timed(self._inner.write(data))
        self._bytes.inc(memoryview(data).nbytes)

    async def complete(self) -> None:
        await self._complete.timed(self._inner.complete())

    async def abort(self) -> None:
        await self._abort.timed(self._inner.abort())


class MeteredSegments:
    """See `port.SegmentStore`."""

    def __init__(self, inner: SegmentStore, meter: CallMeter) -> None:
        self._inner = inner
        self._meter = meter
        self._create = meter.operation("create_segment")
        self._seal = meter.operation("seal_segment")

    async def create_segment(self, key: ObjectKey, *, capacity_bytes: int) -> Segment:
        created = self._inner.create_segment(key, capacity_bytes=capacity_bytes)
        return MeteredSegment(await self._create.timed(created), self._meter)

    async def seal_segment(self, key: ObjectKey, *, size_bytes: int) -> None:
        await self._seal.timed(self._inner.seal_segment(key, size_bytes=size_bytes))


class MeteredSegment:
    """See `port.Segment`."""

    def __init__(self, inner: Segment, meter: CallMeter) -> None:
        self._inner = inner
        self._append = meter.operation("append")
        self._seal = meter.operation("seal")
        self._bytes = meter.bytes_of("append")

    @property
    def key(self) -> ObjectKey:
        return self._inner.key

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    async def append(self, data: Sequence[Buffer]) -> int:
        position = await self._append.timed(self._inner.append(data))
        self._bytes.inc(_size_bytes(data))
        return position

    async def seal(self) -> None:
        await self._seal.timed(self._inner.seal())


def _size_bytes(data: Iterable[Buffer]) -> int:
    # Views may count in items larger than a byte; the length of a view is not its size.
    return sum([buffer.nbytes if isinstance(buffer, memoryview) else len(buffer) for buffer in data])
