"""Fetch sessions (KIP-227): a client tells once what it reads, later only what changes, and hears only what changed.

A plain state machine: no await, no clock, no wire types. Sessions are this broker's own; they are never persisted,
and a client whose session is gone begins anew.

Must stay true:
- The number of sessions, and of partitions in them, is bounded. A session that nobody used for a while makes room;
  so does a small one that had its time, for a larger one; else the newcomer gets no session, which costs bytes on the
  wire and nothing else.
- Every request of a session carries the next epoch, so a lost or doubled one is noticed.
- A partition that was answered with records goes to the end: the first in line is served when an answer is full.
"""

import enum
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.runtime.rng import Rng

NO_SESSION = 0
FINAL_EPOCH = -1
"""A request without a session, which also ends one that it names."""
INITIAL_EPOCH = 0
"""A request that asks for a new session, and ends one that it names."""
MAX_EPOCH = 2**31 - 1
MAX_SESSION_ID = 2**31 - 1

TopicKey = str | bytes
"""A topic by its name, or from version 13 on by its id."""


class SessionProblem(enum.Enum):
    """Why a request of a session is refused as a whole."""

    NOT_FOUND = enum.auto()
    WRONG_EPOCH = enum.auto()
    TOPIC_KEYS_MIXED = enum.auto()
    """The session was begun with names and goes on with ids, or the other way round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """What bounds the sessions of one broker; the defaults are Kafka's."""

    sessions: int = 1_000
    partitions: int = 1_000_000
    """In all sessions together."""
    min_age_ms: int = 120_000
    """How long a session is safe from being thrown out, counted from its last use or, for a larger one, its birth."""


class SessionPartition:
    """What a client wants of one partition, and what it was told last."""

    __slots__ = ("high_watermark", "last_stable_offset", "log_start", "max_bytes", "offset", "partition", "topic")

    def __init__(self, topic: TopicKey, partition: int, offset: int, max_bytes: int) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.high_watermark = self.last_stable_offset = self.log_start = -1

    def note(
        self, *, high_watermark: int, last_stable_offset: int, log_start: int, has_records: bool, has_error: bool
    ) -> bool:
        """Remember what the client is about to be told; return whether it has to be told at all."""
        is_news = (
            has_records
            or has_error
            or high_watermark != self.high_watermark
            or last_stable_offset != self.last_stable_offset
            or log_start != self.log_start
        )
        # After an error the client must hear that it is over.
        self.high_watermark = -1 if has_error else high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start = log_start
        return is_news


class _Session:
    __slots__ = ("created_at_ms", "epoch", "has_topic_ids", "id", "partitions", "used_at_ms")

    def __init__(
        self, session_id: int, partitions: Iterable[SessionPartition], has_topic_ids: bool, now_ms: int
    ) -> None:
        self.id = session_id
        self.partitions = OrderedDict(((one.topic, one.partition), one) for one in partitions)
        self.has_topic_ids = has_topic_ids
        self.epoch = INITIAL_EPOCH + 1
        self.created_at_ms = self.used_at_ms = now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFetch:
    """One fetch, within a session or without: what to read, in order, and how to answer."""

    partitions: Sequence[SessionPartition]
    is_incremental: bool
    has_topic_ids: bool
    session_id: int = NO_SESSION
    epoch: int = FINAL_EPOCH


class FetchSessions:
    """The sessions of one broker. Times are monotonic milliseconds."""

    def __init__(self, *, rng: Rng, limits: SessionLimits | None = None) -> None:
        self._rng = rng
        self._limits = limits or SessionLimits()
        self._sessions: OrderedDict[int, _Session] = OrderedDict()  # least recently used first
        self.partition_count = 0

    @property
    def session_count(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def begin(
        self,
        *,
        session_id: int,
        epoch: int,
        wanted: Sequence[SessionPartition],
        forgotten: Iterable[tuple[TopicKey, int]],
        has_topic_ids: bool,
        now_ms: int,
    ) -> SessionFetch | SessionProblem:
        """Take a request and return what it asks for, with what the session remembers, or why it is refused."""
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._end(session_id)
            return SessionFetch(partitions=wanted, is_incremental=False, has_topic_ids=has_topic_ids, epoch=epoch)
        session = self._sessions.get(session_id)
        if session is None:
            return SessionProblem.NOT_FOUND
        if session.epoch != epoch:
            return SessionProblem.WRONG_EPOCH
        if session.has_topic_ids != has_topic_ids:
            return SessionProblem.TOPIC_KEYS_MIXED
        self._update(session, wanted, forgotten)
        if self.partition_count > self._limits.partitions:
            self._end(session_id)
            return SessionProblem.NOT_FOUND  # the client asks for everything again, and gets it without a session
        if not session.partitions:
            self._end(session_id)
            return SessionFetch(partitions=(), is_incremental=False, has_topic_ids=has_topic_ids)
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        session.used_at_ms = now_ms
        self._sessions.move_to_end(session_id)
        return SessionFetch(
            partitions=list(session.partitions.values()),
            is_incremental=True,
            has_topic_ids=has_topic_ids,
            session_id=session_id,
            epoch=session.epoch,
        )

    def finish(
        self, fetch: SessionFetch, *, answered: Iterable[SessionPartition], now_ms: int
    ) -> int | SessionProblem:
        """Return the session id to answer with, `NO_SESSION` for none; `answered` are those that have records.

        A full fetch that wants a session gets it here, if there is room. An incremental one hears if its session was
        used or thrown out meanwhile.
        """
        if not fetch.is_incremental:
            if fetch.epoch != INITIAL_EPOCH or not fetch.partitions:
                return NO_SESSION
            return self._create(fetch, now_ms)
        session = self._sessions.get(fetch.session_id)
        if session is None:
            return SessionProblem.NOT_FOUND
        if session.epoch != fetch.epoch:
            return SessionProblem.WRONG_EPOCH
        for one in answered:
            session.partitions.move_to_end((one.topic, one.partition))
        return session.id

    def _update(
        self, session: _Session, wanted: Iterable[SessionPartition], forgotten: Iterable[tuple[TopicKey, int]]
    ) -> None:
        before = len(session.partitions)
        for one in wanted:
            known = session.partitions.get((one.topic, one.partition))
            if known is not None:
                known.offset, known.max_bytes = one.offset, one.max_bytes
            else:
                session.partitions[one.topic, one.partition] = one
        for key in forgotten:
            session.partitions.pop(key, None)
        self.partition_count += len(session.partitions) - before

    def _create(self, fetch: SessionFetch, now_ms: int) -> int:
        count = len(fetch.partitions)
        while len(self._sessions) >= self._limits.sessions or self.partition_count + count > self._limits.partitions:
            evicted = self._evictable(count, now_ms)
            if evicted is None:
                return NO_SESSION
            self._end(evicted)
        session_id = self._rng.randrange(1, MAX_SESSION_ID + 1)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, MAX_SESSION_ID + 1)
        session = _Session(session_id, fetch.partitions, fetch.has_topic_ids, now_ms)
        self._sessions[session_id] = session
        self.partition_count += len(session.partitions)
        return session_id

    def _evictable(self, newcomer_partitions: int, now_ms: int) -> int | None:
        """Return the session that makes room: one that nobody uses, else the smallest that had its time."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return None
        if now_ms - oldest.used_at_ms > self._limits.min_age_ms:
            return oldest.id
        had_their_time = (s for s in self._sessions.values() if now_ms - s.created_at_ms > self._limits.min_age_ms)
        smallest = min(had_their_time, key=lambda session: len(session.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= newcomer_partitions:
            return None
        return smallest.id

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.partitions)
