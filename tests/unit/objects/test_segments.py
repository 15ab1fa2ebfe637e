import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, Invalid, OutcomeUnknown, Retryable, Unusable
from headrace.objects import segments
from headrace.objects.disk import Disk
from headrace.objects.local import LocalObjects
from headrace.objects.port import Buffer, object_key
from headrace.objects.segments import LocalSegment
from headrace.runtime.executor import InlineExecutor, ThreadExecutor
from tests.unit.objects.faulty_disk import FaultyDisk

KEY = object_key("wal/segment")
CAPACITY_BYTES = 100_000
WINDOW_BYTES = 8192


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "PREPARED_WINDOW_BYTES", WINDOW_BYTES)
    monkeypatch.setattr(segments, "MAX_PREPARED_APPEND_BYTES", 2048)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
async def store(tmp_path: Path, disk: FaultyDisk) -> AsyncIterator[LocalObjects]:
    store = LocalObjects(tmp_path, executor=InlineExecutor(), disk=disk)
    yield store
    await store.close()


async def create(store: LocalObjects) -> LocalSegment:
    return await store.segments.create_segment(KEY, capacity_bytes=CAPACITY_BYTES)


async def settle() -> None:
    """Let the task that writes zeros run; it needs one turn with an inline executor."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_new_segment_is_durable_with_its_directory(store: LocalObjects, disk: FaultyDisk) -> None:
    disk.steps.clear()
    await create(store)
    assert disk.steps == ["make_directory", "sync_directory", "create", "write", "sync", "sync_directory"]


async def test_an_append_is_one_write_and_one_fdatasync(store: LocalObjects, disk: FaultyDisk) -> None:
    segment = await create(store)
    disk.steps.clear()
    await segment.append([b"a", b"b", b"c"])
    assert disk.steps == ["write", "sync_data"]


async def test_small_appends_never_change_the_files_size(store: LocalObjects, tmp_path: Path) -> None:
    segment = await create(store)
    for _ in range(40):
        size_before = (tmp_path / KEY).stat().st_size
        await segment.append([bytes(1000)])
        assert (tmp_path / KEY).stat().st_size == size_before
        await settle()
    assert (tmp_path / KEY).stat().st_size >= 40_000


async def test_no_more_than_the_window_is_prepared_and_never_beyond_the_capacity(
    store: LocalObjects, tmp_path: Path
) -> None:
    segment = await create(store)
    for n in range(1, 100):
        await segment.append([bytes(1000)])
        await settle()
        assert (tmp_path / KEY).stat().st_size <= min(n * 1000 + WINDOW_BYTES, CAPACITY_BYTES)


async def test_large_appends_are_written_once(store: LocalObjects, disk: FaultyDisk, tmp_path: Path) -> None:
    segment = await create(store)
    disk.steps.clear()
    for _ in range(5):
        await segment.append([bytes(20_000)])
        await settle()
    assert disk.steps == ["write", "sync_data"] * 5
    assert (tmp_path / KEY).stat().st_size == 100_000


@pytest.mark.parametrize(
    ("step", "number", "expected"),
    [
        ("write", errno.ENOSPC, Retryable),
        ("write", errno.EDQUOT, Retryable),
        ("write", errno.EIO, OutcomeUnknown),
        ("sync_data", errno.ENOSPC, OutcomeUnknown),
        ("sync_data", errno.EIO, OutcomeUnknown),
    ],
)
async def test_after_an_error_a_segment_takes_no_more(
    store: LocalObjects, disk: FaultyDisk, step: str, number: int, expected: type[HeadraceError]
) -> None:
    segment = await create(store)
    await segment.append([b"good"])
    disk.fail(step, number)
    with pytest.raises(expected, match="wal/segment"):
        await segment.append([b"bad"])
    assert segment.size_bytes == 4
    disk.steps.clear()
    with pytest.raises((Invalid, Unusable)):
        await segment.append([b"more"])
    assert disk.steps == []


@pytest.mark.parametrize(
    ("step", "number"), [("write", errno.ENOSPC), ("write", errno.EIO), ("sync_data", errno.ENOSPC)]
)
async def test_a_segment_with_an_error_is_sealed_to_its_last_success_and_another_begun(
    store: LocalObjects, disk: FaultyDisk, step: str, number: int
) -> None:
    segment = await create(store)
    await segment.append([b"good"])
    disk.fail(step, number)
    with pytest.raises((Retryable, OutcomeUnknown)):
        await segment.append([b"bad"])
    await segment.seal()
    assert bytes(await store.get(KEY)) == b"good"
    other = await store.segments.create_segment(object_key("wal/other"), capacity_bytes=CAPACITY_BYTES)
    assert await other.append([b"bad"]) == 0


async def test_a_failed_fdatasync_makes_the_whole_store_unusable(store: LocalObjects, disk: FaultyDisk) -> None:
    segment = await create(store)
    disk.fail("sync_data", errno.EIO)
    with pytest.raises(OutcomeUnknown):
        await segment.append([b"bad"])
    for write in (
        segment.append([b"x"]),
        segment.seal(),
        store.put(object_key("wal/object"), [b"x"]),
        store.upload(object_key("wal/object")),
        store.delete([KEY]),
        store.segments.create_segment(object_key("wal/other"), capacity_bytes=10),
        store.segments.seal_segment(KEY, size_bytes=0),
    ):
        with pytest.raises(Unusable):
            await write


async def test_a_full_disk_at_creation_leaves_no_segment(store: LocalObjects, disk: FaultyDisk) -> None:
    for step in ("create", "write", "sync"):
        disk.fail(step, errno.ENOSPC)
        with pytest.raises(Retryable):
            await create(store)
        assert [info.key async for info in store.list("")] == []
    await (await create(store)).append([b"x"])


async def test_when_zeros_do_not_fit_appends_go_on_as_long_as_they_fit(store: LocalObjects, disk: FaultyDisk) -> None:
    segment = await create(store)
    disk.fail("write", errno.ENOSPC, after=5)
    for _ in range(5):
        await segment.append([bytes(1000)])
    disk.steps.clear()
    await settle()
    assert disk.steps == ["write"]
    for _ in range(10):
        await segment.append([b"y" * 1000])
        await settle()
    await segment.seal()
    assert bytes(await store.get(KEY)) == bytes(5000) + b"y" * 10_000


async def test_a_failed_sync_of_zeros_ends_the_trust_in_the_disk(store: LocalObjects, disk: FaultyDisk) -> None:
    segment = await create(store)
    disk.fail("sync_data", errno.EIO, after=5)
    for _ in range(5):
        await segment.append([bytes(1000)])
    await settle()
    with pytest.raises(Unusable):
        await segment.append([b"x"])


class HeldDisk(Disk):
    """Holds back writes, in their thread, until they are let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.held = threading.Event()

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        if not self.go.is_set():
            self.held.set()
            self.go.wait()
        super().write(fd, buffers, position)


