"""Any records survive the way into batches and back, in any codec, cut anywhere, with any holes."""

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records.arrow import from_arrow, to_arrow
from headrace.records.batch import Codec, iter_batches
from headrace.records.codecs import compress, decompress
from headrace.records.columns import ColumnBuilder, Columns
from headrace.records.encoder import BatchEncoder
from headrace.records.kernel import Kernel, compiled_kernel, python_kernel
from headrace.records.record import Record, columns_of, records_of

KERNELS = [kernel for kernel in (python_kernel(), compiled_kernel()) if kernel is not None]

byte_strings = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=130))
headers = st.lists(st.tuples(st.binary(max_size=5), byte_strings), max_size=3).map(tuple)
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_001_000),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-1, 0, 2**63 - 1, -(2**63)]),
)
gaps = st.one_of(st.just(1), st.integers(1, 1000), st.integers(1, 2**33))


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    steps = draw(st.lists(gaps, max_size=30))
    offsets = list(accumulate(steps, initial=draw(st.integers(0, 2**50))))[: len(steps)]
    fields = st.tuples(timestamps, byte_strings, byte_strings, headers)
    return [
        Record(offset=offset, timestamp_ms=timestamp, key=key, value=value, headers=pairs)
        for offset, (timestamp, key, value, pairs) in zip(
            offsets, draw(st.lists(fields, min_size=len(offsets), max_size=len(offsets))), strict=True
        )
    ]


producers = st.fixed_dictionaries(
    {},
    optional={
        "attributes": st.sampled_from([0, 0x10, 0x30, -(2**15)]),
        "producer_id": st.integers(-1, 2**63 - 1),
        "producer_epoch": st.integers(-1, 2**15 - 1),
        "base_sequence": st.integers(-1, 2**31 - 1),
    },
)


def decoded(batches: memoryview, kernel: Kernel) -> Columns:
    builder = ColumnBuilder(kernel=kernel)
    for view in iter_batches(batches):
        view.check()
        builder.append(view)
    return builder.columns()


@settings(max_examples=150, deadline=None)
@given(
    records=record_lists(),
    producer=producers,
    codec=st.sampled_from(Codec),
    max_batch_bytes=st.integers(1, 3000),
    hole=st.integers(0, 1000),
)
def test_records_survive(
    records: list[Record], producer: dict[str, int], codec: Codec, max_batch_bytes: int, hole: int
) -> None:
    columns = columns_of(records, **producer)
    end_offset = columns.end_offset + hole
    results = []
    for kernel in KERNELS:
        encoder = BatchEncoder(codec=codec, max_batch_bytes=max_batch_bytes, kernel=kernel)
        batches = encoder.encode(columns, end_offset=end_offset)
        views = list(iter_batches(batches))
        assert all(view.size_bytes <= max_batch_bytes or view.record_count <= 1 for view in views)
        again = decoded(batches, kernel)
        assert list(records_of(again)) == records
        assert list(again.sequence) == list(columns.sequence)
        assert list(again.producer_id) == list(columns.producer_id)
        assert not views or views[-1].end_offset == end_offset
        results.append(bytes(batches))
    assert len(set(results)) == 1


@settings(max_examples=80, deadline=None)
@given(records=record_lists(), producer=producers)
def test_batches_come_back_byte_for_byte(records: list[Record], producer: dict[str, int]) -> None:
    first = bytes(BatchEncoder(max_batch_bytes=500).encode(columns_of(records, **producer)))
    for kernel in KERNELS:
        views = iter_batches(memoryview(first))
        again = b""
        for view in views:
            builder = ColumnBuilder(kernel=kernel)
            builder.append(view)
            again += bytes(BatchEncoder(kernel=kernel).encode(builder.columns()))
        assert again == first


@settings(max_examples=60, deadline=None)
@given(records=record_lists(), start=st.integers(0, 30), length=st.integers(0, 30))
def test_arrow_gives_back_any_slice(records: list[Record], start: int, length: int) -> None:
    batch = to_arrow(columns_of(records))
    batch.validate(full=True)
    part = batch.slice(min(start, len(records)), length)
    assert list(records_of(from_arrow(part))) == records[start : start + length]


@settings(max_examples=60, deadline=None)
@given(
    codec=st.sampled_from(Codec),
    body=st.one_of(st.binary(max_size=300), st.binary(max_size=20).map(lambda b: b * 9999)),
)
def test_codecs_give_back_any_body_within_exactly_its_size(codec: Codec, body: bytes) -> None:
    packed = memoryview(compress(codec, body))
    assert decompress(codec, packed, max_output_bytes=len(body)) == body
