"""A topic's table in Iceberg's terms: schema, partition spec, properties; and whether a loaded one still is that.

Must stay true: what was made here is recognised here; ids are read from the loaded table, never assumed.
"""

from collections.abc import Mapping
from typing import Any, Final

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from headrace.tables import columns
from headrace.tables.columns import COLUMNS, Column, Kind
from headrace.tables.format import Bucket, Partitioning, TableFormat
from headrace.tables.iceberg.typed_columns import typed_data
from headrace.tables.port import ForeignTable

FORMAT_VERSION: Final = 2
TOPIC_ID = "headrace.topic-id"
TOPIC_NAME = "headrace.topic-name"
PARTITIONED_BY = "headrace.partitioned-by"
"""The layout that we gave the table last: so a spec that a person sets afterwards is left alone."""

DELETES_OLD_METADATA = "write.metadata.delete-after-commit.enabled"
PREVIOUS_METADATA_FILES = 20

_FIRST_PARTITION_FIELD_ID = 1000

_PROPERTIES: Mapping[str, str] = {
    "format-version": str(FORMAT_VERSION),
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    DELETES_OLD_METADATA: "true",
    "write.metadata.previous-versions-max": str(PREVIOUS_METADATA_FILES),
    # Whoever rewrites rows need not fail because we append in the meantime: our appends never touch theirs.
    "write.delete.isolation-level": "snapshot",
    "write.update.isolation-level": "snapshot",
    "write.merge.isolation-level": "snapshot",
    "write.parquet.compression-codec": "zstd",
}

_TYPES: Mapping[Kind, type[IcebergType]] = {
    Kind.INT: IntegerType,
    Kind.LONG: LongType,
    Kind.TIMESTAMPTZ: TimestamptzType,
    Kind.STRING: StringType,
    Kind.BINARY: BinaryType,
    Kind.STRUCT: StructType,
    Kind.LIST: ListType,
}

_TIME_TRANSFORMS: Mapping[Bucket, Transform[Any, Any]] = {Bucket.DAY: DayTransform(), Bucket.HOUR: HourTransform()}


def base_properties() -> dict[str, str]:
    """Return the properties that every table of ours is created with."""
    return dict(_PROPERTIES)


def table_properties(topic_uuid: str, topic_name: str, partitioning: Partitioning) -> dict[str, str]:
    """Return the properties that a table is created with."""
    return {
        **_PROPERTIES,
        TOPIC_ID: topic_uuid,
        TOPIC_NAME: topic_name,
        PARTITIONED_BY: partitioning_text(partitioning),
    }


def table_schema() -> Schema:
    """Return the schema to create a table with. The catalog numbers its fields anew."""
    ids = {column.name: number for number, column in enumerate(COLUMNS, start=1)}
    return Schema(*(_field(column, ids) for column in COLUMNS if "." not in column.name))


def _field(column: Column, ids: Mapping[str, int]) -> NestedField:
    return NestedField(
        field_id=ids[column.name],
        name=column.name.rpartition(".")[2],
        field_type=_type(column, ids),
        required=column.required,
        doc=column.doc or None,
    )


def _type(column: Column, ids: Mapping[str, int]) -> IcebergType:
    inner = [child for child in COLUMNS if child.name.rpartition(".")[0] == column.name]
    if column.kind is Kind.LIST:
        (element,) = inner
        return ListType(
            element_id=ids[element.name], element_type=_type(element, ids), element_required=element.required
        )
    if column.kind is Kind.STRUCT:
        return StructType(*(_field(child, ids) for child in inner))
    return _TYPES[column.kind]()


def partition_spec(
    partitioning: Partitioning, schema: Schema, *, known: Mapping[tuple[int, str], int], next_id: int, spec_id: int
) -> PartitionSpec:
    """Return the spec of a layout. `known` are the field ids that a (source, transform) had in earlier specs."""
    wanted: list[tuple[str, str, Transform[Any, Any]]] = []
    if partitioning.bucket is not Bucket.NONE:
        transform = _TIME_TRANSFORMS[partitioning.bucket]
        wanted.append((columns.APPEND_TIME, f"{columns.APPEND_TIME}_{partitioning.bucket}", transform))
    if partitioning.by_partition:
        wanted.append((columns.PARTITION, columns.PARTITION, IdentityTransform()))
    fields = []
    for column, name, transform in wanted:
        source_id = schema.find_field(column).field_id
        field_id = known.get((source_id, str(transform)))
        if field_id is None:
            field_id, next_id = next_id, next_id + 1
        fields.append(PartitionField(source_id=source_id, field_id=field_id, transform=transform, name=name))
    return PartitionSpec(*fields, spec_id=spec_id)