async def test_a_cancelled_append_ends_the_segment_and_sealing_waits_for_its_thread(tmp_path: Path) -> None:
    executor, disk = ThreadExecutor("held", threads=4), HeldDisk()
    store = LocalObjects(tmp_path, executor=executor, disk=disk)
    segment = await create(store)
    await segment.append([b"good"])
    disk.go.clear()
    doubtful = asyncio.create_task(segment.append([b"doubtful"]))
    await executor.run(disk.held.wait)
    doubtful.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doubtful
    with pytest.raises(Invalid, match="no more appends"):
        await segment.append([b"more"])
    sealing = asyncio.create_task(segment.seal())
    # A seal that does not wait would end here, long before the limit, and the late bytes would land behind it.
    await asyncio.wait({sealing}, timeout=0.3)
    assert not sealing.done()
    disk.go.set()
    await sealing
    await store.close()
    executor.close()
    assert (tmp_path / KEY).read_bytes() == b"good"


async def test_an_append_never_lands_where_zeros_are_still_being_written(tmp_path: Path) -> None:
    executor = ThreadExecutor("zeros", threads=4)
    store = LocalObjects(tmp_path, executor=executor)
    segment = await create(store)
    written = bytearray()
    for n in range(300):
        frame = bytes([n % 255 + 1]) * (n * 37 % 2048 + 1)
        await segment.append([frame])
        written += frame
    await segment.seal()
    await store.close()
    executor.close()
    assert (tmp_path / KEY).read_bytes() == written


async def test_closing_the_store_leaves_segments_for_others_to_seal(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path, executor=InlineExecutor())
    segment = await create(store)
    await segment.append([b"committed"])
    await store.close()
    with pytest.raises(Invalid):
        await segment.append([b"more"])
    assert (tmp_path / KEY).stat().st_size == WINDOW_BYTES
    successor = LocalObjects(tmp_path, executor=InlineExecutor())
    await successor.segments.seal_segment(KEY, size_bytes=9)
    assert (tmp_path / KEY).read_bytes() == b"committed"
    await successor.close()
