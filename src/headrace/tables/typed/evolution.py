"""How the struct `data` grows when a topic's schema changes: what is added, widened, made nullable, and refused.

    a new field                      added, nullable: rows that are there have none
    int → long, float → double       widened; so is a decimal of more digits and the same scale
    required → optional              made nullable, and never required again; schemas ask for nothing required
    a field that the schema lacks    stays, nullable: it is null in new rows
    a type narrower than the table's the table's stays: every value fits
    anything else                    refused: files that are there could not be read any more

Must stay true: what a table has held under a name, it can hold for ever. `evolved` is the only judge of that, for
the configuration of topics and for every catalog alike.
"""

from collections.abc import Mapping

from headrace.tables.typed.model import DATA, FieldType, TypedField, TypeKind

_WIDER: Mapping[TypeKind, TypeKind] = {TypeKind.INT: TypeKind.LONG, TypeKind.FLOAT: TypeKind.DOUBLE}


class SchemaConflict(ValueError):
    """A schema and a table that cannot have the same column; the sentence names the field and both types."""


def evolved(table: FieldType | None, wanted: FieldType, name: str = DATA) -> FieldType:
    """Return the type that holds all that a table has and all that a schema wants. Raises `SchemaConflict`."""
    if table is None:
        return wanted
    if table.kind is TypeKind.DECIMAL and wanted.kind is TypeKind.DECIMAL and table.scale == wanted.scale:
        return max(table, wanted, key=lambda found: found.precision)
    if _WIDER.get(table.kind) is wanted.kind or _WIDER.get(wanted.kind) is table.kind:
        return wanted if _WIDER.get(table.kind) is wanted.kind else table
    if table.kind is not wanted.kind or (table.precision, table.scale, table.length) != (
        wanted.precision,
        wanted.scale,
        wanted.length,
    ):
        raise SchemaConflict(f"{name} is {table} and would become {wanted}")
    if table.kind is TypeKind.MAP and table.fields[0].type != wanted.fields[0].type:
        raise SchemaConflict(
            f"the keys of {name} are {table.fields[0].type} and would become {wanted.fields[0].type}"
        )
    return FieldType(table.kind, _fields(table, wanted, name), table.precision, table.scale, table.length)


def _fields(table: FieldType, wanted: FieldType, name: str) -> tuple[TypedField, ...]:
    """Return the table's fields, each as both can have it, and behind them the new ones."""
    known = {field.name.lower(): field for field in table.fields}
    asked = {field.name.lower(): field for field in wanted.fields}
    kept = []
    for field in table.fields:
        other = asked.get(field.name.lower())
        if other is None:
            kept.append(TypedField(field.name, field.type, False))
            continue
        inner = f"{name}.{field.name}"
        if other.name != field.name:
            raise SchemaConflict(f"{inner} would become {other.name}, and to engines that ignore case they are one")
        kept.append(TypedField(field.name, evolved(field.type, other.type, inner), field.required and other.required))
    added = [_all_new(field) for field in wanted.fields if field.name.lower() not in known]
    return (*kept, *added)


def _all_new(field: TypedField) -> TypedField:
    return TypedField(field.name, field.type, False)
