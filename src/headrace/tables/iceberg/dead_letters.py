"""Dead-letter tables in an Iceberg catalog: found, created, appended to once per run.

A table's property says up to which vector runs have listed their letters in it; it changes in the commit that adds
them, and whatever people do to the table's rows leaves it as it is.

Must stay true: only a table with our topic's id, at our place, is written. A run's letters are added at most once:
the commit asserts the snapshot that `main` stood on when the property was read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate, TableRequirement, TableUpdate
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from headrace.model.topics import TopicId
from headrace.runtime.rng import Rng
from headrace.tables.dead_letters import LETTER_SCHEMA
from headrace.tables.format import DeadLetterFormat
from headrace.tables.iceberg.commit import SAGA_ID, building
from headrace.tables.iceberg.layout import TOPIC_ID, TOPIC_NAME, base_properties
from headrace.tables.iceberg.locations import ObjectsRoot, dead_letter_prefix
from headrace.tables.iceberg.manifests import data_file
from headrace.tables.iceberg.snapshots import Change, SnapshotBuilder, stands_on
from headrace.tables.port import DeadLetterAppend, ForeignTable

LISTED_ENDS: Final = "headrace.dead-letters.ends"
"""JSON object, partition → end offset: the vector of the last run that added letters, and of all before it."""

_TYPES: Final[Mapping[str, type[IcebergType]]] = {
    "int32": IntegerType,
    "int64": LongType,
    "string": StringType,
    "binary": BinaryType,
    "timestamp[us, tz=UTC]": TimestamptzType,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLetters:
    """One commit to a dead-letter table, and the metadata files that lie ready for it."""

    updates: list[TableUpdate]
    requirements: list[TableRequirement]
    written: list[str]


def letter_schema() -> Schema:
    """Return the schema to create a dead-letter table with. The catalog numbers its fields anew."""
    return Schema(
        *(
            NestedField(
                field_id=number, name=field.name, field_type=_TYPES[str(field.type)](), required=not field.nullable
            )
            for number, field in enumerate(LETTER_SCHEMA, start=1)
        )
    )


def letter_properties(uuid: str, topic_name: str) -> dict[str, str]:
    """Return the properties that a dead-letter table is created with."""
    return {**base_properties(), TOPIC_ID: uuid, TOPIC_NAME: topic_name, LISTED_ENDS: "{}"}


def listed_ends(loaded: Table) -> dict[int, int]:
    """Return up to where runs have listed their letters. Raises `ForeignTable` if the table does not say."""
    try:
        return msgspec.json.decode(loaded.properties.get(LISTED_ENDS, ""), type=dict[int, int])
    except msgspec.MsgspecError as error:
        raise ForeignTable(
            f"the table {'.'.join(loaded.name())} has lost its property {LISTED_ENDS}, which keeps letters from being"
            f" listed twice: set it to a JSON object of end offsets, such as {{}}, or drop the table ({error})"
        ) from error


def letter_format(loaded: Table, topic_id: TopicId) -> DeadLetterFormat:
    """Return what a task must know to write dead letters. Raises `ForeignTable` if the table lacks a column."""
    schema = loaded.schema()
    known = {field.name: field for field in schema.fields}
    for field in LETTER_SCHEMA:
        found = known.get(field.name)
        if found is None or not isinstance(found.field_type, _TYPES[str(field.type)]):
            raise ForeignTable(
                f"the table {'.'.join(loaded.name())} has no column {field.name} of type {field.type} any more: drop"
                " the table, and the next run creates it anew"
            )
    specs = [spec for spec in loaded.metadata.partition_specs if spec.is_unpartitioned()]
    if not specs:
        raise ForeignTable(f"the table {'.'.join(loaded.name())} has no spec without partitions any more: drop it")
    return DeadLetterFormat(
        field_ids={field.name: known[field.name].field_id for field in LETTER_SCHEMA},
        spec_id=specs[0].spec_id,
        data_prefix=f"{dead_letter_prefix(topic_id)}data/",
    )


def prepare_letters(
    loaded: Table, append: DeadLetterAppend, *, root: ObjectsRoot, rng: Rng, now_ms: int
) -> PreparedLetters:
    """Write the manifests of a run's letters and return the commit that adds them and says so."""
    metadata = loaded.metadata
    main = metadata.refs.get(MAIN_BRANCH)
    main_id = None if main is None else main.snapshot_id
    files = [data_file(file, metadata, root) for file in append.files]
    change = Change(operation=Operation.APPEND, added=files, properties={SAGA_ID: append.saga_id})
    builder = SnapshotBuilder(loaded, rng=rng, now_ms=now_ms)
    with building(builder):
        builder.snapshot(main_id, [MAIN_BRANCH], change)
    ends = {**listed_ends(loaded), **append.ends}
    listed = msgspec.json.encode(dict(sorted(ends.items()))).decode()
    return PreparedLetters(
        updates=[*builder.updates, SetPropertiesUpdate(updates={LISTED_ENDS: listed})],
        requirements=[AssertTableUUID(uuid=metadata.table_uuid), stands_on(MAIN_BRANCH, main_id)],
        written=builder.written,
    )
