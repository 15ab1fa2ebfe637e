"""What a member of a group wants next: the vocabulary of the two member machines and of the shell that serves them.

A machine decides without I/O and without a clock: `next_action` says what to do now, `handle` takes the answer. The
shell (`shell.py`) sends, waits and looks coordinators up.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import Message

RETRY_PAUSE_SECONDS = 0.1
"""`retry.backoff.ms` of the Java client."""

REBALANCE_TIMEOUT_MS = 300_000
"""`max.poll.interval.ms` of the clients, which they send as the rebalance timeout."""

NOTHING: frozenset[int] = frozenset()
"""What a member owns that owns no partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Send this to the coordinator and hand the answer to `handle`."""

    api_key: int
    version: int
    request: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Do nothing until then, or until the member is told something else."""

    until_s: float


@dataclass(frozen=True, slots=True)
class LookUp:
    """Find the group's coordinator again, connect to it, and ask on."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The member has left; nothing more comes."""


Action = Ask | Rest | LookUp | Ended


class Machine(Protocol):
    """One member. `owned` is what it may read from right now; `fenced` counts how often it was thrown out."""

    member_id: str
    owned: frozenset[int]
    fenced: int

    @property
    def epoch(self) -> int:
        """The generation or member epoch that a commit has to name."""

    def leave(self) -> None:
        """Make the next action the farewell."""

    def next_action(self, now_s: float) -> Action: ...

    def handle(self, response: Any, now_s: float) -> None:
        """Take the answer to the last `Ask`."""


class UnexpectedAnswer(Exception):
    """The coordinator answered something that no member of this benchmark should ever hear."""


class Patience:
    """What both machines do about a coordinator that is loading or has moved: wait a little, or look it up again."""

    def __init__(self) -> None:
        self._not_before_s = 0.0
        self._has_lost_coordinator = False

    def delay(self, now_s: float) -> Action | None:
        """Return what has to happen before the next request, if anything. A look-up is wanted once."""
        if self._has_lost_coordinator:
            self._has_lost_coordinator = False
            return LookUp()
        return Rest(until_s=self._not_before_s) if now_s < self._not_before_s else None

    def takes(self, error_code: int, now_s: float) -> bool:
        """Tell whether the error is one that asking again will mend, and see to it."""
        if error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._not_before_s = now_s + RETRY_PAUSE_SECONDS
        elif error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._not_before_s = now_s + RETRY_PAUSE_SECONDS
            self._has_lost_coordinator = True
        else:
            return False
        return True


def unexpected(where: str, error_code: int, member_id: str) -> UnexpectedAnswer:
    """Return an error that names the code as Kafka does."""
    name = ErrorCode(error_code).name if error_code in ErrorCode._value2member_map_ else str(error_code)
    return UnexpectedAnswer(f"{where} of member {member_id!r} was answered with {name}")
