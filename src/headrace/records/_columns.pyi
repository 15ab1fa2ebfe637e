from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview

def walk_records(
    body: Buffer, count: int, last_offset_delta: int, base_timestamp: int, dense: bool
) -> tuple[int, int, int, int, int, int, int, int, int, int]: ...
def decode_records(
    body: Buffer, batch: tuple[int, ...], buffers: Sequence[bytearray], cursor: tuple[int, ...]
) -> tuple[int, int, tuple[int, ...]]: ...
def encode_records(
    buffers: Sequence[Buffer],
    first_row: int,
    end_row: int,
    base_offset: int,
    out: bytearray,
    start_byte: int,
    max_bytes: int,
) -> tuple[int, int, int, int]: ...
def place_keys(
    offsets: Buffer, data: Buffer, validity: Buffer, partition_count: int, out: bytearray
) -> tuple[int, int]: ...
