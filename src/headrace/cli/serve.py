"""`headrace serve`: the process around a broker.

uvloop runs it where there is uvloop. SIGTERM and SIGINT end it in good order, a second one at once.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable

from headrace import __version__
from headrace.broker.serving import Addresses, serve
from headrace.broker.storage import Runtime, assemble_runtime
from headrace.runtime.memory import limit_arenas
from headrace.settings import HeadraceConfiguration

SWITCH_INTERVAL_S = 1e-4
"""How long threads beside a busy loop wait for the interpreter's lock: with 5 ms, the default, a commit took 5.6."""

GC_THRESHOLDS = (50_000, 20, 100)
"""Collect cycles seldom: what a broker makes in masses holds none, and a full collection stops all requests."""


def serve_until_told(configuration: HeadraceConfiguration) -> None:
    """Run a broker until a signal ends it."""
    settings = configuration.tree
    runtime = assemble_runtime(settings, environment=os.environ, log_to=sys.stderr)
    for origin in configuration.origins:
        if origin.source != "default":
            runtime.log.debug("a setting is not its default", key=origin.setting.key, source=origin.source)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    limit_arenas()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(configuration, runtime))


async def _serve(configuration: HeadraceConfiguration, runtime: Runtime) -> None:
    settings = configuration.tree
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if stopping.is_set():
            runtime.log.warning("told to stop a second time: ending at once", signal=number.name)
            os._exit(1)
        runtime.log.info("told to stop: finishing what is under way", signal=number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)

    def ready(addresses: Addresses) -> None:
        # What is alive now stays alive: no collection needs to look at it again.
        gc.collect()
        gc.freeze()
        print(
            f"headrace {__version__} is ready: Kafka on {addresses.kafka}, HTTP on {addresses.http}, "
            f"node {settings.broker.node_id}, data in {settings.broker.data_dir}",
            flush=True,
        )

    await serve(configuration, runtime, stopping=stopping, ready=ready)
    runtime.log.info("stopped")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
