import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, Invalid, OutcomeUnknown, Retryable, Unusable
from headrace.objects.disk import MAX_BUFFERS_PER_CALL, Disk, SyncFailed, Trust, refusal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_a_write_that_is_cut_short_goes_on_where_it_stopped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def seven_bytes_at_most(fd: int, buffers: Sequence[memoryview], position: int) -> int:
        taken, room = [], 7
        for buffer in buffers:
            taken.append(buffer[:room])
            room -= len(taken[-1])
        return real(fd, taken, position)

    monkeypatch.setattr(os, "pwritev", seven_bytes_at_most)
    disk = Disk()
    fd = disk.create(path)
    disk.write(fd, [b"abc", b"", bytearray(b"defghijklm"), memoryview(b"nopqrstuvwxyz")[:11], b"y", b"z"], 2)
    disk.close(fd)
    assert path.read_bytes() == b"\0\0abcdefghijklmnopqrstuvwxyz"


def test_no_call_gets_more_buffers_than_the_system_takes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, counts = os.pwritev, []

    def counting(fd: int, buffers: Sequence[memoryview], position: int) -> int:
        counts.append(len(buffers))
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", counting)
    disk = Disk()
    fd = disk.create(path)
    disk.write(fd, [b"%05d" % n for n in range(2 * MAX_BUFFERS_PER_CALL + 1)], 0)
    disk.close(fd)
    assert counts == [MAX_BUFFERS_PER_CALL, MAX_BUFFERS_PER_CALL, 1]
    assert path.read_bytes() == b"".join(b"%05d" % n for n in range(2 * MAX_BUFFERS_PER_CALL + 1))


def test_buffers_of_wider_items_are_written_as_bytes(path: Path) -> None:
    disk = Disk()
    fd = disk.create(path)
    disk.write(fd, [memoryview(b"01234567").cast("I"), b"8"], 0)
    disk.close(fd)
    assert path.read_bytes() == b"012345678"


def test_a_disk_that_takes_nothing_is_an_error_and_no_endless_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    disk = Disk()
    fd = disk.create(path)
    with pytest.raises(OSError, match="no more bytes"):
        disk.write(fd, [b"x"], 0)
    disk.close(fd)


def test_a_failed_sync_has_its_own_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "fdatasync", fail)
    disk = Disk()
    fd = disk.create(tmp_path / "file")
    syncs: list[Callable[[], None]] = [
        lambda: disk.sync(fd),
        lambda: disk.sync_data(fd),
        lambda: disk.sync_directory(tmp_path),
    ]
    for sync in syncs:
        with pytest.raises(SyncFailed) as caught:
            sync()
        assert caught.value.errno == errno.EIO
    disk.close(fd)


def test_trust_is_lost_once_and_for_all() -> None:
    trust = Trust()
    trust.require()
    assert isinstance(trust.lose(SyncFailed(errno.EIO, "Input/output error"), "wal/1"), OutcomeUnknown)
    for _ in range(2):
        with pytest.raises(Unusable, match=r"wal/1.*check the disk"):
            trust.require()


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, Retryable),
        (errno.EDQUOT, Retryable),
        (errno.EMFILE, Retryable),
        (errno.ENAMETOOLONG, Invalid),
        (errno.ENOTDIR, Invalid),
        (errno.EROFS, Unusable),
        (errno.EIO, Unusable),
    ],
)
def test_a_refusal_names_the_remedy(number: int, expected: type[HeadraceError]) -> None:
    told = refusal(OSError(number, os.strerror(number)), "wal/1")
    assert type(told) is expected
    assert f"wal/1: {os.strerror(number)} (errno {number})" in str(told)
