"""What a topic's configuration says about its table: whether there is one, how fresh, how its files are kept apart.

Must stay true: `table_rules_of` answers for whatever is stored; a value that this release does not understand counts
as not set.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.tables.format import Partitioning
from headrace.tables.typed.schemas import SchemaSource
from headrace.topics.config_kinds import Flag
from headrace.topics.config_table import (
    FOLLOW,
    TABLE_DELETE_WITH_TOPIC,
    TABLE_ENABLE,
    TABLE_PARTITION_BY,
    TABLE_RETENTION,
    TABLE_TARGET_LAG_MS,
    TOPIC_CONFIGS,
)
from headrace.topics.partition_by import PartitionBy
from headrace.topics.table_schema import schema_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """The table side of a topic's configuration, ready for use."""

    enable: bool
    target_lag_ms: int
    partitioning: Partitioning
    delete_with_topic: bool
    follows_log: bool = False
    """Whether rows go from `main` when the log forgets them."""
    schema: SchemaSource | None = None


def table_rules_of(overrides: Mapping[str, str]) -> TableRules:
    """Return what a topic's configuration demands of its table."""
    return TableRules(
        enable=Flag().parse(_understood(overrides, TABLE_ENABLE)),
        target_lag_ms=int(_understood(overrides, TABLE_TARGET_LAG_MS)),
        partitioning=PartitionBy().parse(_understood(overrides, TABLE_PARTITION_BY)),
        delete_with_topic=Flag().parse(_understood(overrides, TABLE_DELETE_WITH_TOPIC)),
        follows_log=_understood(overrides, TABLE_RETENTION) == FOLLOW,
        schema=schema_of(overrides),
    )


def _understood(overrides: Mapping[str, str], name: str) -> str:
    """Return a value in its one spelling, or the default where none is stored that this release understands."""
    config = TOPIC_CONFIGS[name]
    try:
        return config.kind.show(overrides.get(name, config.default))
    except ValueError:
        return config.default
