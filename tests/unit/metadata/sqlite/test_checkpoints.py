"""The log is moved into the database beside the commits, and does not grow for ever."""

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from headrace.errors import Unusable
from headrace.metadata.sqlite import checkpoints
from headrace.metadata.sqlite.store import SqliteMetadata
from tests.contract.metadata.rules import put
from tests.unit.metadata.sqlite.conftest import OpenStore, foreign_connection

PAGE_BYTES = 4096


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(checkpoints, "RESTART_PAGES", 150)


async def write_pages(store: SqliteMetadata, pages: int) -> None:
    for number in range(pages // 10):
        await put(store, **{f"k{number % 20}": bytes([number % 256]) * (10 * PAGE_BYTES)})


@pytest.mark.usefixtures("small_limits")
async def test_the_log_stays_short_under_a_writer_that_never_rests(open_store: OpenStore, path: str) -> None:
    store = await open_store()
    await write_pages(store, 3000)
    size_pages = Path(path + "-wal").stat().st_size / PAGE_BYTES
    assert size_pages < 1500, "without checkpoints it would hold all that was ever written"


@pytest.mark.usefixtures("small_limits")
async def test_checkpoints_run_on_their_own_thread_and_connection(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    checkpoint = checkpoints.Checkpointer._checkpoint

    def noting(self: checkpoints.Checkpointer) -> None:
        threads.add(threading.current_thread().name)
        checkpoint(self)

    monkeypatch.setattr(checkpoints.Checkpointer, "_checkpoint", noting)
    store = await open_store()
    await write_pages(store, 500)
    assert threads
    assert all("checkpoint" in name for name in threads)
    assert store._checkpointer._connection is not store._writer._connection
    assert store._writer._connection.pragma("wal_autocheckpoint") == 0


@pytest.mark.usefixtures("small_limits")
async def test_a_reader_that_does_not_go_away_holds_up_no_commit(open_store: OpenStore, path: str) -> None:
    store = await open_store()
    await put(store, a=b"1")
    with foreign_connection(path) as foreign:
        foreign.execute("BEGIN")
        foreign.execute("SELECT count(*) FROM kv").get  # noqa: B018  The read begins the snapshot.
        async with asyncio.timeout(60):
            await write_pages(store, 600)
        foreign.execute("COMMIT")
    await write_pages(store, 600)


async def test_a_checkpoint_whose_fsync_fails_marks_the_store_bad(store: SqliteMetadata) -> None:
    store._note_bad_checkpoint(apsw.FullError("disk full"))
    await put(store, a=b"1")
    store._note_bad_checkpoint(apsw.IOError("disk I/O error"))
    with pytest.raises(Unusable, match="checkpoint"):
        await put(store, a=b"2")
