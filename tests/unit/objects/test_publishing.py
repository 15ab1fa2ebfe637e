import contextlib
import errno
from pathlib import Path

import pytest

from headrace.errors import Exists, HeadraceError, Invalid, OutcomeUnknown, Retryable, Unusable
from headrace.objects import publishing
from headrace.objects.port import object_key
from headrace.objects.publishing import Publisher
from headrace.objects.temporary import DIRECTORY
from headrace.runtime.crash_points import CrashPoint, NoCrashes
from tests.unit.objects.faulty_disk import FaultyDisk, open_files

KEY = object_key("wal/one")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def publisher(tmp_path: Path, disk: FaultyDisk) -> Publisher:
    publisher = Publisher(tmp_path / "root", disk=disk, crash_points=NoCrashes())
    disk.steps.clear()
    return publisher


def leftovers(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "root" / DIRECTORY).glob("*/*"))


def test_the_first_object_of_a_directory_makes_the_directory_durable_first(
    publisher: Publisher, disk: FaultyDisk
) -> None:
    publisher.write(KEY, [b"x"], exclusive=False)
    way = ["make_directory", "sync_directory"]
    assert disk.steps == [*way, "create", "write", "sync", "rename", "sync_directory"]


def test_an_exclusive_write_links_and_syncs_before_it_returns(publisher: Publisher, disk: FaultyDisk) -> None:
    publisher.write(KEY, [b"x"], exclusive=True)
    disk.steps.clear()
    publisher.write(object_key("wal/two"), [b"x"], exclusive=True)
    assert disk.steps == ["create", "write", "sync", "link", "sync_directory", "unlink"]


def test_a_directory_that_somebody_else_created_is_synced_all_the_same(
    publisher: Publisher, disk: FaultyDisk, tmp_path: Path
) -> None:
    (tmp_path / "root" / "wal").mkdir()
    publisher.write(KEY, [b"x"], exclusive=False)
    assert disk.steps[:2] == ["make_directory", "sync_directory"]


def test_the_memory_of_durable_directories_is_bounded(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(publishing, "MAX_KNOWN_DIRECTORIES", 3)
    for n in range(10):
        publisher.write(object_key(f"d{n}/e/f"), [b"%d" % n], exclusive=False)
    assert [(tmp_path / "root" / f"d{n}/e/f").read_bytes() for n in range(10)] == [b"%d" % n for n in range(10)]


def test_that_a_key_is_taken_is_said_only_when_it_is_durable(publisher: Publisher, disk: FaultyDisk) -> None:
    publisher.write(KEY, [b"x"], exclusive=True)
    disk.steps.clear()
    with pytest.raises(Exists):
        publisher.write(KEY, [b"y"], exclusive=True)
    assert disk.steps == ["create", "write", "sync", "link", "sync_directory", "unlink"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["make_directory", "create", "write", "sync", "link"])
def test_a_full_disk_is_retryable_and_leaves_nothing(
    publisher: Publisher, disk: FaultyDisk, tmp_path: Path, step: str, number: int
) -> None:
    disk.fail(step, number)
    with pytest.raises(Retryable, match="wal/one"):
        publisher.write(KEY, [b"x"], exclusive=True)
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "root" / KEY).exists()
    publisher.write(KEY, [b"x"], exclusive=True)
    assert (tmp_path / "root" / KEY).read_bytes() == b"x"


@pytest.mark.parametrize(("step", "after"), [("sync", 0), ("sync_directory", 0), ("sync_directory", 1)])
def test_a_failed_fsync_is_an_unknown_outcome_and_ends_all_writing(
    publisher: Publisher, disk: FaultyDisk, tmp_path: Path, step: str, after: int
) -> None:
    disk.fail(step, errno.EIO, after=after)
    with pytest.raises(OutcomeUnknown, match="fsync failed"):
        publisher.write(KEY, [b"x"], exclusive=False)
    assert leftovers(tmp_path) == []
    disk.steps.clear()
    with pytest.raises(Unusable, match="check the disk"):
        publisher.write(object_key("wal/two"), [b"x"], exclusive=False)
    assert disk.steps == []


def test_a_full_disk_at_the_directorys_fsync_is_not_believed_either(publisher: Publisher, disk: FaultyDisk) -> None:
    disk.fail("sync_directory", errno.ENOSPC, after=1)
    with pytest.raises(OutcomeUnknown):
        publisher.write(KEY, [b"x"], exclusive=False)
    with pytest.raises(Unusable):
        publisher.write(KEY, [b"x"], exclusive=False)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("name", ["wal/one/below", "wal/one/far/below", "x" * 300, "wal"])
def test_keys_that_cannot_be_files_here_are_refused(
    publisher: Publisher, name: str, exclusive: bool, tmp_path: Path
) -> None:
    publisher.write(KEY, [b"x"], exclusive=False)
    with pytest.raises(Invalid, match="choose another"):
        publisher.write(object_key(name), [b"y"], exclusive=exclusive)
    assert leftovers(tmp_path) == []


def test_a_key_below_an_object_is_free_once_the_object_is_gone(publisher: Publisher, tmp_path: Path) -> None:
    below = object_key("wal/one/below")
    publisher.write(KEY, [b"x"], exclusive=False)
    with pytest.raises(Invalid):
        publisher.write(below, [b"y"], exclusive=False)
    (tmp_path / "root" / KEY).unlink()
    publisher.write(below, [b"y"], exclusive=False)
    assert (tmp_path / "root" / below).read_bytes() == b"y"


def test_failed_writes_leave_no_file_open(publisher: Publisher, disk: FaultyDisk, tmp_path: Path) -> None:
    publisher.write(KEY, [b"x"], exclusive=True)
    before = open_files(tmp_path)
    for step in ("create", "write", "sync", "link", "rename"):
        for exclusive in (True, False):
            disk.fail(step, errno.ENOSPC)
            with contextlib.suppress(Retryable, Exists):
                publisher.write(KEY, [b"x"], exclusive=exclusive)
    assert open_files(tmp_path) == before


class Crash(BaseException):
    pass


class CrashAt:
    def __init__(self, point: CrashPoint) -> None:
        self._point = point

    def reach(self, point: CrashPoint) -> None:
        if point is self._point:
            raise Crash


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("point", [CrashPoint.OBJECT_AFTER_TEMPORARY, CrashPoint.OBJECT_AFTER_RENAME])
def test_a_crash_leaves_the_object_whole_or_absent_and_the_next_start_cleans_up(
    tmp_path: Path, point: CrashPoint, exclusive: bool
) -> None:
    publisher = Publisher(tmp_path / "root", disk=FaultyDisk(), crash_points=CrashAt(point))
    with pytest.raises(Crash):
        publisher.write(KEY, [b"who", b"le"], exclusive=exclusive)
    publisher.close()
    Publisher(tmp_path / "root", disk=FaultyDisk(), crash_points=NoCrashes()).close()
    assert leftovers(tmp_path) == []
    visible = tmp_path / "root" / KEY
    if point is CrashPoint.OBJECT_AFTER_TEMPORARY:
        assert not visible.exists()
    else:
        assert visible.read_bytes() == b"whole"


def test_a_root_that_cannot_be_a_directory_is_refused(tmp_path: Path, disk: FaultyDisk) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(HeadraceError, match="cannot open the object store"):
            Publisher(root, disk=disk, crash_points=NoCrashes())
