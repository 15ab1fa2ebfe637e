"""Listeners hear what the view learns of their streams, at once, and no more after they left."""

from headrace.index.cache import IndexCache
from headrace.index.streams import advance_log_start, delete_stream
from headrace.model.ids import StreamId
from tests.log_kit import LogKit, batch


class Heard:
    """Takes note of everything."""

    def __init__(self) -> None:
        self.events: list[int | str] = []

    def grown(self, size_bytes: int) -> None:
        self.events.append(size_bytes)

    def changed(self) -> None:
        self.events.append("changed")


async def listening(count: int = 2) -> tuple[LogKit, IndexCache, list[StreamId], list[Heard]]:
    log = LogKit()
    streams = await log.streams(count)
    await log.writer()
    cache = IndexCache(log.store, log.keys, max_folded_entries=100)
    await cache.refresh()
    for stream in streams:
        await cache.fresh_head(stream)
    heard = [Heard() for _ in streams]
    for stream, listener in zip(streams, heard, strict=True):
        cache.view.listen(stream, listener)
    return log, cache, streams, heard


async def test_every_commit_tells_the_streams_that_it_grew() -> None:
    log, cache, (a, b), (first, second) = await listening()
    await log.commit((a, [batch(size_bytes=70)]), (b, [batch(size_bytes=30)]))
    await log.commit((a, [batch(size_bytes=5)]))
    await cache.refresh()
    assert (first.events, second.events) == ([70, 5], [30])


async def test_head_is_new_when_the_listener_hears_of_it() -> None:
    log, cache, (a, _), _ = await listening()
    seen: list[int] = []

    class Looking(Heard):
        def grown(self, size_bytes: int) -> None:
            head = cache.view.head(a)
            assert head is not None
            seen.append(head.high_watermark)

    cache.view.listen(a, Looking())
    await log.append(a, 3)
    await cache.refresh()
    assert seen == [3]


async def test_trim_and_delete_are_told_as_changes() -> None:
    log, cache, (a, b), (first, second) = await listening()
    await log.append(a, 5)
    await advance_log_start(log.keys, a, 3, now_ms=0).apply(log.store)
    await delete_stream(log.keys, b, now_ms=0).apply(log.store)
    await cache.refresh()
    assert (first.events, second.events) == ([100, "changed"], ["changed"])


async def test_view_that_begins_anew_tells_everybody() -> None:
    log, cache, (a, _), (first, second) = await listening()
    for _ in range(3):
        await log.append(a)
    await log.fold()
    await cache.refresh()
    assert first.events == second.events == ["changed"]


async def test_whoever_left_hears_nothing() -> None:
    log, cache, (a, b), (first, second) = await listening()
    other = Heard()
    cache.view.listen(a, other)
    cache.view.unlisten(a, first)
    cache.view.unlisten(a, first)
    cache.view.unlisten(b, second)
    await log.append(a)
    await cache.refresh()
    assert (first.events, second.events, other.events) == ([], [], [100])
    cache.view.unlisten(a, other)
    assert cache.view._listeners == {}


async def test_pages_that_are_read_in_order_are_remembered_as_one_run() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    for _ in range(30):
        await log.append(stream, 2)
    await log.fold()
    cache = IndexCache(log.store, log.keys, max_folded_entries=20)
    await cache.fresh_head(stream)
    for offset in range(0, 60, 10):
        assert [e.start_offset for e in await cache.locate(stream, offset, limit=5)] == list(
            range(offset, offset + 10, 2)
        )
    assert [e.start_offset for e in cache.view.find(stream, 20, limit=100)] == list(range(20, 60, 2))
    assert cache.view.find(stream, 19, limit=1) == []


async def test_look_up_by_time_can_begin_at_an_offset() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    for at_ms in (10, 50, 20, 40, 60):
        await log.append(stream, 1, at_ms=at_ms)
    cache = IndexCache(log.store, log.keys, max_folded_entries=20)
    found = [await cache.find_timestamp(stream, 30, start_offset=start) for start in range(6)]
    assert [entry and entry.start_offset for entry in found] == [1, 1, 3, 3, 4, None]
