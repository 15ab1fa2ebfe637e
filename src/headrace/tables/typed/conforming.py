"""Bring typed columns of an older file into the shape that the table's have now, as Iceberg reads them: by field ids.

Names do not tell. A field that somebody has renamed keeps its id and its values; one that was dropped and added again
has another id, and what files hold under the old one is gone for good.

Must stay true: rows come out in their order, null where they were null; a field that a file lacks is null.
"""

from typing import Any

import pyarrow as pa

from headrace.tables.typed.arrow import FIELD_ID


def conformed_field(found: Any, found_field: Any, wanted: Any) -> Any:
    """Return an array of a file's field as one of the table's field; all of it is null if they are not the same."""
    if not _is_same(found_field, wanted):
        return pa.nulls(len(found), wanted.type)
    return _conformed(found, wanted.type)


def _is_same(found: Any, wanted: Any) -> bool:
    """Say whether a file's field is the table's. Every file of ours has ids; without one there is but the name."""
    number = (found.metadata or {}).get(FIELD_ID)
    if number is None:
        return bool(found.name == wanted.name)
    return bool(number == (wanted.metadata or {}).get(FIELD_ID))


def _conformed(found: Any, wanted: Any) -> Any:
    if found.type.equals(wanted, check_metadata=True):
        return found
    if pa.types.is_struct(wanted):
        return _struct(found, wanted)
    if pa.types.is_map(wanted):
        entries = pa.StructArray.from_arrays(
            [
                _conformed(found.keys, wanted.key_type),
                conformed_field(found.items, found.type.item_field, wanted.item_field),
            ],
            fields=[wanted.key_field, wanted.item_field],
        )
        return _nested(found, entries, wanted)
    if pa.types.is_list(wanted):
        return _nested(found, conformed_field(found.values, found.type.value_field, wanted.value_field), wanted)
    return found.cast(wanted)


def _struct(found: Any, wanted: Any) -> Any:
    known = [(found.type.field(place), place) for place in range(found.type.num_fields)]
    fields = [wanted.field(place) for place in range(wanted.num_fields)]
    arrays = []
    for field in fields:
        place = next((place for inner, place in known if _is_same(inner, field)), None)
        if place is None:
            arrays.append(pa.nulls(len(found), field.type))
        else:
            arrays.append(_conformed(found.field(place), field.type))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=found.is_null())


def _nested(found: Any, inner: Any, wanted: Any) -> Any:
    """Return a list or a map with other elements, as many of them in each row as before."""
    validity, offsets = found.buffers()[:2]
    return pa.Array.from_buffers(
        wanted, len(found), [validity, offsets], null_count=found.null_count, offset=found.offset, children=[inner]
    )
