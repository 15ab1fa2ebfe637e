"""The load that both sides get, how tables are compared, and how the figures are shown."""

import math

import pytest

from benchmarks.tables_beside_spark.digests import Digest, RowsDiffer, TableLook, check, check_same
from benchmarks.tables_beside_spark.load import KEY_BYTES, Load, make_pool, stamp
from benchmarks.tables_beside_spark.plan import full_plan, quick_plan
from benchmarks.tables_beside_spark.show import CPU_AIM, RATE_AIM, Outcome, profile_line, rows_of
from benchmarks.tables_beside_spark.sides import Turn
from benchmarks.tables_beside_spark.task_profile import ZSTD
from headrace.records.batch import BatchView
from headrace.testing.batches import read_batches


def digest(rows: int, **changes: int) -> Digest:
    fields = {
        "rows": rows,
        "first_offset": 0,
        "last_offset": rows - 1,
        "offsets": rows,
        "value_bytes": rows * 100,
        "key_sum": 1,
        "value_sum": 2,
        "header_sum": 3,
    }
    return Digest(**{**fields, **changes})


def look(**partitions: Digest) -> TableLook:
    by_partition = {int(name.removeprefix("p")): found for name, found in partitions.items()}
    return TableLook(files=1, file_bytes=1, partitions=by_partition)


def turn(*, rows: int, seconds: float, cpu_seconds: float) -> Turn:
    return Turn(
        rows=rows,
        content_bytes=rows * 100,
        seconds=seconds,
        spark_cpu_seconds=cpu_seconds - 1,
        broker_cpu_seconds=1,
        files=1,
        file_bytes=1,
    )


def test_a_pool_s_batches_are_valid_when_stamped_and_every_partition_gets_all_of_them() -> None:
    pool = make_pool(20_000, partitions=6)
    assert math.gcd(len(pool), 6) == 1
    data = stamp(pool[0], now_ms=1_700_000_000_000, producer_id=7, epoch=2, sequence=40)
    view = BatchView(memoryview(data))
    view.check()
    assert (view.producer_id, view.producer_epoch, view.base_sequence) == (7, 2, 40)
    records = read_batches(memoryview(data))
    assert len(records) == pool[0].records
    assert {len(record.value or b"") for record in records} == {20_000}
    assert {len(record.key or b"") for record in records} == {KEY_BYTES}
    assert [key for key, _ in records[0].headers] == [b"trace", b"source"]
    assert records[0].timestamp_ms == 1_700_000_000_000


def test_content_counts_keys_values_and_headers() -> None:
    assert Load(record_bytes=100, records=10, partitions=1).content_bytes == 10 * (100 + 16 + 5 + 16 + 6 + 10)


def test_a_table_that_lacks_or_doubles_rows_is_refused() -> None:
    check(look(p0=digest(5), p1=digest(7)), {0: 5, 1: 7}, record_bytes=100, where="x")
    for wrong in (digest(4), digest(5, offsets=4), digest(5, first_offset=1), digest(5, value_bytes=499)):
        with pytest.raises(RowsDiffer, match="x: partition 0"):
            check(look(p0=wrong), {0: 5}, record_bytes=100, where="x")
    with pytest.raises(RowsDiffer, match="partition 1 got 7"):
        check(look(p0=digest(5)), {0: 5, 1: 7}, record_bytes=100, where="x")


def test_two_tables_with_other_values_are_refused() -> None:
    check_same(look(p0=digest(5)), look(p0=digest(5)))
    with pytest.raises(RowsDiffer, match="the tables differ"):
        check_same(look(p0=digest(5)), look(p0=digest(5, header_sum=9)))


def test_ratios_are_medians_of_rounds_and_stand_beside_their_aims() -> None:
    rounds = [
        (turn(rows=1000, seconds=1, cpu_seconds=2), turn(rows=1000, seconds=5, cpu_seconds=14)),
        (turn(rows=1000, seconds=1, cpu_seconds=2), turn(rows=1000, seconds=3, cpu_seconds=10)),
        (turn(rows=1000, seconds=1, cpu_seconds=2), turn(rows=1000, seconds=9, cpu_seconds=30)),
    ]
    outcome = Outcome(title="t", rounds=rounds, task_seconds={}, load_average=1.0)
    assert (outcome.rate_ratio, outcome.cpu_ratio) == (5.0, 7.0)
    rows = {what: (value, unit, target) for what, value, unit, target in rows_of([outcome])}
    assert rows["t: rows per second, times better"] == (5.0, "x", RATE_AIM)
    assert rows["t: rows per CPU second, times better"] == (7.0, "x", CPU_AIM)
    assert rows["t: Headrace, rows"] == (1000.0, "/s", None)
    assert rows["t: Structured Streaming, CPU"][0] == pytest.approx(14 / 100_000 * 1e9)


def test_zstd_is_shown_as_a_share_of_the_whole_and_not_counted_twice() -> None:
    line = profile_line({"read": 1.0, "Parquet": 3.0, ZSTD: 2.0})
    assert line == "Parquet 75%, zstd (in Parquet) 50%, read 25%"


def test_both_plans_have_the_same_cells() -> None:
    assert [cell.title for cell in full_plan()] == ["100 B values", "1 KiB values"]
    assert [cell.title for cell in quick_plan()] == [cell.title for cell in full_plan()]
