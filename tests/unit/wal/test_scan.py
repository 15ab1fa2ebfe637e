"""Where the good frames of a segment end, and why."""

import pytest

from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, StreamId, WriterId
from headrace.wal.frame import FrameBuilder
from headrace.wal.scan import ScanEnd, scan_segment

WRITER, OTHER = WriterId("aa" * 16), WriterId("bb" * 16)


def frame(number: int, *, writer: WriterId = WRITER, domain: int = 0, body: bytes = b"body") -> bytes:
    builder = FrameBuilder()
    summary = BatchSummary(size_bytes=len(body), record_count=1, base_timestamp_ms=1, max_timestamp_ms=1)
    builder.add(StreamId(1), body, [summary])
    sealed = builder.seal(writer=writer, frame_number=number, domain=DomainId(domain), created_at_ms=0)
    return b"".join(sealed.buffers)


def test_frames_are_found_in_order_with_their_positions() -> None:
    first, second = frame(1), frame(3, body=b"longer body")
    scan = scan_segment(first + second)
    assert [(f.start_byte, f.frame.header.frame_number) for f in scan.frames] == [(0, 1), (len(first), 3)]
    assert (scan.end_byte, scan.reason) == (len(first + second), ScanEnd.END_OF_DATA)


def test_nothing_holds_no_frame() -> None:
    assert scan_segment(b"").reason is ScanEnd.END_OF_DATA


@pytest.mark.parametrize("zeros", [1, 63, 64, 4096, 200_000])
def test_prepared_zeros_are_a_clean_end(zeros: int) -> None:
    scan = scan_segment(frame(1) + bytes(zeros))
    assert (len(scan.frames), scan.end_byte, scan.reason) == (1, len(frame(1)), ScanEnd.PREPARED)


@pytest.mark.parametrize("at", [10, 70_000, 199_999])
def test_a_byte_among_the_zeros_is_damage(at: int) -> None:
    tail = bytearray(200_000)
    tail[at] = 1
    assert scan_segment(frame(1) + tail).reason is ScanEnd.DAMAGED


def test_every_cut_of_the_last_frame_is_reported_at_its_first_byte() -> None:
    first, second = frame(1), frame(2)
    for cut in range(1, len(second)):
        scan = scan_segment(first + second[:cut] + bytes(1000))
        assert (len(scan.frames), scan.end_byte, scan.reason) == (1, len(first), ScanEnd.DAMAGED), cut


def test_a_torn_frame_whose_first_page_is_missing_is_damage() -> None:
    assert scan_segment(frame(1) + bytes(60) + frame(2)[60:]).reason is ScanEnd.DAMAGED


@pytest.mark.parametrize(
    "left_over",
    [frame(1), frame(2), frame(3, writer=OTHER), frame(3, domain=1)],
    ids=["older", "same", "other", "domain"],
)
def test_a_frame_from_the_files_former_life_ends_the_scan(left_over: bytes) -> None:
    scan = scan_segment(frame(2) + left_over)
    assert (len(scan.frames), scan.reason) == (1, ScanEnd.STALE)
    assert f"byte {len(frame(2))}" in scan.detail


def test_a_first_frame_of_another_writer_is_stale_when_the_writer_is_known() -> None:
    assert scan_segment(frame(1, writer=OTHER)).frames
    scan = scan_segment(frame(1, writer=OTHER), writer=WRITER)
    assert (scan.frames, scan.end_byte, scan.reason) == ([], 0, ScanEnd.STALE)


def test_a_newer_version_ends_the_scan_and_is_named() -> None:
    newer = bytearray(frame(2))
    newer[5] = 2
    scan = scan_segment(frame(1) + newer)
    assert (len(scan.frames), scan.reason) == (1, ScanEnd.UNSUPPORTED)
    assert "upgrade" in scan.detail
