"""No background service ends the broker by an expected error: each meets every one of them, and the broker serves."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    Corrupt,
    Exists,
    Fenced,
    HeadraceError,
    Invalid,
    Missing,
    OutcomeUnknown,
    Retryable,
    Throttled,
    Unsupported,
)
from headrace.metadata.leases import LeaseHeld
from headrace.runtime import services
from headrace.runtime.services import Follower, Ticker
from tests.unit.broker.test_serving import PATIENCE_S, Kit, restored_root_logger

__all__ = ["restored_root_logger"]

EXPECTED = [Retryable, Throttled, OutcomeUnknown, Fenced, Invalid, Missing, Exists, Corrupt, Unsupported]
TICK_MS = 5


class Trouble:
    """Makes every service fail once with each expected error, before it does its work."""

    def __init__(self) -> None:
        self.left: dict[str, Iterator[HeadraceError]] = {}
        self.recovered: set[str] = set()

    def wrapped(self, name: str, work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
        errors: list[HeadraceError] = [kind("for once") for kind in EXPECTED]
        self.left[name] = iter(errors)

        async def fail_first() -> object:
            for error in self.left[name]:
                raise error
            self.recovered.add(name)
            return await work()

        return fail_first


async def test_every_service_meets_every_expected_error_and_the_broker_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble()
    make_ticker, make_follower = Ticker.__init__, Follower.__init__

    def ticker(self: Ticker, name: str, tick: Callable[[], Awaitable[object]], **others: Any) -> None:
        make_ticker(self, name, trouble.wrapped(name, tick), **{**others, "interval_ms": TICK_MS})

    def follower(self: Follower, name: str, follow: Callable[[], Awaitable[object]], **others: Any) -> None:
        make_follower(self, name, trouble.wrapped(name, follow), **others)

    monkeypatch.setattr(Ticker, "__init__", ticker)
    monkeypatch.setattr(Follower, "__init__", follower)
    monkeypatch.setattr(services, "FOLLOW_AGAIN_S", TICK_MS / 1000)
    monkeypatch.setattr(services, "MAX_BACKOFF_S", TICK_MS / 1000)
    monkeypatch.setattr(services, "is_worth_a_line", lambda failures: True)
    kit = Kit(tmp_path)
    async with kit.serving() as client:
        async with asyncio.timeout(PATIENCE_S):
            while trouble.recovered != set(trouble.left):
                await asyncio.sleep(0.01)
        await client.create_topic("t")
    assert {"group-keeper", "group-alarms", "collector", "repacker", "writer-tidy", "index-follower"} <= set(
        trouble.left
    )
    failures = [line for line in kit.lines() if str(line.get("error", "")).endswith("for once")]
    assert len(failures) == len(EXPECTED) * len(trouble.left)
    assert all(line["level"] == "warning" and line["advice"] and "traceback" not in line for line in failures)


def test_a_lease_that_another_holds_is_an_expected_error() -> None:
    assert issubclass(LeaseHeld, HeadraceError)
