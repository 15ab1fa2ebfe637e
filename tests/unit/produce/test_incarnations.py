"""One process, one incarnation after another: lost sessions, fenced writers, stores that are away, and the end."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import pytest

from headrace.cluster.membership import Membership, Place
from headrace.cluster.registration import BROKER_CODEC
from headrace.errors import Fenced, HeadraceError, Invalid, Retryable
from headrace.index.streams import create_streams
from headrace.index.values import PartResult, PartStatus, StreamKind
from headrace.index.writers import retire_writer
from headrace.metadata import keys as metadata_keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Committed, Decision, Key, Reads, Seen, Unit, Versioned
from headrace.model.ids import DomainId, SessionId, StreamId
from headrace.produce.incarnations import REJOIN_PAUSE_S, Incarnations
from headrace.produce.log import ProduceLog
from headrace.produce.offers import Appended, NewPart
from headrace.produce.placement import PlacementLimits, open_placement
from headrace.produce.settlement import WriterLimits
from headrace.produce.writer import LogWriter
from headrace.records.batch import BatchView
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.rng import seeded_rng
from headrace.testing.batches import make_batch
from headrace.testing.clock import ManualClock
from tests.unit.produce.scripted import Hold, Refuse, Script, ScriptedMetadata, ScriptedObjects

T = TypeVar("T")

SESSION_TIMEOUT_MS = 3000
LIMIT_S = 20.0


class Outages(ScriptedMetadata):
    """A store that can be away: then no call has an effect."""

    is_away = False

    async def get(self, key: Key) -> Versioned | None:
        self._check()
        return await super().get(key)

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        self._check()
        return await super().transact(units, reads, decide, session=session)

    async def open_session(self, *, timeout_ms: int) -> SessionId:
        self._check()
        return await super().open_session(timeout_ms=timeout_ms)

    async def renew_session(self, session: SessionId) -> None:
        self._check()
        await super().renew_session(session)

    async def end_session(self, session: SessionId) -> None:
        self._check()
        await super().end_session(session)

    def _check(self) -> None:
        if self.is_away:
            raise Retryable("the store is away")


class Kit:
    """One process on memory stores, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rng = seeded_rng(5)
        self.script = Script()
        self.store = Outages(self.script)
        self.objects = ScriptedObjects(self.clock, self.script, is_remote=False)
        self.keys = DomainKeys(DomainId(0))
        self.lines = io.StringIO()
        self.log = open_log(self.lines, clock=self.clock, format="json")
        self.log_in = ProduceLog()
        self.place = Place(node_id=1, host="here", port=9092, rack=None, lock="a-lock")
        self.memberships: list[Membership] = []
        self.writers: list[LogWriter] = []
        self.presented: list[Membership] = []
        self.absences = 0
        self.rewound = asyncio.Event()
        self.incarnations = Incarnations(
            join=self.join,
            make_writer=self.make_writer,
            present=self.presented.append,
            absent=self._note_absence,
            log_in=self.log_in,
            clock=self.clock,
            log=self.log,
            rewound=self.rewound,
        )
        self.stream = StreamId(0)

    async def join(self) -> Membership:
        joined = await Membership.join(
            self.store,
            self.place,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            clock=self.clock,
            rng=self.rng,
            log=self.log,
        )
        self.memberships.append(joined)
        return joined

    def make_writer(self, membership: Membership) -> LogWriter:
        placement = open_placement(
            keys=self.keys,
            writer=membership.incarnation,
            metadata=self.store,
            objects=self.objects,
            clock=self.clock,
            crash_points=NoCrashes(),
            limits=PlacementLimits(
                segment_max_bytes=100_000, segment_max_age_ms=60_000, staged_ahead=2, staged_max_age_ms=600_000
            ),
        )
        writer = LogWriter(
            keys=self.keys,
            writer=membership.incarnation,
            metadata=self.store,
            placement=placement,
            clock=self.clock,
            crash_points=NoCrashes(),
            limits=WriterLimits(
                buffer_max_bytes=1_000_000,
                frame_max_bytes=100_000,
                frames_in_flight=1,
                small_frames_in_flight=1,
                linger_ms=0,
                commit_attempts=3,
                retry_backoff_ms=50,
                producer_expiration_ms=86_400_000,
            ),
            given_up=self.log_in.given_up,
        )
        self.writers.append(writer)
        return writer

    async def start(self) -> None:
        owners = create_streams(self.keys, ["t"], kind=StreamKind.PARTITION, now_ms=0)
        (self.stream,) = await owners.apply(self.store)
        await self.incarnations.start()

    async def append(self, *values: bytes) -> Appended:
        data = memoryview(bytearray(make_batch(values)))
        return await self.log_in.append_all([NewPart(self.stream, data, (BatchView(data).summary(),))])

    async def append_result(self, *values: bytes) -> PartResult | HeadraceError | None:
        appended = await self.append(*values)
        await appended.done
        return appended.results[0]

    async def is_taking(self) -> bool:
        result = await self.append_result(b"probe")
        return isinstance(result, PartResult) and result.status is PartStatus.ACCEPTED

    async def registered(self) -> Membership | None:
        row = await self.store.get(metadata_keys.broker(1))
        if row is None:
            return None
        session = BROKER_CODEC.decode(row.value, row.key).session
        return next(one for one in self.memberships if one.session == session)

    def _note_absence(self) -> None:
        self.absences += 1

    def is_present(self) -> bool:
        return self.incarnations.is_present

    async def fence(self) -> None:
        """Let another process retire the writer, and this one notice."""
        await retire_writer(self.keys, self.memberships[-1].incarnation).apply(self.store)
        result = await self.append_result(b"too late")
        assert isinstance(result, Fenced)

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.lines.getvalue().splitlines()]

    async def end(self) -> None:
        self.store.is_away = False
        await self.incarnations.withdraw(limit_s=LIMIT_S)
        stopping = asyncio.create_task(self.incarnations.stop(limit_s=LIMIT_S))
        for _ in range(600):
            if stopping.done():
                break
            await self.clock.advance(0.1)
        await stopping
        for membership in self.memberships:
            await membership.abandon()


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    made = Kit()
    yield made
    await made.end()


