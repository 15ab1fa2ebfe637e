"""Members of simulated groups: they find their coordinator, join, take partitions, commit, stop, and come again.

They take every error as a real client would, and go on for as long as it takes: if a group does not come to rest
after the last fault, that is a violation, too.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.errors import HeadraceError
from headrace.groups.protocol import Client, CommitClaim
from headrace.groups.records import OffsetRecord
from headrace.groups.store import Partition
from headrace.model.error_codes import ErrorCode
from headrace.runtime.clock import Clock
from headrace.runtime.rng import Rng
from headrace.testing.simulation.groups.ledger import Holder, Ledger
from headrace.testing.simulation.groups.node import MEMBER_SESSION_MS, GroupNode

T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
PATIENT_TIMEOUT_S = 30.0
PAUSE_S = 0.3
CLIENT = Client("simulated", "/host")


class Lost(Exception):
    """No answer, or one that says to look for the coordinator again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What members live in."""

    nodes: Callable[[], list[GroupNode]]
    clock: Clock
    ledger: Ledger
    is_calm: Callable[[], bool]
    """Whether faults are over: then nobody leaves or stops any more, and everything must come to rest."""


class Member:
    """What members of both protocols share."""

    def __init__(self, name: str, group_id: str, topics: tuple[str, ...], *, world: World, rng: Rng) -> None:
        self.name = name
        self.group_id = group_id
        self.topics = topics
        self._world = world
        self._rng = rng
        self._coordinator: GroupNode | None = None
        self.holder = Holder(name=name, group_id=group_id, session_s=MEMBER_SESSION_MS / 1000)

    async def run(self) -> None:
        """Be a member for ever."""
        while True:
            try:
                await self._live()
            except Lost:
                self._coordinator = None
                await self._pause()

    async def _live(self) -> None:
        raise NotImplementedError

    def _claim(self) -> CommitClaim:
        raise NotImplementedError

    def _drop(self) -> None:
        """Own nothing any more, before anybody is told."""
        self._world.ledger.released(self.holder)

    async def _pause(self) -> None:
        await self._world.clock.sleep(self._rng.uniform(0, PAUSE_S))

    async def _ask(
        self, work: Callable[[GroupNode], Coroutine[Any, Any, T]], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> T:
        """Ask the coordinator; raise `Lost` for anything but an answer."""
        node = self._coordinator or await self._find()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await node.process.call(work(node))
        except (HeadraceError, TimeoutError) as error:
            raise Lost from error
        self._coordinator = node
        return answer

    async def _find(self) -> GroupNode:
        nodes = self._world.nodes()
        asked = nodes[self._rng.randrange(0, len(nodes))]
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                broker = await asked.process.call(asked.coordinator.find(self.group_id, is_group=True))
        except (HeadraceError, TimeoutError) as error:
            raise Lost from error
        found = [node for node in self._world.nodes() if broker is not None and node.node_id == broker.node_id]
        if not found:
            raise Lost
        return found[0]

    # Offsets

    async def _use_offsets(self) -> None:
        """Commit for something that is owned, and read it back, now and then."""
        owned = sorted(self.holder.owned)
        if owned and self._rng.random() < 0.4:
            await self._commit(owned[self._rng.randrange(0, len(owned))])
        if owned and self._rng.random() < 0.3:
            await self._fetch(owned[self._rng.randrange(0, len(owned))])

    async def _commit(self, partition: Partition) -> None:
        ledger = self._world.ledger
        value = ledger.next_offset(self.group_id, partition)
        record = OffsetRecord(value, -1, "", self._world.clock.now_ms())
        claim = self._claim()
        code = await self._ask(lambda node: node.coordinator.commit(self.group_id, claim, {partition: record}))
        if code is ErrorCode.NONE:
            ledger.acknowledged(self.group_id, partition, value)
        else:
            ledger.refused(self.group_id, partition, value)

    async def _fetch(self, partition: Partition) -> None:
        ledger = self._world.ledger
        at_least = ledger.newest(self.group_id, partition)
        found = await self._ask(lambda node: node.coordinator.fetch(self.group_id, None, [partition]))
        value = found[partition].offset if partition in found else -1
        ledger.fetched(self.group_id, partition, value, at_least=at_least)
