"""From acknowledgements and looks at a table to lags."""

import pytest

from benchmarks.table_lag import FAST, SLOW, full_plan, lag_rows, quick_plan
from benchmarks.table_lag.lags import RowsDiffer, Sighting, check, lags_ms
from benchmarks.table_lag.pacing import TICK_SECONDS, Ack, small_batch, stamped
from benchmarks.table_lag.stages import Lagged, Looks, Stream
from headrace.testing.batches import read_batches

MS = 1_000_000


def ack(partition: int, end_offset: int, acked_ms: int) -> Ack:
    return Ack(partition=partition, end_offset=end_offset, records=10, sent_ns=0, acked_ns=acked_ms * MS)


def sighting(seen_ms: int, **ends: int) -> Sighting:
    by_partition = {int(name.removeprefix("p")): end for name, end in ends.items()}
    return Sighting(seen_ns=seen_ms * MS, ends=by_partition, rows=sum(ends.values()))


def test_a_lag_reaches_from_the_acknowledgement_to_the_first_look_that_shows_the_whole_batch() -> None:
    acks = [ack(0, 10, 100), ack(0, 20, 200), ack(1, 10, 150)]
    looks = [sighting(50), sighting(300, p0=15), sighting(500, p0=20), sighting(900, p0=20, p1=10)]
    assert lags_ms(acks, looks) == [200.0, 300.0, 750.0]


def test_a_look_that_shows_a_row_before_its_acknowledgement_came_back_is_no_lag() -> None:
    assert lags_ms([ack(0, 10, 100)], [sighting(90, p0=10)]) == [0.0]


def test_a_record_that_never_shows_is_an_error() -> None:
    with pytest.raises(RowsDiffer, match="partition 0: offset 19 never came"):
        lags_ms([ack(0, 10, 1), ack(0, 20, 2)], [sighting(5, p0=19)])


def test_rows_on_main_must_be_as_many_as_the_offsets_say() -> None:
    check([sighting(1, p0=5, p1=6)])
    with pytest.raises(RowsDiffer, match="10 rows are on main"):
        check([Sighting(seen_ns=1, ends={0: 5, 1: 6}, rows=10)])


def test_looks_are_read_as_the_watcher_writes_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("looks") / "looks"
    first = '{"topic": "a", "seen_ns": 1, "ends": {"0": 5}, "rows": 5}\n'
    path.write_text("ready\n" + first + first[:20], encoding="utf-8")
    looks = Looks(path, ["a", "b"])
    assert looks.by_topic() == {"a": [Sighting(seen_ns=1, ends={0: 5}, rows=5)], "b": []}
    path.write_text("ready\n" + first + first, encoding="utf-8")
    assert len(looks.by_topic()["a"]) == 2


def test_a_pace_writes_as_many_records_as_it_promises() -> None:
    for pace in (SLOW, FAST):
        per_tick = pace.records_per_batch * pace.partitions_per_request
        assert per_tick / TICK_SECONDS == pytest.approx(pace.records_per_second, rel=0.02)


def test_a_stamped_batch_is_valid_and_of_now() -> None:
    data = stamped(small_batch(3))
    records = read_batches(memoryview(data))
    assert [record.offset for record in records] == [0, 1, 2]
    assert records[0].timestamp_ms > 1_700_000_000_000
    assert {len(record.value or b"") for record in records} == {100}


def test_the_full_plan_has_both_rates_and_both_targets() -> None:
    titles = {stream.title for streams, _ in full_plan().stages for stream in streams}
    assert titles == {
        f"{rate} records/s, target {target} s" for rate in ("1,000", "50,000") for target in ("5", "60")
    }
    assert all(seconds >= 120 for _, seconds in full_plan().stages)
    assert quick_plan().backlog_entries < full_plan().backlog_entries == 90_000


def test_lags_stand_beside_the_target() -> None:
    stream = Stream(pace=SLOW, target_lag_ms=5000)
    lagged = Lagged(stream=stream, lags_ms=[1000.0, 7000.0], latencies_ms=[1.0], records_per_second=10.0, commits=2)
    rows = {what: (value, target) for what, value, _, target in lag_rows(lagged)}
    assert rows["1,000 records/s, target 5 s: lag p50"] == (1.0, 5.0)
    assert rows["1,000 records/s, target 5 s: lag p99"] == (7.0, 10.0)
