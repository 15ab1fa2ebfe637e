"""What a topic's configuration says about compaction by key: whether, when, and what the table shows of it.

Must stay true: `compaction_rules_of` answers for whatever is stored; a value that this release does not understand
counts as not set.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.topics.config_kinds import elements_of
from headrace.topics.config_table import COMPACT, TABLE_COMPACTION, TABLE_LATEST, TOPIC_CONFIGS


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """The compaction side of a topic's configuration, ready for use, by Kafka's names.

    `table_follows` says that `main` shows the compacted log, and not all records that ever were.
    """

    enable: bool
    dirty_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = 86_400_000
    table_follows: bool = False


def compaction_rules_of(configs: Mapping[str, str]) -> CompactionRules:
    """Return what a topic's configuration demands of its compaction."""
    return CompactionRules(
        enable=COMPACT in elements_of(_understood(configs, "cleanup.policy")),
        dirty_ratio=float(_understood(configs, "min.cleanable.dirty.ratio")),
        min_lag_ms=int(_understood(configs, "min.compaction.lag.ms")),
        max_lag_ms=int(_understood(configs, "max.compaction.lag.ms")),
        delete_retention_ms=int(_understood(configs, "delete.retention.ms")),
        table_follows=_understood(configs, TABLE_COMPACTION) == TABLE_LATEST,
    )


def _understood(configs: Mapping[str, str], name: str) -> str:
    config = TOPIC_CONFIGS[name]
    try:
        return config.kind.show(configs.get(name, config.default))
    except ValueError:
        return config.default