def first_spec(partitioning: Partitioning, schema: Schema) -> PartitionSpec:
    """Return the spec to create a table with."""
    return partition_spec(partitioning, schema, known={}, next_id=_FIRST_PARTITION_FIELD_ID, spec_id=0)


def next_spec(partitioning: Partitioning, metadata: TableMetadata) -> PartitionSpec:
    """Return the spec that a loaded table has none like yet."""
    known = {
        (field.source_id, str(field.transform)): field.field_id
        for spec in metadata.partition_specs
        for field in spec.fields
    }
    last_id = metadata.last_partition_id or _FIRST_PARTITION_FIELD_ID - 1
    return partition_spec(
        partitioning,
        metadata.schema(),
        known=known,
        next_id=last_id + 1,
        spec_id=max(spec.spec_id for spec in metadata.partition_specs) + 1,
    )


def find_spec(partitioning: Partitioning, metadata: TableMetadata) -> PartitionSpec | None:
    """Return the table's newest spec of a layout, or `None`."""
    specs = sorted(metadata.partition_specs, key=lambda spec: spec.spec_id, reverse=True)
    return next((spec for spec in specs if partitioning_of(spec, metadata.schema()) == partitioning), None)


def partitioning_of(spec: PartitionSpec, schema: Schema) -> Partitioning | None:
    """Return the layout that a spec stands for, or `None` if it is none of ours."""
    append_time, partition = (schema.find_field(name).field_id for name in (columns.APPEND_TIME, columns.PARTITION))
    bucket, by_partition = Bucket.NONE, False
    for field in spec.fields:
        transform = field.transform
        if field.source_id == append_time and isinstance(transform, DayTransform) and bucket is Bucket.NONE:
            bucket = Bucket.DAY
        elif field.source_id == append_time and isinstance(transform, HourTransform) and bucket is Bucket.NONE:
            bucket = Bucket.HOUR
        elif field.source_id == partition and isinstance(transform, IdentityTransform):
            by_partition = True
        else:
            return None
    return Partitioning(bucket=bucket, by_partition=by_partition)


def partitioning_text(partitioning: Partitioning) -> str:
    """Return a layout as it stands in the table's property."""
    return f"{partitioning.bucket}+partition" if partitioning.by_partition else str(partitioning.bucket)


def table_format(metadata: TableMetadata, spec: PartitionSpec, partitioning: Partitioning) -> TableFormat:
    """Return what a task must know to write files of this table, with all typed columns that it has."""
    schema = metadata.schema()
    names = [name for field_id in schema.field_ids if (name := schema.find_column_name(field_id)) is not None]
    return TableFormat(
        field_ids={name: schema.find_field(name).field_id for name in names},
        schema_id=schema.schema_id,
        spec_id=spec.spec_id,
        partitioning=partitioning,
        data=typed_data(schema),
    )


def require_columns(metadata: TableMetadata, table: str) -> None:
    """Raise `ForeignTable` if a column of ours is gone or holds something else; further columns are nobody's harm."""
    if metadata.format_version != FORMAT_VERSION:
        raise ForeignTable(
            f"the table {table} has Iceberg's format version {metadata.format_version}; this release writes"
            f" {FORMAT_VERSION} only: rename the table, and the topic begins a new one"
        )
    schema = metadata.schema()
    for column in COLUMNS:
        try:
            found = schema.find_field(column.name)
        except ValueError:
            raise ForeignTable(
                f"the table {table} has no column {column.name} any more: add it again, or rename the table, and the"
                " topic begins a new one"
            ) from None
        if not isinstance(found.field_type, _TYPES[column.kind]):
            raise ForeignTable(
                f"the column {column.name} of the table {table} is {found.field_type} and was {column.kind}: rename"
                " the table, and the topic begins a new one"
            )
    _require_nothing_else(schema, table)


def _require_nothing_else(schema: Schema, table: str) -> None:
    ours = {column.name for column in COLUMNS}
    for field_id in schema.field_ids:
        name = schema.find_column_name(field_id)
        if name is not None and name not in ours and schema.find_field(name).required and "." not in name:
            raise ForeignTable(
                f"the column {name} of the table {table} must have a value in each row, and a topic has none for it:"
                " make it optional"
            )
