import asyncio

import pytest

from headrace.errors import Invalid
from headrace.metadata.watching import LOST, REWOUND, HubWatch, WatchHub


async def opened(hub: WatchHub, prefix: str) -> HubWatch:
    watch = hub.watch(prefix)
    assert (await watch.wait()).revision == LOST
    return watch


def is_pending(watch: HubWatch) -> bool:
    """Whether `wait` would return without waiting."""
    coroutine = watch.wait()
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    finally:
        coroutine.close()
    return False


@pytest.mark.parametrize(
    ("prefix", "unit", "wakes"),
    [
        ("/a/", "/a/", True),
        ("/a/b/", "/a/", True),
        ("/a/", "/a/b/", True),
        ("/a/b", "/a/bc", True),
        ("/a/", "/b/", False),
        ("/a/b/", "/a/c/", False),
    ],
)
async def test_a_watch_is_woken_by_units_above_and_below_its_prefix(prefix: str, unit: str, wakes: bool) -> None:
    hub = WatchHub()
    watch = await opened(hub, prefix)
    hub.signal([unit], 7)
    assert is_pending(watch) is wakes


async def test_signals_between_two_waits_become_one_with_the_last_revision() -> None:
    hub = WatchHub()
    watch = await opened(hub, "/a/")
    for revision in (3, 5, 4):
        hub.signal(["/a/"], revision)
    signal = await watch.wait()
    assert (signal.prefix, signal.revision) == ("/a/", 5)
    assert not is_pending(watch)


async def test_a_lost_signal_outweighs_every_revision() -> None:
    hub = WatchHub()
    watch = await opened(hub, "/a/")
    hub.signal(["/a/"], 3)
    hub.signal_lost()
    hub.signal(["/a/"], 4)
    assert (await watch.wait()).revision == LOST


async def test_a_wait_cancelled_after_its_signal_leaves_the_signal() -> None:
    hub = WatchHub()
    watch = await opened(hub, "/a/")
    waiter = asyncio.ensure_future(watch.wait())
    await asyncio.sleep(0)
    hub.signal(["/a/"], 3)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    assert (await watch.wait()).revision == 3


async def test_two_tasks_on_one_watch_are_refused() -> None:
    watch = await opened(WatchHub(), "/a/")
    waiter = asyncio.ensure_future(watch.wait())
    await asyncio.sleep(0)
    with pytest.raises(Invalid, match="/a/"):
        await watch.wait()
    waiter.cancel()


async def test_a_closed_watch_is_forgotten_and_a_closed_hub_closes_all() -> None:
    hub = WatchHub()
    first, second = await opened(hub, "/a/"), await opened(hub, "/a/")
    first.close()
    assert len(hub) == 1
    hub.close()
    assert len(hub) == 0
    with pytest.raises(asyncio.CancelledError):
        await second.wait()
    with pytest.raises(asyncio.CancelledError):
        await hub.watch("/a/").wait()


async def test_a_watch_closed_with_a_signal_pending_does_not_tell_it() -> None:
    hub = WatchHub()
    watch = await opened(hub, "/a/")
    hub.signal(["/a/"], 3)
    watch.close()
    with pytest.raises(asyncio.CancelledError):
        await watch.wait()


async def test_a_rewind_outweighs_whatever_else_is_signalled() -> None:
    for others in ([5, LOST], [LOST], [5], []):
        hub = WatchHub()
        watch = await opened(hub, "/a/")
        for revision in others:
            watch.signal(revision)
        hub.signal_rewound()
        for revision in others:
            watch.signal(revision)
        assert (await watch.wait()).revision == REWOUND
        hub.signal(["/a/"], 7)
        assert (await watch.wait()).revision == 7
