"""The lock of a node: one process at a time, freed by death, and an identity that proves it."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cluster.node_lock import BOOT_ID, NodeLock
from headrace.errors import Invalid, Unusable

HOLD = """
import sys
from pathlib import Path
from headrace.cluster.node_lock import NodeLock
lock = NodeLock.take(Path(sys.argv[1]), 3)
print(lock.identity, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that is node 3 on `tmp_path`; its first line is the identity of its lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process
        process.kill()


def test_another_process_is_refused_until_the_holder_is_killed(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    assert holder.stdout is not None
    identity = holder.stdout.readline().strip()
    with pytest.raises(Invalid, match=rf"node 3 .*process {holder.pid} .*another --node-id"):
        NodeLock.take(tmp_path, 3)
    neighbour = NodeLock.take(tmp_path, 4)
    assert neighbour.identity != identity
    neighbour.release()

    holder.kill()
    holder.wait()
    successor = NodeLock.take(tmp_path, 3)
    assert successor.identity == identity, "the successor knows that its predecessor held the very same lock"
    successor.release()


def test_a_released_lock_can_be_taken_again_and_tells_who_holds_it(tmp_path: Path) -> None:
    first = NodeLock.take(tmp_path, 1)
    assert first.path.read_text() == f"{os.getpid()}\n"
    with pytest.raises(Invalid, match=f"process {os.getpid()}"):
        NodeLock.take(tmp_path, 1)
    first.release()
    first.release()
    NodeLock.take(tmp_path, 1).release()


def test_the_lock_is_not_inherited_by_programs_that_are_started(tmp_path: Path) -> None:
    lock = NodeLock.take(tmp_path, 1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as program:
        lock.release()
        NodeLock.take(tmp_path, 1).release()
        program.kill()


def test_a_deleted_or_copied_lock_file_has_another_identity(tmp_path: Path) -> None:
    first = NodeLock.take(tmp_path, 1)
    shutil.copytree(tmp_path, tmp_path / "copy")
    copied = NodeLock.take(tmp_path / "copy", 1)
    first.path.unlink()
    # The old file lives on as long as its holder does, so its number cannot be given to the new one.
    second = NodeLock.take(tmp_path, 1)
    assert len({first.identity, copied.identity, second.identity}) == 3
    for lock in (first, copied, second):
        lock.release()


def test_a_file_that_is_deleted_before_it_is_locked_is_not_mistaken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_file, flock = tmp_path / "node-1.lock", fcntl.flock
    opened: list[int] = []

    def delete_first(fd: int, operation: int) -> None:
        if not opened:
            lock_file.unlink()
        opened.append(fd)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", delete_first)
    lock = NodeLock.take(tmp_path, 1)
    assert len(opened) == 2 and lock_file.read_text() == f"{os.getpid()}\n"
    with pytest.raises(Invalid):
        NodeLock.take(tmp_path, 1)
    lock.release()


def test_another_boot_has_another_identity(tmp_path: Path) -> None:
    other = tmp_path / "boot_id"
    other.write_text("another boot\n")
    lock = NodeLock.take(tmp_path, 1)
    lock.release()
    rebooted = NodeLock.take(tmp_path, 1, boot_id_file=other)
    rebooted.release()
    assert rebooted.identity is not None and rebooted.identity != lock.identity
    if BOOT_ID.exists():
        assert lock.identity is not None and BOOT_ID.read_text().strip() in lock.identity


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_where_boots_cannot_be_told_apart_nothing_is_proved(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "boot_id"
    if content is not None:
        file.write_bytes(content)
    lock = NodeLock.take(tmp_path, 1, boot_id_file=file)
    assert lock.identity is None
    lock.release()


def test_a_directory_that_cannot_hold_a_lock_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"node-1\.lock cannot be used .*another --data-dir"):
        NodeLock.take(tmp_path / "missing", 1)
    (tmp_path / "node-1.lock").mkdir()
    with pytest.raises(Unusable, match="cannot be used"):
        NodeLock.take(tmp_path, 1)


def test_a_lock_file_with_nonsense_in_it_is_taken_and_named_without_a_number(tmp_path: Path) -> None:
    (tmp_path / "node-1.lock").write_bytes(b"\xff\nnonsense" * 100)
    lock = NodeLock.take(tmp_path, 1)
    assert lock.path.read_text() == f"{os.getpid()}\n"
    lock.path.write_bytes(b"-1 \x1b[31m")
    with pytest.raises(Invalid, match=r"\(a process holds node-1\.lock\)"):
        NodeLock.take(tmp_path, 1)
    lock.release()
