"""Fenced frames let go of their segment; a cache that fails keeps nobody from an answer or from room."""

import asyncio
from typing import Any

from headrace.errors import Fenced, OutcomeUnknown, Unusable
from headrace.index.values import PartStatus
from headrace.index.writers import retire_writer
from headrace.produce.offers import NewPart
from headrace.records.batch import iter_batches
from headrace.runtime.buffers import BufferPool
from headrace.testing.batches import make_batch
from tests.unit.circles import no_collection
from tests.unit.produce.scripted import WRITER, Hold, Refuse, WriterKit


async def test_segment_of_a_fenced_writer_is_closed_when_the_writer_is() -> None:
    kit = WriterKit(frames_in_flight=2)
    (stream,) = await kit.start()
    commit = Hold()
    kit.script.plan("commit_frame", commit)
    first = await kit.taken(stream, b"first")
    second = await kit.taken(stream, b"second")
    await retire_writer(kit.keys, WRITER).apply(kit.metadata)
    commit.release()
    await asyncio.wait([first, second])
    await kit.writer.close()
    assert kit.script.calls["seal"] == 1


async def test_frame_that_was_fenced_leaves_none_of_its_bytes_alive() -> None:
    kit, pool = WriterKit(frames_in_flight=2), BufferPool(max_idle_bytes=0)
    (stream,) = await kit.start()
    await retire_writer(kit.keys, WRITER).apply(kit.metadata)

    async def append() -> None:
        batch = make_batch([b"value"])
        memory = pool.lease(len(batch))
        memory[:] = batch
        part = NewPart(stream, memory, [view.summary() for view in iter_batches(memory)])
        appended = await kit.writer.append_all([part])
        await appended.done
        assert isinstance(appended.results[0], Fenced)

    with no_collection():
        await append()
        await kit.clock.settle()
        assert pool.leased_bytes == 0


async def test_tail_that_fails_keeps_nobody_from_an_answer_or_from_room() -> None:
    kit = WriterKit(buffer_max_bytes=1)
    (stream,) = await kit.start()
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    class Broken:
        def committed(self, *_: object) -> None:
            raise MemoryError("no room for the tail")

    kit.writer._tail = Broken()
    kit.writer._keep_in_tail = lambda *_: Broken().committed()  # type: ignore[method-assign]
    for n in range(2):
        offered = await kit.taken(stream, b"%d" % n)
        assert offered.done() and offered.result().status is PartStatus.ACCEPTED
    assert [type(context["exception"]) for context in told] == [MemoryError] * 2


async def test_store_that_cannot_be_trusted_is_one_line_without_a_traceback() -> None:
    kit = WriterKit(frames_in_flight=4, small_frames_in_flight=4)
    (stream,) = await kit.start()
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    kit.script.plan("commit_frame", *[Refuse(Unusable("meta.db is not to be trusted")) for _ in range(4)])
    offered = [await kit.taken(stream, b"%d" % n) for n in range(4)]
    await asyncio.wait(offered)
    assert all(isinstance(one.exception(), OutcomeUnknown | Fenced) for one in offered)
    (line,) = told
    assert "exception" not in line and "meta.db is not to be trusted" in line["message"]
