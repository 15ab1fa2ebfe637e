"""Planning a read of stores that are opened as options say."""

from pathlib import Path

import pytest

from headrace.broker.scans import open_stream_scan, planned_scan
from headrace.broker.sinks import StoreDesk
from headrace.errors import Invalid
from headrace.pipeline.scan.options import ScanOptions, parse_options
from headrace.pipeline.spark.scanning import read_rows
from tests.unit.broker.test_sinks import make_cluster, written
from tests.unit.pipeline.sink.sink_kit import options_of


def options(*, is_stream: bool = False, **given: str) -> ScanOptions:
    return parse_options({"subscribe": "orders", **given}, is_stream=is_stream)


def test_a_read_without_a_place_is_refused() -> None:
    with pytest.raises(Invalid, match="say where the data is"):
        planned_scan(options())


def test_a_directory_without_data_is_refused_and_not_made(tmp_path: Path) -> None:
    for plan in (planned_scan, open_stream_scan):
        with pytest.raises(Invalid, match="there is no data of Headrace"):
            plan(options(is_stream=plan is open_stream_scan, dataDir=str(tmp_path / "typo")))
    assert not (tmp_path / "typo").exists()


def test_a_setting_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"objects\.ulr"):
        planned_scan(parse_options({"subscribe": "a", "headrace.objects.ulr": "x"}, is_stream=False))


def test_tasks_bring_their_rows_where_there_is_no_metadata_store(tmp_path: Path) -> None:
    make_cluster(tmp_path)
    write = options_of(topic="orders", dataDir=str(tmp_path))
    StoreDesk().commit(write, [written(StoreDesk().begin(write))], 0)
    tasks = planned_scan(options(dataDir=str(tmp_path)))
    stream = open_stream_scan(options(is_stream=True, dataDir=str(tmp_path), startingOffsets="earliest"))
    tasks += stream.plan(stream.initial(), stream.latest())
    stream.close()
    databases = list(tmp_path.glob("meta.db*"))
    assert databases and len(tasks) == 2
    for path in databases:
        path.unlink()
    for task in tasks:
        rows = [row for batch in read_rows(task) for row in batch.to_pylist()]
        assert [(row["offset"], row["value"]) for row in rows] == [(0, b"a"), (1, b"b")]
    assert list(tmp_path.glob("meta.db*")) == [], "no task has made one"
