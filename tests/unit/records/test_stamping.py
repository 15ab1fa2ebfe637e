"""The broker's own fields are written in place, and readers of other makes agree."""

from aiokafka.record.default_records import DefaultRecordBatch

from headrace.records.batch import BatchView
from headrace.records.columns import ColumnBuilder
from headrace.records.stamping import stamp_append_time, stamp_max_timestamp, stamp_offset

from .making import Batch, record


def test_offset_and_epoch_leave_the_crc_valid() -> None:
    data = Batch().build()
    before = BatchView(data)
    stamp_offset(data, base_offset=2**40, leader_epoch=-1)
    after = BatchView(data)
    after.check_produced()
    assert (after.base_offset, after.leader_epoch, after.crc) == (2**40, -1, before.crc)


def test_append_time_overrules_the_records_own_times() -> None:
    body = record(0, 0) + record(1, 50)
    data = Batch(body=body, record_count=2, last_offset_delta=1, max_timestamp_ms=1050).build()
    stamp_append_time(data, append_time_ms=777)
    view = BatchView(data)
    view.check()
    assert view.is_log_append_time
    assert (view.base_timestamp_ms, view.max_timestamp_ms) == (1000, 777)
    builder = ColumnBuilder()
    builder.append(view)
    assert list(builder.columns().timestamp_ms) == [777, 777]
    assert [read.timestamp for read in DefaultRecordBatch(bytes(data))] == [777, 777]


def test_max_timestamp_can_be_corrected() -> None:
    data = Batch(max_timestamp_ms=3).build()
    stamp_max_timestamp(data, max_timestamp_ms=1000)
    view = BatchView(data)
    view.check_produced()
    assert view.max_timestamp_ms == 1000
