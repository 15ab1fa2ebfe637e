"""Typed columns follow a topic's schema in every catalog, and dead letters are listed once in each."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from headrace.errors import Invalid
from headrace.tables.files import ColumnStats, WrittenFile
from headrace.tables.port import DeadLetterAppend, ForeignTable, TableInfo, TopicTable
from headrace.tables.typed.schemas import SchemaSource, SchemaType
from tests.contract.tables.kit import KEEP_ALL, Place, Runs, new_topic


def _schema(**properties: object) -> SchemaSource:
    return SchemaSource(json.dumps({"type": "object", "properties": properties}))


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
PLACE = {"type": "object", "properties": {"x": {"type": "number"}}}


def _typed_topic(source: SchemaSource) -> TopicTable:
    return replace(new_topic(), schema=source)


def _types(place: Place, info: TableInfo) -> dict[str, tuple[int, str]]:
    """Return the typed columns of a table: full name, id and type."""
    with place.loaded(info) as table:
        schema = table.schema()
        names = [name for field_id in schema.field_ids if (name := schema.find_column_name(field_id)) is not None]
        return {
            name: (schema.find_field(name).field_id, str(schema.find_type(name)))
            for name in names
            if name.startswith("data.")
        }


async def test_a_table_gets_typed_columns_with_ids_of_its_own(place: Place) -> None:
    table = _typed_topic(_schema(a=INTEGER, place=PLACE, tags={"type": "array", "items": STRING}))
    info = await place.open().ensure(table)
    types = _types(place, info)
    assert {name: kind for name, (_, kind) in types.items()} == {
        "data.a": "long",
        "data.place": types["data.place"][1],
        "data.place.x": "double",
        "data.tags": types["data.tags"][1],
        "data.tags.element": "string",
    }
    assert info.format.data is not None
    assert {name: found for name, (found, _) in types.items()}.items() <= info.format.field_ids.items()
    assert len(set(info.format.field_ids.values())) == len(info.format.field_ids)
    assert info.dead_letters is not None and info.dead_letters.data_prefix.endswith("-dead-letters/data/")


async def test_a_schema_that_did_not_change_makes_no_commit(place: Place) -> None:
    table = _typed_topic(_schema(a=INTEGER))
    catalog = place.open()
    await catalog.ensure(table)
    before = place.faults.commits
    await catalog.ensure(table)
    assert place.faults.commits == before


async def test_fields_are_added_and_stay_where_they_were(place: Place) -> None:
    runs = await Runs.begin(place.open(), _typed_topic(_schema(a=INTEGER, gone=STRING)))
    await runs.do(runs.plan("saga-1"))
    before = _types(place, runs.info)
    grown = replace(runs.table, schema=_schema(a=INTEGER, place=PLACE))
    info = await place.open().ensure(grown)
    after = _types(place, info)
    assert before.items() <= after.items()
    assert set(after) - set(before) == {"data.place", "data.place.x"}
    assert min(after[name][0] for name in set(after) - set(before)) > max(before[name][0] for name in before)
    runs.table, runs.info = grown, info
    await runs.do(runs.plan("saga-2"))
    assert len(runs.paths) == 2
    without = await place.open().ensure(replace(runs.table, schema=None))
    assert without.format.data == info.format.data and without.dead_letters is None


async def test_numbers_are_widened(place: Place) -> None:
    def record(kind: str, real: str, digits: int) -> SchemaSource:
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 2}
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": real}, {"name": "c", "type": decimal}]
        return SchemaSource(json.dumps({"type": "record", "name": "R", "fields": fields}), SchemaType.AVRO)

    table = _typed_topic(record("int", "float", 9))
    info = await place.open().ensure(table)
    ids = {name: found for name, (found, _) in _types(place, info).items()}
    info = await place.open().ensure(replace(table, schema=record("long", "double", 20)))
    types = _types(place, info)
    assert {name: kind for name, (_, kind) in types.items()} == {
        "data.a": "long",
        "data.b": "double",
        "data.c": "decimal(20, 2)",
    }
    assert {name: found for name, (found, _) in types.items()} == ids
    # A narrower schema leaves the table as it is: every value fits.
    info = await place.open().ensure(table)
    assert _types(place, info) == types


async def test_what_the_table_cannot_follow_is_refused_and_leaves_it_as_it_was(place: Place) -> None:
    table = _typed_topic(_schema(a=INTEGER))
    info = await place.open().ensure(table)
    before = _types(place, info)
    with pytest.raises(Invalid, match=r"data\.a is long and would become string"):
        await place.open().ensure(replace(table, schema=_schema(a=STRING, b=STRING)))
    assert _types(place, info) == before


async def test_a_column_of_that_name_that_is_not_ours_is_left_alone(place: Place) -> None:
    table = new_topic()
    info = await place.open().ensure(table)
    with place.loaded(info) as loaded, loaded.update_schema() as update:
        update.add_column("data", StringType())
    with pytest.raises(ForeignTable, match=r"rename it, or unset headrace\.table\.schema"):
        await place.open().ensure(replace(table, schema=_schema(a=INTEGER)))
    assert (await place.open().ensure(table)).format.data is None


def _letters(info: TableInfo, saga: str) -> WrittenFile:
    format_ = info.dead_letters
    assert format_ is not None
    return WrittenFile(
        path=f"{format_.data_prefix}{saga}/0.parquet",
        size_bytes=1000,
        footer_bytes=100,
        footer_crc=0,
        row_count=3,
        slices=(),
        columns=(ColumnStats(format_.field_ids["offset"], 80, 3, 0),),
        split_offsets=(4,),
        bucket=None,
        partition=None,
        spec_id=format_.spec_id,
    )


async def _list(place: Place, table: TopicTable, info: TableInfo, saga: str, ends: Mapping[int, int]) -> None:
    append = DeadLetterAppend(table=table, saga_id=saga, ends=ends, files=[_letters(info, saga)])
    await place.open().append_dead_letters(append, now_ms=1, expiry=KEEP_ALL)


def _listed(place: Place, info: TableInfo) -> list[str]:
    with place.person() as catalog:
        loaded = catalog.load_table(("dead_letters", info.identifier[1]))
        snapshot = loaded.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(loaded.io)
        files = [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(loaded.io)]
        return sorted(file.file_path.rsplit("/", 2)[1] for file in files)


async def test_dead_letters_of_a_run_are_listed_once_however_late_somebody_comes(place: Place) -> None:
    table = _typed_topic(_schema(a=INTEGER))
    info = await place.open().ensure(table)
    assert _listed(place, info) == []
    await _list(place, table, info, "saga-1", {0: 10})
    await _list(place, table, info, "saga-1", {0: 10})
    await _list(place, table, info, "saga-2", {1: 5})
    await _list(place, table, info, "saga-1", {0: 10})
    await _list(place, table, info, "saga-3", {0: 20, 1: 6})
    await _list(place, table, info, "saga-2", {1: 5})
    assert _listed(place, info) == ["saga-1", "saga-2", "saga-3"]


async def test_what_a_person_does_to_dead_letters_does_not_list_them_again(place: Place) -> None:
    table = _typed_topic(_schema(a=INTEGER))
    info = await place.open().ensure(table)
    await _list(place, table, info, "saga-1", {0: 10})
    with place.person() as catalog:
        loaded = catalog.load_table(("dead_letters", info.identifier[1]))
        loaded.delete()
    await _list(place, table, info, "saga-1", {0: 10})
    assert _listed(place, info) == []


async def test_dead_letters_go_with_the_table_and_leave_their_name_to_the_next_topic(local_place: Place) -> None:
    table = _typed_topic(_schema(a=INTEGER))
    info = await local_place.open().ensure(table)
    await _list(local_place, table, info, "saga-1", {0: 10})
    heir = replace(_typed_topic(_schema(a=INTEGER)), topic_name=table.topic_name)
    await local_place.open().ensure(heir)
    assert _listed(local_place, info) == []
    with local_place.person() as catalog:
        names = sorted(name for _, name in catalog.list_tables("dead_letters"))
    assert len(names) == 2 and names[0] == table.topic_name
    assert await local_place.open().drop(table)
    assert await local_place.open().drop(heir)
    with local_place.person() as catalog:
        assert catalog.list_tables("dead_letters") == []


async def test_a_foreign_table_in_the_place_of_dead_letters_is_never_written(local_place: Place) -> None:
    table = _typed_topic(_schema(a=INTEGER))
    with local_place.person() as catalog:
        catalog.create_namespace_if_not_exists("dead_letters")
        location = f"{local_place.objects_url}/elsewhere"
        schema = Schema(NestedField(1, "x", LongType(), required=False))
        catalog.create_table(("dead_letters", table.topic_name), schema, location=location)
    with pytest.raises(ForeignTable, match="its dead letters have no place"):
        await local_place.open().ensure(table)
