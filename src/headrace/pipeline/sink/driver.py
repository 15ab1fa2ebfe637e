"""What the driver of a write does: plan it before the tasks run, commit what they wrote, or give it up.

Must stay true: the write is announced before any task can know of it; nothing is committed that this process does
not see in the object store, in its full size; a commit whose answer was lost is asked for again under the same batch.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from headrace import __version__
from headrace.errors import HeadraceError, Invalid, Missing, OutcomeUnknown, Retryable, Unsupported
from headrace.index.objects import wal_object_key
from headrace.index.sinks import (
    SinkCommit,
    SinkFrame,
    SinkOutcome,
    begin_write,
    check_size,
    commit_batch,
    end_write,
    end_writes_of,
    forget_sink,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import WriterId
from headrace.objects.port import ObjectStore
from headrace.pipeline.sink.options import SinkOptions
from headrace.pipeline.sink.plans import SinkPlan, SinkTopic, TaskAnswer
from headrace.pipeline.spark.address import ObjectsAddress
from headrace.records.columns import IMPLEMENTATION
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.runtime.rng import Rng
from headrace.topics.directory import TopicDirectory

COMMIT_ATTEMPTS: Final = 8
COMMIT_BACKOFF_S: Final = 0.1
HEADS_AT_ONCE: Final = 32
MAX_TOPICS: Final = 1_000
"""How many topics the rows of one write may choose from."""

WRITE_BITS: Final = 128
MAX_OWNER_CHARS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkLimits:
    """How long a write may take, and what a task may unpack a batch to."""

    write_max_age_ms: int
    max_open_bytes: int


class SinkDriver:
    """The driver's side of all writes; each call stands alone, because Spark makes them in different processes."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        objects: ObjectStore,
        topics: TopicDirectory,
        address: ObjectsAddress,
        clock: Clock,
        rng: Rng,
        crash_points: CrashPoints,
        limits: SinkLimits,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._objects = objects
        self._topics = topics
        self._address = address
        self._clock = clock
        self._rng = rng
        self._crash_points = crash_points
        self._limits = limits

    async def begin(self, options: SinkOptions) -> SinkPlan:
        """Announce a write and return its plan. Raises `Missing` for a topic that does not exist."""
        topics = await self._topics_of(options)
        write = WriterId(f"{self._rng.getrandbits(WRITE_BITS):032x}")
        rule = begin_write(
            self._keys,
            write,
            now_ms=self._clock.now_ms(),
            max_age_ms=self._limits.write_max_age_ms,
            owner=_owner(options),
        )
        await rule.apply(self._metadata)
        self._crash_points.reach(CrashPoint.SINK_AFTER_BEGIN)
        return SinkPlan(
            write=write,
            domain=self._keys.domain,
            topic=options.topic,
            topics=topics,
            codec=None if options.codec is None else int(options.codec),
            max_open_bytes=self._limits.max_open_bytes,
            objects=self._address,
            version=__version__,
            decoder=IMPLEMENTATION,
        )

    async def _topics_of(self, options: SinkOptions) -> tuple[SinkTopic, ...]:
        await self._topics.refresh()
        known = self._topics.known()
        if options.topic is not None:
            known = [topic for topic in known if topic.name == options.topic]
            if not known:
                raise Missing(f"there is no topic {options.topic!r}: create it first, with headrace topic create")
        if len(known) > MAX_TOPICS:
            raise Invalid(
                f"there are {len(known)} topics, and the rows of one write choose from {MAX_TOPICS} at most: set the "
                "option topic, and write to each topic on its own"
            )
        return tuple(SinkTopic(name=topic.name, streams=topic.streams, rules=topic.rules) for topic in known)

    async def commit(self, options: SinkOptions, answers: Sequence[TaskAnswer], *, batch_id: int) -> SinkOutcome:
        """Append what the tasks of a batch have written, once, and return where it lies.

        Raises what `commit_batch` raises, `Invalid` also where the batch went to another topic before, `Missing` for
        an object that is not to be seen, and `Retryable` or `OutcomeUnknown` where the store did not answer: the
        batch can be offered again.
        """
        write, query = _of_one_write(answers)
        frames = [frame.offered() for answer in sorted(answers, key=_task) for frame in answer.frames]
        check_size(frames)
        await self._see(frames)
        sink_id = options.sink_id or (f"query/{query}" if query else f"write/{write}")
        commit = SinkCommit(sink_id=sink_id, batch_id=batch_id, query=query, write=write, frames=frames)
        outcome = await self._insist(commit)
        self._crash_points.reach(CrashPoint.SINK_AFTER_COMMIT)
        if outcome.is_repeated:
            await self._require_same_topic(options, commit, outcome)
        if options.sink_id is None and not query:
            # The batch is in the log: a failure here must not make the caller write it again. Its age ends it, too.
            with suppress(HeadraceError):
                await forget_sink(self._keys, sink_id).apply(self._metadata)
        return outcome

    async def _require_same_topic(self, options: SinkOptions, commit: SinkCommit, outcome: SinkOutcome) -> None:
        """Refuse what is no repetition: two writes of one batch that share a sink id, one for each topic.

        The second one would be dropped in silence. A topic that is gone since says nothing.
        """
        if options.topic is None:
            return
        await self._topics.refresh()
        streams = {range_.stream for range_ in outcome.ranges}
        others = [topic.name for topic in self._topics.known() if not streams.isdisjoint(topic.streams)]
        if others and options.topic not in others:
            raise Invalid(
                f"batch {commit.batch_id} of sink {commit.sink_id!r} was written to {', '.join(sorted(others))} "
                f"before, and this is for {options.topic}: nothing was appended. Every write of a batch needs a "
                "sinkId of its own"
            )

    async def _insist(self, commit: SinkCommit) -> SinkOutcome:
        """Commit, trying again: whether an earlier try went through is found by the batch."""
        for attempt in range(COMMIT_ATTEMPTS - 1):
            try:
                return await commit_batch(self._keys, commit, now_ms=self._clock.now_ms()).apply(self._metadata)
            except (Retryable, OutcomeUnknown):
                await self._clock.sleep(COMMIT_BACKOFF_S * 2**attempt)
        return await commit_batch(self._keys, commit, now_ms=self._clock.now_ms()).apply(self._metadata)

    async def _see(self, frames: Sequence[SinkFrame]) -> None:
        """Look at every object from here: a task on another host may have written to a disk of its own."""
        for start in range(0, len(frames), HEADS_AT_ONCE):
            await asyncio.gather(*(self._see_one(frame) for frame in frames[start : start + HEADS_AT_ONCE]))

    async def _see_one(self, frame: SinkFrame) -> None:
        key = wal_object_key(self._keys.domain, frame.object_id)
        try:
            size_bytes = (await self._objects.head(key)).size_bytes
        except Missing:
            raise Missing(
                f"a task has written {key}, and the driver does not find it: both must reach the same object store, "
                f"and {self._address.url} means something else where the task ran"
            ) from None
        if size_bytes != frame.size_bytes:
            raise Invalid(f"{key} has {size_bytes} bytes, and its task wrote {frame.size_bytes}")

    async def give_up(self, options: SinkOptions, answers: Sequence[TaskAnswer]) -> None:
        """End the write that these tasks belong to; without any of them, what its checkpoint has under way.

        A stream of which neither is known is left to the write's age.
        """
        for write in {answer.write for answer in answers}:
            await end_write(self._keys, write).apply(self._metadata)
        if not answers and (owner := _owner(options)):
            await end_writes_of(self._keys, owner).apply(self._metadata)

    async def end(self, write: WriterId) -> None:
        """End a write by its name."""
        await end_write(self._keys, write).apply(self._metadata)


def require_same_release(plan: SinkPlan) -> None:
    """Raise `Unsupported` if this process would write other bytes than the driver's release."""
    if plan.version != __version__ or plan.decoder != IMPLEMENTATION:
        raise Unsupported(
            f"an executor has Headrace {__version__} ({IMPLEMENTATION}), and the driver {plan.version} "
            f"({plan.decoder}): install the same release"
        )


def _of_one_write(answers: Sequence[TaskAnswer]) -> tuple[WriterId, str]:
    found = {(answer.write, answer.query) for answer in answers}
    assert len(found) == 1, f"tasks of {len(found)} writes in one batch: {found}"
    return found.pop()


def _owner(options: SinkOptions) -> str:
    return (options.checkpoint or "")[-MAX_OWNER_CHARS:]


def _task(answer: TaskAnswer) -> int:
    return answer.task
