"""One broker, from start to stop.

Start: open and prove the stores; take the node's lock; check that the stores belong together; listen; join the
cluster; follow it; open the side port; say that it is ready.
Stop: give up the place in the cluster, so that clients move on; accept no more; finish what is under way; flush;
leave.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.assembly import assemble, make_writer
from headrace.broker.keepers import keepers
from headrace.broker.pipeline_child import pipeline_services
from headrace.broker.storage import Runtime, Storage, opened_storage
from headrace.cluster.identity import require_identity
from headrace.cluster.membership import Membership, Place
from headrace.cluster.node_lock import NodeLock
from headrace.handlers.dispatch import Dispatcher
from headrace.handlers.table import TABLE, warm_up
from headrace.produce.incarnations import Incarnations
from headrace.runtime.buffers import BufferPool
from headrace.runtime.executor import Executor, ThreadExecutor
from headrace.runtime.loop_watch import LoopWatch
from headrace.runtime.services import Services, explained
from headrace.runtime.setting_kinds import Address
from headrace.server.limits import ServerLimits
from headrace.server.listener import KafkaServer, ServerMetrics
from headrace.settings import HeadraceConfiguration, Settings
from headrace.settings.network import NetworkSettings

if TYPE_CHECKING:
    from headrace.http_api.server import HttpServer

WORK_THREADS = 2
"""Threads for what would keep the event loop waiting: opening and recompressing batches, old message sets."""

TABLE_THREADS = 2
"""Threads that read back from tables. They are others than those for the way in: a row group takes one for many
milliseconds, and producers must not wait behind a backfill."""

PATTERN_THREADS = 1
"""Threads that match regular expressions of consumers with topics: a bad one keeps a thread for long, and nobody but
other regular expressions may wait behind it."""

LAST_STEPS_S = 3.0
"""What each step of the end is given at least, however long the steps before it took."""

HALF_CLOSED_TIMEOUT_S = 10.0
"""How long a client that has closed its side still gets answers. It may be gone: nothing but a write would tell."""

SLOWEST_BYTES_PER_SECOND = 16 * 1024
"""A request that arrives slower than this for long is not worth the memory that it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a running broker listens."""

    kafka: Address
    http: Address


async def serve(
    configuration: HeadraceConfiguration,
    runtime: Runtime,
    *,
    stopping: asyncio.Event,
    ready: Callable[[Addresses], None],
) -> None:
    """Run a broker until `stopping` is set or a part of it fails; then end it in good order.

    `ready` is called once it serves. Raises what kept it from starting, or what made it stop.
    """
    settings = configuration.tree
    async with AsyncExitStack() as parts:
        storage = (await parts.enter_async_context(opened_storage(settings, runtime))).metered(runtime)
        lock = NodeLock.take(settings.broker.data_dir, settings.broker.node_id)
        parts.callback(lock.release)
        cluster_id = await require_identity(storage.metadata, storage.objects, rng=runtime.rng)
        work = ThreadExecutor("work", threads=WORK_THREADS)
        parts.callback(work.close)
        table_work = ThreadExecutor("tables", threads=TABLE_THREADS)
        parts.callback(table_work.close)
        pattern_work = ThreadExecutor("patterns", threads=PATTERN_THREADS)
        parts.callback(pattern_work.close)
        broker = Broker(
            configuration,
            runtime,
            storage,
            lock,
            cluster_id=cluster_id,
            executor=work,
            table_executor=table_work,
            pattern_executor=pattern_work,
        )
        try:
            addresses = await _started(broker, stopping)
            if addresses is not None:
                ready(addresses)
                await broker.wait(stopping)
        except BaseException:
            await _stop_after_failure(broker, runtime)
            raise
        await broker.stop()


async def _started(broker: "Broker", stopping: asyncio.Event) -> Addresses | None:
    """Start a broker; return `None` if it was told to stop meanwhile: a start may have to wait for a predecessor."""
    starting = asyncio.create_task(broker.start())
    told = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([starting, told], return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            return starting.result()
    finally:
        starting.cancel()
        told.cancel()
        await asyncio.wait([starting, told])
    if not starting.cancelled():
        starting.result()
    return None


async def _stop_after_failure(broker: "Broker", runtime: Runtime) -> None:
    """Stop what can be stopped; the reader of the last line wants to know what failed first."""
    try:
        await broker.stop()
    except Exception as error:
        runtime.log.error("the broker did not stop in good order", **explained(error))


class Broker:
    """The parts that run, and the order in which they start and stop."""

    def __init__(
        self,
        configuration: HeadraceConfiguration,
        runtime: Runtime,
        storage: Storage,
        lock: NodeLock,
        *,
        cluster_id: str,
        executor: Executor,
        table_executor: Executor,
        pattern_executor: Executor,
    ) -> None:
        settings = self._settings = configuration.tree
        self._runtime = runtime
        self._storage = storage
        self._lock = lock
        self._parts = assemble(
            configuration,
            runtime,
            storage,
            cluster_id=cluster_id,
            executor=executor,
            table_executor=table_executor,
            pattern_executor=pattern_executor,
            told=self._told,
        )
        node = self._parts.node
        dispatcher = Dispatcher(node, TABLE, clock=runtime.clock, log=runtime.log, metrics=runtime.metrics)
        self._server = KafkaServer(
            dispatcher=dispatcher,
            pool=BufferPool(max_idle_bytes=settings.network.buffers_idle_max_bytes),
            limits=server_limits(settings.network),
            clock=runtime.clock,
            log=runtime.log,
            metrics=ServerMetrics(runtime.metrics),
        )
        self._parts.live.used_by(self._use_settings)
        self._incarnations = Incarnations(
            join=self._join,
            make_writer=lambda membership: make_writer(settings, runtime, storage, self._parts, membership),
            present=self._present,
            absent=self._parts.seats.end,
            log_in=node.log_in,
            clock=runtime.clock,
            log=runtime.log,
            rewound=self._parts.rewinds.pending,
        )
        self._services = Services(
            [
                LoopWatch(clock=runtime.clock, log=runtime.log, metrics=runtime.metrics),
                *keepers(settings, runtime, storage, self._parts, self._incarnations),
                *pipeline_services(configuration, runtime, environment=os.environ),
            ],
            clock=runtime.clock,
            log=runtime.log,
        )
        self._http: HttpServer | None = None
        self._is_draining = False
        self._kafka_port = 0

    async def start(self) -> Addresses:
        """Start everything; return where it listens."""
        warm_up()
        node = self._parts.node
        await self._refresh()
        listeners = self._settings.network.listeners
        self._kafka_port = await self._server.start(listeners.host, listeners.port)
        told = self._told()
        node.cluster.introduce(node_id=node.node_id, host=told.host, port=told.port, rack=self._settings.broker.rack)
        await self._incarnations.start()
        await self._services.start()
        return Addresses(kafka=Address(host=listeners.host, port=self._kafka_port), http=await self._start_http())

    async def wait(self, stopping: asyncio.Event) -> None:
        """Return when `stopping` is set; raise when a part has failed that the broker cannot do without."""
        waits = [
            asyncio.create_task(stopping.wait()),
            asyncio.create_task(self._services.wait()),
            asyncio.create_task(self._incarnations.wait()),
        ]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)

    async def stop(self) -> None:
        """End in good order: clients move on, what is under way is finished, nothing is left behind.

        Each step is taken even if the one before it has failed.
        """
        self._is_draining = True
        clock = self._runtime.clock
        deadline = clock.monotonic() + self._settings.broker.drain_timeout_ms / 1000

        def left_s() -> float:
            return max(LAST_STEPS_S, deadline - clock.monotonic())

        async with AsyncExitStack() as steps:  # the last one first
            if self._http is not None:
                steps.push_async_callback(self._http.stop)
            steps.callback(self._parts.catch_up.close)
            steps.push_async_callback(lambda: self._incarnations.stop(limit_s=left_s()))
            steps.push_async_callback(lambda: self._services.stop(drain_ms=round(left_s() * 1000)))
            steps.push_async_callback(lambda: self._server.drain(left_s()))
            steps.push_async_callback(lambda: self._give_groups_back(left_s()))
            steps.push_async_callback(lambda: self._incarnations.withdraw(limit_s=left_s()))

    async def _start_http(self) -> Address:
        # Imported late: loading a web server takes a tenth of a second, and Kafka clients are served meanwhile.
        await self._parts.node.executor.run(load_http)
        from headrace.http_api.readiness import presence_check, store_checks
        from headrace.http_api.server import HttpServer

        listen, storage = self._settings.network.http_listen, self._storage
        presence = presence_check(
            is_present=lambda: self._incarnations.is_present, is_draining=lambda: self._is_draining
        )
        self._http = HttpServer(
            listen.host,
            listen.port,
            checks=[*store_checks(storage.metadata, storage.objects), presence],
            render_metrics=self._runtime.metrics.render,
            log=self._runtime.log,
        )
        return Address(host=listen.host, port=await self._http.start())

    async def _refresh(self) -> None:
        """Read what the caches follow."""
        node = self._parts.node
        await node.topics.refresh()
        await node.index.refresh()
        await node.cluster.refresh()
        await node.group_configs.refresh()
        # Before anything is kept or deleted by them: retention, too, goes by what was set while brokers ran.
        await node.broker_configs.refresh()

    async def _join(self) -> Membership:
        # A session or a writer may be gone because the store was taken back: then the caches must not outlive them.
        await self._refresh()
        runtime, told = self._runtime, self._told()
        place = Place(
            node_id=self._settings.broker.node_id,
            host=told.host,
            port=told.port,
            rack=self._settings.broker.rack,
            lock=self._lock.identity,
        )
        return await Membership.join(
            self._storage.metadata,
            place,
            session_timeout_ms=self._settings.broker.session_timeout_ms,
            clock=runtime.clock,
            rng=runtime.rng,
            log=runtime.log,
        )

    def _use_settings(self, settings: Settings) -> None:
        self._server.limits = server_limits(settings.network)

    def _told(self) -> Address:
        """Return where clients are told to reach this broker."""
        network = self._settings.network
        told = network.advertised_listeners or Address(host=network.listeners.host, port=self._kafka_port)
        return Address(host=told.host, port=told.port or self._kafka_port)

    def _present(self, membership: Membership) -> None:
        self._parts.node.cluster.count_self(membership.record, membership.is_present)
        self._parts.seats.begin(membership)

    async def _give_groups_back(self, limit_s: float) -> None:
        """Send members of our groups to other brokers; what cannot be given back in time goes with the session."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._parts.seats.drain(), limit_s)


def load_http() -> None:
    """Load the web server, on a thread: on a busy host that takes long enough to hold everybody up."""
    import headrace.http_api.readiness
    import headrace.http_api.server  # noqa: F401


def server_limits(network: NetworkSettings) -> ServerLimits:
    """Return the limits of the Kafka listener, as the settings say."""
    return ServerLimits(
        max_frame_bytes=network.socket_request_max_bytes,
        max_unauthenticated_frame_bytes=network.sasl_server_max_receive_size,
        max_connections=network.max_connections,
        max_connections_per_address=network.max_connections_per_ip,
        max_requests_in_flight=network.max_requests_in_flight,
        request_memory_bytes=network.queued_max_request_bytes,
        answer_memory_bytes=network.queued_max_response_bytes,
        idle_timeout_s=network.connections_max_idle_ms / 1000,
        slow_read_timeout_s=network.slow_read_timeout_ms / 1000,
        slow_write_timeout_s=network.slow_write_timeout_ms / 1000,
        half_closed_timeout_s=HALF_CLOSED_TIMEOUT_S,
        slowest_bytes_per_second=SLOWEST_BYTES_PER_SECOND,
    )
