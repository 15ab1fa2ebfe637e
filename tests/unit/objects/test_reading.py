import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import Corrupt, HeadraceError, Retryable, Unusable
from headrace.objects import reading
from headrace.objects.port import ByteRange, object_key
from tests.unit.objects.faulty_disk import open_files

KEY = object_key("wal/one")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "wal").mkdir()
    (tmp_path / KEY).write_bytes(b"0123456789")
    return tmp_path


def test_a_read_that_is_cut_short_goes_on_where_it_stopped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[int, int, int], bytes] = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: real(fd, min(size, 3), position))
    assert reading.read_whole(root, KEY) == b"0123456789"
    assert reading.read_ranges(root, KEY, [ByteRange(start_byte=2, size_bytes=7)]) == [b"2345678"]


def test_a_range_beyond_the_end_tells_sizes(root: Path) -> None:
    with pytest.raises(Corrupt, match="wal/one ends at byte 10, but 4 bytes from 8 on were asked for"):
        reading.read_ranges(root, KEY, [ByteRange(start_byte=8, size_bytes=4)])


@pytest.mark.parametrize(("number", "expected"), [(errno.EIO, Unusable), (errno.EMFILE, Retryable)])
def test_errors_of_the_disk_are_told_by_their_remedy(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[HeadraceError]
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(expected, match="wal/one"):
        reading.read_whole(root, KEY)


def test_an_open_file_survives_neither_success_nor_failure(root: Path) -> None:
    reading.read_whole(root, KEY)
    with pytest.raises(Corrupt):
        reading.read_ranges(root, KEY, [ByteRange(start_byte=8, size_bytes=4)])
    assert open_files(root) == []


def test_a_level_that_is_not_there_is_empty(root: Path) -> None:
    for directory in ("nowhere/", "wal/one/"):
        level = reading.read_level(root, directory)
        assert (list(level.directories), list(level.objects)) == ([], [])


def test_names_that_no_key_has_are_left_out(root: Path) -> None:
    (root / "lost+found").mkdir()
    (root / "wal" / "notes of the operator").write_bytes(b"x")
    assert [*reading.read_level(root, "").directories] == ["wal/"]
    assert [info.key for info in reading.read_level(root, "wal/").objects] == [KEY]


def test_a_level_that_cannot_be_read_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(Unusable, match="list wal/"):
        reading.read_level(root, "wal/")
