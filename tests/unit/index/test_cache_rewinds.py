"""A store that is taken back to an earlier state under the cache: noticed, and nothing of it is told any more."""

import asyncio

import pytest

from headrace.index.cache import IndexCache
from headrace.index.streams import advance_log_start
from headrace.index.trim import plan_trim, trim_entries
from headrace.index.values import LogRecord
from headrace.metadata.port import Key, Versioned
from headrace.model.ids import StreamId, WriterId
from tests.log_kit import WRITER, LogKit, batch
from tests.restoring import Backup, restore, save

OTHER = WriterId("b" * 32)
SKIPS = [None, 32]
"""Whether revisions are given again, or go on behind the lost ones."""


class Rewinding:
    """A log with a cache that has followed it, and a backup of how it was before the last commits."""

    def __init__(self, log: LogKit, stream: StreamId) -> None:
        self.log = log
        self.stream = stream
        self.noticed: list[str] = []
        self.cache = IndexCache(log.store, log.keys, max_folded_entries=100, on_rewind=self.noticed.append)
        self.backup: Backup = save(log.store)

    async def append(self, count: int, *, size: int, writer: WriterId = WRITER) -> None:
        for _ in range(count):
            await self.commit(size=size, writer=writer)

    async def commit(self, *, size: int = 10, writer: WriterId = WRITER) -> tuple[LogRecord, int]:
        """Commit one batch; return the record and its revision, as whoever made it knows them."""
        outcome = await self.log.apply(self.log.frame([(self.stream, [batch(size)])], writer=writer))
        assert outcome.record is not None
        raw = await self.log.store.get(self.log.keys.log(outcome.record.seq))
        assert raw is not None
        return outcome.record, raw.version

    async def records(self) -> list[tuple[int, int]]:
        """Return the entries of the whole log as the cache tells them."""
        return [(entry.start_offset, entry.end_offset) for entry in await self.cache.locate(self.stream, 0)]

    async def restore(self, skipped_revisions: int | None) -> None:
        """Take the store back, and let another writer come: the old one is fenced."""
        restore(self.log.store, self.backup, skipped_revisions=skipped_revisions)
        await self.log.writer(OTHER)


async def followed(*, kept: int = 2, lost: int = 3) -> Rewinding:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    rewinding = Rewinding(log, stream)
    await rewinding.append(kept, size=10)
    rewinding.backup = save(log.store)
    await rewinding.append(lost, size=10)
    await rewinding.cache.fresh_head(stream)
    assert await rewinding.records() == [(n * 10, n * 10 + 10) for n in range(kept + lost)]
    return rewinding


@pytest.mark.parametrize("skipped", SKIPS)
@pytest.mark.parametrize("new", [0, 1, 2, 3, 4, 10])
async def test_whatever_was_written_since_the_cache_tells_what_the_store_holds(new: int, skipped: int | None) -> None:
    """Fewer records than were lost, just as many, or more: the numbers are the same, the records are others."""
    rewinding = await followed()
    await rewinding.restore(skipped)
    await rewinding.append(new, size=7, writer=OTHER)
    head = await rewinding.cache.fresh_head(rewinding.stream)
    assert len(rewinding.noticed) == 1, rewinding.noticed
    assert head == await rewinding.log.head(rewinding.stream)
    assert await rewinding.records() == [(0, 10), (10, 20), *((20 + n * 7, 27 + n * 7) for n in range(new))]
    assert await rewinding.cache.locate(rewinding.stream, 20 + new * 7) == []
    await rewinding.cache.refresh()
    assert len(rewinding.noticed) == 1, "it is said once"


@pytest.mark.parametrize("skipped", SKIPS)
async def test_a_commit_of_this_process_under_a_known_number_is_noticed_at_once(skipped: int | None) -> None:
    rewinding = await followed()
    await rewinding.restore(skipped)
    rewinding.cache.note_committed(*await rewinding.commit(size=7, writer=OTHER))
    assert len(rewinding.noticed) == 1
    await rewinding.cache.refresh()
    assert await rewinding.records() == [(0, 10), (10, 20), (20, 27)]


async def test_a_store_that_is_empty_again_is_noticed() -> None:
    rewinding = await followed()
    rewinding.backup = save(LogKit().store)
    restore(rewinding.log.store, rewinding.backup)
    assert await rewinding.cache.fresh_head(rewinding.stream) is None
    assert len(rewinding.noticed) == 1
    assert await rewinding.records() == []


async def test_the_store_s_own_word_for_it_is_taken() -> None:
    rewinding = await followed()
    following = asyncio.create_task(rewinding.cache.follow())
    await asyncio.sleep(0)
    rewinding.log.store._hub.signal_rewound()
    while not rewinding.noticed:
        await asyncio.sleep(0)
    following.cancel()
    assert await rewinding.records() == [(n * 10, n * 10 + 10) for n in range(5)], (
        "nothing was lost, it is read again"
    )


async def test_a_refresh_under_way_does_not_bring_back_what_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the old state; the rewind is noticed by a commit before it has read the records."""
    rewinding = await followed(lost=1)
    await rewinding.append(2, size=10)
    gate, is_reading = asyncio.Event(), asyncio.Event()
    get = rewinding.log.store.get

    async def slow_get(key: Key) -> Versioned | None:
        found = await get(key)
        is_reading.set()
        await gate.wait()
        return found

    monkeypatch.setattr(rewinding.log.store, "get", slow_get)
    refreshing = asyncio.create_task(rewinding.cache.refresh())
    await is_reading.wait()
    await rewinding.restore(None)
    rewinding.cache.forget()
    gate.set()
    await refreshing
    assert await rewinding.records() == [(0, 10), (10, 20)]


async def test_a_store_that_goes_on_is_never_taken_for_another() -> None:
    """Own commits and others', told late or twice, with folds and trims in between."""
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    rewinding = Rewinding(log, stream)
    told: list[tuple[LogRecord, int]] = []
    for number in range(60):
        made = await rewinding.commit()
        if number % 3:
            rewinding.cache.note_committed(*made)
        else:
            told.append(made)
        if number % 7 == 0:
            await log.fold(max_records=3)
        if number % 5 == 0:
            await rewinding.cache.refresh()
        if number % 11 == 0:
            for late in told:
                rewinding.cache.note_committed(*late)
        if number % 20 == 19:
            await advance_log_start(log.keys, stream, number * 5, now_ms=0).apply(log.store)
            await log.fold(max_records=100)
            plan = await plan_trim(log.store, log.keys, stream, max_entries=10)
            if plan:
                await trim_entries(log.keys, stream, plan, now_ms=0).apply(log.store)
    await rewinding.cache.refresh()
    assert rewinding.noticed == []
    assert rewinding.cache.view.position == (await log.state()).next_seq
