"""A proof finds the latest record of a key that is gone, and takes no tombstone and no replaced record for lost."""

import pyarrow as pa

from headrace.pipeline.compaction_proof import CompactionProof
from headrace.pipeline.compaction_state import CompactionState, StreamCompaction
from headrace.pipeline.offset_runs import OffsetRuns

A, B, C = b"a", b"b", b"c"
Row = tuple[int, bytes | None, bytes | None]

HISTORY: list[Row] = [(0, A, b"1"), (1, B, b"1"), (2, A, b"2"), (3, C, b"1"), (4, B, None), (5, None, b"x")]


def records(rows: list[Row]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "offset": pa.array([row[0] for row in rows], pa.int64()),
            "key": pa.array([row[1] for row in rows], pa.binary()),
        }
    )


def main_rows(rows: list[Row]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "partition": pa.array([0] * len(rows), pa.int32()),
            "offset": pa.array([row[0] for row in rows], pa.int64()),
            "key": pa.array([row[1] for row in rows], pa.binary()),
            "value": pa.array([row[2] for row in rows], pa.binary()),
        }
    )


def prove(left: list[int], *, cleaned_to: int = 6, map_bytes: int = 10**6) -> CompactionProof:
    proof = CompactionProof(CompactionState("t", {0: StreamCompaction(cleaned_to)}), map_bytes=map_bytes)
    kept = [row for row in HISTORY if row[0] in left]
    proof.note_log(0, records(kept))
    runs = OffsetRuns((offset, offset + 1) for offset in left)
    for start in range(0, len(HISTORY), 2):
        proof.note_main(main_rows(HISTORY[start : start + 2]), {0: runs}, {0: 0}, {0: 6})
    return proof


def lost(proof: CompactionProof) -> dict[int, list[tuple[int, int]]]:
    return {partition: list(runs.runs()) for partition, runs in proof.lost().items()}


def test_latest_records_are_there_and_a_tombstone_may_be_gone() -> None:
    assert lost(prove([2, 3, 4])) == {}
    assert lost(prove([2, 3])) == {}
    assert lost(prove([0, 1, 2, 3, 4, 5])) == {}


def test_latest_record_that_is_gone_is_lost() -> None:
    assert lost(prove([2, 4])) == {0: [(3, 4)]}
    assert lost(prove([0, 3, 4])) == {0: [(2, 3)]}
    assert lost(prove([])) == {0: [(2, 4)]}


def test_keys_that_are_twice_in_the_clean_part_are_counted() -> None:
    proof = CompactionProof(CompactionState("t", {0: StreamCompaction(3)}))
    assert proof.note_log(0, records([(0, A, b"1"), (1, B, b"1")])) == 0
    assert proof.note_log(0, records([(2, A, b"2"), (3, B, b"2")])) == 1, "offset 3 is dirty"


def test_more_keys_than_fit_are_not_proved() -> None:
    assert prove([2, 3]).is_whole
    proof = CompactionProof(CompactionState("t"), map_bytes=10)
    proof.note_log(0, records([(0, A, b"1")]))
    proof.note_log(0, records([(1, B, b"1")]))
    assert not proof.is_whole
