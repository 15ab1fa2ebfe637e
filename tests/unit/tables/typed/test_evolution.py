"""What a table's fields become when the schema changes, and what is refused."""

import pytest

from headrace.tables.typed.evolution import SchemaConflict, evolved
from headrace.tables.typed.model import FieldType, TypedField, TypeKind, list_of, map_of, plain

INT, LONG, FLOAT, DOUBLE, STRING = (
    plain(kind) for kind in (TypeKind.INT, TypeKind.LONG, TypeKind.FLOAT, TypeKind.DOUBLE, TypeKind.STRING)
)


def _struct(**fields: FieldType) -> FieldType:
    return FieldType(TypeKind.STRUCT, tuple(TypedField(name, found) for name, found in fields.items()))


def _decimal(precision: int, scale: int = 2) -> FieldType:
    return FieldType(TypeKind.DECIMAL, precision=precision, scale=scale)


@pytest.mark.parametrize(
    ("table", "wanted", "then"),
    [
        (INT, LONG, LONG),
        (LONG, INT, LONG),
        (FLOAT, DOUBLE, DOUBLE),
        (DOUBLE, FLOAT, DOUBLE),
        (_decimal(9), _decimal(20), _decimal(20)),
        (_decimal(20), _decimal(9), _decimal(20)),
        (list_of(INT, required=False), list_of(LONG, required=False), list_of(LONG, required=False)),
        (
            map_of(STRING, _struct(a=INT), required=False),
            map_of(STRING, _struct(a=INT, b=STRING), required=False),
            map_of(STRING, _struct(a=INT, b=STRING), required=False),
        ),
    ],
)
def test_types_are_widened_wherever_they_stand(table: FieldType, wanted: FieldType, then: FieldType) -> None:
    assert evolved(_struct(f=table), _struct(f=wanted)) == _struct(f=then)


def test_fields_are_added_behind_and_none_goes() -> None:
    found = evolved(_struct(a=INT, gone=STRING), _struct(new=LONG, a=INT))
    assert [field.name for field in found.fields] == ["a", "gone", "new"]


def test_nothing_is_required_that_was_not_always() -> None:
    def required(*names: str) -> FieldType:
        return FieldType(TypeKind.STRUCT, tuple(TypedField(name, INT, required=True) for name in names))

    found = evolved(required("a", "gone"), required("a", "new"))
    assert {field.name: field.required for field in found.fields} == {"a": True, "gone": False, "new": False}
    found = evolved(required("a"), _struct(a=INT))
    assert not found.fields[0].required


@pytest.mark.parametrize(
    ("table", "wanted", "problem"),
    [
        (STRING, LONG, "data.f is string and would become long"),
        (LONG, DOUBLE, "data.f is long and would become double"),
        (INT, FLOAT, "data.f is int and would become float"),
        (_decimal(9, 2), _decimal(9, 3), r"decimal\(9, 2\) and would become decimal\(9, 3\)"),
        (FieldType(TypeKind.FIXED, length=2), FieldType(TypeKind.FIXED, length=3), r"fixed\[2\]"),
        (_struct(x=INT), list_of(INT, required=False), "data.f is struct and would become list"),
        (_struct(x=STRING), _struct(x=INT), "data.f.x is string"),
        (map_of(INT, INT, required=False), map_of(LONG, INT, required=False), "the keys of data.f are int"),
    ],
)
def test_what_files_that_are_there_rule_out_is_refused(table: FieldType, wanted: FieldType, problem: str) -> None:
    with pytest.raises(SchemaConflict, match=problem):
        evolved(_struct(f=table), _struct(f=wanted))


def test_a_name_in_another_case_is_refused() -> None:
    with pytest.raises(SchemaConflict, match="ignore case"):
        evolved(_struct(name=STRING), _struct(Name=STRING))


def test_a_table_without_typed_columns_takes_all_of_them() -> None:
    assert evolved(None, _struct(a=INT)) == _struct(a=INT)
