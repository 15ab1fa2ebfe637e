"""Who may receive how much of a request: memory for frames that do not end where they begin.

There are two pools. A frame that fits into the *whole* pool gets room for all of it at once: while there is plenty,
that is all that happens. When that pool is short, a frame is received in windows, as it comes, and may hold only a
share of what is still free in the *window* pool. So frames that announce much and send little hold little, and a new
one always finds some room. A frame that has filled its share waits for a place in the whole pool; the address whose
turn it is gets the next one, for the fastest of its senders.

Must stay true:
- The windows of all frames never pass their pool; the whole pool is passed only by one frame that is larger than it.
- A frame is given back once, and whoever waits is let on when there is room for it.
- Frames cannot keep each other from ending: what the whole pool gives is enough to end. A sender that is too slow
  with it is cut off while others wait, and one that waits in line is never called slow.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TypeAlias

from headrace.server.limits import PRESSED_BYTES_PER_SECOND, PRESSED_STALL_S, WINDOW_BYTES

FRAME_SHARE = 4
"""A frame holds at most one part in so many of what is free in the window pool, counted behind its own grant."""

ADDRESS_SHARE = 2
"""All windows of one address together hold at most so many times what is free: a third of the pool is for others."""

LITTLE_BYTES = 256 * 1024
"""What a frame may hold before it counts as one that holds much."""

KEPT_FOR_LITTLE = 4
"""One part in so many of the window pool is not for frames that hold much: a client can go on behind hundreds."""

ADDRESS_SHARE_OF_LITTLE = 8
"""The same as `ADDRESS_SHARE` for frames that hold little: the last ninth of the pool is for other addresses."""

FASTEST_COUNTED_BYTES_PER_SECOND = 8 * 1024 * 1024
"""Senders faster than this are equals: the first one to come is the first one to go on."""

SLOWER_TIMES = 4
"""A sender that holds a whole place is cut off for one that waits and is so many times faster."""

PEERS_PER_LOOK = 16
"""How many addresses are looked at when bytes come back; a later look goes on with the next ones."""

_SHORTEST_S = 0.001
_SPARE_PLACES = 64


class Frame:
    """One frame on its way in, and what it holds."""

    __slots__ = (
        "address",
        "began_at",
        "filled_bytes",
        "go_on",
        "is_complete",
        "is_over",
        "line_since",
        "size_bytes",
        "turn",
        "waited_s",
        "whole_bytes",
        "window_bytes",
    )

    def __init__(self, address: str, size_bytes: int, began_at: float, go_on: Callable[[], None]) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.began_at = began_at
        self.go_on = go_on
        self.filled_bytes = 0
        self.window_bytes = 0
        self.whole_bytes = 0
        self.waited_s = 0.0
        self.line_since: float | None = None
        self.turn = 0
        self.is_complete = False
        self.is_over = False

    @property
    def granted_bytes(self) -> int:
        """How many of its bytes may be received."""
        return self.window_bytes + self.whole_bytes

    def pace(self, now: float) -> float:
        """How many bytes per second its sender brought while there was room for them."""
        if not self.filled_bytes:
            return FASTEST_COUNTED_BYTES_PER_SECOND  # nothing is known yet against it
        waiting_s = 0.0 if self.line_since is None else now - self.line_since
        return self.filled_bytes / max(now - self.began_at - self.waited_s - waiting_s, _SHORTEST_S)


_Place: TypeAlias = tuple[int, int, int, Frame]
"""Where a frame stands in an order, and the turn that it took there: it may have left since."""


class _Peer:
    """The frames of one address. Heaps keep those that left the line until they come up."""

    __slots__ = ("by_pace", "by_size", "frames", "waiting", "window_bytes")

    def __init__(self) -> None:
        self.frames = 0
        self.waiting = 0
        self.window_bytes = 0
        self.by_size: list[_Place] = []
        self.by_pace: list[_Place] = []

    def stand_in_line(self, frame: Frame, pace: float) -> None:
        """Put a frame into both orders."""
        self.waiting += 1
        heappush(self.by_size, (frame.size_bytes.bit_length(), frame.window_bytes, frame.turn, frame))
        heappush(self.by_pace, (-int(pace).bit_length(), 0, frame.turn, frame))
        for heap in (self.by_size, self.by_pace):
            if len(heap) > 2 * self.waiting + _SPARE_PLACES:
                heap[:] = [place for place in heap if _is_waiting(place)]
                heapify(heap)

    def smallest(self) -> Frame | None:
        """Return the one in line that is smallest, about, and holds least: it will be done soonest."""
        return _first(self.by_size)

    def fastest(self) -> Frame | None:
        """Return the one in line whose sender is fastest."""
        return _first(self.by_pace)


def _first(heap: list[_Place]) -> Frame | None:
    while heap:
        if _is_waiting(heap[0]):
            return heap[0][-1]
        heappop(heap)
    return None


def _is_waiting(place: _Place) -> bool:
    _, _, turn, frame = place
    return frame.turn == turn and frame.line_since is not None


class FrameBudget:
    """The memory that frames of one size class share."""

    def __init__(self, limit_bytes: int, *, window_bytes: int, now: Callable[[], float]) -> None:
        assert 0 < window_bytes < limit_bytes
        self.limit_bytes = limit_bytes
        self._window_limit_bytes = window_bytes
        self._whole_limit_bytes = limit_bytes - window_bytes
        self._window_bytes = 0
        self._whole_bytes = 0
        # What frames hold in the whole pool that are still being received.
        self._incoming_bytes = 0
        self._now = now
        self._peers: dict[str, _Peer] = {}
        # The addresses with frames in line, the one whose turn it is first.
        self._line: dict[str, _Peer] = {}
        self._turn = 0
        self._is_serving = False
        self.waiting_count = 0
        """How many frames wait for room."""

    @property
    def taken_bytes(self) -> int:
        """How many bytes are granted, received or not."""
        return self._window_bytes + self._whole_bytes

    def begin(self, address: str, size_bytes: int, go_on: Callable[[], None]) -> Frame:
        """Begin a frame. One that is granted nothing stands in line; `go_on` is called when it was granted some."""
        frame = Frame(address, size_bytes, self._now(), go_on)
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer()
        peer.frames += 1
        self.more(frame)
        return frame

    def more(self, frame: Frame) -> bool:
        """Grant more to a frame that has filled what it was granted; or let it stand in line."""
        assert frame.line_since is None and not frame.is_over
        rest_bytes = frame.size_bytes - frame.window_bytes
        if not self._line and self._fits_whole(rest_bytes):
            self._grant_whole(frame, rest_bytes)
            return True
        window_bytes = self._next_window(frame)
        if window_bytes:
            self._grant_window(frame, window_bytes)
            return True
        self._stand_in_line(frame)
        return False

    def complete(self, frame: Frame) -> None:
        """Hear that all of a frame was received. It holds its bytes until they are given back."""
        frame.is_complete = True
        self._incoming_bytes -= frame.whole_bytes

    def give_back(self, frame: Frame) -> None:
        """Take back all that a frame holds, and its place in line; a second call does nothing."""
        if frame.is_over:
            return
        frame.is_over = True
        peer = self._peers[frame.address]
        if frame.line_since is not None:
            self._leave_line(frame, peer)
        peer.window_bytes -= frame.window_bytes
        self._window_bytes -= frame.window_bytes
        self._whole_bytes -= frame.whole_bytes
        if not frame.is_complete:
            self._incoming_bytes -= frame.whole_bytes
        frame.window_bytes = frame.whole_bytes = 0
        peer.frames -= 1
        if not peer.frames:
            del self._peers[frame.address]
        if self._line:
            self.serve(max_peers=PEERS_PER_LOOK)

    def serve(self, *, max_peers: int | None = None) -> None:
        """Let on those in line that there is room for. Grants may lead back here; the outermost call goes on."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            self._serve_whole()
            self._serve_windows(max_peers)
        finally:
            self._is_serving = False

    def is_too_slow(self, frame: Frame, *, stood_still_s: float) -> bool:
        """Say whether a frame has to go because others wait for memory, and its sender does not use what it got."""
        if not self.waiting_count or frame.line_since is not None:
            return False
        now = self._now()
        if stood_still_s > PRESSED_STALL_S:
            return True
        if now - frame.began_at - frame.waited_s < PRESSED_STALL_S:
            return False
        pace = frame.pace(now)
        if pace < PRESSED_BYTES_PER_SECOND:
            return True
        if not frame.whole_bytes or self._incoming_bytes * 2 < self._whole_limit_bytes:
            return False  # it is we who are slow: most of the memory belongs to requests that are being handled
        rival = next(iter(self._line.values())).fastest()
        return rival is not None and _counted(rival.pace(now)) >= SLOWER_TIMES * pace

    # Rules

    def _fits_whole(self, size_bytes: int) -> bool:
        return self._whole_bytes + size_bytes <= self._whole_limit_bytes or self._whole_bytes == 0

    def _next_window(self, frame: Frame) -> int:
        """Return how much a frame gets next: twice what it has, or a little, or nothing."""
        rest_bytes = frame.size_bytes - frame.window_bytes
        for wanted_bytes in (max(frame.window_bytes, WINDOW_BYTES), WINDOW_BYTES):
            window_bytes = min(wanted_bytes, rest_bytes)
            left_bytes = self._window_limit_bytes - self._window_bytes - window_bytes
            if self._may_hold(frame, frame.window_bytes + window_bytes, left_bytes):
                return window_bytes
        return 0

    def _may_hold(self, frame: Frame, held_bytes: int, left_bytes: int) -> bool:
        """Say whether a frame may hold so much, if so much is left then."""
        held_by_address = self._peers[frame.address].window_bytes + held_bytes - frame.window_bytes
        if held_bytes <= LITTLE_BYTES:
            address_share = ADDRESS_SHARE_OF_LITTLE
        else:
            address_share = ADDRESS_SHARE
            left_bytes -= self._window_limit_bytes // KEPT_FOR_LITTLE
        return held_bytes * FRAME_SHARE <= left_bytes and held_by_address <= left_bytes * address_share

    # Grants

    def _grant_whole(self, frame: Frame, rest_bytes: int) -> None:
        frame.whole_bytes += rest_bytes
        self._whole_bytes += rest_bytes
        self._incoming_bytes += rest_bytes

    def _grant_window(self, frame: Frame, window_bytes: int) -> None:
        frame.window_bytes += window_bytes
        self._window_bytes += window_bytes
        self._peers[frame.address].window_bytes += window_bytes

    # The line

    def _stand_in_line(self, frame: Frame) -> None:
        peer = self._peers[frame.address]
        now = self._now()
        self._turn += 1
        frame.turn = self._turn
        pace = _counted(frame.pace(now))
        frame.line_since = now
        peer.stand_in_line(frame, pace)
        self.waiting_count += 1
        self._line.setdefault(frame.address, peer)

    def _leave_line(self, frame: Frame, peer: _Peer) -> None:
        assert frame.line_since is not None
        frame.waited_s += self._now() - frame.line_since
        frame.line_since = None
        self.waiting_count -= 1
        peer.waiting -= 1
        if not peer.waiting:
            peer.by_size.clear()
            peer.by_pace.clear()
            del self._line[frame.address]

    def _let_on(self, frame: Frame, peer: _Peer) -> None:
        self._leave_line(frame, peer)
        frame.go_on()

    def _serve_windows(self, max_peers: int | None) -> None:
        for address, peer in list(islice(self._line.items(), max_peers)):
            while (frame := peer.smallest()) is not None:
                window_bytes = self._next_window(frame)
                if not window_bytes:
                    break
                self._grant_window(frame, window_bytes)
                self._let_on(frame, peer)
            if max_peers is not None and len(self._line) > max_peers:
                self._pass_turn(address)

    def _serve_whole(self) -> None:
        while self._line:
            address, peer = next(iter(self._line.items()))
            frame = peer.fastest()
            assert frame is not None, "an address is in line as long as a frame of it is"
            rest_bytes = frame.size_bytes - frame.window_bytes
            if not self._fits_whole(rest_bytes):
                return
            self._pass_turn(address)
            self._grant_whole(frame, rest_bytes)
            self._let_on(frame, peer)

    def _pass_turn(self, address: str) -> None:
        peer = self._line.pop(address, None)
        if peer is not None:
            self._line[address] = peer


def _counted(pace: float) -> float:
    return min(pace, FASTEST_COUNTED_BYTES_PER_SECOND)
