"""`headrace.table.schema` and what belongs to it: the schema that a topic's typed columns follow.

The text of the schema itself is the config. A path would mean nothing to brokers and executors on other hosts, so
files are read by whoever sets it (`headrace topic create --config headrace.table.schema=@FILE`).

Must stay true: a schema that was let through here can be used everywhere; one that a topic's table could not follow
is refused here already, as far as the schema before it tells.
"""

from collections.abc import Mapping

from headrace.tables.typed.evolution import SchemaConflict, evolved
from headrace.tables.typed.model import InvalidSchema
from headrace.tables.typed.schemas import Framing, SchemaSource, SchemaType, ready_schema
from headrace.topics.config_table import (
    TABLE_SCHEMA,
    TABLE_SCHEMA_FRAMING,
    TABLE_SCHEMA_MESSAGE,
    TABLE_SCHEMA_TYPE,
    TOPIC_CONFIGS,
)
from headrace.topics.problems import InvalidTopicConfig


def schema_of(overrides: Mapping[str, str]) -> SchemaSource | None:
    """Return the schema of a topic, unchecked, or `None` if it has none that this release understands."""
    text = overrides.get(TABLE_SCHEMA, "")
    if not text.strip():
        return None
    values = {}
    for name in (TABLE_SCHEMA_TYPE, TABLE_SCHEMA_MESSAGE, TABLE_SCHEMA_FRAMING):
        config = TOPIC_CONFIGS[name]
        try:
            values[name] = config.kind.show(overrides.get(name, config.default))
        except ValueError:
            return None
    return SchemaSource(
        text,
        SchemaType(values[TABLE_SCHEMA_TYPE]),
        values[TABLE_SCHEMA_MESSAGE],
        Framing(values[TABLE_SCHEMA_FRAMING]),
    )


def check_schema(overrides: Mapping[str, str]) -> None:
    """Raise `InvalidTopicConfig` if a topic has a schema that cannot be read or cannot become columns."""
    source = schema_of(overrides)
    if source is None:
        return
    try:
        ready_schema(source)
    except InvalidSchema as error:
        raise InvalidTopicConfig(f"{TABLE_SCHEMA} cannot be used as {source.type}: {error}") from error


def check_schema_change(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise `InvalidTopicConfig` if typed columns of the schema before cannot become those of the schema after."""
    old, new = schema_of(before), schema_of(after)
    if old is None or new is None or old == new:
        return
    try:
        known = ready_schema(old).struct
    except InvalidSchema:
        return
    try:
        evolved(known, ready_schema(new).struct)
    except SchemaConflict as error:
        raise InvalidTopicConfig(
            f"{TABLE_SCHEMA} cannot follow the one before it: {error}. Give the field another name; or, if no run has"
            " brought rows into the table yet, unset the config first and set it then"
        ) from error
