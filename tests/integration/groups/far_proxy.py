"""A TCP proxy that lets answers travel for a while, as a far or slow network does.

It changes nothing else: bytes come in order, and both sides hear when the other one has closed.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

CHUNK_BYTES = 64 * 1024
END_LIMIT_SECONDS = 10.0


@contextlib.contextmanager
def far_away(port: int, target_port: int, *, delay_s: float) -> Iterator[None]:
    """Serve on `port` what `target_port` serves, every answer `delay_s` later."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="far proxy", daemon=True)
    thread.start()
    proxy = _Proxy(target_port, delay_s)
    try:
        asyncio.run_coroutine_threadsafe(proxy.open(port), loop).result(END_LIMIT_SECONDS)
        yield
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result(END_LIMIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_LIMIT_SECONDS)
        loop.close()


class _Proxy:
    def __init__(self, target_port: int, delay_s: float) -> None:
        self._target_port = target_port
        self._delay_s = delay_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, port: int) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", port)

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far, far_out = await asyncio.open_connection("127.0.0.1", self._target_port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_carry(near, far_out, 0.0))
                    both.create_task(_carry(far, near_out, self._delay_s))
            except* OSError:
                pass
            finally:
                far_out.close()
        near_out.close()


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float) -> None:
    """Carry bytes until their source ends; what is on its way arrives before the end does."""
    loop = asyncio.get_running_loop()
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await on_the_way.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                sink.write_eof()
                return
            sink.write(data)
            await sink.drain()

    async with asyncio.TaskGroup() as both:
        both.create_task(deliver())
        while data := await source.read(CHUNK_BYTES):
            on_the_way.put_nowait((loop.time() + delay_s, data))
        on_the_way.put_nowait((loop.time() + delay_s, b""))
