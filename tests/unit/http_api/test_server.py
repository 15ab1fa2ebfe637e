"""The port itself: binding, limits, hostile clients, and its end."""

import asyncio
import io
import logging
import socket
import threading

import pytest
import uvicorn

from headrace.errors import Unusable
from headrace.http_api import server as server_module
from headrace.http_api.server import MAX_HEAD_BYTES, HttpServer
from headrace.runtime.logs import open_log
from headrace.testing.clock import ManualClock
from tests.unit.http_api.serving import HOST, LIMIT_S, Serving, serving


def http_server(host: str, port: int) -> HttpServer:
    log = open_log(io.StringIO(), clock=ManualClock())
    return HttpServer(host, port, checks=(), render_metrics=lambda: b"", log=log)


def http_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-http"]


async def test_an_address_that_is_taken_is_said_so() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unusable, match=rf"cannot listen on {HOST}:{port} \(.*in use.*another --http"):
            await http_server(HOST, port).start()
    assert http_threads() == []


async def test_a_host_that_is_not_here_is_said_so() -> None:
    with pytest.raises(Unusable, match=r"cannot listen on host\.invalid:80"):
        await http_server("host.invalid", 80).start()


async def test_the_port_that_was_asked_for_is_served_again_after_a_restart() -> None:
    first = http_server(HOST, 0)
    port = await first.start()
    await first.stop()
    again = http_server(HOST, port)
    assert await again.start() == port
    await again.stop()


async def test_after_stop_nothing_listens_and_nothing_runs() -> None:
    async with serving() as server:
        assert (await server.ask("/")).status == 200
        assert len(http_threads()) == 1
    assert http_threads() == []
    with pytest.raises(ConnectionRefusedError):
        await server.ask("/")


async def test_stop_is_safe_before_start_and_twice() -> None:
    server = http_server(HOST, 0)
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()


async def test_stop_does_not_wait_for_a_silent_client() -> None:
    async with serving() as server:
        silent = socket.create_connection((HOST, server.port), timeout=LIMIT_S)
        silent.sendall(b"GET / HT")
        assert (await server.ask("/")).status == 200
    with silent:
        assert silent.recv(1) == b""


async def test_a_server_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: object, sockets: object = None) -> None:
        raise OSError("no more threads")

    monkeypatch.setattr(uvicorn.Server, "startup", fail)
    lines = io.StringIO()
    server = HttpServer(HOST, 0, checks=(), render_metrics=lambda: b"", log=open_log(lines, clock=ManualClock()))
    with pytest.raises(Unusable, match="could not start"):
        await server.start()
    await server.stop()
    assert "no more threads" in lines.getvalue()


async def test_headers_without_end_are_cut_off() -> None:
    async with serving() as server:
        received = await server.send_raw(b"GET / HTTP/1.1\r\nx: " + b"y" * (4 * MAX_HEAD_BYTES))
    assert received == b"" or b" 400 " in received.splitlines()[0]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x10\x00\x12\x00\x03garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_not_http_gets_a_400_and_writes_no_log(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving() as server:
            received = await server.send_raw(sent)
            assert b" 400 " in received.splitlines()[0]
            assert (await server.ask("/healthz")).status == 200
    assert caplog.records == [] and server.log.getvalue() == ""


async def test_a_large_body_is_not_collected() -> None:
    async with serving() as server:
        answer = await server.ask("/metrics", "POST", bytes(8 * 1024 * 1024))
        assert answer.status == 405
        assert (await server.ask("/")).status == 200


async def test_silent_connections_end_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTION_S", 0.2)
    async with serving() as server:
        assert await server.send_raw(b"") == b""
        assert await server.send_raw(b"GET / HTTP/1.1\r\nslow") == b""


async def test_too_many_connections_are_turned_away_and_room_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    async with serving() as server:
        held = [socket.create_connection((HOST, server.port), timeout=LIMIT_S) for _ in range(3)]
        await until_status(server, 503)
        for connection in held:
            connection.close()
        await until_status(server, 200)


async def until_status(server: Serving, status: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await server.ask("/")).status != status:
            await asyncio.sleep(0.02)
