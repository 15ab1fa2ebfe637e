"""Watch which versions of which APIs a client uses: a proxy between it and a broker.

    python -m compat.observe --listen PORT --upstream HOST:PORT

The broker must advertise the proxy's address, or clients go around it after the first answer. Interrupt it to see the
table. It reads the header of each request only and changes nothing.
"""

import argparse
import asyncio
import contextlib
import signal
import struct
from collections import Counter, defaultdict

from headrace.wire.schema import apis

CHUNK_BYTES = 1 << 16
# Length, API key, API version, correlation id, length of the client id: how every request begins.
_HEAD = struct.Struct(">ihhih")
# The length does not count itself.
_LENGTH_BYTES = 4


class Observer:
    """Hands on what clients and the broker say, and counts requests by client id, API and version."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self.seen: Counter[tuple[str, int, int]] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side closes it."""
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        answers = asyncio.create_task(_carry(up_reader, writer))
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._carry_requests(reader, up_writer)
        finally:
            up_writer.close()
            answers.cancel()
            writer.close()

    async def _carry_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(_HEAD.size)
            length_bytes, api_key, version, _, client_bytes = _HEAD.unpack(head)
            rest_bytes = length_bytes + _LENGTH_BYTES - _HEAD.size
            client = await reader.readexactly(max(0, min(client_bytes, rest_bytes)))
            self.seen[client.decode(errors="replace"), api_key, version] += 1
            writer.write(head + client)
            rest_bytes -= len(client)
            while rest_bytes > 0:
                chunk = await reader.readexactly(min(rest_bytes, CHUNK_BYTES))
                writer.write(chunk)
                rest_bytes -= len(chunk)
            await writer.drain()

    def table(self) -> str:
        """Write one line per client: every API with the versions that were asked for."""
        clients: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for client, api_key, version in self.seen:
            clients[client][api_key].add(version)
        names = {key: api.name for key, api in apis().items()}
        return "\n".join(
            f"{client or '(none)'}: "
            + ", ".join(
                f"{names.get(key, key)} {'/'.join(map(str, sorted(versions)))}"
                for key, versions in sorted(found.items())
            )
            for client, found in sorted(clients.items())
        )


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def observe(listen_port: int, upstream: tuple[str, int]) -> Observer:
    """Carry connections until SIGINT or SIGTERM."""
    observer = Observer(upstream)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    server = await asyncio.start_server(observer.serve, "127.0.0.1", listen_port)
    await ended.wait()
    server.close()
    return observer


def main() -> None:
    """Read the command line and observe."""
    parser = argparse.ArgumentParser(description="Show which API versions a client uses.")
    parser.add_argument("--listen", type=int, required=True, metavar="PORT")
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT")
    arguments = parser.parse_args()
    host, port = arguments.upstream.rsplit(":", 1)
    print(asyncio.run(observe(arguments.listen, (host, int(port)))).table())


if __name__ == "__main__":
    main()
