"""`headrace table dead-letters` on the data of a real broker, with a pipeline that needs no Spark."""

import json
from pathlib import Path

import pytest

from headrace.cli.main import run
from headrace.records.batch import Codec
from headrace.records.record import Record
from tests.integration.clients.librdkafka import create_topic
from tests.servers.headrace import running_headrace
from tests.spark.table_cluster import NOON_MS, put, run_pipeline_here
from tests.typed_kit import CONFIGS


@pytest.fixture(autouse=True)
def own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command touch the logging of the test process."""
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)


def _records(*values: bytes) -> list[Record]:
    return [Record(offset=n, timestamp_ms=NOON_MS, key=b"k%d" % n, value=value) for n, value in enumerate(values)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three topics: `orders` has dead letters of two runs, `fresh` had no run yet, `plain` has no schema."""
    made = tmp_path_factory.mktemp("letters") / "data"
    with running_headrace(made) as broker:
        for name, configs in (("orders", CONFIGS["json"]), ("plain", {})):
            create_topic(broker.bootstrap, name, 2, **configs)
        put(broker, "orders", 0, _records(b'{"id": 1}', b"first", b"x" * 500), Codec.NONE)
        put(broker, "plain", 0, _records(b"anything"), Codec.NONE)
        assert run_pipeline_here(made).problems == {}
        put(broker, "orders", 1, _records(b"\xff\x00"), Codec.NONE)
        assert run_pipeline_here(made).problems == {}
        create_topic(broker.bootstrap, "fresh", 1, **CONFIGS["json"])
    return made


def _letters(data_dir: Path, *arguments: str) -> int:
    return run(["table", "dead-letters", *arguments, "--data-dir", str(data_dir)])


def test_letters_are_told_newest_first_and_by_partition(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _letters(data_dir, "orders", "--output", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["partition"], one["offset"], one["key"]) for one in told] == [
        (1, 0, "k0"),
        (0, 2, "k2"),
        (0, 1, "k1"),
    ]
    assert told[0]["value"] == "0xff00" and "not JSON" in told[0]["reason"] and told[1]["value"] == "x" * 500
    assert _letters(data_dir, "orders", "--limit", "1", "--output", "json") == 0
    assert [one["partition"] for one in json.loads(capsys.readouterr().out)] == [1]
    assert _letters(data_dir, "orders", "--partition", "0", "-n", "5", "--output", "json") == 0
    assert [one["offset"] for one in json.loads(capsys.readouterr().out)] == [2, 1]


def test_people_read_columns_that_are_cut_to_the_screen(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _letters(data_dir, "orders") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["partition", "offset", "append_time", "reason", "key", "value"]
    assert len(lines) == 4 and "(500 characters)" in lines[2]


def test_topics_without_letters_and_without_a_schema_are_told_apart(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _letters(data_dir, "fresh") == 0
    assert capsys.readouterr().out == "there are no dead letters\n"
    assert _letters(data_dir, "plain") == 1
    assert "set headrace.table.schema" in capsys.readouterr().err
    assert _letters(data_dir, "nowhere") == 1


def test_show_tells_the_schema_its_columns_and_how_many_did_not_fit(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["table", "show", "orders", "--data-dir", str(data_dir), "--output", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["dead_letters"] == 3 and shown["schema"]["type"] == "json" and len(shown["schema"]["version"]) == 16
    (data,) = [column for column in shown["columns"] if column["name"] == "data"]
    assert data["type"].startswith("struct<") and "id: optional long" in data["type"]
    assert run(["table", "show", "plain", "--data-dir", str(data_dir), "--output", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] is None and "data" not in [column["name"] for column in shown["columns"]]
    assert run(["table", "sample", "orders", "--data-dir", str(data_dir), "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["data"]["id"] == 1
