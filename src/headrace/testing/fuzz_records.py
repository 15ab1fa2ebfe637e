"""Targets for a fuzzer: arbitrary bytes into everything that reads records.

Each function takes any bytes and returns; it raises only when it has found a bug. An `InvalidBatch` is an answer,
every other exception is not, and neither is a limit that was passed or a twin that disagrees.
"""

from struct import Struct

from headrace.records.batch import HEADER_BYTES, LENGTH_END, MAGIC, BatchView, Codec, iter_batches
from headrace.records.codecs import compress, decompress
from headrace.records.columns import ColumnBuilder, Columns, walk
from headrace.records.encoder import BatchEncoder
from headrace.records.kernel import Kernel, compiled_kernel, python_kernel
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.record import Record, columns_of, records_of
from headrace.records.stamping import stamp_append_time, stamp_crc, stamp_offset

MAX_OPEN_BYTES = 1 << 16
MAX_BATCH_BYTES = 200
BASE_OFFSET = 1 << 40

_LENGTH_TO_MAGIC = Struct(">iib")
_LENGTH_AT = 8


def fuzz_batch(data: bytes) -> None:
    """Read bytes as batches, as they are and with a frame and CRC that make the checks go deeper."""
    try:
        for view in iter_batches(memoryview(data)):
            view.check_produced()
            view.summary()
    except InvalidBatch:
        pass
    if len(data) < HEADER_BYTES:
        return
    mended = _mended(data)
    try:
        view = BatchView(mended)
        view.check()
        stamp_offset(mended, base_offset=BASE_OFFSET, leader_epoch=3)
        stamp_append_time(mended, append_time_ms=12345)
        stamped = BatchView(mended)
        stamped.check()
        assert stamped.base_offset == BASE_OFFSET and stamped.max_timestamp_ms == 12345, "a stamp did not take"
        walk(stamped, dense=True, max_open_bytes=MAX_OPEN_BYTES)
    except InvalidBatch:
        pass


def fuzz_codecs(data: bytes) -> None:
    """Open bytes with the codec that their first byte names, and bring the rest through a round trip."""
    if not data:
        return
    codec = Codec(data[0] % len(Codec))
    body = memoryview(data)[1:]
    try:
        opened = decompress(codec, body, max_output_bytes=MAX_OPEN_BYTES)
        assert len(opened) <= MAX_OPEN_BYTES, f"{codec.name} gave {len(opened)} bytes"
    except InvalidBatch as error:
        assert error.problem in (Problem.COMPRESSION, Problem.TOO_LARGE), error.problem
    packed = memoryview(compress(codec, body))
    assert decompress(codec, packed, max_output_bytes=len(body)) == body, f"{codec.name} does not give back its input"


def fuzz_columns(data: bytes) -> None:
    """Open bytes as a batch with both kernels, which must agree, and write what was opened back."""
    if len(data) < HEADER_BYTES:
        return
    view = BatchView(_mended(data))
    compiled = compiled_kernel()
    outcome = _outcome(view, python_kernel())
    if compiled is not None:
        assert _outcome(view, compiled) == outcome, "the kernels disagree"


def batch_seeds() -> list[bytes]:
    """Return batches of every codec with a bit of everything, for `fuzz_batch` and `fuzz_columns` to start from."""
    records = [
        Record(offset=3, timestamp_ms=-1),
        Record(offset=4, timestamp_ms=2**63 - 1, key=b"", value=b"v" * 70, headers=((b"h", None), (b"h", b"x"))),
        Record(offset=9, timestamp_ms=5, key=b"key", value=b""),
    ]
    columns = columns_of(records, attributes=0x10, producer_id=7, producer_epoch=1, base_sequence=2**31 - 2)
    batches = [bytes(BatchEncoder(codec=codec).encode(columns, end_offset=20)) for codec in Codec]
    return [*batches, batches[0] * 2, bytes(BatchEncoder().encode(columns_of([]), start_offset=1, end_offset=5))]


def codec_seeds() -> list[bytes]:
    """Return a body of every codec behind the byte that names it, for `fuzz_codecs` to start from."""
    bodies = [b"", b"abc" * 40, bytes(MAX_OPEN_BYTES), bytes(MAX_OPEN_BYTES + 1)]
    packed = [bytes([codec]) + bytes(compress(codec, body)) for codec in Codec for body in bodies]
    return [seed for seed in packed if len(seed) < MAX_OPEN_BYTES]


def _mended(data: bytes) -> memoryview:
    """Give arbitrary bytes the frame and CRC of a batch, so that everything behind those is reached."""
    batch = memoryview(bytearray(data))
    _LENGTH_TO_MAGIC.pack_into(batch, _LENGTH_AT, len(data) - LENGTH_END, 0, MAGIC)
    stamp_crc(batch)
    return batch


def _outcome(view: BatchView, kernel: Kernel) -> object:
    builder = ColumnBuilder(max_open_bytes=MAX_OPEN_BYTES, kernel=kernel)
    try:
        builder.append(view)
    except InvalidBatch as error:
        assert builder.row_count == 0, "a batch that failed left rows behind"
        return error.problem, str(error)
    columns = builder.columns()
    if view.base_offset < 0:
        return columns
    return columns, _written(columns, kernel)


def _written(columns: Columns, kernel: Kernel) -> bytes:
    encoded = BatchEncoder(max_batch_bytes=MAX_BATCH_BYTES, kernel=kernel).encode(columns)
    builder = ColumnBuilder(kernel=kernel)
    for batch in iter_batches(encoded):
        batch.check()
        builder.append(batch)
    assert list(records_of(builder.columns())) == list(records_of(columns)), "a round trip changed the records"
    assert list(builder.columns().sequence) == list(columns.sequence), "a round trip changed the sequences"
    return bytes(encoded)
