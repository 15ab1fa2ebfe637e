"""Rows land where they say, else where Kafka's Java clients put their keys, else anywhere; their order stays."""

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import Invalid
from headrace.pipeline.sink.columns import Rows
from headrace.pipeline.sink.placing import Placer, partitions_of_keys
from headrace.records.kernel import compiled_kernel, python_kernel
from tests.unit.pipeline.sink.sink_kit import plan_of

JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""What Kafka's own tests say of its hash."""


def rows_of(**columns: Any) -> Rows:
    return Rows(pa.table(columns), {name: name for name in columns}, now_ms=0)


def placed(placer: Placer, rows: Rows) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for one in placer.place(rows):
        found.setdefault(int(one.stream), []).extend(one.content.column("value").to_pylist())
    return found


@pytest.mark.parametrize("kernel", [python_kernel(), compiled_kernel()], ids=["python", "compiled"])
@pytest.mark.parametrize("partition_count", [1, 7, 1000, 2**31 - 1])
def test_keys_are_hashed_as_java_hashes_them(kernel: Any, partition_count: int) -> None:
    if kernel is None:
        pytest.skip("there is no compiled kernel")
    keys = pa.array([*JAVA_HASHES, None, b""], pa.binary())
    validity, offsets, data = (memoryview(buffer).cast("B") for buffer in keys.buffers())
    out = bytearray(4 * len(keys))
    assert kernel.place_keys(offsets, data, validity, partition_count, out) == (0, len(keys))
    wanted = [(java & 0x7FFFFFFF) % partition_count for java in JAVA_HASHES.values()]
    assert list(memoryview(out).cast("i"))[: len(wanted)] == wanted
    assert memoryview(out).cast("i")[len(wanted)] == -1


@pytest.mark.parametrize("kernel", [python_kernel(), compiled_kernel()], ids=["python", "compiled"])
def test_columns_that_lie_are_told_and_not_followed(kernel: Any) -> None:
    if kernel is None:
        pytest.skip("there is no compiled kernel")
    lying = memoryview(pa.array([0, 3, 900], pa.int32()).buffers()[1]).cast("B")[:12]
    code, row = kernel.place_keys(lying, b"abc", b"", 3, bytearray(8))
    assert code != 0 and row == 1
    code, row = kernel.place_keys(lying, b"abc", b"", 3, bytearray(16))
    assert code != 0 and row == 0
    with pytest.raises(ValueError, match="at least one"):
        kernel.place_keys(lying, b"abc", b"", 0, bytearray(4))


def test_slices_and_nulls_are_placed_alike() -> None:
    keys = pa.array([b"x", None, *JAVA_HASHES, None], pa.binary())
    whole = partitions_of_keys(keys, 5, anywhere=4).to_pylist()
    assert whole[1] == whole[-1] == 4
    assert partitions_of_keys(keys.slice(3, 4), 5, anywhere=4).to_pylist() == whole[3:7]
    assert partitions_of_keys(keys.slice(1), 5, anywhere=0).to_pylist() == [0, *whole[2:-1], 0]


def test_rows_of_one_key_stay_together_and_in_order() -> None:
    keys = [b"%d" % (number % 10) for number in range(300)]
    values = [b"%d" % number for number in range(300)]
    found = placed(Placer(plan_of(), first_partition=0), rows_of(key=keys, value=values))
    assert set(found) == {0, 1, 2}
    assert sorted(itertools.chain(*found.values())) == sorted(values)
    for run in found.values():
        assert [int(value) for value in run] == sorted(int(value) for value in run)


def test_a_partition_that_is_named_wins_and_one_that_is_null_is_chosen_by_key() -> None:
    by_key = placed(Placer(plan_of(), first_partition=0), rows_of(key=[b"abc"], value=[b"v"]))
    rows = rows_of(key=[b"abc", b"abc"], value=[b"named", b"by key"], partition=pa.array([2, None], pa.int32()))
    found = placed(Placer(plan_of(), first_partition=0), rows)
    assert b"named" in found[2]
    assert b"by key" in found[next(iter(by_key))]


def test_rows_that_may_go_anywhere_go_to_one_partition_after_another() -> None:
    placer = Placer(plan_of(), first_partition=1)
    found = [set(placed(placer, rows_of(value=[b"a", b"b"]))) for _ in range(4)]
    assert found == [{1}, {2}, {0}, {1}]


def test_rows_choose_their_topics() -> None:
    plan = plan_of(topic=None, names=("orders", "parcels"), partitions=2)
    rows = rows_of(topic=["parcels", "orders", "parcels"], value=[b"1", b"2", b"3"])
    assert placed(Placer(plan, first_partition=0), rows) == {2: [b"1", b"3"], 0: [b"2"]}


@pytest.mark.parametrize(
    ("topics", "partitions", "why"),
    [
        (["orders", None], [0, 0], "1 rows have no topic"),
        (["orders", "lost"], [0, 0], "'lost', which did not exist"),
        (["orders", "orders"], [0, 3], "partition 3 of orders, which has 3 partitions"),
        (["orders", "orders"], [-1, 0], "partition -1 of orders"),
    ],
)
def test_rows_that_name_what_is_not_there_are_refused(
    topics: Sequence[str | None], partitions: Sequence[int], why: str
) -> None:
    rows = rows_of(topic=list(topics), value=[b"1", b"2"], partition=pa.array(partitions, pa.int32()))
    with pytest.raises(Invalid, match=why):
        placed(Placer(plan_of(topic=None), first_partition=0), rows)
