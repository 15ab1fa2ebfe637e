"""A session with Iceberg's own runtime sees the tables of the embedded catalog, fresh in every query."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headrace.pipeline.spark.sql import CatalogAccess, sql_session
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, end_gateway

pytestmark = [SOCKETS_ARE_COLLECTED]


def test_a_table_that_grows_is_seen_growing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    end_gateway()
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("topics")
    table = catalog.create_table("topics.orders", schema=pa.schema([("number", pa.int64())]))
    table.append(pa.table({"number": [1, 2, 3]}))
    access = CatalogAccess(url=f"sqlite:{tmp_path}/catalog.db", objects_url=f"file:{tmp_path}/objects")
    handle = sql_session(access)
    try:
        session = handle.session
        assert [row[0] for row in session.sql("select * from orders order by number").collect()] == [1, 2, 3]
        table.append(pa.table({"number": [4]}))
        assert session.sql("select count(*) from headrace.topics.orders").collect()[0][0] == 4
        with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
            session.sql("select * from nowhere").collect()
    finally:
        handle.close()
        catalog.close()
    assert capfd.readouterr() == ("", "")
