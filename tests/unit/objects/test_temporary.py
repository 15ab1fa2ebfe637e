from pathlib import Path

from headrace.objects.temporary import DIRECTORY, TemporaryFiles


def test_paths_are_never_given_twice(tmp_path: Path) -> None:
    first, second = TemporaryFiles(tmp_path), TemporaryFiles(tmp_path)
    paths = [files.next_path() for files in (first, second, first, second)]
    assert len(set(paths)) == 4
    first.close()
    second.close()


def test_what_a_dead_owner_left_is_removed_and_a_living_ones_files_stay(tmp_path: Path) -> None:
    living, dead = TemporaryFiles(tmp_path), TemporaryFiles(tmp_path)
    kept, left = living.next_path(), dead.next_path()
    kept.write_bytes(b"at work")
    left.write_bytes(b"left")
    dead.close()  # as the kernel does for a killed process
    successor = TemporaryFiles(tmp_path)
    assert not left.exists()
    assert kept.exists()
    successor.close()
    living.close()


def test_slots_beside_the_own_one_are_swept_too(tmp_path: Path) -> None:
    owners = [TemporaryFiles(tmp_path) for _ in range(3)]
    for owner in owners:
        owner.next_path().write_bytes(b"left")
        owner.close()
    TemporaryFiles(tmp_path).close()
    assert list((tmp_path / DIRECTORY).glob("*/*")) == []
    assert len([*(tmp_path / DIRECTORY).glob("*.lock")]) == 3


def test_a_slot_is_used_again(tmp_path: Path) -> None:
    for _ in range(5):
        TemporaryFiles(tmp_path).close()
    assert len([*(tmp_path / DIRECTORY).glob("*.lock")]) == 1


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    files = TemporaryFiles(tmp_path)
    files.close()
    files.close()


def test_the_next_owner_of_a_slot_gives_no_path_a_second_time(tmp_path: Path) -> None:
    # A thread may still write to, and then publish, a path of the store that was closed.
    first = TemporaryFiles(tmp_path)
    given = [first.next_path() for _ in range(3)]
    first.close()
    second = TemporaryFiles(tmp_path)
    assert not {second.next_path() for _ in range(6)} & set(given)
    second.close()
