"""How a session lies in the metadata store: one key per living session, in a unit of its own.

A session that has ended has no key. The version of the key is the version that observers compare: every
renewal writes the same value again. So a transaction that names the unit of a session and reads its key knows
whether the session is alive, which is what leases build on.
"""

import msgspec

from headrace.errors import Fenced, Invalid
from headrace.metadata import keys
from headrace.metadata.port import SessionState, Versioned
from headrace.metadata.values import ValueCodec
from headrace.model.ids import SessionId
from headrace.runtime.rng import Rng

MIN_SESSION_TIMEOUT_MS = 50
MAX_SESSION_TIMEOUT_MS = 600_000


class SessionRecord(msgspec.Struct, frozen=True, array_like=True):
    """What the store holds about a living session."""

    timeout_ms: int


SESSION_CODEC = ValueCodec(SessionRecord)


def new_session_id(rng: Rng) -> SessionId:
    """Return an id that no other session ever has."""
    return SessionId(f"{rng.getrandbits(128):032x}")


def encode_session(timeout_ms: int) -> bytes:
    """Return the value of a new session, or raise `Invalid` for a timeout that nobody could keep."""
    if not MIN_SESSION_TIMEOUT_MS <= timeout_ms <= MAX_SESSION_TIMEOUT_MS:
        raise Invalid(
            f"a session times out after {MIN_SESSION_TIMEOUT_MS} to {MAX_SESSION_TIMEOUT_MS} ms, not {timeout_ms}"
        )
    return SESSION_CODEC.encode(SessionRecord(timeout_ms))


def session_state(row: Versioned) -> SessionState:
    """Return a stored session as an observer sees it."""
    record = SESSION_CODEC.decode(row.value, row.key)
    return SessionState(
        id=SessionId(row.key.removeprefix(keys.SESSIONS)), timeout_ms=record.timeout_ms, version=row.version
    )


def ended(session: SessionId) -> Fenced:
    """Return the error for whoever acts in a session that has ended."""
    return Fenced(f"session {session} has ended: stop acting in it, open a new one and start anew")
