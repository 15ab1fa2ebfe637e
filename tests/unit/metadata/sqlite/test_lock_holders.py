"""Who holds the lock: found without touching the file, and said with what can be done about it."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.metadata.sqlite.connections import LONG_WAIT_S, BusyHandler
from headrace.metadata.sqlite.lock_holders import REPORT_AGAIN_S, LongWaits, holder_in_words, lock_holder
from headrace.metadata.sqlite.store import SqliteMetadata
from headrace.runtime.logs import open_log
from headrace.testing.clock import ManualClock
from tests.contract.metadata.rules import increment
from tests.unit.metadata.sqlite.conftest import foreign_connection

HOLD = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


async def test_holder_of_the_write_lock_is_found_and_readers_are_none(store: SqliteMetadata, path: str) -> None:
    await increment(store)
    assert lock_holder(path) is None
    with foreign_connection(path) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM kv").get == 1
        assert lock_holder(path) is None
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert lock_holder(path) == holder.pid
        told = holder_in_words(path)
        assert told.startswith(f"process {holder.pid} (") and "look at that process or end it" in told
        holder.send_signal(signal.SIGSTOP)
        os.waitpid(holder.pid, os.WUNTRACED)
        assert f"is stopped: let it go on (kill -CONT {holder.pid}) or end it" in holder_in_words(path)
    finally:
        holder.kill()
        holder.communicate()
    assert lock_holder(path) is None
    assert await increment(store) == 1


def listed(tmp_path: Path, lines: str) -> tuple[str, Path]:
    """Return a database and a list of locks; `{file}` stands for the file that SQLite locks."""
    shm = tmp_path / "meta.db-shm"
    shm.touch()
    status = shm.stat()
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    locks = tmp_path / "locks"
    locks.write_text(lines.format(file=file))
    return str(tmp_path / "meta.db"), locks


@pytest.mark.parametrize(
    ("lines", "pid"),
    [
        ("1: POSIX  ADVISORY  WRITE 17 {file} 120 120\n", 17),
        ("1: POSIX  ADVISORY  WRITE 17 {file} 0 EOF\n", 17),
        ("1: POSIX  ADVISORY  READ 17 {file} 123 123\n2: POSIX  ADVISORY  WRITE 18 {file} 120 121\n", 18),
        ("1: POSIX  ADVISORY  WRITE 17 {file} 121 121\n", None),
        ("1: POSIX  ADVISORY  READ 17 {file} 120 120\n", None),
        ("1: FLOCK  ADVISORY  WRITE 17 {file} 0 EOF\n", None),
        ("1: POSIX  ADVISORY  WRITE 17 00:00:1 120 120\n", None),
        ("1: POSIX  ADVISORY  WRITE 0 {file} 120 120\n", None),
        ("1: -> POSIX  ADVISORY  WRITE 17 {file} 120 120\n", None),
        ("", None),
    ],
)
def test_list_of_locks_is_read_as_linux_writes_it(tmp_path: Path, lines: str, pid: int | None) -> None:
    path, locks = listed(tmp_path, lines)
    assert lock_holder(path, locks=locks) == pid


def test_host_that_tells_nothing_leaves_it_at_another_process(tmp_path: Path) -> None:
    path, locks = listed(tmp_path, "")
    expected = f"another process holds the lock of {path}"
    assert holder_in_words(path, locks=locks) == expected
    assert holder_in_words(path, locks=tmp_path / "none") == expected
    assert holder_in_words(str(tmp_path / "no.db"), locks=locks) == "another process holds the lock of " + str(
        tmp_path / "no.db"
    )


@pytest.mark.parametrize(
    ("stat", "part"),
    [
        ("17 (a) b) T 1", "(a) b) holds the lock"),
        ("17 (x) t 1", "is stopped"),
        ("17 (x) S 1", "look at that process"),
    ],
)
def test_process_is_described_as_proc_has_it(tmp_path: Path, stat: str, part: str) -> None:
    path, locks = listed(tmp_path, "1: POSIX  ADVISORY  WRITE 17 {file} 120 120\n")
    assert "process 17 (gone by now)" in holder_in_words(path, locks=locks, processes=tmp_path)
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "stat").write_text(stat)
    assert part in holder_in_words(path, locks=locks, processes=tmp_path)


async def test_long_wait_is_one_line_however_many_wait() -> None:
    clock, written = ManualClock(), io.StringIO()
    waits = LongWaits("meta.db", clock=clock, log=open_log(written, clock=clock, format="json"))
    handlers = [BusyHandler(clock, threading.Event(), limit_s=5, on_long_wait=waits.note) for _ in range(3)]

    async def wait_for(seconds: float) -> None:
        assert [handler(0) for handler in handlers] == [True] * 3
        await clock.advance(seconds)
        assert [handler(calls) for calls in (1, 2) for handler in handlers] == [True] * 6

    await wait_for(LONG_WAIT_S / 2)
    assert written.getvalue() == ""
    await wait_for(LONG_WAIT_S)
    (line,) = [json.loads(line) for line in written.getvalue().splitlines()]
    assert line["level"] == "warning" and "holds the lock of meta.db" in line["why"]
    await clock.advance(REPORT_AGAIN_S)
    await wait_for(LONG_WAIT_S)
    assert len(written.getvalue().splitlines()) == 2
