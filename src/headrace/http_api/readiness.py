"""Is this broker fit to serve? Checks that ask the parts themselves, on the loop where these live.

A check is a coroutine function that returns when all is well and raises when it is not; the error says what is wrong.
HTTP is served by another thread with a loop of its own, so a check travels to the main loop and its outcome back.

Must stay true: however slow or stuck a check or the main loop is, the answer comes within the checks' time limit; and
any number of people who ask at once cost one round of checks.
"""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cluster.identity import MARKER
from headrace.errors import HeadraceError, Retryable
from headrace.metadata.keys import CLUSTER
from headrace.metadata.port import MetadataStore
from headrace.objects.port import ObjectStore
from headrace.runtime.text import one_line

CHECK_LIMIT_S = 2.0
"""How long one check may take; all of them run at the same time."""

MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCheck:
    """One thing that must be well, and what a person does when it is not."""

    name: str
    check: Callable[[], Awaitable[object]]
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found. `reason` is `None` when all is well."""

    name: str
    reason: str | None
    remedy: str


def store_checks(metadata: MetadataStore, objects: ObjectStore) -> list[ReadyCheck]:
    """Return the checks that read something tiny from each store, for real."""
    return [
        ReadyCheck(
            name="metadata",
            check=lambda: metadata.get(CLUSTER),
            remedy="see that the store named by --metadata runs and can be reached from this host",
        ),
        ReadyCheck(
            name="objects",
            check=lambda: objects.head(MARKER),
            remedy="see that the store named by --objects can be reached from this host with these credentials",
        ),
    ]


def presence_check(*, is_present: Callable[[], bool], is_draining: Callable[[], bool]) -> ReadyCheck:
    """Return the check that this broker is registered and not about to leave."""

    async def check() -> None:
        if is_draining():
            raise Retryable("this broker is draining and about to leave")
        if not is_present():
            raise Retryable("this broker is not registered: it has no living session in the metadata store")

    return ReadyCheck(
        name="cluster", check=check, remedy="send clients to another broker; this one comes back by itself if it can"
    )


class MainLoop:
    """The way from the HTTP thread to the loop that the broker runs on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def run(self, call: Callable[[], Awaitable[object]], *, limit_s: float) -> None:
        """Run a call on the main loop and wait for its end. Raises what it raises, or `TimeoutError`."""
        running = _submit(_awaited(call), self._loop)
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.wrap_future(running)
        finally:
            running.cancel()

    async def ping(self, *, limit_s: float = CHECK_LIMIT_S) -> bool:
        """Return whether the main loop takes its turn within the limit."""
        try:
            await self.run(_nothing, limit_s=limit_s)
        except (TimeoutError, RuntimeError):  # busy, or closed
            return False
        return True


class Readiness:
    """Runs all checks. It lives on the HTTP thread's loop."""

    def __init__(self, main_loop: MainLoop, checks: Sequence[ReadyCheck], *, limit_s: float = CHECK_LIMIT_S) -> None:
        self._main_loop = main_loop
        self._checks = checks
        self._limit_s = limit_s
        self._running: asyncio.Task[list[Finding]] | None = None

    async def findings(self) -> list[Finding]:
        """Return what each check finds, in order. Whoever asks while a round is under way gets its outcome."""
        if self._running is None:
            self._running = asyncio.create_task(self._run_all())
            self._running.add_done_callback(self._forget)
        return await asyncio.shield(self._running)

    def _forget(self, _round: "asyncio.Task[list[Finding]]") -> None:
        self._running = None

    async def _run_all(self) -> list[Finding]:
        return await asyncio.gather(*(self._run(check) for check in self._checks))

    async def _run(self, check: ReadyCheck) -> Finding:
        reason: str | None = None
        try:
            await self._main_loop.run(check.check, limit_s=self._limit_s)
        except TimeoutError:
            reason = f"no answer within {self._limit_s:g} s"
        except HeadraceError as error:
            reason = str(error)
        except Exception as error:  # Whatever it is, the answer is "not ready", and other checks have theirs.
            reason = f"{type(error).__name__}: {error}"
        return Finding(
            name=check.name,
            reason=None if reason is None else one_line(reason, max_chars=MAX_REASON_CHARS),
            remedy=check.remedy,
        )


def _submit(call: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> "concurrent.futures.Future[None]":
    try:
        return asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError:  # The loop is closed: the process is about to end.
        call.close()
        raise


async def _awaited(call: Callable[[], Awaitable[object]]) -> None:
    await call()


async def _nothing() -> None:
    return None
