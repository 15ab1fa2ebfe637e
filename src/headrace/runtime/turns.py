"""Turns on the event loop: long work goes on in slices, and one slice runs per pass of the loop.

Awaiting a coroutine that does not suspend does not give the loop away, so a loop over ten thousand partitions holds
everybody up. Work that may be long asks for a turn between its slices. All of it stands in one line: however many
long requests there are, between two passes of the loop only one slice of them runs.

Readers who wait for the same stream are woken in slices, too: a commit that thousands of them wait for must not let
all of them run before the producer hears of it.

Must stay true: the first to ask is let on first, and one that was cancelled in the line holds nobody up.
"""

import asyncio
from collections import deque

WOKEN_PER_PASS = 8
"""How many readers are woken in one pass of the loop: each answers with some records, which takes a few 100 µs."""


class LoopTurns:
    """The line in which long work of one event loop waits for its turns."""

    def __init__(self) -> None:
        self._line: deque[asyncio.Future[None]] = deque()
        self._is_moving = False

    async def next(self) -> None:
        """Let everything that is ready run, and return when it is the caller's turn."""
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        if not self._is_moving:
            self._is_moving = True
            turn.get_loop().call_soon(self._move)
        await turn

    def _move(self) -> None:
        """Let the first one on; if there are more, go on in the next pass."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():  # cancelled while it waited
                turn.set_result(None)
                turn.get_loop().call_soon(self._move)
                return
        self._is_moving = False


class WakeLine:
    """Wakes those who sleep on futures of their own: a few at once, the others pass by pass, in order."""

    def __init__(self, *, per_pass: int = WOKEN_PER_PASS) -> None:
        self._per_pass = per_pass
        self._left = per_pass
        self._line: deque[asyncio.Future[None]] = deque()
        self._is_moving = False

    def wake(self, sleeper: "asyncio.Future[None]") -> None:
        """Wake a sleeper, in this pass of the loop if not too many were, or when it is its turn."""
        if sleeper.done():
            return
        if self._left and not self._line:
            self._left -= 1
            sleeper.set_result(None)
        else:
            self._line.append(sleeper)
        if not self._is_moving:
            self._is_moving = True
            sleeper.get_loop().call_soon(self._move, sleeper.get_loop())

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin a pass: wake as many as may be, and go on in the next one if any were."""
        self._left = self._per_pass
        while self._line and self._left:
            sleeper = self._line.popleft()
            if not sleeper.done():  # gone while it waited
                sleeper.set_result(None)
                self._left -= 1
        self._is_moving = self._left < self._per_pass
        if self._is_moving:
            loop.call_soon(self._move, loop)
