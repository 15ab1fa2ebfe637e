"""Where clients connect, and what bounds them."""

from dataclasses import dataclass
from typing import Annotated

from headrace.runtime.configuration import Setting
from headrace.runtime.setting_kinds import MAX_INT32, Address, HostPort, Whole
from headrace.settings.units import KIB, MIB, MINUTE_MS, SECOND_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Where clients connect, and how much one request may ask for."""

    listeners: Annotated[
        Address,
        Setting(
            "listeners", "127.0.0.1:9092", HostPort(), "The address for Kafka clients; open it to other hosts here."
        ),
    ]
    advertised_listeners: Annotated[
        Address | None,
        Setting(
            "advertised.listeners",
            "",
            HostPort(optional=True),
            "The address that clients are told, where it differs from the one above: behind a proxy, in a container.",
        ),
    ]
    http_listen: Annotated[
        Address,
        Setting("http.listen", "127.0.0.1:8080", HostPort(), "The address for HTTP: the API, health and metrics."),
    ]
    socket_request_max_bytes: Annotated[
        int,
        Setting(
            "socket.request.max.bytes",
            100 * MIB,
            Whole(minimum=KIB, maximum=MAX_INT32),
            "The largest request that is read; lower it to bound the memory that one client can take.",
            unit="bytes",
            is_dynamic=True,
        ),
    ]
    sasl_server_max_receive_size: Annotated[
        int,
        Setting(
            "sasl.server.max.receive.size",
            512 * KIB,
            Whole(minimum=KIB, maximum=MAX_INT32),
            "The largest request that is read from a client that still has to authenticate itself.",
            unit="bytes",
        ),
    ]
    queued_max_request_bytes: Annotated[
        int,
        Setting(
            "queued.max.request.bytes",
            384 * MIB,
            Whole(minimum=3 * MIB, maximum=16 * KIB * MIB),
            "The memory for requests that are being received or handled, a third each for small, medium and large "
            "ones; when it is used up, nothing more is read until an answer has left.",
            unit="bytes",
        ),
    ]
    queued_max_response_bytes: Annotated[
        int,
        Setting(
            "queued.max.response.bytes",
            256 * MIB,
            Whole(minimum=8 * MIB, maximum=16 * KIB * MIB),
            "The memory for answers that clients have not taken yet; as it is used up answers get smaller, then "
            "fetches wait, and clients that do not read are closed.",
            unit="bytes",
        ),
    ]
    max_connections: Annotated[
        int,
        Setting(
            "connections.max.count",
            20_000,
            Whole(minimum=1, maximum=MAX_INT32),
            "How many connections are open at once; more are closed as soon as they come.",
            unit="connections",
            is_dynamic=True,
        ),
    ]
    max_connections_per_ip: Annotated[
        int,
        Setting(
            "max.connections.per.ip",
            10_000,
            Whole(minimum=1, maximum=MAX_INT32),
            "How many of them may come from one address; lower it so that one host cannot take them all.",
            unit="connections",
            is_dynamic=True,
        ),
    ]
    max_requests_in_flight: Annotated[
        int,
        Setting(
            "max.requests.in.flight.per.connection",
            100,
            Whole(minimum=1, maximum=100_000),
            "How many requests of one connection may wait for their answers before no more are read from it.",
            unit="requests",
            is_dynamic=True,
        ),
    ]
    connections_max_idle_ms: Annotated[
        int,
        Setting(
            "connections.max.idle.ms",
            10 * MINUTE_MS,
            Whole(minimum=SECOND_MS, maximum=MAX_INT32),
            "How long a connection may be silent; lower it where clients come and forget to leave.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    slow_read_timeout_ms: Annotated[
        int,
        Setting(
            "socket.slow.read.timeout.ms",
            30 * SECOND_MS,
            Whole(minimum=100, maximum=MAX_INT32),
            "How long a request that has begun may make no progress before its connection is closed.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    slow_write_timeout_ms: Annotated[
        int,
        Setting(
            "socket.slow.write.timeout.ms",
            5 * MINUTE_MS,
            Whole(minimum=100, maximum=MAX_INT32),
            "How long a client may leave its answers untaken before its connection is closed.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    buffers_idle_max_bytes: Annotated[
        int,
        Setting(
            "buffers.idle.max.bytes",
            64 * MIB,
            Whole(maximum=16 * KIB * MIB),
            "How much memory of answered requests is kept for the next ones: it is faster than fresh memory.",
            unit="bytes",
        ),
    ]
