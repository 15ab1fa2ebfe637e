"""One client's connection: frames in, answers out, in order.

What arrives between frames lands in a scratch buffer that all connections share, so an idle connection owns no
memory. A frame that does not end in there gets a buffer of its own, into which the rest is received without a copy,
as far as a budget grants room for it (`intake.py`); where it grants none, nothing more is read from this client.

Requests of one connection begin one after another, in the order they came, as in Kafka. A produce request that waits
for its commit lets the next one begin; answers leave in order all the same. Nothing more begins while answers wait
to be sent: a client that does not read gets no new ones.

Must stay true:
- An answer never overtakes an earlier one, and none is sent twice.
- What a request took from a budget is given back exactly once: when it was answered; or, if the connection was lost
  before that, when the work that holds its frame has ended.
- An answer counts against its budget from before it is gathered until it has been sent, or the connection is lost.
- Whatever the bytes are, they hurt this connection only.
"""

import asyncio
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, cast

from headrace.handlers.call import HangUp
from headrace.handlers.dispatch import Answer, Buffers
from headrace.runtime.answers import AnswerRoom
from headrace.runtime.buffers import ByteBudget
from headrace.server.foreign import looks_like
from headrace.server.intake import Frame, FrameBudget
from headrace.server.limits import (
    JOINED_ANSWER_BYTES,
    PRODUCE_KEY,
    SCRATCH_BYTES,
    SMALLEST_FRAME_BYTES,
    WRITE_HIGH_WATER_BYTES,
)

if TYPE_CHECKING:
    from headrace.server.listener import KafkaServer

_SIZE = Struct(">i")
_SIZE_AND_KEY = Struct(">ih")
_KEY = Struct(">h")
_HEAD_BYTES = 32
_PINNED_TIMES = 4
_NOTHING = memoryview(b"")


