"""`headrace table` on the data of a real broker, with a pipeline that needs no Spark."""

import json
from pathlib import Path

import pytest

from headrace.cli.main import run
from headrace.cli.table_views import print_report
from headrace.pipeline.verify_report import MAX_SPELLED_OUT, Kind, VerifyReport
from headrace.records.batch import Codec
from headrace.records.record import Record
from tests.integration.clients.librdkafka import create_topic
from tests.servers.headrace import running_headrace
from tests.spark.table_cluster import plain_records, put, run_pipeline_here

LATE = {"message.timestamp.after.max.ms": str(2**63 - 1)}


@pytest.fixture(autouse=True)
def own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command touch the logging of the test process."""
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics: `orders` is in its table but for one record, `quiet` has no table."""
    made = tmp_path_factory.mktemp("table") / "data"
    with running_headrace(made) as broker:
        create_topic(broker.bootstrap, "orders", 2, **LATE)
        create_topic(broker.bootstrap, "quiet", 1, **{"headrace.table.enable": "false"})
        put(broker, "orders", 0, plain_records(30), Codec.ZSTD)
        odd = Record(offset=0, timestamp_ms=2**62, key=b"\xff\x00", value=b"x\x1b[31m", headers=((b"h", b"v"),))
        put(broker, "orders", 1, [odd], Codec.NONE)
        assert run_pipeline_here(made).problems == {}
        put(broker, "orders", 1, plain_records(1), Codec.NONE)
    return made


def _table(data_dir: Path, *arguments: str) -> int:
    return run(["table", *arguments, "--data-dir", str(data_dir)])


def test_list_tells_how_far_behind_each_table_is(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _table(data_dir, "list", "--output", "json") == 0
    orders, quiet = json.loads(capsys.readouterr().out)
    assert orders["topic"] == "orders" and orders["table"] == "topics.orders" and orders["status"] == "ok"
    assert (orders["rows"], orders["files"], orders["snapshots"], orders["lag_records"]) == (31, 1, 1, 1)
    assert orders["lag_seconds"] > 0 and orders["committed_at"].startswith("20")
    assert (quiet["status"], quiet["table"], quiet["rows"]) == ("off", None, None)
    assert _table(data_dir, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "topic",
        "table",
        "status",
        "lag",
        "age",
        "rows",
        "files",
        "snapshots",
        "last",
        "commit",
    ]
    assert lines[1].split()[:4] == ["orders", "topics.orders", "ok", "1"]


def test_show_has_refs_vector_columns_and_what_is_under_way(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _table(data_dir, "show", "orders", "--output", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {ref["name"]: ref["row_count"] for ref in shown["refs"]} == {"main": 31, "headrace_log": 31}
    assert shown["vector"] == {"0": 30, "1": 1} and shown["partition_by"] == ["day(append_time)"]
    assert [column["name"] for column in shown["columns"]][:2] == ["partition", "offset"]
    assert shown["under_way"] is None and shown["condemned"]["files"] == 0 and shown["runs"] == 1
    assert _table(data_dir, "show", "orders") == 0
    told = capsys.readouterr().out
    assert "headrace_log" in told and "day(append_time)" in told and f"file://{data_dir}/objects/tables/" in told


def test_sample_shows_the_newest_rows_and_obeys_nothing_in_them(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _table(data_dir, "sample", "orders", "-n", "2") == 0
    head, newest, older = capsys.readouterr().out.splitlines()
    assert head.split() == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert "0xff00" in newest and r"x\x1b[31m" in newest and "h=v" in newest and "µs since 1970" in newest
    assert "value 29" in older
    assert _table(data_dir, "sample", "orders", "-n", "1", "--output", "json") == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["value"] == "x\x1b[31m" and row["headers"] == [{"key": "h", "value": "v"}]
    assert _table(data_dir, "sample", "quiet") == 1
    assert "no table yet" in capsys.readouterr().err


def test_verify_is_clean_and_damage_ends_with_one(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _table(data_dir, "verify", "orders", "--output", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["clean"] and report["findings"] == [] and report["looked_at"]["branch_rows"] == 31
    [file] = (data_dir / "objects" / "tables").rglob("*.parquet")
    whole = file.read_bytes()
    try:
        file.chmod(0o644)
        file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        assert _table(data_dir, "verify", "orders") == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("damage: bytes: partition ") and lines[-1] == "orders is DAMAGED"
    finally:
        file.write_bytes(whole)
    assert _table(data_dir, "verify", "orders") == 0


def test_an_unknown_topic_and_a_place_without_a_cluster_are_told_in_one_line(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _table(data_dir, "show", "nowhere") == 1
    assert capsys.readouterr().err == "headrace: there is no topic nowhere\n"
    assert _table(tmp_path / "empty", "list") == 1
    assert "there is no cluster in" in capsys.readouterr().err
    assert not (tmp_path / "empty").exists()


def test_a_catalog_that_is_away_hides_nothing_else(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = ("--set", "catalog.url=http://127.0.0.1:1")
    assert _table(data_dir, "list", "--output", "json", *away) == 0
    orders, _ = json.loads(capsys.readouterr().out)
    assert (orders["table"], orders["rows"], orders["lag_records"]) == ("topics.orders", 31, 1)
    assert "the catalog" in orders["problem"] and orders["snapshots"] is None
    assert _table(data_dir, "verify", "orders", *away) == 1
    assert "the catalog" in capsys.readouterr().err


def test_a_report_spells_out_some_findings_and_counts_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    report = VerifyReport(topic="orders", table="topics.orders")
    report.warn(Kind.HELD_BACK, "a batch")
    for number in range(MAX_SPELLED_OUT + 5):
        report.damage(Kind.GAP, f"gap {number}", count=10)
    assert report.counts[Kind.GAP] == 10 * (MAX_SPELLED_OUT + 5) and not report.is_clean
    print_report(report)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "damage: gap: gap 0" and lines[MAX_SPELLED_OUT] == "warning: held-back: a batch"
    assert lines[MAX_SPELLED_OUT + 1] == "and 5 more findings of the same kinds"
