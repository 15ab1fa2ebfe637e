"""What bounds the Kafka edge. Every limit has a name, and most of them a setting."""

from dataclasses import dataclass

SCRATCH_BYTES = 64 * 1024
"""The buffer that all connections of a loop share to receive what is small or just begins."""

SMALLEST_FRAME_BYTES = 10
"""API key, version, correlation id and the length of a client id: no request is shorter."""

MEDIUM_FRAME_BYTES = 8 * 1024 * 1024
"""Frames up to this size never wait for memory behind larger ones."""

WINDOW_BYTES = SCRATCH_BYTES
"""What a frame is granted at first, and at least, while memory for whole frames is short."""

WRITE_HIGH_WATER_BYTES = 256 * 1024
"""How many bytes of answers may wait to be sent before the connection's next request has to wait."""

JOINED_ANSWER_BYTES = 16 * 1024
"""An answer up to this size is copied into one piece: its parts would keep buffers from use that are much larger."""

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""What connections may keep in all that came behind their last frame while they wait to go on: up to 64 KiB each. A
thousand of them may; beyond, connections are closed."""

PRESSED_STALL_S = 0.5
"""How long a frame may stand still, or an answer be left untaken, while others wait for the memory that it holds."""

PRESSED_BYTES_PER_SECOND = 256 * 1024
"""How fast it has to come in, or to be taken, meanwhile."""

PRODUCE_KEY = 0
"""The API whose requests go on to their end although their connection is lost."""

BACKLOG = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of one listener."""

    max_frame_bytes: int
    max_unauthenticated_frame_bytes: int
    max_connections: int
    max_connections_per_address: int
    max_requests_in_flight: int
    request_memory_bytes: int
    answer_memory_bytes: int
    idle_timeout_s: float
    slow_read_timeout_s: float
    slow_write_timeout_s: float
    half_closed_timeout_s: float
    slowest_bytes_per_second: int