class _Request:
    """A frame, what it took from which budget, and later its answer."""

    __slots__ = ("answer", "answer_bytes", "budget", "frame", "is_ready", "size_bytes", "ticket")

    def __init__(self, frame: memoryview, budget: "ByteBudget | FrameBudget", ticket: Frame | None) -> None:
        self.frame: memoryview | None = frame
        self.budget = budget
        self.ticket = ticket
        self.size_bytes = len(frame)
        self.is_ready = False
        self.answer: Buffers | None = None
        self.answer_bytes = 0

    def settle(self) -> None:
        """Let go of the bytes, and give back what they took; a second call does nothing."""
        self.frame = self.answer = None
        if isinstance(self.budget, FrameBudget):
            assert self.ticket is not None, "what a frame budget has granted has a ticket"
            self.budget.give_back(self.ticket)
            return
        size_bytes, self.size_bytes = self.size_bytes, 0
        self.budget.give_back(size_bytes)


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one socket."""

    __slots__ = (
        "_arrived",
        "_behind",
        "_blocked",
        "_eof_at",
        "_filled",
        "_frame",
        "_frames",
        "_in_line",
        "_is_lost",
        "_is_producing",
        "_open",
        "_prefix",
        "_ready_bytes",
        "_room",
        "_server",
        "_stash",
        "_ticket",
        "_transport",
        "_work",
        "_write_paused_at",
        "address",
        "is_authenticated",
        "is_draining",
        "last_active_at",
        "peer",
        "room",
    )

    def __init__(self, server: "KafkaServer", *, is_authenticated: bool) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self.is_authenticated = is_authenticated
        self.is_draining = False
        self.peer = "unknown"
        self.address = "unknown"
        self.last_active_at = 0.0
        # Receiving
        self._prefix = b""
        self._frame: memoryview | None = None
        self._filled = 0
        self._room = 0
        self._frames: FrameBudget | None = None
        self._ticket: Frame | None = None
        self._stash: memoryview | None = None
        self._in_line: int | None = None
        self._blocked = False
        self._eof_at: float | None = None
        # Serving: requests that have not begun, and those whose answer has not left
        self._arrived: deque[_Request] = deque()
        self._open: deque[_Request] = deque()
        self._work: asyncio.Task[None] | None = None
        # Answers that are there and wait for earlier ones, and who waits until enough of all has been sent.
        self._ready_bytes = 0
        self._behind: asyncio.Future[None] | None = None
        self._write_paused_at: float | None = None
        self.room = AnswerRoom(server.answers)
        self._is_lost = False
        self._is_producing = False

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by inheritance.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address, self.peer = str(peer[0]), f"{peer[0]}:{peer[1]}"
        self.last_active_at = self._server.now()
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._server.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.scratch if self._frame is None else self._frame[self._filled : self._room]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active_at = self._server.now()
        if self._frame is None:
            data = self._server.scratch[:nbytes]
            if self._prefix:
                data, self._prefix = memoryview(self._prefix + bytes(data)), b""
            self._feed(data)
            return
        self._filled += nbytes
        if self._filled == len(self._frame):
            self._end_frame()
        elif self._filled == self._room:
            self._want_more()

    def eof_received(self) -> bool:
        """A client that has said all it wants to say still gets its answers."""
        self._eof_at = self._server.now()
        return not self._is_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._in_line is not None and not self._server.small.leave_line(self._granted):
            self._server.small.give_back(self._in_line)
        if self._ticket is not None:
            assert self._frames is not None
            self._frames.give_back(self._ticket)
        self._take_stash()
        self._frame = self._in_line = self._ticket = None
        # A request that has begun settles itself when its work has ended, see `_serve` and `_answered_later`.
        for request in self._arrived:
            request.settle()
        self._arrived.clear()
        if self._work is not None and (self.is_draining or not self._is_producing):
            self._work.cancel()
        for request in self._open:
            if request.is_ready:
                request.settle()
        self._open.clear()
        self.room.close()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._write_paused_at = self._server.now()

    def resume_writing(self) -> None:
        self._write_paused_at = None
        self.count_answers()
        self._wake()

    # Frames

    def _feed(self, data: memoryview) -> None:
        """Cut frames out of what arrived, until it is used up or this connection has to wait."""
        while data and not self._is_closing():
            if len(data) < _SIZE.size:
                self._prefix = bytes(data)
                return
            (size_bytes,) = _SIZE.unpack_from(data)
            if not self._is_acceptable(size_bytes, data):
                return
            if len(self._open) + len(self._arrived) >= self._server.limits.max_requests_in_flight:
                self._wait_with(data)
                return
            if not self._is_granted(size_bytes, is_whole=len(data) - _SIZE.size >= size_bytes):
                self._wait_with(data)
                return
            data = self._begin(size_bytes, data[_SIZE.size :])

    def _is_granted(self, size_bytes: int, *, is_whole: bool) -> bool:
        """Ask for room for a frame; without it, it stands in line.

        Small requests that are all there wait only for each other, never for clients that have just begun one.
        """
        if is_whole and size_bytes <= SCRATCH_BYTES:
            if self._server.small.take(size_bytes, self._granted):
                return True
            self._in_line = size_bytes
            return False
        self._frames = self._server.frames_of(size_bytes)
        self._ticket = self._frames.begin(self.address, size_bytes, self._room_granted)
        return self._ticket.granted_bytes > 0

    def _is_acceptable(self, size_bytes: int, data: memoryview) -> bool:
        """Say whether a frame of this size may begin here; close the connection if not."""
        limits = self._server.limits
        limit = limits.max_frame_bytes if self.is_authenticated else limits.max_unauthenticated_frame_bytes
        if not SMALLEST_FRAME_BYTES <= size_bytes <= limit:
            head = bytes(data[:_HEAD_BYTES])
            self.hang_up(
                "size",
                f"a frame of {size_bytes} bytes was announced ({SMALLEST_FRAME_BYTES} to {limit} are taken); "
                f"it looks like {looks_like(head)}",
                head=head,
            )
            return False
        if len(data) >= _SIZE_AND_KEY.size:
            _, api_key = _SIZE_AND_KEY.unpack_from(data)
            if not self._server.dispatcher.serves(api_key):
                self.hang_up("api", f"API {api_key} is not served", head=bytes(data[:_HEAD_BYTES]))
                return False
        return True

    def _begin(self, size_bytes: int, data: memoryview) -> memoryview:
        """Begin a frame whose bytes are granted; take what is there of it, and return what lies behind it."""
        if self._ticket is None:
            self._accept(_Request(memoryview(bytearray(data[:size_bytes])), self._server.small, None))
            return data[size_bytes:]
        self._frame = frame = self._server.buffer_for(size_bytes)
        self._server.receiving.add(self)
        self._room = self._ticket.granted_bytes
        self._filled = min(len(data), size_bytes)
        assert self._filled <= self._room, "the first window is not smaller than what is received with a frame's head"
        frame[: self._filled] = data[: self._filled]
        if self._filled == size_bytes:
            self._end_frame()
        elif self._filled == self._room:
            self._want_more()
        return data[size_bytes:]

    def _end_frame(self) -> None:
        frame, ticket, frames = self._frame, self._ticket, self._frames
        assert frame is not None and ticket is not None and frames is not None
        self._frame = self._ticket = None
        self._server.receiving.discard(self)
        frames.complete(ticket)
        self._accept(_Request(frame, frames, ticket))

    def _want_more(self) -> None:
        """Ask for room for more of the frame, and read on when it is granted."""
        assert self._ticket is not None and self._frames is not None
        self._ticket.filled_bytes = self._filled
        if self._frames.more(self._ticket):
            self._room = self._ticket.granted_bytes
        else:
            self._pause_reading()

    def _room_granted(self) -> None:
        """Go on with a frame that stood in line, at its beginning or within it."""
        self.last_active_at = self._server.now()
        if self._frame is not None:
            assert self._ticket is not None
            self._room = self._ticket.granted_bytes
            self._resume_reading()
            return
        assert self._ticket is not None
        stash = self._take_stash()
        self._go_on(self._begin(self._ticket.size_bytes, stash[_SIZE.size :]))

    def _wait_with(self, data: memoryview) -> None:
        """Read no more until there is room; the bytes behind the last frame are kept, copied out of the scratch."""
        self._stash = memoryview(bytes(data))
        self._pause_reading()
        if not self._server.may_keep(len(data)):
            self.hang_up("memory", "too many connections wait with requests that have begun")

    def _take_stash(self) -> memoryview:
        stash, self._stash = self._stash, None
        if stash is None:
            return _NOTHING
        self._server.kept_bytes -= len(stash)
        return stash

    def _pause_reading(self) -> None:
        if not self._blocked and self._transport is not None and not self._transport.is_closing():
            self._blocked = True
            self._transport.pause_reading()

    def _granted(self) -> None:
        """Go on with the frame that waited for its bytes."""
        size_bytes, self._in_line = self._in_line, None
        assert size_bytes is not None and self._stash is not None
        stash = self._take_stash()
        self.last_active_at = self._server.now()
        self._go_on(self._begin(size_bytes, stash[_SIZE.size :]))

    def _go_on(self, data: memoryview) -> None:
        self._feed(data)
        self._resume_reading()

    def _resume_reading(self) -> None:
        """Read on, unless something still waits for room."""
        is_waiting = self._stash is not None or (self._frame is not None and self._filled == self._room)
        if self._blocked and not is_waiting and not self._is_closing() and not self.is_draining:
            assert self._transport is not None
            self._blocked = False
            self._transport.resume_reading()

    # Requests and answers

    def _accept(self, request: _Request) -> None:
        self._arrived.append(request)
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        """Begin the requests that have arrived, one after another, until none is left."""
        try:
            while self._arrived:
                if self._is_behind():
                    self._behind = asyncio.get_running_loop().create_future()
                    await self._behind
                    continue
                await self._serve_one(self._arrived.popleft())
        except HangUp as reason:
            self.hang_up(reason.kind, str(reason))
        except Exception as error:
            self._server.log.error("a connection was closed by a mistake of ours", peer=self.peer, exc_info=error)
            self.abort()
        finally:
            self._work = None

    async def _serve_one(self, request: _Request) -> None:
        self._open.append(request)
        if self.room.unsent_bytes:
            self.count_answers()
        frame, request.frame = request.frame, None
        assert frame is not None
        (api_key,) = _KEY.unpack_from(frame)
        # Threads and the log may hold the frame of a Produce, and cancelling does not take it from them. So it goes
        # on to its end, which its time-out bounds, although nobody hears the answer.
        self._is_producing = api_key == PRODUCE_KEY
        try:
            answer = await self._server.dispatcher.serve(frame, self.peer, self.room)
        except BaseException:
            request.settle()
            self.room.release()
            raise
        finally:
            del frame
            self._is_producing = False
        self._take_answer(request, answer)

    def _take_answer(self, request: _Request, answer: Answer) -> None:
        if isinstance(answer, asyncio.Future):
            self.room.release()
            answer.add_done_callback(lambda done: self._answered_later(request, done))
            return
        if self._is_lost:
            request.settle()
            return
        self._keep_answer(request, answer)
        self.room.answered(request.answer_bytes)
        self._deliver()

    def _keep_answer(self, request: _Request, answer: Buffers | None) -> None:
        """Keep an answer until it is its turn to leave."""
        request.answer, request.is_ready = answer, True
        if answer:
            request.answer_bytes = sum(map(len, answer))
            self._ready_bytes += request.answer_bytes
            self._server.unsent.add(self)

    def _answered_later(self, request: _Request, done: "asyncio.Future[Buffers | None]") -> None:
        if done.cancelled():
            request.settle()
            return
        error = done.exception()
        if self._is_lost or error is not None:
            request.settle()
        if self._is_lost:
            return
        if error is None:
            self._keep_answer(request, done.result())
            self.room.answered_beside(request.answer_bytes)
            self._deliver()
        elif isinstance(error, HangUp):
            self.hang_up(error.kind, str(error))
        else:
            self._server.log.error("a connection was closed by a mistake of ours", peer=self.peer, exc_info=error)
            self.abort()

    def _deliver(self) -> None:
        """Send the answers that are next in order."""
        if self._is_lost:
            return
        while self._open and self._open[0].is_ready:
            request = self._open.popleft()
            if request.answer:
                self._ready_bytes -= request.answer_bytes
                self._write(request.answer, request.answer_bytes)
            request.settle()
        self._wake()
        if self._stash is not None and self._in_line is None and self._ticket is None:
            self._go_on(self._take_stash())
        if (self._eof_at is not None or self.is_draining) and self._is_idle():
            self.close()

    def _write(self, buffers: Buffers, size_bytes: int) -> None:
        assert self._transport is not None
        self.last_active_at = self._server.now()
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        elif size_bytes <= JOINED_ANSWER_BYTES:
            self._transport.write(b"".join(buffers))
        elif self._transport.get_write_buffer_size():
            self._transport.writelines(_owned(buffers))
        else:
            self._transport.writelines(buffers)

    def count_answers(self) -> None:
        """Tell what of the answers has not been sent."""
        left_bytes = self._ready_bytes
        if self._transport is not None:
            left_bytes += self._transport.get_write_buffer_size()
        self.room.count(left_bytes)
        if not left_bytes:
            self._server.unsent.discard(self)

    def _is_behind(self) -> bool:
        return self._write_paused_at is not None or self._ready_bytes > WRITE_HIGH_WATER_BYTES

    def _wake(self) -> None:
        """Let requests begin again, if answers have been sent."""
        if self._behind is not None and not self._is_behind():
            if not self._behind.done():
                self._behind.set_result(None)
            self._behind = None

    def _is_idle(self) -> bool:
        return not self._open and not self._arrived and self._stash is None

    def _is_closing(self) -> bool:
        return self._is_lost or self._transport is None or self._transport.is_closing()

    # Ends

    def drain(self) -> None:
        """Read no more; close when what is under way was answered."""
        self.is_draining = True
        self._pause_reading()
        if self._is_idle():
            self.close()

    def hang_up(self, kind: str, reason: str, *, head: bytes | None = None) -> None:
        """Close the connection because of what the client did: one log line, one metric."""
        if not self._is_closing():
            self._server.note_hang_up(self, kind, reason, head)
            self.abort()

    def close(self) -> None:
        """Close when what was written has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def check(self, now: float) -> None:
        """Close what is idle for too long, sends too slowly, or does not take its answers."""
        limits = self._server.limits
        if self._eof_at is not None and now - self._eof_at > limits.half_closed_timeout_s:
            self._server.note_idle(self)
            self.abort()
        elif self._write_paused_at is not None:
            if now - self._write_paused_at > limits.slow_write_timeout_s:
                self.hang_up("slow-reader", f"answers were not taken for {now - self._write_paused_at:.0f} s")
        elif self._blocked:
            return  # we are the ones who do not read
        elif self._frame is not None or self._prefix:
            self._check_frame(now)
        elif self._is_idle() and now - self.last_active_at > limits.idle_timeout_s:
            self._server.note_idle(self)
            self.close()

    def _check_frame(self, now: float) -> None:
        """A frame has to make progress, and to arrive at a pace that ends some day.

        While others wait for memory, there is much less patience (`FrameBudget.is_too_slow`): else some hundred
        clients that announce much and send nothing would keep everybody else out for as long as they are tolerated.
        """
        limits = self._server.limits
        stood_still_s = now - self.last_active_at
        if self._ticket is None or self._frames is None:
            wanted, there, began_at, is_slow = _SIZE.size, len(self._prefix), self.last_active_at, False
        else:
            self._ticket.filled_bytes = self._filled
            wanted, there, began_at = self._ticket.size_bytes, self._filled, self._ticket.began_at
            is_slow = self._frames.is_too_slow(self._ticket, stood_still_s=stood_still_s)
            began_at += self._ticket.waited_s
        allowed_s = limits.slow_read_timeout_s + there / limits.slowest_bytes_per_second
        if is_slow or stood_still_s > limits.slow_read_timeout_s or now - began_at > allowed_s:
            self.hang_up("slow-frame", f"{there} of {wanted} bytes of a frame came in {now - began_at:.0f} s")


def _owned(buffers: Buffers) -> Buffers:
    """Copy the parts that keep much larger buffers from use, for an answer that may wait for long."""
    return [bytes(part) if isinstance(part, memoryview) and _is_small_part(part) else part for part in buffers]


def _is_small_part(part: memoryview) -> bool:
    return memoryview(part.obj).nbytes > _PINNED_TIMES * part.nbytes
