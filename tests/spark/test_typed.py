"""Typed columns with the real Spark: three languages, one killed run, a schema that grows, engines that agree."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from pyiceberg.catalog.sql import SqlCatalog

from headrace.pipeline.spark.querying import ask
from headrace.pipeline.spark.sql import CatalogAccess, SqlHandle, sql_session
from headrace.runtime.crash_points import CrashPoint
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, end_gateway
from tests.spark.pipelines import consumed, headrace, produce, run_pipeline
from tests.spark.table_cluster import metadata_location, run_pipeline_here
from tests.typed_kit import CONFIGS, ORDER_JSON, SCHEMA, encoded, orders

pytestmark = [SOCKETS_ARE_COLLECTED, pytest.mark.timeout(600)]

# The session of a process that was killed holds its leases until it times out.
SOON = "--set=broker.session.timeout.ms=3000"
COUNT = 50
BAD = b"\xff this fits no schema"
LANGUAGES = sorted(CONFIGS)
GROWN_JSON = {**ORDER_JSON, "properties": {**ORDER_JSON["properties"], "note": {"type": "string"}}}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker and pipelines have left behind: one was killed in the table, the next one went on."""
    directory = tmp_path_factory.mktemp("typed")
    made = directory / "data"
    with running_headrace(made, settings={"num.partitions": "1"}) as broker:
        for language in LANGUAGES:
            _create(broker, language, directory)
            produce(broker, language, [encoded(order, language) for order in orders(COUNT)] + [BAD])
        killed = run_pipeline(made, "--once", SOON, environment={"HEADRACE_CRASH_AT": CrashPoint.SAGA_AFTER_IN_TABLE})
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        resumed = run_pipeline(made, "--once", SOON)
        assert resumed.returncode == 0, resumed.stderr
        _alter(broker, "json", json.dumps(GROWN_JSON), directory)
        later = json.loads(encoded(orders(1)[0], "json"))
        produce(broker, "json", [json.dumps({**later, "note": "new"}).encode()])
        assert run_pipeline_here(made).problems == {}
        assert BAD in consumed(broker, "avro")
    return made


def _create(broker: HeadraceProcess, language: str, directory: Path) -> None:
    """Create a topic with its schema in a file, as a person would."""
    file = directory / f"schema.{language}"
    file.write_text(CONFIGS[language][SCHEMA])
    others = [f"--config={name}={value}" for name, value in CONFIGS[language].items() if name != SCHEMA]
    done = headrace("topic", "create", language, f"--config={SCHEMA}=@{file}", *others, "-b", broker.bootstrap)
    assert done.returncode == 0, done.stderr


def _alter(broker: HeadraceProcess, topic: str, text: str, directory: Path) -> None:
    file = directory / "altered"
    file.write_text(text)
    done = headrace("topic", "alter", topic, f"--set={SCHEMA}=@{file}", "-b", broker.bootstrap)
    assert done.returncode == 0, done.stderr
    changed = json.loads(text)
    changed["properties"]["id"] = {"type": "string"}
    file.write_text(json.dumps(changed))
    refused = headrace("topic", "alter", topic, f"--set={SCHEMA}=@{file}", "-b", broker.bootstrap)
    assert refused.returncode == 1 and "data.id is long and would become string" in refused.stderr


@pytest.fixture(scope="module")
def spark(data_dir: Path) -> Iterator[SqlHandle]:
    end_gateway()
    opened = sql_session(CatalogAccess(url=f"sqlite:{data_dir}/catalog.db", objects_url=f"file:{data_dir}/objects"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(config={"extension_directory": str(tmp_path_factory.mktemp("duckdb"))})
    for name in ("avro", "iceberg"):
        import_extension(name, con=connection)
        connection.load_extension(name)
    yield connection
    connection.close()


@pytest.mark.parametrize("language", LANGUAGES)
def test_engines_read_the_same_fields(
    data_dir: Path, spark: SqlHandle, duck: duckdb.DuckDBPyConnection, language: str
) -> None:
    by_pyiceberg = _by_pyiceberg(data_dir, language)
    sent: list[Any] = [_told(order) for order in orders(COUNT)]
    assert by_pyiceberg[:COUNT] == sent
    assert by_pyiceberg[COUNT] is None
    assert _by_duckdb(duck, data_dir, language) == by_pyiceberg
    assert _by_spark(spark, language) == by_pyiceberg


def test_a_field_that_was_added_is_null_in_old_rows(data_dir: Path, spark: SqlHandle) -> None:
    answer = ask(spark, "select data.note from `json` order by `offset`", max_rows=1000)
    assert [row[0] for row in answer.rows] == [None] * (COUNT + 1) + ["new"]
    everything = ask(spark, "select data.* from `json` where data.id = 7", max_rows=10)
    assert list(everything.columns)[:2] == ["id", "name"] and everything.rows[0][0] == 7


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_did_not_fit_is_listed_once(data_dir: Path, language: str) -> None:
    listed = headrace("table", "dead-letters", language, f"--data-dir={data_dir}", "--output", "json")
    assert listed.returncode == 0, listed.stderr
    (letter,) = json.loads(listed.stdout)
    assert (letter["topic"], letter["partition"], letter["offset"]) == (language, 0, COUNT)
    assert letter["reason"] and letter["value"] == "0x" + BAD.hex()
    assert json.loads(headrace("table", "show", language, f"--data-dir={data_dir}", "--output=json").stdout)[
        "dead_letters"
    ] == 1  # fmt: skip
    verified = headrace("table", "verify", language, f"--data-dir={data_dir}")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def _told(order: dict[str, Any]) -> tuple[Any, ...]:
    place = order["offset"]
    return (
        *(order["id"], order["name"], order["price"], order["tags"], sorted(order["attributes"].items())),
        *(None if place is None else place["x"], order["at"]),
    )


def _by_pyiceberg(data_dir: Path, topic: str) -> list[tuple[Any, ...] | None]:
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{data_dir}/catalog.db")
    try:
        found = catalog.load_table(("topics", topic)).scan().to_arrow().sort_by("offset")
    finally:
        catalog.close()
    told: list[tuple[Any, ...] | None] = []
    for data in found.column("data").to_pylist():
        if data is None:
            told.append(None)
            continue
        micros = pa.scalar(data["at"], pa.timestamp("us", tz="UTC")).value
        told.append(_told({**data, "attributes": dict(data["attributes"]), "at": micros}))
    return told


def _by_duckdb(duck: duckdb.DuckDBPyConnection, data_dir: Path, topic: str) -> list[tuple[Any, ...] | None]:
    location = metadata_location(data_dir, topic)
    query = (
        "select data.id, data.name, data.price, data.tags, data.attributes, data.offset.x, epoch_us(data.at)"
        f" from iceberg_scan('{location}') order by \"offset\""
    )
    return [_or_none(row) for row in duck.execute(query).fetchall()]


def _by_spark(spark: SqlHandle, topic: str) -> list[tuple[Any, ...] | None]:
    query = (
        "select data.id, data.name, data.price, data.tags, data.attributes, data.offset.x, unix_micros(data.at)"
        f" from `{topic}` order by `offset`"
    )
    return [_or_none(row) for row in ask(spark, query, max_rows=1000).rows]


def _or_none(row: Any) -> tuple[Any, ...] | None:
    """Return a row's fields; a row whose `data` is null has none of them."""
    cells = list(row)
    if all(cell is None for cell in cells):
        return None
    cells[3], cells[4] = list(cells[3]), sorted(cells[4].items())
    return tuple(cells)
