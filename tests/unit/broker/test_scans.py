"""Planning a read of stores that are opened as options say."""

from pathlib import Path

import pytest

from headrace.broker.scans import open_stream_scan, planned_scan
from headrace.errors import Invalid
from headrace.pipeline.scan.options import ScanOptions, parse_options


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
