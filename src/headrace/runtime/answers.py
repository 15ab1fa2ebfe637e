"""Memory for answers that wait until their clients have taken them.

Every connection has a room. A fetch takes what it is about to read before it reads it, and shrinks that to what it
found; what was answered counts until the transport has sent it. How large an answer may be follows from what is free
and from what this client has taken so far, so a client that never reads holds little. Only when nothing is free does
a fetch wait for its turn; small answers never do.

Must stay true:
- What was taken is given back once: when it was sent, when it was not needed, or when the connection is lost.
- A fetch that waits for its turn holds nothing, so nobody waits for it.
- The limit is passed only by a first batch that is larger than an answer may be, and by small answers.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Protocol

FIRST_ANSWER_BYTES = 4 * 1024 * 1024
"""How large an answer to a client may be that has not taken much yet."""

PROVEN_BYTES = 16 * 1024 * 1024
"""A client that took this much has read it: sockets do not hold so much. Others share half of the memory."""

SMALL_ANSWER_BYTES = 64 * 1024
"""An answer up to this size never waits."""

TURN_BYTES = 1024 * 1024
"""What a fetch that had to wait gets when its turn has come, and what has to be free for others to have none."""

SHARE = 4
"""An answer has at most one part in so many of what is free, and of what its client has taken so far."""


class Room(Protocol):
    """What the flow of a fetch asks before it gathers an answer."""

    @property
    def allowance_bytes(self) -> int:
        """How many bytes an answer may have now."""
        ...

    def take(self, size_bytes: int) -> bool:
        """Take what an answer will need, in place of what was taken for it; `False` means to wait for a turn."""
        ...

    def shrink(self, size_bytes: int) -> None:
        """Keep as much as was found."""
        ...

    def release(self) -> None:
        """Give back what was taken for an answer that is not there yet."""
        ...

    async def turn(self) -> None:
        """Wait until it is this one's turn: then `take` succeeds."""
        ...


class EndlessRoom:
    """Room for answers to no connection."""

    @property
    def allowance_bytes(self) -> int:
        return sys.maxsize

    def take(self, size_bytes: int) -> bool:
        return True

    def shrink(self, size_bytes: int) -> None:
        return

    def release(self) -> None:
        return

    async def turn(self) -> None:
        return


ENDLESS_ROOM = EndlessRoom()


