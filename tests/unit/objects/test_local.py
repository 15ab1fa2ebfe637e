"""Real processes, really killed."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import Missing, Retryable
from headrace.model.ids import ObjectKey
from headrace.objects.disk import Disk
from headrace.objects.local import LocalObjects
from headrace.objects.port import object_key
from headrace.objects.temporary import DIRECTORY
from headrace.runtime.crash_points import CrashPoint
from headrace.runtime.executor import InlineExecutor, ThreadExecutor
from tests.unit.objects.faulty_disk import FaultyDisk, HeldCreation, open_files

ACKNOWLEDGED_BEFORE_THE_KILL = 40

# Puts objects whose content follows from their number, in turns overwriting and exclusive, and says so.
WRITER = """
import asyncio, os, sys
from pathlib import Path
from headrace.objects.local import LocalObjects
from headrace.objects.port import object_key
from headrace.runtime.crash_points import crash_points_from
from headrace.runtime.executor import ThreadExecutor

async def main():
    executor = ThreadExecutor("objects", threads=4)
    store = LocalObjects(Path(sys.argv[1]), executor=executor, crash_points=crash_points_from(os.environ))
    async def writer(number, step):
        while True:
            key = object_key(f"wal/{number % 7}/{number}")
            put = store.put if number % 2 else store.put_if_absent
            await put(key, [b"%06d" % number] * (number * 501 % 20000 + 1))
            print(number, flush=True)
            number += step
    writers = int(sys.argv[2])
    await asyncio.gather(*(writer(number, writers) for number in range(writers)))