async def test_start_joins_presents_and_takes(kit: Kit) -> None:
    assert not kit.is_present()
    await kit.start()
    assert kit.is_present() and kit.presented == kit.memberships
    assert await kit.registered() is kit.memberships[0]
    assert await kit.is_taking()


async def test_clean_end_leaves_nothing_behind(kit: Kit) -> None:
    await kit.start()
    taken = await kit.append(b"last")
    await kit.incarnations.withdraw(limit_s=LIMIT_S)
    assert await kit.registered() is None, "clients move on before the end"
    assert await kit.is_taking(), "what still comes is taken until then"
    await kit.incarnations.stop(limit_s=LIMIT_S)
    assert taken.done.done()
    assert await kit.store.sessions() == []
    assert await kit.store.get(kit.keys.writer(kit.memberships[0].incarnation)) is None
    with pytest.raises(Retryable):
        await kit.append(b"after the end")


async def test_fenced_writer_is_followed_by_another_incarnation(kit: Kit) -> None:
    await kit.start()
    await kit.fence()
    await kit.clock.advance(REJOIN_PAUSE_S)
    assert len(kit.writers) == 2 and kit.presented == kit.memberships
    assert kit.absences == 1, "what hung on the lost session was told before the next one began"
    assert kit.memberships[0].incarnation != kit.memberships[1].incarnation
    assert await kit.registered() is kit.memberships[1]
    assert kit.is_present() and await kit.is_taking()


async def test_lost_session_is_followed_by_another_incarnation(kit: Kit) -> None:
    await kit.start()
    await kit.store.end_session(kit.memberships[0].session)
    await kit.clock.advance(SESSION_TIMEOUT_MS / 1000 + REJOIN_PAUSE_S)
    assert len(kit.writers) == 2 and kit.is_present() and await kit.is_taking()


async def test_store_that_was_taken_back_is_joined_anew(kit: Kit) -> None:
    """Nothing else has failed: session and writer may be in the earlier state, too."""
    await kit.start()
    assert await kit.is_taking()
    kit.rewound.set()
    await kit.clock.advance(REJOIN_PAUSE_S)
    assert len(kit.writers) == 2 and kit.absences == 1 and not kit.rewound.is_set()
    assert await kit.registered() is kit.memberships[1]
    assert kit.is_present() and await kit.is_taking()


async def test_store_that_is_away_for_a_minute_is_survived(kit: Kit) -> None:
    await kit.start()
    kit.store.is_away = True
    in_doubt = await kit.append(b"in doubt")
    await kit.clock.advance(60)
    assert not kit.is_present()
    with pytest.raises(Retryable):
        await kit.append(b"refused at once")
    assert not in_doubt.done.done(), "nobody can tell what became of it"
    kit.store.is_away = False
    await kit.clock.advance(2)
    assert in_doubt.done.done() and isinstance(in_doubt.results[0], Retryable)
    assert len(kit.writers) == 2 and kit.is_present() and await kit.is_taking()
    assert [one.session for one in kit.memberships[1:]] == [one.id for one in await kit.store.sessions()]


async def test_what_a_lost_incarnation_had_taken_is_answered_before_the_next_one_takes_anything(kit: Kit) -> None:
    await kit.start()
    write = Hold()
    kit.script.plan("append", write)
    slow = await kit.append(b"slow")
    await kit.store.end_session(kit.memberships[0].session)
    await kit.clock.advance(SESSION_TIMEOUT_MS / 1000 + REJOIN_PAUSE_S)
    assert len(kit.writers) == 1, "the next one waits"
    write.release()
    await kit.clock.settle()
    assert slow.done.done() and isinstance(slow.results[0], PartResult), "bytes that came in time are committed"
    assert len(kit.writers) == 2


