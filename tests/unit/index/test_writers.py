"""Writers: registered once, frames given up for good, and nothing from those that are retired."""

import pytest

from headrace.errors import Exists, Fenced
from headrace.index.commit import Outcome
from headrace.index.values import WRITER_STATE, WriterState
from headrace.index.writers import abandon_frame, register_writer, retire_writer
from headrace.model.ids import SessionId
from tests.log_kit import WRITER, LogKit, batch

SESSION = SessionId("s")


async def state(log: LogKit) -> WriterState | None:
    raw = await log.store.get(log.keys.writer(WRITER))
    return None if raw is None else WRITER_STATE.decode(raw.value, raw.key)


async def register(log: LogKit, session: SessionId = SESSION) -> None:
    await register_writer(log.keys, WRITER, session=session, now_ms=5).apply(log.store)


async def abandon(log: LogKit, frame_number: int) -> Outcome | None:
    return await abandon_frame(log.keys, WRITER, frame_number).apply(log.store)


async def test_registering_can_be_repeated_until_the_first_frame() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await register(log)
    assert await state(log) == WriterState(SESSION, 5)
    await log.append(stream)
    with pytest.raises(Exists):
        await register(log)


async def test_name_of_another_session_is_taken() -> None:
    log = LogKit()
    await register(log)
    with pytest.raises(Exists, match="session s"):
        await register(log, SessionId("other"))


async def test_registering_under_an_ended_session_is_fenced() -> None:
    log = LogKit()
    session = await log.store.open_session(timeout_ms=1000)
    await log.store.end_session(session)
    with pytest.raises(Fenced):
        await register_writer(log.keys, WRITER, session=session, now_ms=0).apply(log.store, session=session)
    assert await state(log) is None


async def test_abandoned_frame_never_commits_and_the_next_one_does() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    late = log.frame([(stream, [batch(1)])])
    assert await abandon(log, 0) is None
    assert await abandon(log, 0) is None, "repeating it changes nothing"
    with pytest.raises(Fenced):
        await log.apply(late)
    log.next_frame[WRITER] = 1
    assert await log.append(stream) == 0


async def test_giving_up_a_committed_frame_finds_its_record() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream)
    before = await state(log)
    found = await abandon(log, 0)
    assert found == Outcome(1, None)
    assert await state(log) == before


@pytest.mark.parametrize("frame_number", [0, 3])
async def test_only_the_last_or_the_next_frame_can_be_given_up(frame_number: int) -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream)
    await log.append(stream)
    with pytest.raises(Fenced):
        await abandon(log, frame_number)
    assert (await log.head(stream)).high_watermark == 2


async def test_frames_may_be_given_up_one_after_another() -> None:
    log = LogKit()
    await log.writer()
    for number in range(3):
        assert await abandon(log, number) is None
    known = await state(log)
    assert known is not None and (known.last_frame, known.last_seq) == (2, -1)


async def test_retired_writer_can_neither_commit_nor_give_up() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream)
    repeated = log.frame([(stream, [batch(1)])], number=0)
    following = log.frame([(stream, [batch(1)])], number=1)
    for _ in range(2):
        await retire_writer(log.keys, WRITER).apply(log.store)
        assert await state(log) is None
    for commit in (repeated, following):
        with pytest.raises(Fenced):
            await log.apply(commit)
    with pytest.raises(Fenced):
        await abandon(log, 1)
    assert (await log.head(stream)).high_watermark == 1


async def test_retiring_keeps_a_record_that_is_not_folded_yet() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream)
    await retire_writer(log.keys, WRITER).apply(log.store)
    assert [record.seq for record in await log.log()] == [0, 1]
    await log.fold()
    assert await log.log() == []
    assert len(await log.index(stream)) == 1
