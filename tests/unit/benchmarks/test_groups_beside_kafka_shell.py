"""The load's shell: it serves a machine over a connection, lets it leave, and follows a coordinator that moves."""

import asyncio
import contextlib
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.groups_beside_kafka import group as group_module
from benchmarks.groups_beside_kafka.actions import NOTHING, Action, Ask, Ended, LookUp, Rest
from benchmarks.groups_beside_kafka.connection import Address, Connection, Network, connect
from benchmarks.groups_beside_kafka.consumer_member import HEARTBEAT_KEY, HEARTBEAT_VERSION
from benchmarks.groups_beside_kafka.group import Group, NotSettled
from benchmarks.groups_beside_kafka.shell import Counts, Member
from headrace.wire.messages import ConsumerGroupHeartbeatRequest

LIMIT_SECONDS = 30.0
FAR_AHEAD_SECONDS = 1e9
HEARTBEAT = Ask(api_key=HEARTBEAT_KEY, version=HEARTBEAT_VERSION, request=ConsumerGroupHeartbeatRequest())


class ScriptedMachine:
    """Wants what it was told to want, owns a partition after the first answer, and then rests until it leaves."""

    def __init__(self, *actions: Action) -> None:
        self.member_id = "me"
        self.owned = NOTHING
        self.fenced = 1
        self.answers: list[Any] = []
        self._actions = list(actions)
        self._is_leaving = False

    @property
    def epoch(self) -> int:
        return 1

    def leave(self) -> None:
        self._is_leaving = True

    def next_action(self, now_s: float) -> Action:
        if self._is_leaving:
            return Ended()
        return self._actions.pop(0) if self._actions else Rest(until_s=now_s + FAR_AHEAD_SECONDS)

    def handle(self, response: Any, now_s: float) -> None:
        self.answers.append(response)
        self.owned = frozenset({0})


class FakeConnection(Connection):
    """Answers with its own name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.is_closed = False

    async def ask(self, api_key: int, version: int, request: Any) -> Any:
        return self.name

    async def close(self) -> None:
        self.is_closed = True


class FakeNetwork(Network):
    """Gives out one connection after another, and remembers what was looked up."""

    def __init__(self, *connections: Connection) -> None:
        super().__init__("nowhere:1")
        self.looked_up: list[str] = []
        self._connections = list(connections)

    async def find_coordinator(self, group_id: str) -> Address:
        self.looked_up.append(group_id)
        return "nowhere", 1

    async def connect_to_coordinator(self, group_id: str) -> Connection:
        return self._connections.pop(0)


async def test_a_member_is_served_until_it_leaves_and_a_coordinator_that_moved_is_followed() -> None:
    machine = ScriptedMachine(HEARTBEAT, LookUp(), HEARTBEAT)
    first, second = FakeConnection("first"), FakeConnection("second")
    network, counts = FakeNetwork(second), Counts()
    noted: list[frozenset[int]] = []
    has_second_answer = asyncio.Event()

    def note(owned: frozenset[int]) -> None:
        noted.append(owned)
        if len(machine.answers) == 2:
            has_second_answer.set()

    member = Member(group_id="group", machine=machine, connection=first, network=network, counts=counts, note=note)
    async with asyncio.timeout(LIMIT_SECONDS):
        task = asyncio.create_task(member.run())
        await has_second_answer.wait()
        await asyncio.sleep(0)  # it rests now, or is about to: either way it must hear that it is to leave
        member.leave()
        await task
    assert machine.answers == ["first", "second"]
    assert network.looked_up == ["group"]
    assert first.is_closed
    assert second.is_closed
    assert noted == [NOTHING, frozenset({0}), frozenset({0}), frozenset({0})]
    assert (counts.heartbeats, counts.fenced) == (2, 1)


async def test_a_group_settles_disbands_and_says_why_it_does_not() -> None:
    network = FakeNetwork(*(FakeConnection(str(number)) for number in range(2)))
    async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as tasks:
        group = Group(
            group_id="group",
            partitions=1,
            make_machine=lambda group_id: ScriptedMachine(HEARTBEAT),
            network=network,
            counts=Counts(),
            tasks=tasks,
            rng=random.Random(1),
        )
        await group.connect(1)
        assert await group.all_join() >= 0
        with pytest.MonkeyPatch.context() as patch, pytest.raises(NotSettled, match="1 of 1 partitions owned"):
            patch.setattr(group_module, "SETTLE_LIMIT_SECONDS", 0.0)
            await group.one_joins()
        await group.disband()
        assert group.members == []


async def _serve(answer: Callable[[int], list[bytes]]) -> asyncio.Server:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            for _ in range(2):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                for part in answer(struct.unpack_from(">i", frame, 4)[0]):
                    writer.write(part)
                    await writer.drain()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


def _request(correlation_id: int) -> bytes:
    return struct.pack(">ihhi", 8, 0, 0, correlation_id)


async def test_pipelined_requests_get_their_answers_whatever_the_pieces() -> None:
    def in_pieces(correlation_id: int) -> list[bytes]:
        whole = struct.pack(">ii", 6, correlation_id) + b"ok"
        return [whole[:2], whole[2:5], whole[5:]]

    async with asyncio.timeout(LIMIT_SECONDS), await _serve(in_pieces) as server:
        connection = await connect(server.sockets[0].getsockname()[:2])
        answers = [connection.exchange(_request), connection.exchange(_request)]
        assert [await answer for answer in answers] == [struct.pack(">i", number) + b"ok" for number in (1, 2)]
        # The server has closed its side: whoever asks now is told, now or when that is noticed.
        with pytest.raises(ConnectionError):
            await connection.exchange(_request)
        await connection.close()


async def test_an_answer_to_something_else_is_refused() -> None:
    async with asyncio.timeout(LIMIT_SECONDS), await _serve(lambda _: [struct.pack(">ii", 4, 99)]) as server:
        connection = await connect(server.sockets[0].getsockname()[:2])
        with pytest.raises(ConnectionError, match="out of order"):
            await connection.exchange(_request)
        await connection.close()
