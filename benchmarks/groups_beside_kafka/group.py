"""One group of the load: its members join, leave and join again, and each time it is taken how long that took.

The clock runs from the first request (connections are open and the coordinator is known by then) to the moment at
which the last member has heard what makes the group settled: all partitions owned, evenly.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable

from benchmarks.groups_beside_kafka.actions import Machine
from benchmarks.groups_beside_kafka.connection import Connection, Network
from benchmarks.groups_beside_kafka.ledger import Ledger
from benchmarks.groups_beside_kafka.shell import Counts, Member

SETTLE_LIMIT_SECONDS = 90.0


class NotSettled(Exception):
    """A group did not come to rest; the message says how far it came."""


class Group:
    """A group's members and its ledger. Members run as tasks of `tasks`, whose failure is everybody's."""

    def __init__(
        self,
        *,
        group_id: str,
        partitions: int,
        make_machine: Callable[[str], Machine],
        network: Network,
        counts: Counts,
        tasks: asyncio.TaskGroup,
        rng: random.Random,
    ) -> None:
        self.ledger = Ledger(partitions)
        self.group_id = group_id
        self._make_machine = make_machine
        self._network = network
        self._counts = counts
        self._tasks = tasks
        self._rng = rng
        self._numbers = itertools.count()
        self._connections: list[Connection] = []
        self._members: dict[int, Member] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    async def connect(self, members: int) -> None:
        """Open the connections of members that are to join."""
        for _ in range(members):
            self._connections.append(await self._network.connect_to_coordinator(self.group_id))

    async def all_join(self) -> float:
        """Let one member join for each open connection, all at once; return how long it took to settle."""
        began_s = time.monotonic()
        numbers = [next(self._numbers) for _ in self._connections]
        for number in numbers:
            self._expect(number)
        for number in numbers:
            self._start(number)
        return await self._until_settled() - began_s

    async def one_joins(self) -> float:
        """Let one more member join; return how long it took to settle."""
        await self.connect(1)
        began_s = time.monotonic()
        number = next(self._numbers)
        self._expect(number)
        self._start(number)
        return await self._until_settled() - began_s

    async def one_leaves(self) -> float:
        """Let a member leave, any of them; return how long it took until the others had its partitions."""
        number = self._rng.choice(sorted(self._members))
        began_s = time.monotonic()
        self._settled.clear()
        self.ledger.forget(number)
        self._members.pop(number).leave()
        return await self._until_settled() - began_s

    async def disband(self) -> None:
        """Let everybody leave, and wait until they have."""
        for number, member in list(self._members.items()):
            self.ledger.forget(number)
            member.leave()
        self._members.clear()
        if self._running:
            await asyncio.wait(self._running)

    def _expect(self, number: int) -> None:
        self._settled.clear()
        self.ledger.expect(number)

    def _start(self, number: int) -> None:
        member = Member(
            group_id=self.group_id,
            machine=self._make_machine(self.group_id),
            connection=self._connections.pop(),
            network=self._network,
            counts=self._counts,
            note=lambda owned: self._note(number, owned),
        )
        self._members[number] = member
        task = self._tasks.create_task(member.run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _note(self, number: int, owned: frozenset[int]) -> None:
        if not self.ledger.note(number, owned):
            return
        if self.ledger.has_settled():
            self._settled.set()
        else:
            self._settled.clear()

    async def _until_settled(self) -> float:
        try:
            async with asyncio.timeout(SETTLE_LIMIT_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            raise NotSettled(
                f"{self.group_id} has not settled after {SETTLE_LIMIT_SECONDS:.0f} s: {self.ledger.describe()}"
            ) from None
        return time.monotonic()
