"""The one connection that writes: a group of jobs, one SQLite transaction, one fsync.

1. Begin, and read from one state of the store.
2. Each job in turn reads, decides and then writes. A job that raises before it writes leaves nothing. The first write
   takes the lock: from here on no other process writes. SQLite refuses it if one has written since the beginning;
   then the group begins again with `BEGIN IMMEDIATE`, which locks first.
3. COMMIT. Only now does anybody get an answer, because later jobs have seen what earlier ones wrote.

So what the first job reads and decides, mostly a whole frame's commit, holds up no other process: with 1,000 parts
that is two thirds of the time, with one part a tenth (the rest is the fsync). A process that is paused there stops
nobody. Where processes write in turns the first try would mostly be in vain: after such a one groups lock first for
some time.

A job that raises in the middle of its writes, or because of SQLite, spoils its group: it is rolled back, and the job
is run again on its own, so that its neighbours neither share its error nor keep half of what it wrote.

Must stay true: the answers of a group stand or fall together with its COMMIT. After a COMMIT whose outcome
is unknown this process never uses the file again: fsync is not retried and believed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import apsw

from headrace.errors import HeadraceError, OutcomeUnknown, Unusable, without_frames
from headrace.metadata import keys
from headrace.metadata.port import Key, Range, Unit, Versioned
from headrace.metadata.sqlite import rows
from headrace.metadata.sqlite.failures import translate, translate_commit
from headrace.model.ids import SessionId
from headrace.runtime.crash_points import CrashPoint, CrashPoints

CROWDED_GROUPS = 100
"""How many groups lock before they read, after another process has written between the reads and writes of one."""


class StaleReadsError(Exception):
    """Another process has written, or is about to, since the group began to read: it has to begin again, locked."""


class WriteTransaction:
    """What a job may do. Reads see what earlier jobs of the same group have written."""

    def __init__(self, connection: apsw.Connection, revision: int, *, is_locked: bool) -> None:
        self._connection = connection
        self._is_locked = is_locked
        self.revision = revision
        self.changed: dict[str, int] = {}

    def read_keys(self, wanted: Sequence[Key]) -> dict[Key, Versioned]:
        return rows.read_keys(self._connection, wanted)

    def read_range(self, range_: Range) -> list[Versioned]:
        return rows.read_range(self._connection, range_)

    def read_session_keys(self, session: SessionId) -> list[Key]:
        return rows.read_session_keys(self._connection, session)

    def write(
        self,
        units: Sequence[Unit],
        *,
        puts: Mapping[Key, bytes] | None = None,
        ephemerals: Mapping[Key, bytes] | None = None,
        session: SessionId | None = None,
        deletes: Sequence[Key] = (),
    ) -> int:
        """Write, as the last thing a job does, and return the revision."""
        self.revision += 1
        try:
            rows.delete(self._connection, deletes)
            if puts:
                rows.put(self._connection, puts, self.revision, None)
            if ephemerals:
                rows.put(self._connection, ephemerals, self.revision, session)
        except apsw.BusyError as error:
            if self._is_locked:
                raise
            raise StaleReadsError from error
        self._is_locked = True
        for unit in units:
            # One row for all sessions: they come and go, and nobody would ever delete theirs.
            self.changed[keys.SESSIONS if unit.startswith(keys.SESSIONS) else unit] = self.revision
        return self.revision


Job = Callable[[WriteTransaction], object]


@dataclass(frozen=True, slots=True)
class Failed:
    """A job's answer when it raised, or when its group did.

    An error that was raised on purpose goes on without the frames of this thread: they hold the answers of the whole
    group, this one too, and would keep all of it alive. Our own mistakes keep theirs, for the log.
    """

    error: BaseException

    def __post_init__(self) -> None:
        if isinstance(self.error, HeadraceError):
            without_frames(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """An answer per job, in order; and all units that changed since the last group, by other processes too."""

    answers: Sequence[object | Failed]
    changed: Sequence[tuple[str, int]] = ()
    last_revision: int = 0
    wal_pages: int = 0


class _SpoiltError(Exception):
    """A job may have written something and then raised `error`: nothing of its group may be committed."""

    def __init__(self, position: int, error: BaseException) -> None:
        super().__init__(position)
        self.position = position
        self.error = error


class GroupWriter:
    """Runs groups of jobs on one connection, one group at a time, on one thread."""

    def __init__(
        self,
        connection: apsw.Connection,
        path: str,
        *,
        crash_points: CrashPoints,
        on_committed: Callable[[], None],
        reports_others: bool = True,
    ) -> None:
        """With `reports_others` an outcome names the changes of other writers, too."""
        self._connection = connection
        self._path = path
        self._crash_points = crash_points
        self._on_committed = on_committed
        self._reports_others = reports_others
        self._known_revision = rows.last_revision(connection)
        self._wal_pages = 0
        self._crowded_groups = 0
        self.unusable_because: str | None = None
        connection.set_wal_hook(self._note_wal_pages)

    @property
    def known_revision(self) -> int:
        """The revision up to which every change was part of a `GroupOutcome`, or older than this writer."""
        return self._known_revision

    def run(self, jobs: Sequence[Job]) -> GroupOutcome:
        """Run jobs in one transaction. Raises nothing: an error of the group is the answer of each job."""
        try:
            return self._run(jobs)
        except _SpoiltError as spoilt:
            self._roll_back()
            if len(jobs) > 1:
                return self._run_apart(jobs, spoilt.position)
            return GroupOutcome(answers=[self._failed(spoilt.error)])
        except HeadraceError as error:
            if isinstance(error, OutcomeUnknown):
                self.unusable_because = str(error)
            self._roll_back()
            return GroupOutcome(answers=[Failed(error)] * len(jobs))
        except BaseException as error:
            self._roll_back()
            return GroupOutcome(answers=[Failed(error)] * len(jobs))

    def close(self) -> None:
        self._connection.close()

    def _run(self, jobs: Sequence[Job]) -> GroupOutcome:
        if self.unusable_because is not None:
            raise Unusable(f"{self._path} is not to be trusted: {self.unusable_because}; stop, look at the disk")
        try:
            return self._run_once(jobs, locks_first=self._crowded_groups > 0)
        except StaleReadsError:
            self._roll_back()
            self._crowded_groups = CROWDED_GROUPS
            return self._run_once(jobs, locks_first=True)

    def _run_once(self, jobs: Sequence[Job], *, locks_first: bool) -> GroupOutcome:
        self._crowded_groups = max(0, self._crowded_groups - 1)
        try:
            transaction, foreign = self._begin(locks_first)
            answers = [self._answer(position, job, transaction) for position, job in enumerate(jobs)]
            if transaction.changed:
                rows.put_units(self._connection, transaction.changed.items())
        except apsw.Error as error:
            raise translate(error, self._path) from error
        self._commit(bool(transaction.changed))
        self._known_revision = transaction.revision
        return GroupOutcome(
            answers=answers,
            changed=[*foreign, *transaction.changed.items()],
            last_revision=transaction.revision,
            wal_pages=self._wal_pages,
        )

    def _begin(self, locks_first: bool) -> tuple[WriteTransaction, list[tuple[str, int]]]:
        self._connection.execute("BEGIN IMMEDIATE" if locks_first else "BEGIN")
        revision = rows.last_revision(self._connection)
        is_ours = revision == self._known_revision or not self._reports_others
        foreign = [] if is_ours else rows.changed_since(self._connection, self._known_revision)
        return WriteTransaction(self._connection, revision, is_locked=locks_first), foreign

    def _run_apart(self, jobs: Sequence[Job], position: int) -> GroupOutcome:
        """Run one job on its own and the others around it, in their order; what they decided before is forgotten."""
        parts = (jobs[:position], jobs[position : position + 1], jobs[position + 1 :])
        outcomes = [self.run(part) for part in parts if part]
        return GroupOutcome(
            answers=[answer for outcome in outcomes for answer in outcome.answers],
            changed=[change for outcome in outcomes for change in outcome.changed],
            last_revision=max(outcome.last_revision for outcome in outcomes),
            wal_pages=self._wal_pages,
        )

    def _answer(self, position: int, job: Job, transaction: WriteTransaction) -> object | Failed:
        before = transaction.revision
        try:
            return job(transaction)
        except StaleReadsError:
            raise
        except BaseException as error:
            # After some of its own errors SQLite has rolled back the whole transaction by itself.
            if isinstance(error, apsw.Error) or transaction.revision != before:
                raise _SpoiltError(position, error) from error
            return Failed(error)

    def _failed(self, error: BaseException) -> Failed:
        if not isinstance(error, apsw.Error):
            return Failed(error)
        translated = translate(error, self._path)
        translated.__cause__ = error
        return Failed(translated)

    def _commit(self, has_written: bool) -> None:
        if has_written:
            self._crash_points.reach(CrashPoint.METADATA_BEFORE_COMMIT)
        try:
            self._connection.execute("COMMIT")
        except apsw.Error as error:
            raise translate_commit(error, self._path) from error
        if has_written:
            self._crash_points.reach(CrashPoint.METADATA_AFTER_COMMIT)
            self._on_committed()

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            self.unusable_because = f"a transaction could not be rolled back: {error!r}"

    def _note_wal_pages(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK
