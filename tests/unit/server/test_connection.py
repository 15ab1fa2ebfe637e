"""Connections over real sockets, with a scripted dispatcher: order, limits, slow and foreign clients, the end."""

import asyncio
import contextlib
import gc
import io
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from headrace.handlers.call import HangUp
from headrace.handlers.dispatch import Answer, Buffers
from headrace.runtime.answers import Room
from headrace.runtime.buffers import BufferPool
from headrace.runtime.clock import SystemClock
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.server.limits import SCRATCH_BYTES, SMALLEST_FRAME_BYTES, ServerLimits
from headrace.server.listener import KafkaServer, ServerMetrics

LIMITS = ServerLimits(
    max_frame_bytes=10_000_000,
    max_unauthenticated_frame_bytes=1000,
    max_connections=100,
    max_connections_per_address=100,
    max_requests_in_flight=10,
    request_memory_bytes=30_000_000,
    answer_memory_bytes=30_000_000,
    idle_timeout_s=3600,
    slow_read_timeout_s=3600,
    slow_write_timeout_s=3600,
    half_closed_timeout_s=3600,
    slowest_bytes_per_second=1,
)

PATIENCE_S = 60


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(text: bytes, *, api_key: int = 1) -> bytes:
    """A frame of an API that is served; the dispatcher echoes the text."""
    return framed(struct.pack(">h", api_key) + text.ljust(SMALLEST_FRAME_BYTES))


class Echo:
    """Answers with what was asked, as its script says."""

    def __init__(self) -> None:
        self.promises: dict[bytes, asyncio.Future[Buffers | None]] = {}
        self.begun: list[bytes] = []
        self.frames: list[memoryview] = []
        self.keep_frames = False
        self.answer_bytes = 0
        self.parts: list[memoryview] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def serves(self, api_key: int) -> bool:
        return api_key in (0, 1)

    async def serve(self, frame: memoryview, peer: str, room: Room) -> Answer:
        text = bytes(frame[2:]).rstrip()
        self.begun.append(text[:20])
        if self.keep_frames:
            self.frames.append(frame)
        if text.startswith(b"promise"):
            self.promises[text] = asyncio.get_running_loop().create_future()
            return self.promises[text]
        if text.startswith(b"silent"):
            return None
        if text.startswith(b"garbage"):
            raise HangUp("garbage", "it is garbage")
        if text.startswith(b"mistake"):
            raise ZeroDivisionError("ours")
        await self.gate.wait()
        if text == b"much":
            return [struct.pack(">i", self.answer_bytes), bytes(self.answer_bytes)]
        return [framed(text)]


class Kit:
    """A listening server and what it logs and counts."""

    def __init__(self, limits: ServerLimits, *, needs_authentication: bool = False) -> None:
        self.echo = Echo()
        self.written = io.StringIO()
        self.metrics = Metrics()
        self.pool = BufferPool(max_idle_bytes=20_000_000)
        clock = SystemClock()
        self.server = KafkaServer(
            dispatcher=self.echo,
            pool=self.pool,
            limits=limits,
            clock=clock,
            log=open_log(self.written, clock=clock, format="json"),
            metrics=ServerMetrics(self.metrics),
            needs_authentication=needs_authentication,
        )
        self.port = 0
        self.stack = contextlib.ExitStack()
        self.clients: list[asyncio.StreamWriter] = []

    @property
    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.written.getvalue().splitlines()]

    def taken_bytes(self) -> int:
        return sum(budget.taken_bytes for budget in (self.server.small, self.server._medium, self.server._large))

    async def client(self) -> "Client":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(writer)
        return Client(reader, writer)

    async def close(self) -> None:
        await self.server.drain(0)
        self.stack.close()
        for writer in self.clients:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Client:
    """A raw client that does not use our codec."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def kit(limits: ServerLimits = LIMITS, *, needs_authentication: bool = False) -> AsyncIterator[Kit]:
    made = Kit(limits, needs_authentication=needs_authentication)
    made.port = await made.server.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def test_answers_leave_in_the_order_of_requests_although_promises_are_kept_out_of_order() -> None:
    async with kit() as made:
        client = await made.client()
        await client.send(request(b"promise 1") + request(b"promise 2") + request(b"plain"))
        await until(lambda: len(made.echo.begun) == 3)
        made.echo.promises[b"promise 2"].set_result([framed(b"two")])
        made.echo.promises[b"promise 1"].set_result([framed(b"o"), b"", b""])
        assert [await client.answer() for _ in range(3)] == [b"o", b"two", b"plain"]


async def test_requests_begin_one_after_another() -> None:
    async with kit() as made:
        made.echo.gate.clear()
        client = await made.client()
        await client.send(request(b"first") + request(b"second"))
        await until(lambda: made.echo.begun == [b"first"])
        made.echo.gate.set()
        assert [await client.answer(), await client.answer()] == [b"first", b"second"]


async def test_frames_survive_being_cut_anywhere() -> None:
    async with kit() as made:
        client = await made.client()
        data = b"".join(request(b"number %d" % n) for n in range(20))
        for step in (1, 3, 7):
            for start in range(0, len(data), step):
                await client.send(data[start : start + step])
            assert [await client.answer() for _ in range(20)] == [b"number %d" % n for n in range(20)]


@pytest.mark.parametrize("size", [100, SCRATCH_BYTES - 6, SCRATCH_BYTES, SCRATCH_BYTES + 1, 3_000_000])
async def test_large_frames_arrive_whole_and_their_memory_is_used_again(size: int) -> None:
    async with kit() as made:
        client = await made.client()
        text = bytes(range(33, 127)) * (size // 94 + 1)
        for _ in range(3):
            await client.send(request(text[:size]) + request(b"after"))
            assert await client.answer() == text[:size]
            assert await client.answer() == b"after"
        await until(lambda: made.taken_bytes() == 0)
        gc.collect()
        assert made.pool.leased_bytes == 0


async def test_buffer_is_not_used_again_while_somebody_holds_a_view_of_it() -> None:
    async with kit() as made:
        made.echo.keep_frames = True
        client = await made.client()
        for letter in (b"a", b"b", b"c"):
            await client.send(request(letter * 200_000))
            assert await client.answer() == letter * 200_000
        assert [bytes(frame[2:]) for frame in made.echo.frames] == [letter * 200_000 for letter in (b"a", b"b", b"c")]


async def test_silent_request_gets_no_answer_and_holds_nobody_up() -> None:
    async with kit() as made:
        client = await made.client()
        await client.send(request(b"silent") + request(b"loud"))
        assert await client.answer() == b"loud"


async def test_half_closed_client_gets_all_its_answers() -> None:
    async with kit() as made:
        client = await made.client()
        await client.send(b"".join(request(b"%d" % n) for n in range(100)))
        client.writer.write_eof()
        assert [await client.answer() for _ in range(100)] == [b"%d" % n for n in range(100)]
        assert await client.is_closed()
        await until(lambda: made.taken_bytes() == 0)


async def test_no_more_is_read_than_may_be_in_flight() -> None:
    async with kit() as made:
        made.echo.gate.clear()
        client = await made.client()
        await client.send(b"".join(request(b"promise %d" % n) for n in range(25)))
        await until(lambda: len(made.echo.begun) == LIMITS.max_requests_in_flight)
        await asyncio.sleep(0.05)
        assert len(made.echo.begun) == LIMITS.max_requests_in_flight
        answers = []
        for n in range(25):
            await until(lambda n=n: b"promise %d" % n in made.echo.promises)  # type: ignore[misc]
            made.echo.promises[b"promise %d" % n].set_result([framed(b"%d" % n)])
            answers.append(await client.answer())
        assert answers == [b"%d" % n for n in range(25)]


@pytest.mark.parametrize(
    "size", [-1, 0, 1, SMALLEST_FRAME_BYTES - 1, LIMITS.max_frame_bytes + 1, 2**31 - 1, -(2**31)]
)
async def test_impossible_frame_size_closes_that_connection_only(size: int) -> None:
    async with kit() as made:
        other, client = await made.client(), await made.client()
        await client.send(struct.pack(">i", size) + b"x" * 8)
        assert await client.is_closed()
        await other.send(request(b"unharmed"))
        assert await other.answer() == b"unharmed"
        (line,) = made.lines
        assert line["kind"] == "size" and str(size) in line["reason"]
        assert b'kafka_connections_ended_by_broker_total{reason="size"} 1.0' in made.metrics.render()
        assert made.pool.leased_bytes == 0


@pytest.mark.parametrize(
    ("head", "guess"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"\xff" * 40, "no known protocol"),
    ],
)
async def test_log_line_says_what_a_foreign_client_looks_like(head: bytes, guess: str) -> None:
    async with kit() as made:
        client = await made.client()
        await client.send(head)
        assert await client.is_closed()
        (line,) = made.lines
        assert guess in line["reason"]


async def test_unknown_api_is_refused_before_its_frame_is_read() -> None:
    async with kit() as made:
        client = await made.client()
        await client.send(struct.pack(">ih", 9_000_000, 77))
        assert await client.is_closed()
        assert made.lines[0]["kind"] == "api"


async def test_garbage_and_our_own_mistakes_close_that_connection_only() -> None:
    async with kit() as made:
        for text, word in ((b"garbage", "garbage"), (b"mistake", "ZeroDivisionError")):
            client = await made.client()
            await client.send(request(text))
            assert await client.is_closed()
            assert word in json.dumps(made.lines[-1])
        client = await made.client()
        await client.send(request(b"still here"))
        assert await client.answer() == b"still here"
        assert made.taken_bytes() == 0


async def test_frame_that_does_not_come_ends_its_connection() -> None:
    async with kit(replace(LIMITS, slow_read_timeout_s=0.2, slowest_bytes_per_second=10**9)) as made:
        half, prefix, idle = await made.client(), await made.client(), await made.client()
        await half.send(request(b"x" * 2_000_000)[:100_000])
        await prefix.send(b"\x00\x00")
        assert await half.is_closed() and await prefix.is_closed()
        assert {line["kind"] for line in made.lines} == {"slow-frame"}
        await idle.send(request(b"idle is not slow"))
        assert await idle.answer() == b"idle is not slow"
        assert made.taken_bytes() == 0


async def test_frame_that_trickles_in_ends_its_connection() -> None:
    async with kit(replace(LIMITS, slow_read_timeout_s=1.0, slowest_bytes_per_second=10**9)) as made:
        client = await made.client()
        data = request(b"x" * 1000)
        with pytest.raises((AssertionError, ConnectionError, RuntimeError)):
            for byte in data:
                await client.send(bytes([byte]))
                await asyncio.sleep(0.02)
                assert not client.reader.at_eof()
        assert [line["kind"] for line in made.lines] == ["slow-frame"]


async def test_frame_that_announces_much_and_trickles_in_does_not_hold_its_memory_for_long() -> None:
    async with kit(replace(LIMITS, slow_read_timeout_s=1.0, slowest_bytes_per_second=10_000)) as made:
        client = await made.client()
        await client.send(struct.pack(">ih", LIMITS.max_frame_bytes, 1))
        with pytest.raises((AssertionError, ConnectionError, RuntimeError)):
            for _ in range(1000):
                await client.send(b"x")
                await asyncio.sleep(0.02)
                assert not client.reader.at_eof()
        assert [line["kind"] for line in made.lines] == ["slow-frame"]
        assert made.taken_bytes() == 0


async def test_idle_connection_is_closed() -> None:
    async with kit(replace(LIMITS, idle_timeout_s=0.1)) as made:
        client = await made.client()
        assert await client.is_closed()
        assert b'ended_by_broker_total{reason="idle"} 1.0' in made.metrics.render()


async def test_client_that_does_not_take_its_answers_is_closed() -> None:
    async with kit(replace(LIMITS, slow_write_timeout_s=0.2)) as made:
        plain = socket.create_connection(("127.0.0.1", made.port))
        plain.setblocking(False)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            for _ in range(8):
                await loop.sock_sendall(plain, request(b"x" * 3_000_000))
                if made.lines:
                    break
        await until(lambda: bool(made.lines))
        assert made.lines[0]["kind"] == "slow-reader"
        await until(lambda: made.taken_bytes() == 0)
        plain.close()


def unread(made: Kit) -> socket.socket:
    """Connect a client that will not read."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect(("127.0.0.1", made.port))
    plain.setblocking(False)
    return plain


async def test_connection_whose_answers_are_not_sent_gets_no_new_ones() -> None:
    async with kit() as made:
        made.echo.answer_bytes = 6_000_000
        with unread(made) as plain:
            await asyncio.get_running_loop().sock_sendall(plain, request(b"much") * 9)
            await until(lambda: made.server.answers.taken_bytes >= 6_000_000)
            other = await made.client()
            for number in range(5):
                await other.send(request(b"small %d" % number))
                assert await other.answer() == b"small %d" % number
            assert made.echo.begun.count(b"much") < 4, "what the socket swallows, and one more"
        await until(lambda: made.server.answers.taken_bytes == 0)


async def test_answers_that_wait_for_an_earlier_one_are_bounded() -> None:
    async with kit() as made:
        made.echo.answer_bytes = 6_000_000
        client = await made.client()
        await client.send(request(b"promise") + request(b"much") * 8)
        await until(lambda: made.echo.begun.count(b"much") == 1)
        other = await made.client()
        await other.send(request(b"small"))
        await other.answer()
        assert made.echo.begun.count(b"much") == 1, "one answer is enough to wait with"
        made.echo.promises[b"promise"].set_result([framed(b"kept")])
        assert await client.answer() == b"kept"
        for _ in range(8):
            assert len(await client.answer()) == 6_000_000
        await until(lambda: made.server.answers.taken_bytes == 0)


async def test_those_who_do_not_read_are_closed_when_memory_for_answers_is_short() -> None:
    async with kit(replace(LIMITS, answer_memory_bytes=20_000_000)) as made:
        made.echo.answer_bytes = 6_000_000
        plain = [made.stack.enter_context(unread(made)) for _ in range(4)]
        for client in plain:
            await asyncio.get_running_loop().sock_sendall(client, request(b"much") * 3)
        await until(lambda: len(made.lines) >= 3)
        assert {line["kind"] for line in made.lines} == {"slow-reader"}
        await until(lambda: made.server.answers.taken_bytes <= 20_000_000)
        reader = await made.client()
        for _ in range(5):
            await reader.send(request(b"much"))
            assert len(await reader.answer()) == 6_000_000


async def test_small_parts_of_large_buffers_are_copied_before_they_wait() -> None:
    async with kit() as made:
        made.echo.answer_bytes = 6_000_000
        made.echo.parts = [memoryview(bytearray(1_000_000))[:10_000] for _ in range(3)]
        with unread(made) as plain:
            await asyncio.get_running_loop().sock_sendall(plain, request(b"much") * 2)
            await until(lambda: made.server.answers.taken_bytes >= 6_000_000)
            connection = next(iter(made.server.unsent))
            parts: Buffers = list(made.echo.parts)
            before = [sys.getrefcount(part.obj) for part in made.echo.parts]
            connection._write(parts, 30_000)
            parts.clear()
            assert [sys.getrefcount(part.obj) for part in made.echo.parts] == before


async def test_too_many_connections_are_refused() -> None:
    async with kit(replace(LIMITS, max_connections=2)) as made:
        kept = [await made.client() for _ in range(2)]
        extra = await made.client()
        assert await extra.is_closed()
        assert "connections.max.count" in made.lines[0]["reason"]
        kept[0].close()
        await until(lambda: len(made.server._connections) == 1)
        late = await made.client()
        await late.send(request(b"room again"))
        assert await late.answer() == b"room again"


async def test_too_many_connections_of_one_address_are_refused() -> None:
    async with kit(replace(LIMITS, max_connections_per_address=1)) as made:
        first, second = await made.client(), await made.client()
        assert await second.is_closed()
        assert "max.connections.per.ip" in made.lines[0]["reason"]
        await first.send(request(b"first stays"))
        assert await first.answer() == b"first stays"


async def test_unauthenticated_client_may_send_small_frames_only() -> None:
    async with kit(needs_authentication=True) as made:
        client = await made.client()
        await client.send(request(b"small"))
        assert await client.answer() == b"small"
        await client.send(request(b"x" * 2000))
        assert await client.is_closed()


async def test_frames_wait_for_memory_and_small_and_medium_ones_pass_huge_ones() -> None:
    limits = replace(LIMITS, request_memory_bytes=3 * 9_000_000)
    async with kit(limits) as made:
        huge = [await made.client() for _ in range(5)]
        for client in huge:
            await client.send(request(b"x" * 8_900_000)[:1_000_000])
        await until(lambda: made.server._large.waiting_count == 4)
        assert made.server._large.taken_bytes < 2 * 8_900_000
        medium, small = await made.client(), await made.client()
        await medium.send(request(b"m" * 200_000))
        await small.send(request(b"s"))
        assert await small.answer() == b"s"
        assert await medium.answer() == b"m" * 200_000
        huge[0].close()
        await until(lambda: made.server._large.waiting_count == 3)
        huge[3].close()  # we do not read from it, so this is noticed when its turn has come
        for client in (huge[1], huge[2], huge[4]):
            await client.send(request(b"x" * 8_900_000)[1_000_000:])
            assert await client.answer() == b"x" * 8_900_000
        await until(lambda: made.taken_bytes() == 0)


async def test_what_waiting_connections_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.listener.MAX_KEPT_BYTES", 150_000)
    async with kit() as made:
        patient = [await made.client() for _ in range(5)]
        for client in patient:
            await client.send(request(b"promise") * LIMITS.max_requests_in_flight + request(b"x" * 40_000))
        await until(lambda: len(made.lines) == 2)
        assert {line["kind"] for line in made.lines} == {"memory"}
        await until(lambda: 100_000 < made.server.kept_bytes <= 150_000)
    await until(lambda: made.server.kept_bytes == 0)


async def test_client_that_leaves_while_its_request_is_handled_frees_everything() -> None:
    async with kit(replace(LIMITS, half_closed_timeout_s=0.1)) as made:
        made.echo.gate.clear()
        client = await made.client()
        await client.send(request(b"x" * 100_000) + request(b"promise") + request(b"z"))
        await until(lambda: len(made.echo.begun) == 1)
        client.writer.transport.abort()
        await until(lambda: not made.server._connections)
        await until(lambda: made.taken_bytes() == 0)
        made.echo.gate.set()


@pytest.mark.parametrize("text", [b"x" * 100_000, b"promise" + b"x" * 100_000, b"x" * 100])
async def test_produce_counts_until_its_work_has_ended_although_its_client_left(text: bytes) -> None:
    async with kit(replace(LIMITS, half_closed_timeout_s=0.1)) as made:
        made.echo.gate.clear()
        client = await made.client()
        begun, waiting = request(text, api_key=0), request(b"z" * 90_000, api_key=0)
        is_promise = text.startswith(b"promise")
        await client.send(begun if is_promise else begun + waiting)
        await until(lambda: len(made.echo.begun) == 1)
        client.writer.transport.abort()
        await until(lambda: not made.server._connections)
        assert made.taken_bytes() == len(begun) - 4, "the work still holds the frame"
        made.echo.gate.set()
        for promise in made.echo.promises.values():
            promise.set_result([b"nobody hears it"])
        await until(lambda: made.taken_bytes() == 0)
        assert len(made.echo.begun) == 1, "what had not begun is dropped"
        gc.collect()
        assert made.pool.leased_bytes == 0


async def test_memory_of_produces_whose_clients_leave_never_passes_its_budget() -> None:
    size_bytes = 1_000_000
    async with kit(replace(LIMITS, half_closed_timeout_s=0.1)) as made:
        made.echo.gate.clear()
        fitting = LIMITS.request_memory_bytes // 3 // size_bytes
        for asked in (fitting, 2 * fitting):
            clients = [await made.client() for _ in range(fitting)]
            for client in clients:
                client.writer.write(request(b"x" * (size_bytes - 2), api_key=0))
            await until(lambda asked=asked: len(made.echo.begun) + made.server._medium.waiting_count == asked)  # type: ignore[misc]
            for client in clients:
                client.writer.transport.abort()
            await until(lambda: made.server._medium.waiting_count > 0 or not made.server._connections)
        assert len(made.echo.begun) <= fitting
        assert made.taken_bytes() <= LIMITS.request_memory_bytes // 3
        made.echo.gate.set()
        await until(lambda: made.taken_bytes() == 0 and not made.server._connections)
        gc.collect()
        assert made.pool.leased_bytes == 0


async def test_draining_answers_what_is_under_way_and_accepts_no_more() -> None:
    async with kit() as made:
        made.echo.gate.clear()
        busy, idle = await made.client(), await made.client()
        await busy.send(request(b"under way"))
        await until(lambda: len(made.echo.begun) == 1)
        draining = asyncio.create_task(made.server.drain(PATIENCE_S))
        assert await idle.is_closed()
        made.echo.gate.set()
        assert await busy.answer() == b"under way"
        assert await busy.is_closed()
        await draining
        with pytest.raises(OSError):
            await made.client()


async def test_draining_cuts_off_what_does_not_end() -> None:
    async with kit() as made:
        client = await made.client()
        await client.send(request(b"promise for ever"))
        await until(lambda: len(made.echo.begun) == 1)
        await made.server.drain(0.05)
        assert await client.is_closed()
        assert "cut off" in made.lines[-1]["event"]
