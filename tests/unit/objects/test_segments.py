import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from headrace.errors import HeadraceError, Invalid, OutcomeUnknown, Retryable, Unusable
from headrace.objects import segments
from headrace.objects.disk import Disk
from headrace.objects.local import LocalObjects
from headrace.objects.port import Buffer, object_key
from headrace.objects.segments import APPENDS_AT_ONCE, LocalSegment
from headrace.runtime.executor import InlineExecutor, ThreadExecutor
from tests.unit.objects.faulty_disk import FaultyDisk, HeldCreation, open_files

T = TypeVar("T")

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
    """Holds back writes and cuts, in their thread, until they are let go, and notes which files were closed."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.held = threading.Event()
        self.closed: list[int] = []

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        self._hold()
        super().write(fd, buffers, position)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._hold()
        super().truncate(fd, size_bytes)

    def close(self, fd: int) -> None:
        self.closed.append(fd)
        super().close(fd)

    def _hold(self) -> None:
        if not self.go.is_set():
            self.held.set()
            self.go.wait()


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


async def test_appends_under_way_at_once_lie_in_the_order_of_their_calls_and_none_touches_another(
    tmp_path: Path,
) -> None:
    executor = ThreadExecutor("abreast", threads=4)
    store = LocalObjects(tmp_path, executor=executor)
    segment = await store.segments.create_segment(KEY, capacity_bytes=16 * 1024 * 1024)
    frames = [bytes([n % 255 + 1]) * (n * 7919 % 150_000 + 1) for n in range(120)]
    positions = await asyncio.gather(*(segment.append([frame]) for frame in frames))
    assert positions == [sum(map(len, frames[:n])) for n in range(len(frames))]
    await segment.seal()
    await store.close()
    executor.close()
    assert (tmp_path / KEY).read_bytes() == b"".join(frames)


async def test_append_that_fails_beside_others_ends_the_segment_and_spoils_none_of_them(
    store: LocalObjects, disk: FaultyDisk
) -> None:
    segment = await create(store)
    disk.fail("write", errno.ENOSPC)
    outcomes = await asyncio.gather(*(segment.append([b"frame"]) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(Retryable) == 1
    with pytest.raises(Invalid, match="no more appends"):
        await segment.append([b"more"])
    await segment.seal()


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


async def test_zeros_that_do_not_fit_when_they_are_synced_cost_no_trust(
    store: LocalObjects, disk: FaultyDisk
) -> None:
    segment = await create(store)
    disk.fail("sync_data", errno.ENOSPC, after=5)
    for _ in range(5):
        await segment.append([b"x" * 1000])
    await settle()
    await segment.append([b"y" * 9000])
    await segment.seal()
    assert bytes(await store.get(KEY)) == b"x" * 5000 + b"y" * 9000


async def test_a_disk_that_is_full_at_sealing_is_tried_again_later(store: LocalObjects, disk: FaultyDisk) -> None:
    segment = await create(store)
    await segment.append([b"good"])
    disk.fail("sync", errno.ENOSPC)
    with pytest.raises(Retryable, match="wal/segment"):
        await segment.seal()
    disk.fail("sync", errno.ENOSPC)
    with pytest.raises(Retryable, match="wal/segment"):
        await store.segments.seal_segment(KEY, size_bytes=4)
    await segment.seal()
    await store.segments.seal_segment(KEY, size_bytes=4)
    assert bytes(await store.get(KEY)) == b"good"


async def test_a_seal_after_a_cancelled_one_closes_the_file_once(tmp_path: Path) -> None:
    executor, disk = ThreadExecutor("held", threads=4), HeldDisk()
    store = LocalObjects(tmp_path, executor=executor, disk=disk)
    segment = await create(store)
    await segment.append([b"good"])
    disk.go.clear()
    first = asyncio.create_task(segment.seal())
    await executor.run(disk.held.wait)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(segment.seal())
    await asyncio.sleep(0)
    disk.go.set()
    await second
    # A second close could hit a file that has got the same number meanwhile.
    assert sorted(disk.closed) == sorted(set(disk.closed)) and len(disk.closed) == APPENDS_AT_ONCE
    await store.close()
    executor.close()
    assert len(disk.closed) == APPENDS_AT_ONCE
    assert (tmp_path / KEY).read_bytes() == b"good"


class LateExecutor(InlineExecutor):
    """Runs work at once, or keeps it back: as a thread that was started and gets no turn."""

    def __init__(self) -> None:
        self.is_late = False
        self.kept: list[Callable[[], object]] = []

    async def run(self, work: Callable[[], T]) -> T:
        if self.is_late:
            self.kept.append(work)
            await asyncio.Event().wait()
        return work()


async def test_a_cancelled_append_that_comes_late_touches_no_file_any_more(tmp_path: Path, disk: FaultyDisk) -> None:
    executor = LateExecutor()
    store = LocalObjects(tmp_path, executor=executor, disk=disk)
    segment = await create(store)
    await segment.append([b"good"])
    executor.is_late = True
    doubtful = asyncio.create_task(segment.append([b"doubtful"]))
    await settle()
    doubtful.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doubtful
    executor.is_late = False
    await segment.seal()
    # The next file gets the number that the segment's file had.
    with (tmp_path / "stranger").open("wb+") as stranger:
        [append] = executor.kept
        with pytest.raises(Invalid, match="closed before"):
            append()
        assert os.fstat(stranger.fileno()).st_size == 0
    await store.close()


async def test_a_cancelled_creation_leaves_no_file_open(tmp_path: Path) -> None:
    executor, disk = ThreadExecutor("held", threads=2), HeldCreation()
    store = LocalObjects(tmp_path, executor=executor, disk=disk)
    open_before = open_files(tmp_path)
    creating = asyncio.create_task(create(store))
    await executor.run(disk.held.wait)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    disk.go.set()
    while open_files(tmp_path) != open_before:
        await asyncio.sleep(0.01)
    await store.close()
    executor.close()
