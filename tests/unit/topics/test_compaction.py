"""What a topic's configuration says about compaction, whatever is stored."""

from headrace.topics.compaction import CompactionRules, compaction_rules_of


def test_defaults_are_kafkas_and_nothing_is_compacted() -> None:
    assert compaction_rules_of({}) == CompactionRules(enable=False)


def test_every_config_is_understood() -> None:
    rules = compaction_rules_of(
        {
            "cleanup.policy": "delete, compact",
            "min.cleanable.dirty.ratio": "0.25",
            "min.compaction.lag.ms": "1",
            "max.compaction.lag.ms": "2",
            "delete.retention.ms": "3",
            "headrace.table.compaction": "latest",
        }
    )
    assert rules == CompactionRules(
        enable=True, dirty_ratio=0.25, min_lag_ms=1, max_lag_ms=2, delete_retention_ms=3, table_follows=True
    )


def test_value_of_another_release_counts_as_not_set() -> None:
    rules = compaction_rules_of({"cleanup.policy": "shred", "delete.retention.ms": "soon"})
    assert rules == CompactionRules(enable=False)
