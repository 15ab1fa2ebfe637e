"""A broker's place in the cluster: an ephemeral key that says where it is, for as long as its session lives.

One node, one place. When a broker finds its place taken, the other is dead or alive:
1. It holds the lock file that the other held (`node_lock`), so the other is dead: its session is ended at once.
2. Its session stands still for its timeout: it has timed out, and is ended.
3. Its session is renewed: it lives elsewhere, and this broker has the wrong node id.

Must stay true: a session is ended only by proof (1) or by observation of a whole timeout (2), never because somebody
wants its place.
"""

import msgspec

from headrace.errors import Invalid, Retryable
from headrace.metadata import keys
from headrace.metadata.port import Decision, MetadataStore, Reads, Seen, SessionState
from headrace.metadata.sessions import SessionObserver
from headrace.metadata.values import ValueCodec
from headrace.model.ids import SessionId, WriterId
from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log

LOOKS_PER_TIMEOUT = 10
"""How often a waiting broker looks whether its predecessor's session has ended."""

RENEWALS_IN_FLIGHT = 1
"""How many renewals may be seen of a process that is dead: the one that was on its way when it died."""

MAX_WAIT_TIMEOUTS = 3
"""A session that is neither renewed nor ended for this many of its timeouts is not waited for any more."""


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True):
    """What lies at the key of a living broker. `lock` is the identity of its lock file, if it has one."""

    node_id: int
    incarnation: WriterId
    host: str
    port: int
    rack: str | None
    session: SessionId
    started_at_ms: int
    lock: str | None


BROKER_CODEC = ValueCodec(BrokerRecord)


async def register(store: MetadataStore, record: BrokerRecord, *, clock: Clock, log: Log) -> None:
    """Take the node's place in the record's session, waiting for a predecessor that may be dead.

    Raises `Invalid` if the node id is alive elsewhere, `Fenced` if the session of `record` has ended meanwhile.
    """
    while (holder := await _take_place(store, record)) is not None:
        if record.lock is not None and holder.lock == record.lock:
            # We hold the lock that it held. (Or it is an earlier incarnation of this very process, which knows.)
            log.info(
                "ending the session of this node's predecessor, whose process is gone",
                node=record.node_id,
                predecessor=_address(holder),
                session=holder.session,
            )
            await store.end_session(holder.session)
        else:
            await _wait_for_end(store, holder, clock=clock, log=log)


async def unregister(store: MetadataStore, record: BrokerRecord) -> None:
    """Give the place up, if it is still this incarnation's; the session goes on."""
    key = keys.broker(record.node_id)

    def decide(seen: Seen) -> Decision[None]:
        held = BROKER_CODEC.seen(seen, key)
        is_ours = held is not None and held.session == record.session
        return Decision(result=None, deletes=[key] if is_ours else [])

    await store.transact([keys.REGISTRY], Reads(keys=[key]), decide)


async def _take_place(store: MetadataStore, record: BrokerRecord) -> BrokerRecord | None:
    """Write the record unless another session holds the place; return who does."""
    key = keys.broker(record.node_id)

    def decide(seen: Seen) -> Decision[BrokerRecord | None]:
        held = BROKER_CODEC.seen(seen, key)
        if held is not None and held.session != record.session:
            return Decision(result=held)
        return Decision(result=None, ephemerals={key: BROKER_CODEC.encode(record)})

    return (await store.transact([keys.REGISTRY], Reads(keys=[key]), decide, session=record.session)).result


async def _wait_for_end(store: MetadataStore, holder: BrokerRecord, *, clock: Clock, log: Log) -> None:
    """Return when the holder's session has ended, by its own hand, by another's or, after its timeout, by ours."""
    session = await _session(store, holder.session)
    if session is None:
        return
    log.warning(
        "another broker holds this node id; waiting until its session times out, because nothing proves it dead",
        node=holder.node_id,
        holder=_address(holder),
        session=holder.session,
        timeout_ms=session.timeout_ms,
    )
    timeout_s = session.timeout_ms / 1000
    give_up_at = clock.monotonic() + MAX_WAIT_TIMEOUTS * timeout_s
    observer, version, renewals = SessionObserver(), session.version, 0
    while session is not None:
        observer.observe([session], clock.monotonic())
        if session.version != version:
            version, renewals = session.version, renewals + 1
        if renewals > RENEWALS_IN_FLIGHT:
            raise Invalid(
                f"node id {holder.node_id} is alive at {_address(holder)}: give this broker another --node-id"
            )
        if clock.monotonic() >= give_up_at:
            raise Retryable(
                f"node id {holder.node_id} is held by {_address(holder)} (session {holder.session}), which was"
                f" neither renewed nor ended within {MAX_WAIT_TIMEOUTS * session.timeout_ms} ms: start again"
            )
        for timed_out in observer.timed_out(clock.monotonic()):
            await store.expire_session(timed_out)
        await clock.sleep(timeout_s / LOOKS_PER_TIMEOUT)
        session = await _session(store, holder.session)


async def _session(store: MetadataStore, wanted: SessionId) -> SessionState | None:
    return next((state for state in await store.sessions() if state.id == wanted), None)


def _address(broker: BrokerRecord) -> str:
    return f"{broker.host}:{broker.port}"
