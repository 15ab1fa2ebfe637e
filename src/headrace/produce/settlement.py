"""Find out, beyond doubt, what became of a frame whose bytes are placed, or could not be.

Frames that are placed while their predecessors commit go together: the first one leads, and one transaction commits
all of them. A commit that failed is tried again a few times, with the leader's frame alone, so that no frame pays for
another's trouble; then that frame is recorded as abandoned, without a limit to the tries: until its fate is certain,
nothing behind it may commit.

Must stay true: every frame of a group whose outcome is unknown is in doubt, whether it led or followed, until its own
fate was read from the store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.errors import Fenced, HeadraceError, OutcomeUnknown, Retryable
from headrace.index.commit import AppendPart, FrameCommit, ObjectClosed, Outcome, commit_frame, commit_frames
from headrace.index.values import LOG_RECORD, LogRecord
from headrace.index.writers import abandon_frame
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Committed, MetadataStore
from headrace.model.ids import WriterId
from headrace.produce.offers import GivenUp, Offer
from headrace.produce.placement import Placed
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.wal.frame import SealedFrame

FRAME_MAX_PARTS = 2_000
"""How many parts one frame has at most. Tiny batches make many of them within few bytes, and the time that a commit
holds the domain's lock grows with the parts: 20 to 50 ms for this many."""

GROUP_MAX_PARTS = 4_000
"""How many parts the frames of one metadata transaction have together at most. A frame that has more goes alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """What bounds a writer. `linger_ms` trades latency for fewer objects on stores where a write is dear.

    Commits go one after another, so on a quick disk a small frame that is written early only waits for its turn, and
    what comes meanwhile could have gone with it: `small_frames_in_flight` bounds how many there are.
    """

    buffer_max_bytes: int
    frame_max_bytes: int
    frames_in_flight: int
    small_frames_in_flight: int
    linger_ms: int
    commit_attempts: int
    retry_backoff_ms: int
    producer_expiration_ms: int
    frame_max_parts: int = FRAME_MAX_PARTS
    group_max_parts: int = GROUP_MAX_PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A sealed frame on its way."""

    number: int
    created_at_ms: int
    sealed: SealedFrame
    offers: list[Offer]

    @property
    def held_bytes(self) -> int:
        """What its callers' buffers count against the writer's budget."""
        return sum(position.size_bytes for position in self.sealed.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settler:
    """What all settlements of one writer work with; `note_fence` is told when the writer can never commit again."""

    keys: DomainKeys
    writer: WriterId
    metadata: MetadataStore
    clock: Clock
    crash_points: CrashPoints
    limits: WriterLimits
    given_up: GivenUp
    note_fence: Callable[[Fenced], None]


class Settlement:
    """Finds out, beyond doubt, what became of one frame."""

    def __init__(self, settler: "Settler", frame: Frame) -> None:
        self._settler = settler
        self.frame = frame
        self.placed: Placed | None = None
        """Where its bytes lie, once they do."""
        self.is_in_doubt = False
        self.revision = 0
        """The store's revision of the commit, if it was made just now."""
        self.record: LogRecord | None = None
        """Its commit record, once that is known."""

    async def commit(self, followers: "Sequence[Settlement]" = ()) -> LogRecord | HeadraceError:
        """Commit the frame, trying again a few times, else give it up; return its record or why there is none.

        The followers are placed, too, and come right behind it; those that were committed with it have their record
        then.
        """
        group = [self, *followers]
        for _ in range(self._settler.limits.commit_attempts):
            try:
                return await self._commit_group(group)
            except ObjectClosed as error:
                self.is_in_doubt = True
                return await self.give_up(error)
            except Retryable:
                await self._back_off()
            except OutcomeUnknown:
                _doubt(group)
                await self._back_off()
            except Fenced as error:
                failure = self.fenced(error)
                return failure if self.record is None else self.record
            except BaseException:
                _doubt(group)
                raise
            group = [self]
        self.is_in_doubt = True
        return await self.give_up(Retryable(f"frame {self.frame.number} could not be committed and was given up"))

    async def _commit_group(self, group: "Sequence[Settlement]") -> LogRecord:
        """Commit the frames in one transaction, and find the records of those that it took; the first is ours."""
        committed = await self._transact([one._frame_commit() for one in group])
        self._settler.crash_points.reach(CrashPoint.WRITER_AFTER_COMMIT)
        for one, outcome in zip(group, committed.result, strict=False):
            one.revision = committed.revision
            one.record = await one._record_of(outcome)
        assert self.record is not None, f"frame {self.frame.number} has no outcome"
        return self.record

    async def _transact(self, commits: Sequence[FrameCommit]) -> Committed[list[Outcome]]:
        keys, metadata = self._settler.keys, self._settler.metadata
        if len(commits) > 1:
            return await commit_frames(keys, commits).commit(metadata)
        alone = await commit_frame(keys, commits[0]).commit(metadata)
        return Committed([alone.result], alone.revision)

    async def give_up(self, reason: HeadraceError) -> LogRecord | HeadraceError:
        """Record the frame as abandoned and return the reason; or find that it had been committed after all.

        There is no limit to the tries: until the answer is certain, nothing behind this frame may commit.
        """
        rule = abandon_frame(self._settler.keys, self._settler.writer, self.frame.number)
        while True:
            try:
                outcome = await rule.apply(self._settler.metadata)
                self._settler.crash_points.reach(CrashPoint.WRITER_AFTER_ABANDON)
                return reason if outcome is None else await self._record_of(outcome)
            except (Retryable, OutcomeUnknown):
                await self._back_off()
            except Fenced as error:
                return self.fenced(error)

    def _frame_commit(self) -> FrameCommit:
        frame, placed = self.frame, self.placed
        assert placed is not None, f"frame {frame.number} is not placed"
        parts = [
            AppendPart(
                offer.stream,
                placed.start_byte + position.start_byte,
                offer.batches,
                self._settler.given_up.begins_by(offer),
            )
            for offer, position in zip(frame.offers, frame.sealed.positions, strict=True)
        ]
        return FrameCommit(
            writer=self._settler.writer,
            frame_number=frame.number,
            object_id=placed.object_id,
            end_byte=placed.end_byte,
            created_at_ms=frame.created_at_ms,
            parts=parts,
            producer_expiration_ms=self._settler.limits.producer_expiration_ms,
        )

    async def _record_of(self, outcome: Outcome) -> LogRecord:
        """Return the frame's commit record; it stays readable until this writer's next transaction.

        Raises `Fenced` if the writer was retired before the record could be read.
        """
        if outcome.record is not None:
            return outcome.record
        while True:
            try:
                raw = await self._settler.metadata.get(self._settler.keys.log(outcome.seq))
                break
            except (Retryable, OutcomeUnknown):
                await self._back_off()
        if raw is None:
            raise Fenced(
                f"commit record {outcome.seq} went with writer {self._settler.writer}, which was retired meanwhile"
            )
        record = LOG_RECORD.decode(raw.value, raw.key)
        assert (record.writer, record.frame_number) == (self._settler.writer, self.frame.number), record
        return record

    def fenced(self, error: Fenced) -> HeadraceError:
        """A fenced writer cannot find out any more: only a frame that was never in doubt surely failed."""
        self._settler.note_fence(error)
        if not self.is_in_doubt:
            return error
        return OutcomeUnknown(f"frame {self.frame.number} was in doubt when its writer was fenced: {error}")

    async def _back_off(self) -> None:
        await self._settler.clock.sleep(self._settler.limits.retry_backoff_ms / 1000)


def _doubt(group: Sequence[Settlement]) -> None:
    for one in group:
        one.is_in_doubt = True
