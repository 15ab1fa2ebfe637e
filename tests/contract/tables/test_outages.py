"""A catalog that is away, locked, or answers wrongly: everybody hears of it soon, and nothing is done twice."""

import socket
import sqlite3
from pathlib import Path

import pytest

from headrace.errors import Invalid, OutcomeUnknown, Retryable, Unsupported
from headrace.runtime.executor import ThreadExecutor
from headrace.tables.iceberg import connections
from headrace.tables.iceberg.connections import sqlite_path
from headrace.tables.iceberg.locations import objects_root
from tests.contract.tables.conftest import place_on_rest
from tests.contract.tables.kit import KEEP_ALL, Place, Runs, new_topic
from tests.contract.tables.proxy import lossy_proxy
from tests.servers.seaweedfs import SeaweedFs


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_catalog_that_is_away_can_be_opened_and_says_so_when_it_is_asked(local_place: Place) -> None:
    catalog = local_place.open(url=f"http://127.0.0.1:{unused_port()}")
    topic = new_topic()
    with pytest.raises(Retryable, match="did not answer"):
        await catalog.ensure(topic)
    with pytest.raises(Retryable):
        await catalog.find(topic)
    runs = await Runs.begin(local_place.open(), topic)
    with pytest.raises(Retryable):
        await catalog.append(runs.plan("saga-1"), now_ms=1, expiry=KEEP_ALL)


async def test_a_catalog_that_never_answers_does_not_hold_anybody_for_ever(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It takes connections, and nobody serves them.
        catalog = local_place.open(url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Retryable, match="timed out"):
            await catalog.ensure(new_topic())


async def test_a_locked_catalog_is_a_definite_failure(
    local_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_TIMEOUT_S", 0.05)
    runs = await Runs.begin(local_place.open(), new_topic())
    await runs.do(runs.plan("saga-1"))
    append = runs.plan("saga-2")
    holder = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    try:
        # Readers get by, the commit does not.
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(Retryable, match="locked"):
            await runs.do(append)
        holder.execute("ROLLBACK")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Retryable, match="locked"):
            await runs.do(append)
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    assert not (await runs.do(append)).was_there
    assert await runs.named() == (sorted(runs.paths), sorted(runs.paths))


async def test_the_embedded_catalog_keeps_its_rollback_journal(local_place: Place, tmp_path: Path) -> None:
    await local_place.open().ensure(new_topic())
    connection = sqlite3.connect(tmp_path / "catalog.db")
    try:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert connection.execute("SELECT DISTINCT catalog_name FROM iceberg_tables").fetchone() == ("headrace",)
    finally:
        connection.close()


@pytest.mark.parametrize("lost", [500, 502, 503, 504, None], ids=str)
async def test_a_server_that_fails_after_committing_is_not_asked_twice(
    lost: int | None,
    seaweedfs_catalog: SeaweedFs,
    catalog_executor: ThreadExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = place_on_rest(seaweedfs_catalog, catalog_executor, monkeypatch)
    with lossy_proxy(seaweedfs_catalog.iceberg_port) as (address, behaviour):
        runs = await Runs.begin(place.open(url=address), new_topic())
        append = runs.plan("saga-1")
        behaviour.answers.append(lost)
        with pytest.raises(OutcomeUnknown):
            await runs.do(append)
        assert behaviour.commits == 1
        assert (await runs.do(append)).was_there
        assert behaviour.commits == 1
        runs.remember(append)
        await runs.do(runs.plan("saga-2"))
        assert await runs.named() == (sorted(runs.paths), sorted(runs.paths))
        await runs.catalog.close()


async def test_damaged_metadata_is_a_failure_and_no_crash(local_place: Place) -> None:
    runs = await Runs.begin(local_place.open(), new_topic())
    await runs.do(runs.plan("saga-1"))
    metadata = Path(runs.info.location.removeprefix("file://")) / "metadata"
    for path in metadata.glob("snap-*.avro"):
        path.write_bytes(path.read_bytes()[:40] + b"\xff" * 40)
    with pytest.raises(Retryable):
        await local_place.open().append(runs.plan("saga-2"), now_ms=runs.now_ms, expiry=KEEP_ALL)
    for path in metadata.glob("*.json"):
        path.write_bytes(b"{")
    with pytest.raises(Retryable, match="cannot be read"):
        await local_place.open().ensure(runs.table)


@pytest.mark.parametrize("url", ["memory:", "az://container/prefix"])
def test_stores_in_which_tables_cannot_lie_are_refused(url: str) -> None:
    with pytest.raises(Unsupported):
        objects_root(url)


def test_urls_that_name_nothing_are_refused(tmp_path: Path) -> None:
    for url in ("sqlite:", "sqlite:/", "sqlite:a.db?mode=ro"):
        with pytest.raises(Invalid):
            sqlite_path(url)
    with pytest.raises(Invalid):
        objects_root(f"file:{tmp_path}/a%2520b")
    assert sqlite_path(f"sqlite:{tmp_path}/a.db") == sqlite_path(f"sqlite://{tmp_path}/a.db") == tmp_path / "a.db"
    assert sqlite_path("https://example.com") is None


def test_a_directorys_uri_is_absolute_and_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("data/objects", "file:data/objects", f"file://{tmp_path}/data/objects", "file:../x/../data/objects"):
        (tmp_path / "in").mkdir(exist_ok=True)
        if ".." in url:
            monkeypatch.chdir(tmp_path / "in")
        root = objects_root(url)
        assert root.uri == f"file://{tmp_path}/data/objects"
        assert root.key_of(root.uri_of("tables/a")) == "tables/a"
        assert root.key_of(root.uri + "-other/tables/a") is None
    assert objects_root("s3://bucket/a/b/?listing=levels").uri == "s3://bucket/a/b"