class AnswerBudget:
    """The memory that the answers of all connections share."""

    def __init__(self, limit_bytes: int, *, recount: Callable[[], None] | None = None) -> None:
        """`recount` lets every connection say what it has sent meanwhile; it is called when memory looks short."""
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._plenty_bytes = limit_bytes // 2
        self._recount = recount or (lambda: None)
        self._proven_line: dict[AnswerRoom, None] = {}
        self._new_line: dict[AnswerRoom, None] = {}

    @property
    def waiting_count(self) -> int:
        """How many fetches wait for their turn."""
        return len(self._proven_line) + len(self._new_line)

    @property
    def is_pressed(self) -> bool:
        """Whether clients that do not take their answers have to make room."""
        return self.waiting_count > 0 or self.taken_bytes * 4 > self.limit_bytes * 3

    def has_plenty(self, size_bytes: int) -> bool:
        """Say whether an answer of this size needs no further thought, for whomever it is."""
        is_waiting = self._proven_line or self._new_line
        return not is_waiting and self.taken_bytes + SHARE * size_bytes <= self._plenty_bytes

    def free_for(self, room: "AnswerRoom") -> int:
        """Return what is free for a room, or 0 if others wait before it or too little is left."""
        if self._free_bytes(room) < TURN_BYTES:
            self._recount()
        if self._line_of(room):
            return 0
        free_bytes = self._free_bytes(room)
        return free_bytes if free_bytes >= TURN_BYTES else 0

    def change(self, size_bytes: int) -> None:
        """Count bytes that were taken, or with a minus given back."""
        self.taken_bytes += size_bytes
        assert self.taken_bytes >= 0, f"{-self.taken_bytes} bytes were returned that nobody took"
        if size_bytes < 0 and (self._proven_line or self._new_line):
            self._serve()

    def stand_in_line(self, room: "AnswerRoom") -> None:
        """Let a room wait for its turn."""
        self._line_of(room)[room] = None
        self._serve()

    def leave_line(self, room: "AnswerRoom") -> None:
        """Forget a room that may wait."""
        self._proven_line.pop(room, None)
        self._new_line.pop(room, None)

    def _line_of(self, room: "AnswerRoom") -> "dict[AnswerRoom, None]":
        return self._proven_line if room.is_proven else self._new_line

    def _free_bytes(self, room: "AnswerRoom") -> int:
        return (self.limit_bytes if room.is_proven else self.limit_bytes // 2) - self.taken_bytes

    def _serve(self) -> None:
        for line in (self._proven_line, self._new_line):
            while line:
                room = next(iter(line))
                if self._free_bytes(room) < TURN_BYTES:
                    break
                del line[room]
                room.let_on()


class AnswerRoom:
    """What the answers of one connection take."""

    __slots__ = (
        "_answered_bytes",
        "_budget",
        "_is_closed",
        "_last_bytes",
        "_left_bytes",
        "_looked_at",
        "_looked_taken_bytes",
        "_reserved_bytes",
        "_turn",
        "is_proven",
        "unsent_bytes",
    )

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._reserved_bytes = 0
        self._answered_bytes = 0
        self._last_bytes = 0
        self._left_bytes = 0
        self._looked_at: float | None = None
        self._looked_taken_bytes = 0
        self._turn: asyncio.Future[None] | None = None
        self._is_closed = False
        self.is_proven = False
        """Whether the client has taken so much that it must have read some."""
        self.unsent_bytes = 0
        """What counts of its answers: all of those that have not been sent whole."""

    # What a fetch asks

    @property
    def allowance_bytes(self) -> int:
        if self._reserved_bytes:
            return self._reserved_bytes
        most_bytes = (self._answered_bytes - self._left_bytes) // SHARE
        if most_bytes < FIRST_ANSWER_BYTES:
            most_bytes = FIRST_ANSWER_BYTES
        if self._budget.has_plenty(most_bytes):
            return most_bytes
        return max(SMALL_ANSWER_BYTES, min(most_bytes, self._budget.free_for(self) // SHARE))

    def take(self, size_bytes: int) -> bool:
        if not self._reserved_bytes:
            if size_bytes <= SMALL_ANSWER_BYTES:
                return True  # it lies in memory, and counts as soon as it is answered
            if not self._budget.free_for(self):
                return False
        self._reserve(size_bytes)
        return True

    def shrink(self, size_bytes: int) -> None:
        self._reserve(size_bytes)

    def release(self) -> None:
        if self._reserved_bytes:
            self._reserve(0)

    async def turn(self) -> None:
        self._turn = asyncio.get_running_loop().create_future()
        self._budget.stand_in_line(self)
        try:
            await self._turn
        except asyncio.CancelledError:
            self._budget.leave_line(self)
            self.release()
            raise
        finally:
            self._turn = None

    def let_on(self) -> None:
        """Hear that the turn has come."""
        self._reserve(TURN_BYTES)
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def _reserve(self, size_bytes: int) -> None:
        if self._is_closed:
            return  # its fetch is being cancelled
        more_bytes, self._reserved_bytes = size_bytes - self._reserved_bytes, size_bytes
        self._budget.change(more_bytes)

    # What a connection tells

    def answered(self, size_bytes: int) -> None:
        """Count an answer in place of what was taken for it."""
        more_bytes, self._reserved_bytes = size_bytes - self._reserved_bytes, 0
        self._add(size_bytes, more_bytes)

    def answered_beside(self, size_bytes: int) -> None:
        """Count an answer that nothing was taken for, while another may be gathered."""
        self._add(size_bytes, size_bytes)

    def _add(self, size_bytes: int, more_bytes: int) -> None:
        self.unsent_bytes += size_bytes
        self._answered_bytes += size_bytes
        self._left_bytes += size_bytes
        self._last_bytes = size_bytes
        self._budget.change(more_bytes)

    def count(self, left_bytes: int) -> None:
        """Hear how many bytes have not been sent. An answer counts whole until its last byte has left."""
        self._left_bytes = left_bytes
        if not self.is_proven and self._answered_bytes - left_bytes >= PROVEN_BYTES:
            self.is_proven = True
        unsent_bytes = self.unsent_bytes
        if not left_bytes:
            self.unsent_bytes = 0
            self._looked_at = None
        elif left_bytes <= self._last_bytes:
            self.unsent_bytes = min(unsent_bytes, self._last_bytes)
        if self.unsent_bytes != unsent_bytes:
            self._budget.change(self.unsent_bytes - unsent_bytes)

    def is_too_slow(self, now: float, *, patience_s: float, bytes_per_second: int) -> bool:
        """Say whether a client that is looked at again and again takes its answers slower than this."""
        if not self.unsent_bytes:
            return False
        taken_bytes = self._answered_bytes - self._left_bytes
        if self._looked_at is not None and now - self._looked_at < patience_s:
            return False
        is_slow = False
        # A look that was long ago belongs to another time of need.
        if self._looked_at is not None and now - self._looked_at < 4 * patience_s:
            is_slow = taken_bytes - self._looked_taken_bytes < (now - self._looked_at) * bytes_per_second
        self._looked_at, self._looked_taken_bytes = now, taken_bytes
        return is_slow

    def close(self) -> None:
        """Give everything back: the connection is lost, and its transport holds nothing any more."""
        self._is_closed = True
        self._budget.leave_line(self)
        size_bytes = self._reserved_bytes + self.unsent_bytes
        self._reserved_bytes = self.unsent_bytes = 0
        if size_bytes:
            self._budget.change(-size_bytes)
