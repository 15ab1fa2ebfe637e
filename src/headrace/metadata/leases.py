"""Leases: who may act. A lease is a key that names a session and an epoch; only the session is renewed.

1. `take` a lease that is free, or whose holder's session has ended: the epoch grows by one.
2. `require` it in the *decide* of every transaction that acts on its strength, together with `session=`.
3. `release` it, or let the session end.

Must stay true: the epoch of a lease never goes back, not even when it is released. So a holder that was paused finds
another epoch or another session in the lease, or its own session ended, and cannot act.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headrace.errors import Fenced, Retryable
from headrace.metadata import keys
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
from headrace.metadata.values import ValueCodec
from headrace.model.ids import SessionId

MAX_TAKE_TRIES = 10


class LeaseRecord(msgspec.Struct, frozen=True, array_like=True):
    """What lies at the key of a lease; `session` is `None` when it was released."""

    session: SessionId | None
    epoch: int


LEASE_CODEC = ValueCodec(LeaseRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease that we have taken, as it was then: `require` says whether it still is ours."""

    key: Key
    session: SessionId
    epoch: int


class LeaseHeld(Retryable):
    """Another living session holds the lease; it may be free later."""

    def __init__(self, key: Key, holder: SessionId, epoch: int) -> None:
        super().__init__(f"lease {key} is held by session {holder} (epoch {epoch}): wait until it ends")
        self.key = key
        self.holder = holder
        self.epoch = epoch


def require(seen: Seen, lease: Lease) -> None:
    """Raise `Fenced` unless the lease is still ours. The transaction must name the lease's unit and read its key."""
    record = LEASE_CODEC.seen(seen, lease.key)
    if record is None or record.session != lease.session or record.epoch != lease.epoch:
        raise Fenced(
            f"lease {lease.key} epoch {lease.epoch} of session {lease.session} is no more ours: it is {record}"
        )


async def take(store: MetadataStore, key: Key, session: SessionId, *, anew: bool = False) -> Lease:
    """Take a lease in a session, or raise `LeaseHeld`.

    To take what the session holds already changes nothing, unless it is taken `anew`: then its epoch grows, and
    whatever was sent under the old one is fenced, even if it arrives late.

    The holder's session is judged inside the transaction, which has to name its unit before it begins. So the
    holder is read first, and if it has changed by then, the whole is done anew.
    """
    for _ in range(MAX_TAKE_TRIES):
        before = await store.get(key)
        expected = None if before is None else LEASE_CODEC.decode(before.value, key).session
        holder_key = None if expected is None else keys.session(expected)
        wanted = [key] if holder_key is None else [key, holder_key]
        decide = _decide_take(key, session, expected, holder_key, anew=anew)
        units = sorted({keys.unit_of(one) for one in wanted})
        lease = (await store.transact(units, Reads(keys=wanted), decide, session=session)).result
        if lease is not None:
            return lease
    raise Retryable(f"lease {key} changed hands {MAX_TAKE_TRIES} times while we tried to take it: try again")


async def release(store: MetadataStore, lease: Lease) -> None:
    """Give a lease back, if it is still ours; it keeps its epoch."""

    def decide(seen: Seen) -> Decision[None]:
        record = LEASE_CODEC.seen(seen, lease.key)
        if record != LeaseRecord(lease.session, lease.epoch):
            return Decision(result=None)
        return Decision(result=None, puts={lease.key: LEASE_CODEC.encode(LeaseRecord(None, lease.epoch))})

    await store.transact([keys.unit_of(lease.key)], Reads(keys=[lease.key]), decide)


def _decide_take(
    key: Key, session: SessionId, expected: SessionId | None, holder_key: Key | None, *, anew: bool
) -> Callable[[Seen], Decision[Lease | None]]:
    """Return the rule of `take`; its result is `None` when the lease names another holder than expected."""

    def decide(seen: Seen) -> Decision[Lease | None]:
        record = LEASE_CODEC.seen(seen, key) or LeaseRecord(None, 0)
        if record.session == session and not anew:
            return Decision(result=Lease(key=key, session=session, epoch=record.epoch))
        if record.session is not None and record.session != session:
            if record.session != expected or holder_key is None:
                return Decision(result=None)
            if seen.get(holder_key) is not None:
                raise LeaseHeld(key, record.session, record.epoch)
        taken = LeaseRecord(session, record.epoch + 1)
        lease = Lease(key=key, session=session, epoch=taken.epoch)
        return Decision(result=lease, puts={key: LEASE_CODEC.encode(taken)})

    return decide
