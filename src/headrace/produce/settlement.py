"""Find out, beyond doubt, what became of a frame whose bytes are placed, or could not be.

A commit that failed is tried again a few times; then the frame is recorded as abandoned, without a limit to the
tries: until its fate is certain, nothing behind it may commit.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import Fenced, HeadraceError, OutcomeUnknown, Retryable
from headrace.index.commit import AppendPart, FrameCommit, ObjectClosed, Outcome, commit_frame
from headrace.index.values import LOG_RECORD, LogRecord
from headrace.index.writers import abandon_frame
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import WriterId
from headrace.produce.offers import GivenUp, Offer
from headrace.produce.placement import Placed
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.wal.frame import SealedFrame

FRAME_MAX_PARTS = 2_000
"""How many parts one frame, and so one metadata transaction, has at most. Tiny batches make many of them within few
bytes, and the time that a commit holds the domain's lock grows with the parts: 40 to 80 ms for this many."""


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
        self._frame = frame
        self.is_in_doubt = False
        self.revision = 0
        """The store's revision of the commit, if it was made just now."""

    async def commit(self, placed: Placed) -> LogRecord | HeadraceError:
        """Commit the frame, trying again a few times, else give it up; return its record or why there is none."""
        rule = commit_frame(self._settler.keys, self._commit_of(placed))
        for _ in range(self._settler.limits.commit_attempts):
            try:
                committed = await rule.commit(self._settler.metadata)
                self._settler.crash_points.reach(CrashPoint.WRITER_AFTER_COMMIT)
                self.revision = committed.revision
                return await self._record_of(committed.result)
            except ObjectClosed as error:
                self.is_in_doubt = True
                return await self.give_up(error)
            except Retryable:
                await self._back_off()
            except OutcomeUnknown:
                self.is_in_doubt = True
                await self._back_off()
            except Fenced as error:
                return self._fenced(error)
        self.is_in_doubt = True
        return await self.give_up(Retryable(f"frame {self._frame.number} could not be committed and was given up"))

    async def give_up(self, reason: HeadraceError) -> LogRecord | HeadraceError:
        """Record the frame as abandoned and return the reason; or find that it had been committed after all.

        There is no limit to the tries: until the answer is certain, nothing behind this frame may commit.
        """
        rule = abandon_frame(self._settler.keys, self._settler.writer, self._frame.number)
        while True:
            try:
                outcome = await rule.apply(self._settler.metadata)
                self._settler.crash_points.reach(CrashPoint.WRITER_AFTER_ABANDON)
                return reason if outcome is None else await self._record_of(outcome)
            except (Retryable, OutcomeUnknown):
                await self._back_off()
            except Fenced as error:
                return self._fenced(error)

    def _commit_of(self, placed: Placed) -> FrameCommit:
        frame = self._frame
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
        """Return the frame's commit record; it stays readable until this writer's next frame commits.

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
        assert (record.writer, record.frame_number) == (self._settler.writer, self._frame.number), record
        return record

    def _fenced(self, error: Fenced) -> HeadraceError:
        """A fenced writer cannot find out any more: only a frame that was never in doubt surely failed."""
        self._settler.note_fence(error)
        if not self.is_in_doubt:
            return error
        return OutcomeUnknown(f"frame {self._frame.number} was in doubt when its writer was fenced: {error}")

    async def _back_off(self) -> None:
        await self._settler.clock.sleep(self._settler.limits.retry_backoff_ms / 1000)
