"""What every catalog promises, the one that tests and simulations use instead of a real one included."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import ThreadExecutor
from headrace.tables.port import ExpiryRule, TableAppend, TableCatalog, TableInfo, TableStale, TopicTable
from headrace.testing.memory_catalog import MemoryCatalog
from tests.contract.tables.conftest import place_on_rest, place_on_sqlite
from tests.contract.tables.kit import new_topic, written

RULE = ExpiryRule()


@pytest.fixture(params=["memory", "sqlite", "rest"])
async def catalog(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    catalog_executor: ThreadExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[TableCatalog]:
    made: TableCatalog
    if request.param == "memory":
        made = MemoryCatalog().seen_by()
    elif request.param == "sqlite":
        made = place_on_sqlite(tmp_path, catalog_executor).open()
    else:
        server = request.getfixturevalue("seaweedfs_catalog")
        made = place_on_rest(server, catalog_executor, monkeypatch).open()
    yield made
    await made.close()


def run_of(
    table: TopicTable, info: TableInfo, saga_id: str, *, after: dict[int, int], ends: dict[int, int]
) -> TableAppend:
    return TableAppend(table=table, saga_id=saga_id, epoch=7, after=after, ends=ends, files=[written(info, saga_id)])


async def test_a_table_is_found_once_it_was_made(catalog: TableCatalog) -> None:
    topic = new_topic()
    assert await catalog.find(topic) is None
    assert await catalog.data_files(topic, ref="main") in ([], ())
    info = await catalog.ensure(topic)
    assert info.head is None
    assert info == await catalog.ensure(topic) == await catalog.find(topic)
    assert info.data_prefix.endswith("/data/")


async def test_the_vector_grows_and_fences(catalog: TableCatalog, clock_ms: int) -> None:
    topic = new_topic()
    info = await catalog.ensure(topic)
    first = run_of(topic, info, "first", after={}, ends={0: 10, 1: 5})
    second = run_of(topic, info, "second", after={1: 5}, ends={1: 9})
    late = run_of(topic, info, "late", after={}, ends={0: 10})
    await catalog.append(first, now_ms=clock_ms, expiry=RULE)
    done = await catalog.append(second, now_ms=clock_ms, expiry=RULE)
    assert dict(done.head.ends) == {0: 10, 1: 9}
    assert (done.head.saga_id, done.head.epoch) == ("second", 7)
    with pytest.raises(TableStale):
        await catalog.append(late, now_ms=clock_ms, expiry=RULE)
    with pytest.raises(TableStale):
        await catalog.append(first, now_ms=clock_ms, expiry=RULE)
    again = await catalog.append(second, now_ms=clock_ms, expiry=RULE)
    assert again.was_there
    assert again.head == done.head
    for ref in ("main", "headrace_log"):
        paths = [first.files[0].path, second.files[0].path]
        assert sorted(await catalog.data_files(topic, ref=ref)) == sorted(paths)


async def test_a_topic_made_anew_begins_a_table_of_its_own(catalog: TableCatalog, clock_ms: int) -> None:
    old = new_topic()
    new = replace(new_topic(), topic_name=old.topic_name)
    run = run_of(old, await catalog.ensure(old), "first", after={}, ends={0: 10})
    done = await catalog.append(run, now_ms=clock_ms, expiry=RULE)
    info = await catalog.ensure(new)
    assert info.head is None
    found = await catalog.find(old)
    assert found is not None
    assert found.head == done.head
    assert (await catalog.append(run, now_ms=clock_ms, expiry=RULE)).was_there
    assert await catalog.drop(old)
    assert not await catalog.drop(old)
    assert await catalog.find(old) is None
    assert await catalog.find(new) == info


async def test_a_run_for_a_table_that_was_dropped_is_stale(catalog: TableCatalog, clock_ms: int) -> None:
    topic = new_topic()
    run = run_of(topic, await catalog.ensure(topic), "first", after={}, ends={0: 10})
    await catalog.drop(topic)
    with pytest.raises(TableStale):
        await catalog.append(run, now_ms=clock_ms, expiry=RULE)


@pytest.fixture
def clock_ms() -> int:
    """The time now: a server compares its own clock with the times of snapshots."""
    return SystemClock().now_ms()


async def test_who_acts_too_late_for_an_earlier_topic_takes_no_table_away(
    catalog: TableCatalog, clock_ms: int
) -> None:
    """A pipeline that was paused may ask for the table of a topic that was deleted and made anew meanwhile."""
    old = new_topic()
    new = replace(new_topic(), topic_name=old.topic_name)
    await catalog.ensure(old)
    info = await catalog.ensure(new)
    await catalog.append(run_of(new, info, "first", after={}, ends={0: 10}), now_ms=clock_ms, expiry=RULE)
    await catalog.ensure(old)
    again = await catalog.ensure(new)
    assert again.uuid == info.uuid and again.identifier == info.identifier
    assert again.head is not None and dict(again.head.ends) == {0: 10}
    assert again == await catalog.find(new)
