"""A member at work: does what its machine decides, over a connection of its own, and tells the group's ledger."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.groups_beside_kafka import classic_member, consumer_member
from benchmarks.groups_beside_kafka.actions import Ask, Ended, LookUp, Machine, Rest
from benchmarks.groups_beside_kafka.connection import Connection, Network

_HEARTBEATS = frozenset({classic_member.HEARTBEAT_KEY, consumer_member.HEARTBEAT_KEY})


@dataclass(slots=True)
class Counts:
    """What all members of a run did together."""

    heartbeats: int = 0
    fenced: int = 0


class Member:
    """The shell around one machine. `run` ends when the member has left."""

    def __init__(
        self,
        *,
        group_id: str,
        machine: Machine,
        connection: Connection,
        network: Network,
        counts: Counts,
        note: Callable[[frozenset[int]], None],
    ) -> None:
        self.machine = machine
        self.connection = connection
        self._group_id = group_id
        self._network = network
        self._counts = counts
        self._note = note
        self._nudge: asyncio.Future[None] | None = None

    def leave(self) -> None:
        """Let it leave the group as soon as it has the answer it waits for."""
        self.machine.leave()
        if self._nudge is not None:
            _finish(self._nudge)

    async def run(self) -> None:
        """Join, take part and leave. The connection is closed in the end."""
        try:
            while not isinstance(action := self.machine.next_action(time.monotonic()), Ended):
                match action:
                    case Ask():
                        await self._ask(action)
                    case Rest():
                        await self._rest(action.until_s)
                    case LookUp():
                        await self._look_up()
        finally:
            self._counts.fenced += self.machine.fenced
            await self.connection.close()

    async def _ask(self, ask: Ask) -> None:
        self._note(self.machine.owned)
        response = await self.connection.ask(ask.api_key, ask.version, ask.request)
        self._counts.heartbeats += ask.api_key in _HEARTBEATS
        self.machine.handle(response, time.monotonic())
        self._note(self.machine.owned)

    async def _rest(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._nudge = loop.create_future()
        timer = loop.call_later(until_s - time.monotonic(), _finish, self._nudge)
        try:
            await self._nudge
        finally:
            timer.cancel()
            self._nudge = None

    async def _look_up(self) -> None:
        await self._network.find_coordinator(self._group_id)
        await self.connection.close()
        self.connection = await self._network.connect_to_coordinator(self._group_id)


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
