"""Keeping a session alive, and ending those that nobody keeps alive.

Must stay true:
- A keeper counts its deadline from *before* it sent the last renewal that succeeded, on its own monotonic clock.
  Whoever ends the session counts from when it saw that renewal, which is later; so the keeper stops first.
- Once a keeper has reported the loss of its session it never says again that the session is alive.
- No two clocks are compared, and no wall clock is read.

Where the store offers it (`MetadataStore.renewals`), renewals have a thread and a connection of their own. So an
event loop that is stalled, or a store whose connections are all in use, does not end a session whose process
is alive. The two threads share a `Term` and nothing else.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence

from headrace.errors import HeadraceError, OutcomeUnknown, Retryable
from headrace.metadata import keys
from headrace.metadata.port import MetadataStore, Renewals, SessionState, Signal
from headrace.model.ids import SessionId
from headrace.runtime.clock import Clock
from headrace.runtime.loop_thread import run_on_thread

RENEWALS_PER_TIMEOUT = 3
RETRIES_PER_RENEWAL = 4
"""How often a renewal that failed is tried again before the next one would be due."""

REAP_RETRY_S = 0.2
"""When to look again after the store could not be reached."""


class SessionObserver:
    """Decides which sessions have timed out, from what it is shown and when."""

    def __init__(self) -> None:
        self._first_seen: dict[SessionId, tuple[SessionState, float]] = {}

    def observe(self, sessions: Sequence[SessionState], now: float) -> None:
        """Take note of all living sessions as they are at a moment that lies not after `now`."""
        seen: dict[SessionId, tuple[SessionState, float]] = {}
        for state in sessions:
            before = self._first_seen.get(state.id)
            seen[state.id] = before if before is not None and before[0].version == state.version else (state, now)
        self._first_seen = seen

    def timed_out(self, now: float) -> list[SessionState]:
        """Return the sessions that were not renewed for their timeout."""
        return [state for state, since in self._first_seen.values() if now >= _deadline(state, since)]

    def next_deadline(self) -> float | None:
        """Return when the next session would time out; `None` if there are no sessions."""
        return min((_deadline(state, since) for state, since in self._first_seen.values()), default=None)

    def forget(self, session: SessionId) -> None:
        """Drop a session that was ended, or renewed before it could be; it counts anew when it is seen again."""
        self._first_seen.pop(session, None)


class Term:
    """How long a session is surely alive: what the thread that renews it shares with the one that asks.

    Must stay true: once it has said that the session may be gone, it says so for ever. Therefore the clock is read
    and the answer remembered inside the lock: a process that was paused between the two finds that time has
    passed.
    """

    def __init__(self, clock: Clock, *, deadline: float) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._deadline = deadline
        self._is_lost = False

    @property
    def deadline(self) -> float:
        """The monotonic moment from which on others may have ended the session."""
        return self._deadline

    def is_surely_alive(self) -> bool:
        """Return whether the session cannot have timed out yet."""
        with self._lock:
            return self._look()

    def extend(self, deadline: float) -> bool:
        """Move the deadline after a renewal, and return `True`; or `False` if the old one has passed before.

        A process that was paused may learn of its renewal only after the old deadline. By then it has had to stop.
        """
        with self._lock:
            if self._look():
                self._deadline = deadline
            return not self._is_lost

    def lose(self) -> None:
        """Count the session as lost."""
        with self._lock:
            self._is_lost = True

    def _look(self) -> bool:
        self._is_lost = self._is_lost or self._clock.monotonic() >= self._deadline
        return not self._is_lost


class SessionKeeper:
    """Holds one session open. `open` makes one; `lost` is set when the session may be gone."""

    def __init__(
        self, store: MetadataStore, clock: Clock, session: SessionId, *, timeout_ms: int, deadline: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._term = Term(clock, deadline=deadline)
        self.session = session
        self.lost = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._hold(store.renewals(timeout_ms=timeout_ms)))

    @classmethod
    async def open(cls, store: MetadataStore, clock: Clock, *, timeout_ms: int) -> "SessionKeeper":
        """Open a session and renew it three times per timeout from now on."""
        sent_at = clock.monotonic()
        session = await store.open_session(timeout_ms=timeout_ms)
        return cls(store, clock, session, timeout_ms=timeout_ms, deadline=sent_at + timeout_ms / 1000)

    @property
    def deadline(self) -> float:
        """The monotonic moment from which on others may have ended the session."""
        return self._term.deadline

    def is_surely_alive(self) -> bool:
        """Return whether the session cannot have timed out yet: what an answer without a transaction asks first."""
        return not self.lost.is_set() and self._term.is_surely_alive()

    async def close(self) -> None:
        """End the session with its ephemeral keys; if the store cannot be reached, it times out by itself."""
        await self.abandon()
        with contextlib.suppress(Retryable, OutcomeUnknown):
            await self._store.end_session(self.session)

    async def abandon(self) -> None:
        """Stop renewing and count the session as lost, as a crash would."""
        self._lose()
        self._running.cancel()
        await asyncio.wait([self._running])

    def _lose(self) -> None:
        self._term.lose()
        self.lost.set()

    async def _hold(self, renewals: Renewals | None) -> None:
        """Renew, here or on a thread, until the session is lost. The deadline is watched here in any case."""
        watchdog = asyncio.get_running_loop().create_task(self._watch_deadline())
        try:
            if renewals is None:
                await self._keep(self._store.renew_session)
            else:
                await run_on_thread("session", lambda: self._keep_apart(renewals))
        finally:
            self._lose()
            watchdog.cancel()

    async def _keep_apart(self, renewals: Renewals) -> None:
        try:
            await self._keep(renewals.renew)
        finally:
            await renewals.close()

    async def _keep(self, renew: Callable[[SessionId], Awaitable[None]]) -> None:
        while self._term.is_surely_alive():
            await self._clock.sleep(self._timeout_s / RENEWALS_PER_TIMEOUT)
            await self._renew(renew)

    async def _renew(self, renew: Callable[[SessionId], Awaitable[None]]) -> None:
        """Renew once, with retries until the deadline has passed."""
        while self._term.is_surely_alive():
            sent_at = self._clock.monotonic()
            try:
                await renew(self.session)
            except (Retryable, OutcomeUnknown):
                await self._clock.sleep(self._timeout_s / RENEWALS_PER_TIMEOUT / RETRIES_PER_RENEWAL)
            except HeadraceError:
                self._term.lose()
            else:
                self._term.extend(sent_at + self._timeout_s)
                return

    async def _watch_deadline(self) -> None:
        """Report the loss when the deadline passes, even while a renewal hangs."""
        while self._term.is_surely_alive():
            await self._clock.sleep(max(0.0, self._term.deadline - self._clock.monotonic()))
        self.lost.set()


class SessionReaper:
    """Ends sessions that have timed out. Every process runs one: whoever is first does it, the others see it done."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._observer = SessionObserver()
        self._retry_at: float | None = None

    async def run(self) -> None:
        """Watch and end sessions until cancelled."""
        watch = self._store.watch(keys.SESSIONS)
        signal: asyncio.Task[Signal] | None = None
        try:
            while True:
                signal = signal or asyncio.get_running_loop().create_task(watch.wait())
                await self._wait(signal)
                if signal.done():
                    signal.result()
                    signal = None
                await self._reap()
        finally:
            if signal is not None:
                signal.cancel()
            watch.close()

    async def _wait(self, signal: "asyncio.Task[Signal]") -> None:
        """Wait for a signal, or until exactly the moment at which the next session would time out."""
        wake_at = self._observer.next_deadline() if self._retry_at is None else self._retry_at
        if wake_at is None:
            await asyncio.wait([signal])
            return
        timer = asyncio.get_running_loop().create_task(self._clock.sleep(max(0.0, wake_at - self._clock.monotonic())))
        try:
            await asyncio.wait([signal, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    async def _reap(self) -> None:
        self._retry_at = None
        try:
            sessions = await self._store.sessions()
            # The clock is read after the sessions: a renewal must never seem older than it is.
            self._observer.observe(sessions, self._clock.monotonic())
            for state in self._observer.timed_out(self._clock.monotonic()):
                await self._store.expire_session(state)
                self._observer.forget(state.id)
        except (Retryable, OutcomeUnknown):
            self._retry_at = self._clock.monotonic() + REAP_RETRY_S


def _deadline(state: SessionState, since: float) -> float:
    return since + state.timeout_ms / 1000
