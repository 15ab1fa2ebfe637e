"""Checks that run on another loop than the one that asks, and answer in time whatever happens there."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from headrace.cluster.identity import require_identity
from headrace.errors import Retryable
from headrace.http_api.readiness import Finding, MainLoop, Readiness, ReadyCheck, presence_check, store_checks
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Key, Versioned
from headrace.model.ids import ObjectKey
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import ObjectInfo
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock

SHORT_S = 0.2
LONG_S = 60.0


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The broker's loop: it runs on a thread of its own here, and the test plays the HTTP thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def check(name: str, call: Callable[[], Awaitable[object]]) -> ReadyCheck:
    return ReadyCheck(name=name, check=call, remedy=f"mend {name}")


async def findings(
    loop: asyncio.AbstractEventLoop, *checks: ReadyCheck, limit_s: float = LONG_S
) -> dict[str, str | None]:
    found = await Readiness(MainLoop(loop), checks, limit_s=limit_s).findings()
    return {finding.name: finding.reason for finding in found}


async def fine() -> None:
    return None


async def test_every_check_is_reported_by_itself(loop: asyncio.AbstractEventLoop) -> None:
    async def broken() -> None:
        raise Retryable("the disk\nis full")

    async def mistaken() -> None:
        raise KeyError("x")

    found = await findings(loop, check("a", fine), check("b", broken), check("c", mistaken))
    assert found == {"a": None, "b": r"the disk\nis full", "c": "KeyError: 'x'"}


async def test_a_check_that_hangs_is_given_up_and_cancelled(loop: asyncio.AbstractEventLoop) -> None:
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    found = await findings(loop, check("slow", hang), check("fine", fine), limit_s=SHORT_S)
    assert found == {"slow": "no answer within 0.2 s", "fine": None}
    assert await asyncio.to_thread(cancelled.wait, LONG_S), "nothing is left running on the main loop"


async def test_a_stuck_main_loop_is_noticed_from_outside(loop: asyncio.AbstractEventLoop) -> None:
    main_loop, held, free = MainLoop(loop), threading.Event(), threading.Event()
    assert await main_loop.ping(limit_s=LONG_S)

    def hold() -> None:
        held.set()
        free.wait()

    loop.call_soon_threadsafe(hold)
    await asyncio.to_thread(held.wait)
    assert not await main_loop.ping(limit_s=SHORT_S)
    assert (await findings(loop, check("a", fine), limit_s=SHORT_S))["a"] == "no answer within 0.2 s"
    free.set()
    assert await main_loop.ping(limit_s=LONG_S)


async def test_a_closed_main_loop_is_not_alive() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    assert not await MainLoop(closed).ping(limit_s=LONG_S)
    assert "closed" in str((await findings(closed, check("a", fine)))["a"])


async def test_many_who_ask_at_once_cost_one_round(loop: asyncio.AbstractEventLoop) -> None:
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        rounds += 1
        await asyncio.sleep(0)

    readiness = Readiness(MainLoop(loop), [check("a", count)], limit_s=LONG_S)
    impatient = asyncio.ensure_future(readiness.findings())
    asked = [asyncio.ensure_future(readiness.findings()) for _ in range(20)]
    await asyncio.sleep(0)
    impatient.cancel()
    answers = await asyncio.gather(*asked)
    assert rounds == 1 and answers == [[Finding(name="a", reason=None, remedy="mend a")]] * 20
    await readiness.findings()
    assert rounds == 2, "the next to ask gets a fresh answer"


class Switchable:
    """Stores that can be switched off."""

    def __init__(self) -> None:
        self.is_down = False
        switch = self

        class Metadata(MemoryMetadata):
            async def get(self, key: Key) -> Versioned | None:
                if switch.is_down:
                    raise Retryable("no metadata")
                return await super().get(key)

        class Objects(MemoryObjects):
            async def head(self, key: ObjectKey) -> ObjectInfo:
                if switch.is_down:
                    raise Retryable("no objects")
                return await super().head(key)

        self.metadata = Metadata(seeded_rng(1))
        self.objects = Objects(ManualClock())


async def test_store_checks_really_read_both_stores(loop: asyncio.AbstractEventLoop) -> None:
    stores = Switchable()
    await require_identity(stores.metadata, stores.objects, rng=seeded_rng(1))
    checks = store_checks(stores.metadata, stores.objects)
    assert await findings(loop, *checks) == {"metadata": None, "objects": None}
    stores.is_down = True
    assert await findings(loop, *checks) == {"metadata": "no metadata", "objects": "no objects"}
    stores.is_down = False
    assert await findings(loop, *checks) == {"metadata": None, "objects": None}


@pytest.mark.parametrize(
    ("is_present", "is_draining", "reason"),
    [(True, False, None), (True, True, "draining"), (False, True, "draining"), (False, False, "not registered")],
)
async def test_a_broker_is_ready_while_it_is_present_and_does_not_drain(
    loop: asyncio.AbstractEventLoop, is_present: bool, is_draining: bool, reason: str | None
) -> None:
    found = await findings(loop, presence_check(is_present=lambda: is_present, is_draining=lambda: is_draining))
    assert found["cluster"] is None if reason is None else reason in str(found["cluster"])
