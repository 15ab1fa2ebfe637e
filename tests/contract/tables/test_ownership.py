"""Whose a table is: made for a topic's UUID, renamed when the topic is made anew, never taken from anybody else."""

import uuid
from dataclasses import replace

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from headrace.errors import Invalid
from headrace.tables.format import Bucket, Partitioning
from headrace.tables.iceberg.locations import objects_root
from headrace.tables.names import NameStyle
from headrace.tables.port import ForeignTable, TableStale
from tests.contract.tables.kit import KEEP_ALL, Place, Runs, foreign_file, new_topic, written

FOREIGN_SCHEMA = Schema(NestedField(field_id=1, name="id", field_type=LongType(), required=False))


def create_foreign(place: Place, person: Catalog, name: str) -> Table:
    """Let a person make a table of their own."""
    location = f"{objects_root(place.objects_url).uri}/tables/{uuid.uuid4()}"
    return person.create_table(("topics", name), FOREIGN_SCHEMA, location=location)


async def test_the_table_is_made_once_for_its_topic(place: Place) -> None:
    topic = new_topic()
    catalog = place.open()
    assert await catalog.find(topic) is None
    info = await catalog.ensure(topic)
    assert info.identifier == ("topics", topic.topic_name)
    assert info.data_prefix.startswith("tables/")
    assert info.location.endswith(info.data_prefix.removesuffix("/data/"))
    assert info == await place.open().ensure(topic) == await place.open().find(topic)
    with place.loaded(info) as table:
        assert table.metadata.format_version == 2
        assert table.properties["headrace.topic-id"] in info.location
        assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
        assert {field.name for field in table.spec().fields} == {"append_time_day"}
        names = {name: table.schema().find_field(name).field_id for name in info.format.field_ids}
        assert names == info.format.field_ids
    assert {"offset", "headers.element.key", "raw"} <= set(info.format.field_ids)


async def test_a_topic_made_anew_gets_a_new_table_and_the_old_one_another_name(place: Place) -> None:
    old = new_topic()
    runs = await Runs.begin(place.open(), old)
    first = runs.plan("saga-1")
    await runs.do(first)
    new = replace(new_topic(), topic_name=old.topic_name)
    assert await runs.catalog.find(new) is None
    before = await runs.catalog.find(old)
    info = await runs.catalog.ensure(new)
    assert info.head is None
    assert info.location != runs.info.location
    retired = f"{old.topic_name}__{old.topic_id.hex()[:8]}"
    with place.person() as catalog:
        assert str(catalog.load_table(("topics", retired)).metadata.table_uuid) == runs.info.uuid
    # Whoever ends the old topic's last run, or cleans up after it, still finds its table, and drops that one.
    assert (await runs.do(first)).was_there
    found = await runs.catalog.find(old)
    assert before is not None
    assert found == replace(before, identifier=("topics", retired))
    assert await runs.catalog.data_files(old, ref="headrace_log") == runs.paths
    assert await runs.catalog.drop(old)
    assert await runs.catalog.find(old) is None
    assert await runs.catalog.find(new) == info


async def test_a_renamed_table_never_takes_a_name_that_is_taken(place: Place) -> None:
    old = new_topic()
    catalog = place.open()
    await catalog.ensure(old)
    with place.person() as person:
        create_foreign(place, person, f"{old.topic_name}__{old.topic_id.hex()[:8]}")
    await catalog.ensure(replace(new_topic(), topic_name=old.topic_name))
    with place.person() as person:
        assert person.table_exists(("topics", f"{old.topic_name}__{old.topic_id.hex()}"))


async def test_a_table_that_is_not_ours_is_never_touched(place: Place) -> None:
    topic = new_topic()
    donor = await Runs.begin(place.open(), new_topic())
    with place.person() as person:
        person.create_namespace_if_not_exists("topics")
        before = create_foreign(place, person, topic.topic_name).metadata_location
    catalog = place.open()
    with pytest.raises(ForeignTable, match="not made by Headrace"):
        await catalog.ensure(topic)
    with pytest.raises(ForeignTable):
        await catalog.find(topic)
    with pytest.raises(ForeignTable):
        await catalog.drop(topic)
    append = replace(donor.plan("saga-1"), table=topic)
    with pytest.raises(ForeignTable):
        await catalog.append(append, now_ms=1, expiry=KEEP_ALL)
    with place.person() as person:
        assert person.load_table(("topics", topic.topic_name)).metadata_location == before


async def test_a_table_of_another_cluster_is_foreign(local_place: Place) -> None:
    topic = new_topic()
    await local_place.open().ensure(topic)
    elsewhere = local_place.open(objects_url=local_place.objects_url + "-of-others")
    for wanted in (topic, replace(new_topic(), topic_name=topic.topic_name)):
        with pytest.raises(ForeignTable, match="object store"):
            await elsewhere.ensure(wanted)


