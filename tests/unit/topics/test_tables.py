"""What a topic's configuration says about its table."""

import pytest

from headrace.tables.format import Bucket, Partitioning
from headrace.topics.configs import TopicDefaults, check_configs, edited_list, effective
from headrace.topics.problems import InvalidTopicConfig
from headrace.topics.tables import TableRules, table_rules_of

BY = "headrace.table.partition.by"


def test_table_is_there_by_default_a_minute_behind_and_outlives_its_topic() -> None:
    assert table_rules_of({}) == TableRules(
        enable=True,
        target_lag_ms=60_000,
        partitioning=Partitioning(bucket=Bucket.DAY, by_partition=False),
        delete_with_topic=False,
    )


def test_rules_follow_the_overrides() -> None:
    overrides = {
        "headrace.table.enable": " FALSE ",
        "headrace.table.target.lag.ms": "5000",
        BY: "hour(append_time),partition",
        "headrace.table.delete.with.topic": "true",
    }
    check_configs(overrides)
    assert table_rules_of(overrides) == TableRules(
        enable=False,
        target_lag_ms=5_000,
        partitioning=Partitioning(bucket=Bucket.HOUR, by_partition=True),
        delete_with_topic=True,
    )


def test_what_is_stored_and_not_understood_counts_as_not_set() -> None:
    stored = {
        "headrace.table.enable": "perhaps",
        "headrace.table.target.lag.ms": "1",
        BY: "bucket(16, key)",
        "headrace.table.delete.with.topic": "",
    }
    assert table_rules_of(stored) == table_rules_of({})


def test_only_partition_means_no_time() -> None:
    assert table_rules_of({BY: "partition"}).partitioning == Partitioning(bucket=Bucket.NONE, by_partition=True)


def test_refusal_tells_why_files_cannot_be_kept_apart_by_a_producers_time() -> None:
    with pytest.raises(InvalidTopicConfig, match="contiguous range of offsets"):
        check_configs({BY: "day(timestamp)"})


def test_partitioning_has_one_spelling_and_can_be_edited_as_a_list() -> None:
    shown = {one.name: one.value for one in effective({BY: " partition ,day(append_time)"}, TopicDefaults())}
    assert shown[BY] == "day(append_time),partition"
    assert edited_list(BY, {}, "partition", is_append=True) == "day(append_time),partition"