asyncio.run(main())
"""


def content(number: int) -> bytes:
    return b"%06d" % number * (number * 501 % 20000 + 1)


def start_writer(root: Path, *, writers: int, crash_at: str = "") -> "subprocess.Popen[str]":
    environment = os.environ | {"HEADRACE_CRASH_AT": crash_at}
    command = [sys.executable, "-c", WRITER, str(root), str(writers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


async def check_all_whole(root: Path, acknowledged: list[int]) -> set[int]:
    """Open the store anew, require every visible object to be whole, and return their numbers."""
    store = LocalObjects(root, executor=InlineExecutor())
    assert list((root / DIRECTORY).glob("*/*")) == [], "temporary files are left"
    visible: set[int] = set()
    async for info in store.list(""):
        number = int(info.key.rpartition("/")[2])
        assert bytes(await store.get(info.key)) == content(number), f"object {number} is not whole"
        visible.add(number)
    await store.close()
    assert set(acknowledged) <= visible
    return visible


async def test_what_a_killed_process_acknowledged_is_whole_and_nothing_else_is_half(tmp_path: Path) -> None:
    with start_writer(tmp_path, writers=4) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(ACKNOWLEDGED_BEFORE_THE_KILL)]
        process.kill()
        acknowledged += [int(line) for line in process.stdout.read().splitlines()]
    visible = await check_all_whole(tmp_path, acknowledged)
    assert len(visible) <= len(acknowledged) + 4


@pytest.mark.parametrize(
    ("point", "landed"), [(CrashPoint.OBJECT_AFTER_TEMPORARY, False), (CrashPoint.OBJECT_AFTER_RENAME, True)]
)
@pytest.mark.parametrize("arrival", [3, 4])
async def test_a_kill_at_a_crash_point_leaves_the_object_absent_or_whole(
    tmp_path: Path, point: CrashPoint, landed: bool, arrival: int
) -> None:
    with start_writer(tmp_path, writers=1, crash_at=f"{point}:{arrival}") as process:
        assert process.stdout is not None
        acknowledged = [int(line) for line in process.stdout.read().splitlines()]
    assert process.returncode == -signal.SIGKILL
    assert acknowledged == list(range(arrival - 1))
    assert await check_all_whole(tmp_path, acknowledged) == set(range(arrival if landed else arrival - 1))


async def test_a_second_store_on_the_same_root_sees_and_shares_everything(tmp_path: Path) -> None:
    one = LocalObjects(tmp_path, executor=InlineExecutor())
    two = LocalObjects(tmp_path, executor=InlineExecutor())
    upload = await one.upload(object_key("a/b"))
    await upload.write(b"half")
    three = LocalObjects(tmp_path, executor=InlineExecutor())
    await upload.complete()
    assert bytes(await two.get(object_key("a/b"))) == b"half"
    assert [info.key async for info in three.list("")] == ["a/b"]
    for store in (one, two, three):
        await store.close()


async def test_temporary_files_are_no_objects(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path, executor=InlineExecutor())
    upload = await store.upload(object_key("a"))
    assert [info.key async for info in store.list("")] == []
    for name in (DIRECTORY, f"{DIRECTORY}/0/0"):
        with pytest.raises(Exception, match="not an object key"):
            await store.get(ObjectKey(name))
    await upload.abort()
    await store.close()


async def test_a_disk_without_hard_links_says_so(tmp_path: Path) -> None:
    class NoLinks(Disk):
        def link(self, path: Path, target: Path) -> None:
            raise PermissionError(1, "Operation not permitted")

    store = LocalObjects(tmp_path, executor=InlineExecutor(), disk=NoLinks())
    with pytest.raises(Exception, match="Operation not permitted"):
        await store.put_if_absent(object_key("a"), [b"x"])
    with pytest.raises(Missing):
        await store.get(object_key("a"))
    await store.close()


async def test_deleting_what_is_gone_makes_sure_that_it_stays_gone(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = LocalObjects(tmp_path, executor=InlineExecutor(), disk=disk)
    await store.put(object_key("wal/one"), [b"x"])
    (tmp_path / "wal" / "one").unlink()  # by a process that was killed before its fsync
    disk.steps.clear()
    await store.delete([object_key("wal/one"), object_key("nowhere/at/all")])
    assert disk.steps == ["unlink", "unlink", "sync_directory"]
    await store.close()


async def test_a_cancelled_begin_of_an_upload_leaves_no_file(tmp_path: Path) -> None:
    executor, disk = ThreadExecutor("held", threads=2), HeldCreation()
    store = LocalObjects(tmp_path, executor=executor, disk=disk)
    open_before = open_files(tmp_path)
    beginning = asyncio.create_task(store.upload(object_key("wal/one")))
    await executor.run(disk.held.wait)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    disk.go.set()
    while open_files(tmp_path) != open_before:
        await asyncio.sleep(0.01)
    assert list((tmp_path / DIRECTORY).glob("*/*")) == []
    await store.close()
    executor.close()


@pytest.mark.parametrize("drops_cache", [False, True])
async def test_an_upload_goes_to_the_disk_piece_by_piece_and_is_whole(tmp_path: Path, drops_cache: bool) -> None:
    disk = FaultyDisk()
    store = LocalObjects(
        tmp_path, executor=InlineExecutor(), disk=disk, drops_cache=drops_cache, sync_every_bytes=10_000
    )
    upload = await store.upload(object_key("tables/one"), if_absent=True)
    for number in range(10):
        await upload.write(b"%04d" % number * 1000)
    await upload.complete()
    assert disk.steps.count("sync_data") == 3
    assert bytes(await store.get(object_key("tables/one"))) == b"".join(b"%04d" % n * 1000 for n in range(10))
    await store.close()


async def test_an_upload_whose_pages_do_not_reach_the_disk_leaves_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = LocalObjects(tmp_path, executor=InlineExecutor(), disk=disk, sync_every_bytes=10_000)
    open_before = open_files(tmp_path)
    upload = await store.upload(object_key("tables/one"))
    disk.fail("sync_data", errno.ENOSPC)
    with pytest.raises(Retryable):
        await upload.write(b"x" * 10_000)
    with pytest.raises(Missing):
        await store.get(object_key("tables/one"))
    assert list((tmp_path / DIRECTORY).glob("*/*")) == []
    assert open_files(tmp_path) == open_before
    await upload.abort()
    await store.close()
