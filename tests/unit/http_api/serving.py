"""A side port on a free address, and a client that does not share its loop."""

import asyncio
import http.client
import io
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headrace.http_api.readiness import ReadyCheck
from headrace.http_api.server import HttpServer
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.testing.clock import ManualClock

HOST = "127.0.0.1"
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A running server as its clients see it."""

    port: int
    metrics: Metrics
    log: io.StringIO

    def ask_nowait(self, path: str, method: str = "GET", body: bytes | None = None) -> Answer:
        """Ask, blocking the calling thread."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=headers, body=response.read())
        finally:
            connection.close()

    async def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> Answer:
        return await asyncio.to_thread(self.ask_nowait, path, method, body)

    async def send_raw(self, sent: bytes) -> bytes:
        """Send bytes as they are and return all that comes back until the server closes."""

        def exchange() -> bytes:
            with socket.create_connection((HOST, self.port), timeout=LIMIT_S) as connection:
                received = b""
                try:
                    connection.sendall(sent)
                    while chunk := connection.recv(65536):
                        received += chunk
                except ConnectionError:  # closed while we were still sending
                    pass
                return received

        return await asyncio.to_thread(exchange)


@asynccontextmanager
async def serving(checks: Sequence[ReadyCheck] = (), *, check_limit_s: float = LIMIT_S) -> AsyncIterator[Serving]:
    metrics, lines = Metrics(), io.StringIO()
    server = HttpServer(
        HOST,
        0,
        checks=checks,
        render_metrics=metrics.render,
        log=open_log(lines, clock=ManualClock(), format="json"),
        check_limit_s=check_limit_s,
    )
    port = await server.start()
    try:
        yield Serving(port=port, metrics=metrics, log=lines)
    finally:
        await server.stop()
