"""The notifier gathers while it sends, keeps what it could not send, and says goodbye in bounded time."""

import asyncio
from typing import Any

import pytest

from headrace.metadata.postgres import notifying
from headrace.metadata.postgres.notifying import Notifier
from headrace.runtime.clock import SystemClock
from tests.contract.metadata.test_watches import LIMIT_S


class Server:
    """Takes notifications when it is let, and can fail."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.failures_left = 0
        self.connections = 0
        self.lets = asyncio.Event()
        self.lets.set()
        self.is_asked = asyncio.Event()

    async def connect(self) -> Any:
        self.connections += 1
        return self

    def get_server_pid(self) -> int:
        return 100 + self.connections

    async def execute(self, query: str, channel: str, payloads: list[str]) -> None:
        assert channel == "channel"
        self.is_asked.set()
        await self.lets.wait()
        if self.failures_left:
            self.failures_left -= 1
            raise ConnectionResetError("gone")
        self.sent.append(payloads)

    def terminate(self) -> None:
        return None


class HastyClock(SystemClock):
    """Does not wait."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def notifier_of(server: Server) -> Notifier:
    return Notifier("channel", connect=server.connect, clock=HastyClock())


async def test_what_comes_while_one_statement_is_under_way_goes_with_the_next() -> None:
    server = Server()
    server.lets.clear()
    notifier = notifier_of(server)
    notifier.note(["/a/"], 1)
    await server.is_asked.wait()
    for revision in range(2, 100):
        notifier.note(["/a/", "/b/"], revision)
    server.lets.set()
    await notifier.close()
    assert server.sent == [["/a/ 1"], ["/a/ 99", "/b/ 99"]], "the newest revision of each unit"


async def test_a_lost_signal_outweighs_revisions() -> None:
    server = Server()
    notifier = notifier_of(server)
    notifier.note(["/a/", "/b/"], 7)
    notifier.note(["/a/"], 0)
    notifier.note(["/a/"], 8)
    await notifier.close()
    assert server.sent == [["/a/ 0", "/b/ 7"]]


async def test_what_could_not_be_sent_is_sent_again_on_another_connection() -> None:
    server = Server()
    server.failures_left = 3
    notifier = notifier_of(server)
    notifier.note(["/a/"], 1)
    async with asyncio.timeout(LIMIT_S):
        while not server.sent:
            await asyncio.sleep(0)
    assert server.sent == [["/a/ 1"]]
    assert server.connections == 4
    assert notifier.pid == 104
    await notifier.close()
    assert notifier.pid is None


async def test_a_statement_names_so_many_units_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "MAX_UNITS_PER_SEND", 2)
    server = Server()
    notifier = notifier_of(server)
    notifier.note(["/a/", "/b/", "/c/"], 1)
    await notifier.close()
    assert server.sent == [["/a/ 1", "/b/ 1"], ["/c/ 1"]]


async def test_closing_does_not_wait_for_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "CLOSE_LIMIT_S", 0.01)
    server = Server()
    server.lets.clear()
    notifier = notifier_of(server)
    notifier.note(["/a/"], 1)
    await server.is_asked.wait()
    async with asyncio.timeout(LIMIT_S):
        await notifier.close()
    assert server.sent == []


async def test_nothing_is_opened_where_nothing_changes() -> None:
    server = Server()
    notifier = notifier_of(server)
    notifier.note([], 1)
    await notifier.close()
    assert server.connections == 0
