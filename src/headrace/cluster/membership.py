"""One incarnation's presence in the cluster: a session that is kept alive, and the place that hangs on it.

    membership = await Membership.join(…)      open a session, take the node's place
    await membership.lost.wait()               the session may be gone: stop acting, abandon, join anew
    await membership.unregister()              drain, first step: clients are no longer sent here
    await membership.leave()                   drain, last step: nothing acts in the session any more

Must stay true: a membership that was lost never comes back. The next one has another session and another incarnation.
"""

import asyncio
import contextlib
from dataclasses import dataclass

from headrace.cluster.registration import BrokerRecord, register, unregister
from headrace.errors import OutcomeUnknown, Retryable
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionKeeper
from headrace.model.ids import SessionId, WriterId
from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log
from headrace.runtime.rng import Rng


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who this broker is and where clients reach it. `lock` is the identity of its `NodeLock`."""

    node_id: int
    host: str
    port: int
    rack: str | None
    lock: str | None


class Membership:
    """A session and a registration, from `join` to `leave` or loss."""

    def __init__(self, store: MetadataStore, keeper: SessionKeeper, record: BrokerRecord) -> None:
        self._store = store
        self._keeper = keeper
        self._is_registered = False
        self.record = record

    @classmethod
    async def join(
        cls, store: MetadataStore, place: Place, *, session_timeout_ms: int, clock: Clock, rng: Rng, log: Log
    ) -> "Membership":
        """Open a session and register. Leaves nothing behind when it fails.

        Raises `Invalid` if the node id is alive elsewhere; `Retryable`, `OutcomeUnknown` or `Fenced` if the store
        could not be reached in time: join again.
        """
        keeper = await SessionKeeper.open(store, clock, timeout_ms=session_timeout_ms)
        record = BrokerRecord(
            node_id=place.node_id,
            incarnation=WriterId(f"{rng.getrandbits(128):032x}"),
            host=place.host,
            port=place.port,
            rack=place.rack,
            session=keeper.session,
            started_at_ms=clock.now_ms(),
            lock=place.lock,
        )
        membership = cls(store, keeper, record)
        try:
            await register(store, record, clock=clock, log=log)
        except BaseException:
            await keeper.close()
            raise
        membership._is_registered = True
        return membership

    @property
    def session(self) -> SessionId:
        """The session that everything this incarnation does is tied to."""
        return self._keeper.session

    @property
    def incarnation(self) -> WriterId:
        """The name of this incarnation, never used again: a writer's id."""
        return self.record.incarnation

    @property
    def lost(self) -> asyncio.Event:
        """Set when the session may be gone, and when it was left."""
        return self._keeper.lost

    def is_surely_alive(self) -> bool:
        """Return whether the session cannot have timed out yet."""
        return self._keeper.is_surely_alive()

    def is_present(self) -> bool:
        """Return whether clients may be sent here: registered, not draining, and surely alive."""
        return self._is_registered and self._keeper.is_surely_alive()

    async def unregister(self) -> None:
        """Give up the place so that clients move on; the session lives until `leave`.

        If the store cannot be reached, the place goes with the session.
        """
        if self._is_registered:
            self._is_registered = False
            with contextlib.suppress(Retryable, OutcomeUnknown):
                await unregister(self._store, self.record)

    async def leave(self) -> None:
        """Give up the place and end the session; if the store cannot be reached, it times out by itself."""
        await self.unregister()
        await self._keeper.close()

    async def abandon(self) -> None:
        """Stop renewing, as a crash would: for an incarnation whose session is lost."""
        self._is_registered = False
        await self._keeper.abandon()
