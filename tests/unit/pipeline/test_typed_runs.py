"""Runs of topics with a schema: `data` beside the raw columns, dead letters once, evolution between runs."""

import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import TimeType

from headrace.errors import Invalid
from headrace.metadata.keys import prefix_range
from headrace.model.ids import ObjectKey
from headrace.pipeline.keeping import KeepLimits
from headrace.pipeline.merging import MergeLimits
from headrace.pipeline.records import TABLE_STATE, TIDY_RECORD
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.runtime.crash_points import CrashPoint
from headrace.testing.batches import make_batch
from tests.typed_kit import CONFIGS, FRAMING, ORDER_JSON, SCHEMA, encoded, orders
from tests.unit.pipeline.workshop import NOON_MS, TOPIC_ID, CutAt, PowerCut, Workshop

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg")


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Workshop]:
    made = Workshop(tmp_path)
    await made.begin(partitions=2, **CONFIGS["json"])
    yield made
    await made.close()


def _catalog(shop: Workshop) -> SqlCatalog:
    where = shop.directory
    return SqlCatalog("headrace", uri=f"sqlite:///{where}/catalog.db", warehouse=f"file://{where}/objects")


def _rows(shop: Workshop, namespace: str = "topics") -> list[dict[str, Any]]:
    """Return all rows as a person with PyIceberg reads them, in the order of the log."""
    catalog = _catalog(shop)
    try:
        found = catalog.load_table((namespace, "orders")).scan().to_arrow()
        return found.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()  # type: ignore[no-any-return]
    finally:
        catalog.close()


def _data(shop: Workshop) -> list[dict[str, Any] | None]:
    return [row["data"] for row in _rows(shop)]


async def _put(shop: Workshop, values: Sequence[bytes], *, partition: int = 0) -> None:
    await shop.put(shop.topic.streams[partition], make_batch(values, at_ms=NOON_MS))