async def test_join_that_fails_is_tried_again(kit: Kit) -> None:
    await kit.start()
    kit.script.plan("register_writer", *[Refuse(Retryable("busy"))] * 3)
    await kit.fence()
    await kit.clock.advance(4 * REJOIN_PAUSE_S)
    assert kit.is_present() and await kit.is_taking()


async def test_first_join_that_fails_is_told_and_leaves_nothing_behind(kit: Kit) -> None:
    kit.script.plan("register_writer", Refuse(Fenced("the session is gone")))
    with pytest.raises(Fenced):
        await kit.start()
    assert await kit.store.sessions() == []
    assert not kit.is_present()


async def test_start_that_is_broken_off_leaves_nothing_behind(kit: Kit) -> None:
    kit.script.plan("register_writer", Hold())
    starting = asyncio.create_task(kit.start())
    await kit.clock.settle()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert await kit.store.sessions() == [] and await kit.registered() is None


async def test_place_that_another_process_has_taken_ends_this_one(kit: Kit) -> None:
    await kit.start()
    waiting = asyncio.create_task(kit.incarnations.wait())
    other = Place(node_id=1, host="elsewhere", port=9092, rack=None, lock="another-lock")
    await kit.store.end_session(kit.memberships[0].session)
    usurper = await Membership.join(
        kit.store, other, session_timeout_ms=SESSION_TIMEOUT_MS, clock=kit.clock, rng=kit.rng, log=kit.log
    )
    for _ in range(100):
        await kit.clock.advance(0.1)
    with pytest.raises(Invalid, match="elsewhere"):
        await waiting
    await usurper.leave()


async def test_who_stops_waiting_for_the_end_does_not_bring_it_about(kit: Kit) -> None:
    await kit.start()
    waiting = asyncio.create_task(kit.incarnations.wait())
    await kit.clock.settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    await kit.fence()
    await kit.clock.advance(REJOIN_PAUSE_S)
    assert len(kit.writers) == 2, "the next incarnation has come all the same"


async def test_stop_while_a_lost_incarnation_is_being_ended_still_answers_what_it_had_taken(kit: Kit) -> None:
    await kit.start()
    write = Hold()
    kit.script.plan("append", write)
    first, second = await kit.append(b"first"), await kit.append(b"second")
    await kit.clock.settle()
    await kit.store.end_session(kit.memberships[0].session)
    await kit.clock.advance(SESSION_TIMEOUT_MS / 1000)
    await kit.incarnations.withdraw(limit_s=LIMIT_S)
    stopping = asyncio.create_task(kit.incarnations.stop(limit_s=LIMIT_S))
    await kit.clock.settle()
    assert not stopping.done()
    write.release()
    await kit.clock.settle()
    assert stopping.done()
    await stopping
    for taken in (first, second):
        assert taken.done.done() and isinstance(taken.results[0], PartResult)
    assert await kit.store.get(kit.keys.writer(kit.memberships[0].incarnation)) is None
    assert len(kit.writers) == 1, "no further incarnation was begun"


async def test_stop_while_joining_anew_leaves_nothing_behind(kit: Kit) -> None:
    await kit.start()
    kit.script.plan("register_writer", Hold())
    await kit.fence()
    await kit.clock.advance(REJOIN_PAUSE_S)
    assert len(kit.memberships) == 2 and not kit.is_present()
    await kit.incarnations.withdraw(limit_s=LIMIT_S)
    await kit.incarnations.stop(limit_s=LIMIT_S)
    assert await kit.store.sessions() == []


async def test_stop_ends_in_time_though_the_store_is_away(kit: Kit) -> None:
    await kit.start()
    kit.store.is_away = True
    in_doubt = await kit.append(b"in doubt")
    withdrawing = asyncio.create_task(kit.incarnations.withdraw(limit_s=2))
    await kit.clock.advance(2.1)
    assert withdrawing.done()
    stopping = asyncio.create_task(kit.incarnations.stop(limit_s=2))
    await kit.clock.advance(1.9)
    assert not stopping.done()
    await kit.clock.advance(0.2)
    assert stopping.done()
    await stopping
    assert not in_doubt.done.done()
    assert any("in time" in event for event in kit.events())


async def test_stop_that_was_never_started_and_a_second_one_are_harmless(kit: Kit) -> None:
    await kit.incarnations.withdraw(limit_s=1)
    await kit.incarnations.stop(limit_s=1)
    await kit.start()
    for _ in range(2):
        await kit.incarnations.withdraw(limit_s=1)
        await kit.incarnations.stop(limit_s=1)


async def test_tick_seals_what_has_grown_old_and_rests_between_incarnations(kit: Kit) -> None:
    await kit.incarnations.tick()
    await kit.start()
    assert await kit.is_taking()
    await kit.clock.advance(61)
    await kit.incarnations.tick()
    assert kit.script.calls["seal"] == 1
