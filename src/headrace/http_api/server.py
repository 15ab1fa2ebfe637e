"""HTTP beside Kafka: uvicorn in this process, on a thread and a loop of its own.

Must stay true:
- A page or a scrape never takes a turn of the main loop: only short checks travel there, with a limit.
- What a client can hold is bounded: connections, requests at once, bytes of headers, seconds of a connection. Bodies
  are never collected.
- A client can write nothing into the log: uvicorn reports failures only, and no request is logged.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.errors import Unusable
from headrace.http_api.app import build_app
from headrace.http_api.readiness import CHECK_LIMIT_S, MainLoop, Readiness, ReadyCheck
from headrace.runtime.logs import Log

MAX_CONNECTIONS = 200
"""Beyond it, and beyond as many requests at once, a request is answered with 503."""

MAX_HEAD_BYTES = 16 * 1024
"""The request line and all headers together."""

MAX_CONNECTION_S = 60
"""A connection ends after this long, or with the response that is under way then: nobody stays by saying little."""

KEEP_ALIVE_S = 5
DRAIN_S = 2
"""How long requests under way may still take when the server stops."""

BACKLOG = 128


class HttpServer:
    """The side port from `start` to `stop`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        checks: Sequence[ReadyCheck],
        render_metrics: Callable[[], bytes],
        log: Log,
        check_limit_s: float = CHECK_LIMIT_S,
    ) -> None:
        self._host = host
        self._port = port
        self._checks = checks
        self._render_metrics = render_metrics
        self._log = log
        self._check_limit_s = check_limit_s
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> int:
        """Listen, serve, and return the port that was bound: the one asked for, or a free one for 0.

        Call it on the main loop. Raises `Unusable` if the address cannot be had.
        """
        assert self._thread is None, "the HTTP server was started twice"
        loop = asyncio.get_running_loop()
        listener = _listen(self._host, self._port)
        port: int = listener.getsockname()[1]
        started: asyncio.Future[None] = loop.create_future()

        def note_start(error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, started, error)

        self._server = _Server(self._configure(MainLoop(loop)), note_start=note_start)
        self._thread = threading.Thread(
            target=self._run, args=(self._server, listener), name="headrace-http", daemon=True
        )
        self._thread.start()
        await started
        return port

    async def stop(self) -> None:
        """Stop listening, let requests under way end, and wait for the thread. Safe more than once."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join)

    def _configure(self, main_loop: MainLoop) -> uvicorn.Config:
        readiness = Readiness(main_loop, self._checks, limit_s=self._check_limit_s)
        return uvicorn.Config(
            build_app(main_loop=main_loop, readiness=readiness, render_metrics=self._render_metrics),
            loop="asyncio",
            http=_Protocol,
            ws="none",
            lifespan="off",
            # The process has one log, and its root handler takes what uvicorn has to say.
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )

    def _run(self, server: "_Server", listener: socket.socket) -> None:
        try:
            with listener:
                server.run(sockets=[listener])
        except BaseException as error:  # The thread's last words; nobody else would hear them.
            self._log.error("the HTTP server has ended", exc_info=error)
            server.note_start(error)


class _Server(uvicorn.Server):
    """Says when it serves."""

    def __init__(self, config: uvicorn.Config, *, note_start: Callable[[BaseException | None], None]) -> None:
        super().__init__(config)
        self.note_start = note_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.note_start(None)


class _Protocol(H11Protocol):
    """A connection that ends after a while, so that silent and slow clients cannot hold all of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expiry = self.loop.call_later(MAX_CONNECTION_S, self.shutdown)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expiry.cancel()
        super().connection_lost(exc)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        raise Unusable(
            f"HTTP cannot listen on {host}:{port} ({error.strerror}): stop what uses that address,"
            " or choose another --http HOST:PORT"
        ) from error


def _settle(started: "asyncio.Future[None]", error: BaseException | None) -> None:
    if started.done():  # An error long after the start is in the log; nobody waits for it here.
        return
    if error is None:
        started.set_result(None)
    else:
        started.set_exception(Unusable(f"the HTTP server could not start ({error!r}): the log says more"))
