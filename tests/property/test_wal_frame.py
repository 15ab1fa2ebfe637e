"""Frames round-trip; damage of any kind ends in a clear error, and never in wrong data."""

import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import Corrupt, Unsupported
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, StreamId, WriterId
from headrace.runtime.rng import Rng, seeded_rng
from headrace.testing.fuzz_wal import frame_seeds, fuzz_chunk, fuzz_frame
from headrace.wal.frame import Frame, FrameBuilder, SealedFrame, parse_frame
from headrace.wal.scan import scan_segment

TIMESTAMPS = st.integers(-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class Add:
    """What one producer hands over for one stream."""

    stream: int
    batches: list[tuple[bytes, int, int, int]]  # bytes, records, base and max timestamp

    @property
    def data(self) -> bytes:
        return b"".join(batch[0] for batch in self.batches)

    @property
    def summaries(self) -> list[BatchSummary]:
        return [
            BatchSummary(size_bytes=len(data), record_count=records, base_timestamp_ms=base, max_timestamp_ms=newest)
            for data, records, base, newest in self.batches
        ]


BATCHES = st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 1000), TIMESTAMPS, TIMESTAMPS)
STREAMS = st.one_of(st.integers(0, 4), st.integers(0, 2**64 - 1))
ADDS = st.lists(st.builds(Add, STREAMS, st.lists(BATCHES, min_size=1, max_size=3)), min_size=1, max_size=8)
HEADERS = st.fixed_dictionaries(
    {
        "writer": st.binary(min_size=16, max_size=16).map(lambda raw: WriterId(raw.hex())),
        "frame_number": st.integers(0, 2**64 - 1),
        "domain": st.integers(0, 2**32 - 1).map(DomainId),
        "created_at_ms": TIMESTAMPS,
    }
)


def seal(adds: list[Add], header: dict[str, object]) -> SealedFrame:
    builder = FrameBuilder()
    for ticket, add in enumerate(adds):
        assert builder.add(StreamId(add.stream), add.data, add.summaries) == ticket
    return builder.seal(**header)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(adds=ADDS, header=HEADERS, behind=st.binary(max_size=20))
def test_a_frame_gives_back_what_was_put_in(adds: list[Add], header: dict[str, object], behind: bytes) -> None:
    sealed = seal(adds, header)
    raw = b"".join(sealed.buffers)
    frame = parse_frame(memoryview(raw + behind))
    assert frame.size_bytes == sealed.size_bytes == len(raw)
    assert {name: getattr(frame.header, name) for name in header} == header
    assert frame.chunks == sealed.chunks
    for add, position in zip(adds, sealed.positions, strict=True):
        assert raw[position.start_byte : position.end_byte] == add.data
    by_stream: dict[int, list[Add]] = {}
    for add in adds:
        by_stream.setdefault(add.stream, []).append(add)
    assert [chunk.stream for chunk in frame.chunks] == sorted(by_stream)
    for chunk in frame.chunks:
        batches = [batch for add in by_stream[chunk.stream] for batch in add.batches]
        assert bytes(frame.body(chunk)) == b"".join(batch[0] for batch in batches)
        assert (chunk.record_count, chunk.batch_count) == (sum(batch[1] for batch in batches), len(batches))
        assert chunk.min_timestamp_ms == min(batch[2] for batch in batches)
        assert chunk.max_timestamp_ms == max(batch[3] for batch in batches)


@settings(max_examples=150, deadline=None)
@given(adds=ADDS, header=HEADERS, data=st.data())
def test_damage_is_refused(adds: list[Add], header: dict[str, object], data: st.DataObject) -> None:
    raw = b"".join(seal(adds, header).buffers)
    start = data.draw(st.integers(0, len(raw) - 1))
    end = data.draw(st.integers(start, min(len(raw), start + 16)))
    damaged = raw[:start] + data.draw(st.binary(max_size=16)) + raw[end:]
    if damaged[: len(raw)] == raw:
        return
    with pytest.raises((Corrupt, Unsupported)):
        parse_frame(memoryview(damaged))


def test_every_single_byte_flip_is_refused() -> None:
    raw = frame_seeds()[1]
    for at in range(len(raw)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(raw)
            damaged[at] ^= mask
            with pytest.raises((Corrupt, Unsupported)):
                parse_frame(memoryview(damaged))


def test_every_truncation_is_refused() -> None:
    raw = frame_seeds()[1]
    for size_bytes in range(len(raw)):
        with pytest.raises(Corrupt):
            parse_frame(memoryview(raw)[:size_bytes])


@settings(max_examples=60, deadline=None)
@given(adds=st.lists(ADDS, min_size=2, max_size=4), data=st.data())
def test_a_scan_finds_all_frames_before_the_damage(adds: list[list[Add]], data: st.DataObject) -> None:
    header = {"writer": WriterId("ab" * 16), "domain": DomainId(0), "created_at_ms": 0}
    frames = [b"".join(seal(some, {**header, "frame_number": n}).buffers) for n, some in enumerate(adds)]
    raw = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    ends = [sum(len(frame) for frame in frames[: n + 1]) for n in range(len(frames))]
    whole = sum(end <= at for end in ends)
    scan = scan_segment(raw)
    assert len(scan.frames) == whole
    assert scan.end_byte == ([0, *ends])[whole]


@pytest.mark.parametrize("count", [2**32 - 1, 10_000_000])
def test_a_lying_count_allocates_nothing(count: int) -> None:
    damaged = bytearray(frame_seeds()[0])
    damaged[48:52] = count.to_bytes(4, "big")
    view = memoryview(damaged)
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            parse_frame(view)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def mutated(rng: Rng, raw: bytes, others: list[bytes]) -> bytes:
    """Return the bytes with one to four changes: flips, cuts, splices, repeats, and numbers that lie."""
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(0, len(data) + 1)
        length = rng.randrange(1, 17)
        match rng.randrange(0, 6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(0, 8)
            case 1:
                del data[at:]
            case 2:
                other = others[rng.randrange(0, len(others))]
                data[at:] = other[rng.randrange(0, len(other)) :]
            case 3:
                data[at : at + length] = bytes(rng.getrandbits(8) for _ in range(length))
            case 4:
                data[at:at] = data[at : at + length]
            case _:
                edge = (0, 1, 2**16 - 1, 2**32 - 1, 2**63, 2**64 - 1)[rng.randrange(0, 6)]
                data[at : at + 8] = edge.to_bytes(8, "big")
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_frames_never_surprise_the_parser(seed: int) -> None:
    rng, seeds = seeded_rng(seed), frame_seeds()
    for _ in range(3000):
        data = mutated(rng, seeds[rng.randrange(0, len(seeds))], seeds)
        fuzz_frame(data)
        fuzz_chunk(data)


def test_the_fuzz_target_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse_nonsense(data: memoryview) -> Frame:
        return parse_frame(memoryview(frame_seeds()[0]))

    monkeypatch.setattr("headrace.testing.fuzz_wal.parse_frame", parse_nonsense)
    with pytest.raises(AssertionError):
        fuzz_frame(frame_seeds()[1])