async def test_further_columns_are_nobodys_harm_and_a_dropped_one_is_foreign(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    with place.loaded(runs.info) as table, table.update_schema() as update:
        update.add_column("note", StringType())
    runs.info = await runs.catalog.ensure(runs.table)
    await runs.do(runs.plan("saga-1"))
    assert "note" in runs.info.format.field_ids
    with place.loaded(runs.info) as table, table.update_schema() as update:
        update.delete_column("key")
    with pytest.raises(ForeignTable, match="no column key"):
        await runs.catalog.ensure(runs.table)
    with pytest.raises(ForeignTable):
        await runs.do(runs.plan("saga-2"))


async def test_a_changed_setting_lays_new_files_out_anew_and_old_ones_can_still_come(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    late = written(runs.info, "late")
    hourly = Partitioning(bucket=Bucket.HOUR, by_partition=True)
    runs.table = replace(runs.table, partitioning=hourly)
    runs.info = await runs.catalog.ensure(runs.table)
    assert runs.info.format.partitioning == hourly
    assert runs.info.format.spec_id != late.spec_id
    await runs.do(runs.plan("saga-1", files=[late, written(runs.info, "new", partition=0)]))
    assert await runs.named() == (sorted(runs.paths), sorted(runs.paths))
    with place.loaded(runs.info) as table:
        snapshot = table.metadata.snapshot_by_name("main")
        assert snapshot is not None
        assert {manifest.partition_spec_id for manifest in snapshot.manifests(table.io)} == {0, 1}
        assert [field.name for field in table.spec().fields] == ["append_time_hour", "partition"]
    back = replace(runs.table, partitioning=Partitioning())
    assert (await runs.catalog.ensure(back)).format.spec_id == late.spec_id


@pytest.mark.parametrize(
    "partitioning",
    [
        Partitioning(bucket=Bucket.NONE),
        Partitioning(bucket=Bucket.HOUR),
        Partitioning(bucket=Bucket.NONE, by_partition=True),
        Partitioning(bucket=Bucket.DAY, by_partition=True),
    ],
    ids=str,
)
async def test_every_layout_can_be_made_and_appended_to(place: Place, partitioning: Partitioning) -> None:
    runs = await Runs.begin(place.open(), new_topic(partitioning=partitioning))
    assert runs.info.format.partitioning == partitioning
    await runs.do(runs.plan("saga-1", partition=2))
    assert await runs.named() == (runs.paths, runs.paths)


async def test_a_spec_that_a_person_sets_is_left_alone(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    with place.loaded(runs.info) as table, table.update_spec() as update:
        update.add_identity("timestamp_type")
    runs.info = await runs.catalog.ensure(runs.table)
    assert runs.info.format.spec_id == 0
    await runs.do(runs.plan("saga-1"))
    with place.loaded(runs.info) as table:
        assert len(table.spec().fields) == 2


async def test_a_file_whose_partition_value_does_not_fit_is_refused(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    daily = await Runs.begin(place.open(), new_topic(partitioning=Partitioning(bucket=Bucket.NONE)))
    unfit = written(daily.info, "unfit")
    with pytest.raises(Invalid, match="does not fit"):
        await runs.do(runs.plan("saga-1", files=[unfit]))
    assert await runs.named() == ([], [])


async def test_a_dropped_table_is_gone(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    await runs.do(runs.plan("saga-1"))
    with place.loaded(runs.info) as table:
        metadata_file = table.io.new_input(table.metadata_location)
        assert await runs.catalog.drop(runs.table)
        # A REST server may take the table's metadata with it; ours does.
        assert metadata_file.exists() or place.warehouse is not None
    assert not await runs.catalog.drop(runs.table)
    assert await runs.catalog.find(runs.table) is None
    with pytest.raises(TableStale):
        await runs.do(runs.plan("saga-2"))


async def test_a_branch_that_somebody_else_wrote_is_not_believed(place: Place) -> None:
    runs = await Runs.begin(place.open(), new_topic())
    await runs.do(runs.plan("saga-1"))
    with (
        place.loaded(runs.info) as table,
        table.transaction() as transaction,
        transaction.update_snapshot(branch="headrace_log").fast_append() as update,
    ):
        update.append_data_file(foreign_file(table, "intruder"))
    with pytest.raises(ForeignTable, match="not written by Headrace"):
        await runs.do(runs.plan("saga-2"))


async def test_a_name_that_the_catalog_refuses_is_said_plainly_and_can_be_escaped(place: Place) -> None:
    topic = new_topic()
    topic = replace(topic, topic_name=f"Eu.{topic.topic_name}-V2_x")
    if place.warehouse is not None:
        with pytest.raises(Invalid, match="escaped"):
            await place.open().ensure(topic)
    else:
        assert (await place.open().ensure(topic)).identifier == ("topics", topic.topic_name)
    place.style = NameStyle.ESCAPED
    info = await place.open().ensure(topic)
    assert info.identifier[1].startswith("topic_e_ueu_d")


async def test_a_table_that_has_lost_every_spec_of_ours_is_foreign_until_a_run_adds_one(local_place: Place) -> None:
    """Spark's `expire_snapshots(clean_expired_metadata => true)` takes specs away that no file uses."""
    topic = new_topic()
    catalog = local_place.open()
    info = await catalog.ensure(topic)
    with local_place.person() as person:
        table = person.load_table(info.identifier)
        schema, properties = table.schema(), table.properties
        person.drop_table(info.identifier)
        spec = PartitionSpec(PartitionField(schema.find_field("key").field_id, 1000, IdentityTransform(), "key"))
        person.create_table(
            info.identifier, schema, location=info.location, partition_spec=spec, properties=properties
        )
    for look in (catalog.find, catalog.listing):
        with pytest.raises(ForeignTable, match="no partition spec of ours"):
            await look(topic)
    await catalog.ensure(topic)
    assert await catalog.find(topic) is not None
