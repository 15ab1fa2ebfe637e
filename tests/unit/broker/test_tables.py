"""Settings become a catalog: the embedded one by default, in the data directory."""

import io
from pathlib import Path

import pytest

from headrace.broker.storage import assemble_runtime
from headrace.broker.tables import expiry_rule, open_table_catalog
from headrace.errors import Invalid
from headrace.model.topics import TopicId
from headrace.settings import load_settings
from headrace.tables.format import Partitioning
from headrace.tables.port import TopicTable


async def test_the_embedded_catalog_lies_in_the_data_directory(tmp_path: Path) -> None:
    pairs = [f"data.dir={tmp_path}", "catalog.table.names=escaped", "table.snapshots.max.count=7"]
    settings = load_settings(pairs=pairs).tree
    runtime = assemble_runtime(settings, environment={}, log_to=io.StringIO())
    topic = TopicTable(topic_id=TopicId(bytes(16)), topic_name="eu.orders", partitioning=Partitioning())
    async with open_table_catalog(settings, runtime) as catalog:
        assert not (tmp_path / "catalog.db").exists(), "it is opened when it is first asked"
        info = await catalog.ensure(topic)
    assert info.identifier == ("topics", "eu_dorders")
    assert info.location == f"file://{tmp_path}/objects/tables/00000000-0000-0000-0000-000000000000"
    assert (tmp_path / "catalog.db").exists()
    assert expiry_rule(settings).max_snapshots == 7


async def test_a_catalog_of_no_kind_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"catalog\.url"):
        load_settings(pairs=["catalog.url=ftp://host"])
    settings = load_settings(pairs=[f"data.dir={tmp_path}", "catalog.url=sqlite:"]).tree
    runtime = assemble_runtime(settings, environment={}, log_to=io.StringIO())
    with pytest.raises(Invalid, match="name a file"):
        async with open_table_catalog(settings, runtime):
            pass