def _told(order: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was read of an order in the terms of `orders`."""
    micros = pa.scalar(data["at"], pa.timestamp("us", tz="UTC")).value
    return {**data, "attributes": dict(data["attributes"]), "at": micros, "tags": list(data["tags"])}


@pytest.mark.parametrize("language", sorted(CONFIGS))
async def test_values_become_columns_next_to_the_raw_ones(shop: Workshop, language: str) -> None:
    shop.configure(**CONFIGS[language])
    sent = orders(40)
    values = [encoded(order, language) for order in sent]
    await _put(shop, values)
    await shop.run()
    rows = _rows(shop)
    assert [row["value"] for row in rows] == values
    assert [_told(order, row["data"]) for order, row in zip(sent, rows, strict=True)] == sent
    assert (await shop.verify()).is_clean


async def test_a_value_that_does_not_fit_keeps_its_row_and_is_listed_with_a_reason(shop: Workshop) -> None:
    good = encoded(orders(1)[0], "json")
    bad = [b"no json", b'{"id": "x"}', b'{"id": 99999999999999999999}', b'{"id": 1, "at": "today"}', b"[" * 5000]
    await _put(shop, [good, *bad, good], partition=0)
    await _put(shop, [bad[0], good], partition=1)
    await shop.run()
    rows = _rows(shop)
    assert [(row["partition"], row["offset"]) for row in rows if row["data"] is None] == [
        (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0),
    ]  # fmt: skip
    assert [row["value"] for row in rows if row["partition"] == 0] == [good, *bad, good]
    letters = _rows(shop, "dead_letters")
    assert [(letter["partition"], letter["offset"]) for letter in letters] == [(0, n) for n in range(1, 6)] + [(1, 0)]
    assert [letter["value"] for letter in letters] == [*bad, bad[0]]
    assert all(letter["topic"] == "orders" and letter["append_time"] == rows[0]["append_time"] for letter in letters)
    reasons = [letter["reason"] for letter in letters]
    assert "not JSON" in reasons[0]
    assert reasons[1] == 'id: "x" is not of type "integer"'
    assert "too many bits" in reasons[2]
    assert "no date-time" in reasons[3]
    assert "nested too deep" in reasons[4]
    state = await shop.store.get(shop.keys.table(TOPIC_ID))
    assert state is not None
    assert TABLE_STATE.decode(state.value, state.key).dead_letters == 6
    assert (await shop.verify()).is_clean


async def test_a_tombstone_has_no_fields_and_is_no_dead_letter(shop: Workshop) -> None:
    records = [Record(offset=0, timestamp_ms=NOON_MS, key=b"k", value=None)]
    await shop.put(shop.topic.streams[0], bytes(BatchEncoder().encode(columns_of(records))))
    await shop.run()
    assert [(row["value"], row["data"]) for row in _rows(shop)] == [(None, None)]
    assert _rows(shop, "dead_letters") == []


async def test_a_topic_without_a_schema_has_neither_data_nor_dead_letters(shop: Workshop) -> None:
    shop.configure()
    await _put(shop, [b"anything"])
    await shop.run()
    assert "data" not in _rows(shop)[0]
    catalog = _catalog(shop)
    assert not catalog.table_exists(("dead_letters", "orders"))
    catalog.close()


@pytest.mark.parametrize(
    "point", [CrashPoint.SAGA_AFTER_IN_TABLE, CrashPoint.SAGA_AFTER_DEAD_LETTERS, CrashPoint.SWAP_AFTER_STEP]
)
async def test_dead_letters_are_listed_once_wherever_a_run_is_cut(shop: Workshop, point: CrashPoint) -> None:
    await _put(shop, [b"bad", encoded(orders(1)[0], "json")])
    with pytest.raises(PowerCut):
        await shop.run(crash_points=CutAt(point))
    await shop.run()
    assert [letter["value"] for letter in _rows(shop, "dead_letters")] == [b"bad"]
    await _put(shop, [b"worse"], partition=1)
    await shop.run()
    assert [letter["value"] for letter in _rows(shop, "dead_letters")] == [b"bad", b"worse"]
    assert (await shop.verify()).is_clean


async def test_the_files_of_dead_letters_are_kept_when_lost_attempts_are_tidied_away(shop: Workshop) -> None:
    await _put(shop, [b"bad"])
    await shop.run()
    found = await shop.store.range(prefix_range(shop.keys.tidy_prefix, limit=10))
    records = {item.key: TIDY_RECORD.decode(item.value, item.key) for item in found}
    (letters,) = [record for record in records.values() if "-dead-letters/data/" in record.prefix]
    assert len(records) == 2 and len(letters.kept) == 1
    info = await shop.objects.head(ObjectKey(letters.kept[0]))
    assert letters.kept[0].startswith(letters.prefix) and info.size_bytes > 0


async def test_fields_are_added_widened_and_made_nullable_between_runs(shop: Workshop) -> None:
    first = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "f", "type": "float"}, {"name": "gone", "type": "string"}],
    }
    second = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": ["null", "long"]},
            {"name": "f", "type": "double"},
            {"name": "added", "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}},
        ],
    }
    await _run_avro(shop, first, [{"a": 1, "f": 0.5, "gone": "g"}])
    await _run_avro(
        shop, second, [{"a": None, "f": 1e300, "added": {"x": 7}}, {"a": 2**40, "f": 1.0, "added": {"x": 8}}]
    )
    assert _data(shop) == [
        {"a": 1, "f": 0.5, "gone": "g", "added": None},
        {"a": None, "f": 1e300, "gone": None, "added": {"x": 7}},
        {"a": 2**40, "f": 1.0, "gone": None, "added": {"x": 8}},
    ]
    shop.configure()
    await _put(shop, [b"raw only"])
    await shop.run()
    assert _data(shop)[-1] is None
    assert (await shop.verify()).is_clean


async def _run_avro(shop: Workshop, schema: dict[str, Any], values: Sequence[dict[str, Any]]) -> None:
    shop.configure(**{SCHEMA: json.dumps(schema), f"{SCHEMA}.type": "avro"})
    parsed = fastavro.parse_schema(schema)
    encoded_values = []
    for value in values:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, value)
        encoded_values.append(target.getvalue())
    await _put(shop, encoded_values)
    await shop.run()


async def test_a_schema_that_the_table_cannot_follow_fails_the_run_and_changes_nothing(shop: Workshop) -> None:
    await _put(shop, [b'{"id": 1}'])
    await shop.run()
    changed = {**ORDER_JSON, "properties": {**ORDER_JSON["properties"], "id": {"type": "string"}}}
    shop.configure(**{SCHEMA: json.dumps(changed)})
    await _put(shop, [b'{"id": "one"}'])
    with pytest.raises(
        Invalid, match=r"data\.id is long and would become string.*give the field another name, or unset"
    ):
        await shop.run()
    assert len(_rows(shop)) == 1
    shop.configure(**CONFIGS["json"])
    await shop.run()
    assert [data and data["id"] for data in _data(shop)] == [1, None]
    assert [letter["offset"] for letter in _rows(shop, "dead_letters")] == [1]


async def test_confluent_framing_is_skipped(shop: Workshop) -> None:
    shop.configure(**CONFIGS["protobuf"], **{FRAMING: "confluent"})
    message = encoded(orders(2)[1], "protobuf")
    head = b"\x00\x00\x00\x00\x07"
    # Order is the second message of its file: one step, to 1, both zigzag-encoded.
    await _put(shop, [head + b"\x02\x02" + message, head + b"\x00" + message, message, head])
    await shop.run()
    assert [data and data["id"] for data in _data(shop)] == [1, None, None, None]


async def test_counts_of_nested_columns_are_what_the_file_holds(shop: Workshop) -> None:
    sent = orders(30)
    await _put(shop, [*(encoded(order, "json") for order in sent), b"bad"])
    await shop.run()
    catalog = _catalog(shop)
    table = catalog.load_table(("topics", "orders"))
    (task,) = table.scan().plan_files()
    schema, file = table.schema(), task.file
    ids = {name: schema.find_field(name).field_id for name in map(schema.find_column_name, schema.field_ids) if name}
    stored = pq.ParquetFile(file.file_path.removeprefix("file://"))
    sizes: dict[str, int] = {}
    for group in map(stored.metadata.row_group, range(stored.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            sizes[chunk.path_in_schema] = sizes.get(chunk.path_in_schema, 0) + chunk.total_compressed_size
    assert file.column_sizes[ids["data.offset.x"]] == sizes["data.offset.x"]
    assert file.column_sizes[ids["data.tags.element"]] == sizes["data.tags.list.element"]
    assert file.column_sizes[ids["data.attributes.key"]] == sizes["data.attributes.key_value.key"]
    assert sum(file.column_sizes.values()) == sum(sizes.values())
    assert (file.value_counts[ids["data.id"]], file.null_value_counts[ids["data.id"]]) == (31, 1)
    nameless = sum(order["name"] is None for order in sent) + 1
    assert file.null_value_counts[ids["data.name"]] == nameless
    assert file.null_value_counts[ids["data.offset.x"]] == sum(order["offset"] is None for order in sent) + 1
    assert file.value_counts[ids["data.tags.element"]] == sum(len(order["tags"]) for order in sent)
    assert file.value_counts[ids["data.attributes.value"]] == sum(len(order["attributes"]) for order in sent)
    assert table.scan(row_filter="data.name is null").to_arrow().num_rows == nameless
    catalog.close()


async def test_dead_letters_of_many_row_groups_lie_in_one_file(shop: Workshop) -> None:
    values = [b"x" * 1000 if n % 2 else b'{"id": %d}' % n for n in range(2000)]
    for start in range(0, 2000, 100):
        await _put(shop, values[start : start + 100])
    await shop.run()
    letters = _rows(shop, "dead_letters")
    assert [letter["offset"] for letter in letters] == list(range(1, 2000, 2))
    catalog = _catalog(shop)
    (task,) = catalog.load_table(("dead_letters", "orders")).scan().plan_files()
    assert pq.ParquetFile(task.file.file_path.removeprefix("file://")).metadata.num_row_groups > 5
    assert task.file.record_count == 1000
    catalog.close()
    assert pc.count_distinct(pa.array([letter["offset"] for letter in letters])).as_py() == 1000


async def test_a_merge_keeps_the_typed_columns_of_files_from_before_and_after_a_change(shop: Workshop) -> None:
    shop.configure()
    await _put(shop, [b"no schema yet"])
    await shop.run()
    narrow, wide = (
        {"type": "object", "properties": {"id": {"type": "integer"}, **more}}
        for more in ({}, {"x": {"type": "string"}})
    )
    for schema, value in ((narrow, b'{"id": 1}'), (wide, b'{"id": 2, "x": "y"}')):
        shop.configure(**{SCHEMA: json.dumps(schema)})
        await _put(shop, [value])
        await shop.run()
    before = _rows(shop)
    kept = await shop.keep(KeepLimits(merge=MergeLimits(file_target_bytes=1 << 20, min_files=3)))
    assert kept.merges == 1
    assert _rows(shop) == before
    assert _data(shop) == [None, {"id": 1, "x": None}, {"id": 2, "x": "y"}]
    assert (await shop.verify()).is_clean


MERGE_ALL = KeepLimits(merge=MergeLimits(file_target_bytes=1 << 20, min_files=3), quiet_expiry_ms=10**12)


async def _merge(shop: Workshop) -> None:
    """Merge all files into one."""
    kept = await shop.keep(MERGE_ALL)
    assert kept.merges == 1
    assert (await shop.verify()).is_clean


async def test_fields_of_every_age_are_merged_into_one_file(shop: Workshop) -> None:
    def schema(*fields: dict[str, Any]) -> dict[str, Any]:
        item = {"type": "record", "name": "Item", "fields": list(fields)}
        lists = {"name": "items", "type": {"type": "array", "items": ["null", item]}}
        maps = {"name": "named", "type": ["null", {"type": "map", "values": "Item"}]}
        return {"type": "record", "name": "R", "fields": [lists, maps]}

    small = schema({"name": "n", "type": "int"})
    large = schema({"name": "n", "type": "long"}, {"name": "s", "type": ["null", "string"]})
    await _run_avro(shop, small, [{"items": [{"n": 1}, None, {"n": 2}], "named": {"a": {"n": 3}}}])
    await _run_avro(shop, small, [{"items": [], "named": None}, {"items": [{"n": 4}], "named": {}}])
    await _run_avro(shop, large, [{"items": [{"n": 2**40, "s": "x"}], "named": {"b": {"n": 5, "s": None}}}])
    before = _data(shop)
    assert before[0] is not None and before[0]["items"] == [{"n": 1, "s": None}, None, {"n": 2, "s": None}]
    await _merge(shop)
    assert _data(shop) == before


async def test_a_merge_goes_by_the_ids_of_typed_fields_and_not_by_their_names(shop: Workshop) -> None:
    """What a person has renamed keeps its values, and what they have dropped does not come back with its name."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}],
    }
    await _run_avro(shop, schema, [{"a": 1, "b": "one"}])
    await _run_avro(shop, schema, [{"a": 2, "b": "two"}])
    catalog = _catalog(shop)
    with catalog.load_table(("topics", "orders")).update_schema() as change:
        change.rename_column("data.a", "renamed")
        change.delete_column("data.b")
    catalog.close()
    await _run_avro(shop, schema, [{"a": 3, "b": "three"}])  # Both are added anew.
    before = _data(shop)
    assert before == [
        {"renamed": 1, "a": None, "b": None},
        {"renamed": 2, "a": None, "b": None},
        {"renamed": None, "a": 3, "b": "three"},
    ]
    await _merge(shop)
    assert _data(shop) == before


async def test_typed_columns_that_a_person_gave_a_type_of_their_own_are_left_alone(shop: Workshop) -> None:
    """A merge that does not know the type would lose the whole column."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    for number in range(3):
        await _run_avro(shop, schema, [{"a": number}])
    catalog = _catalog(shop)
    with catalog.load_table(("topics", "orders")).update_schema() as change:
        change.add_column(("data", "of_day"), TimeType())
    catalog.close()
    shop.configure()
    assert (await shop.keep(MERGE_ALL)).merges == 0
    assert [data and data["a"] for data in _data(shop)] == [0, 1, 2]
