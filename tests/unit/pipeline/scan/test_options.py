"""Options of a read: understood, or refused with what to say instead."""

from collections.abc import Mapping

import pytest

from headrace.errors import Invalid
from headrace.pipeline.scan.offsets import EARLIEST, LATEST
from headrace.pipeline.scan.options import COLUMNS, KNOWN, ScanOptions, columns_of, parse_options


def parsed(given: Mapping[str, str] | None = None, *, is_stream: bool = False) -> ScanOptions:
    return parse_options({"subscribe": "orders", **(given or {})}, is_stream=is_stream)


def test_a_batch_reads_everything_and_a_stream_what_comes() -> None:
    batch, stream = parsed(), parsed(is_stream=True)
    assert (batch.starting.edge, batch.ending.edge, stream.starting.edge) == (EARLIEST, LATEST, LATEST)
    assert batch.columns == COLUMNS[:-1]
    assert batch.fails_on_data_loss and batch.min_tasks == 1 and batch.max_records_per_task is None


def test_names_are_understood_in_any_case_as_spark_hands_them_over() -> None:
    given = {"SUBSCRIBE": "a, b,a", "includeheaders": "TRUE", "MinPartitions": "7", "failOnDataLoss": "false"}
    options = parse_options(given, is_stream=False)
    assert options.choice.names == ("a", "b")
    assert options.columns == COLUMNS
    assert (options.min_tasks, options.fails_on_data_loss) == (7, False)


def test_positions_come_from_times_before_offsets_as_in_kafkas_source() -> None:
    given = {
        "startingOffsets": '{"orders": {"0": 5, "1": -2}}',
        "startingOffsetsByTimestamp": '{"orders": {"0": 100}}',
        "startingTimestamp": "200",
        "endingOffsets": '{"orders": {"0": 9, "1": -1}}',
    }
    options = parsed(given)
    assert options.starting.time_of(("orders", 0)) == 200
    assert options.ending.offsets == {"orders": {0: 9, 1: -1}} and options.ending.time_of(("orders", 0)) is None
    del given["startingTimestamp"]
    assert parsed(given).starting.time_of(("orders", 0)) == 100


def test_storage_and_settings_are_passed_on() -> None:
    storage = parsed({"dataDir": "/data", "metadata": "sqlite:x", "headrace.objects.retry.max.attempts": "3"}).storage
    assert (storage.data_dir, storage.metadata, storage.objects) == ("/data", "sqlite:x", None)
    assert storage.settings == (("objects.retry.max.attempts", "3"),)


def test_assignments_name_partitions_that_are_there() -> None:
    choice = parse_options({"assign": '{"a": [2, 0]}'}, is_stream=False).choice
    assert choice.takes("a") and not choice.takes("b")
    assert choice.partitions_of("a", 3) == (0, 2)
    with pytest.raises(Invalid, match="has 2 partitions"):
        choice.partitions_of("a", 2)


def test_a_pattern_matches_whole_names() -> None:
    choice = parse_options({"subscribePattern": "or.*s"}, is_stream=False).choice
    assert choice.takes("orders") and not choice.takes("my-orders") and not choice.takes("orders2")


def test_columns_are_chosen_in_the_order_of_the_list() -> None:
    assert columns_of({"columns": "Offset, timestamptype"}) == ("offset", "timestampType")
    for wrong in ("offset,offset", "price", ","):
        with pytest.raises(Invalid, match="each once"):
            columns_of({"columns": wrong})
    with pytest.raises(Invalid, match="does not list headers"):
        columns_of({"columns": "key", "includeHeaders": "true"})
    with pytest.raises(Invalid, match="each once"):
        columns_of({"columns": "key,KEY"})


def test_limits_per_trigger_need_the_promise_that_triggers_come_again() -> None:
    with pytest.raises(Invalid, match="availableNow"):
        parsed({"maxOffsetsPerTrigger": "10"}, is_stream=True)
    with pytest.raises(Invalid, match="takes processingTime"):
        parsed({"maxOffsetsPerTrigger": "10", "trigger": "availableNow"}, is_stream=True)
    given = {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "10", "maxTriggerDelay": "2m"}
    limits = parsed({**given, "trigger": "processingTime"}, is_stream=True).trigger
    assert (limits.max_offsets, limits.min_offsets, limits.max_delay_ms) == (10, 5, 120_000)
    for text, delay_ms in (("250", 250), ("250ms", 250), ("3 s", 3_000), ("2min", 120_000), ("1h", 3_600_000)):
        limits = parsed({"maxTriggerDelay": text}, is_stream=True).trigger
        assert limits.max_delay_ms == delay_ms, f"{text} is what Spark's own source takes"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka.bootstrap.servers": "x:1"}, "storage is read directly"),
        ({"kafka.group.id": "g"}, "storage is read directly"),
        ({"groupIdPrefix": "g"}, "there is no consumer and no group"),
        ({"path": "/x"}, "without a path"),
        ({"subscribe_": "x"}, "there is no option subscribe_; there are subscribe, subscribePattern"),
        ({"assign": '{"a": [0]}'}, "say one of"),
        ({"subscribe": " ,"}, "names no topic"),
        ({"subscribe": ""}, "is empty"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "latest of a batch"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -1}}'}, "latest of a batch"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "-3 is no offset"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"x": 1}}'}, "takes JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": 1.5}}'}, "takes JSON"),
        ({"subscribe": "a", "startingOffsets": "{}"}, "takes JSON"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "takes JSON"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "cannot be the earliest"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "whole number"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"}, "error or latest"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"subscribe": "a", "minPartitions": "0"}, "from 1 to"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "1"}, "a batch has no triggers"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        parse_options({"subscribe": "orders", **given} if "assign" in given else given, is_stream=False)


def test_a_broken_pattern_is_refused() -> None:
    with pytest.raises(Invalid, match="no regular expression"):
        parse_options({"subscribePattern": "("}, is_stream=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(Invalid, match="a stream has no end"):
        parsed({"endingOffsets": "latest"}, is_stream=True)


def test_every_option_of_sparks_kafka_source_is_known_by_name() -> None:
    sparks = {"subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp"}
    sparks |= {"endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss"}
    sparks |= {"startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"}
    sparks |= {"maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "includeHeaders"}
    assert sparks <= set(KNOWN)
