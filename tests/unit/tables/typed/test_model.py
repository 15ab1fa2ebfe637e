"""The neutral description: names of nested fields, and what no engine could have as columns."""

import pytest

from headrace.tables.typed.model import (
    MAX_DEPTH,
    MAX_FIELDS,
    FieldType,
    InvalidSchema,
    TypedField,
    TypeKind,
    check_struct,
    list_of,
    map_of,
    nullable,
    plain,
    walk,
)

LONG = plain(TypeKind.LONG)


def _struct(*fields: TypedField) -> FieldType:
    return FieldType(TypeKind.STRUCT, fields)


def test_full_names_are_those_of_iceberg() -> None:
    inner = _struct(TypedField("x", LONG))
    struct = _struct(
        TypedField("places", list_of(inner, required=True)),
        TypedField("by_name", map_of(plain(TypeKind.STRING), inner, required=True)),
    )
    check_struct(struct)
    assert [name for name, _ in walk(struct)] == [
        *("data", "data.places", "data.places.element", "data.places.element.x"),
        *("data.by_name", "data.by_name.key", "data.by_name.value", "data.by_name.value.x"),
    ]


def test_everything_may_be_null_but_the_keys_of_maps() -> None:
    struct = _struct(
        TypedField("a", LONG, required=True), TypedField("m", map_of(LONG, LONG, required=True), required=True)
    )
    relaxed = nullable(struct)
    assert [field.required for field in relaxed.fields] == [False, False]
    assert [field.required for field in relaxed.fields[1].type.fields] == [True, False]


def _deep(levels: int) -> FieldType:
    found = LONG
    for _ in range(levels):
        found = _struct(TypedField("x", found))
    return found


@pytest.mark.parametrize(
    ("struct", "problem"),
    [
        (LONG, "no fields"),
        (_struct(), "no fields"),
        (_struct(TypedField("a", _struct())), "data.a has no fields"),
        (_struct(TypedField("a", LONG), TypedField("A", LONG)), "ignore case"),
        (_struct(TypedField("a.b", LONG)), "cannot be a column's name"),
        (_struct(TypedField("", LONG)), "cannot be a column's name"),
        (_struct(TypedField("a\n", LONG)), "cannot be a column's name"),
        (_struct(TypedField("d", FieldType(TypeKind.DECIMAL, precision=39))), "38 digits"),
        (_struct(TypedField("f", FieldType(TypeKind.FIXED))), "1 to 65536"),
        (_struct(*(TypedField(f"f{n}", LONG) for n in range(MAX_FIELDS + 1))), "more than 1000 fields"),
        (_deep(MAX_DEPTH + 1), "deeper than 20"),
    ],
)
def test_what_cannot_be_columns_is_refused(struct: FieldType, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        check_struct(struct)
