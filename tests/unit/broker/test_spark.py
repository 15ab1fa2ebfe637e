"""Options of reads and writes become settings, and say what is wrong in their own words."""

from pathlib import Path

import pytest

from headrace.broker.spark import settings_of
from headrace.errors import Invalid
from headrace.pipeline.scan.options import StorageOptions


def test_settings_come_from_options_and_errors_name_them(tmp_path: Path) -> None:
    (tmp_path / "meta.db").touch()
    told = StorageOptions(data_dir=str(tmp_path), settings=(("sink.write.max.age.ms", "120000"),))
    assert settings_of(told).sinks.write_max_age_ms == 120_000
    with pytest.raises(Invalid, match="objects"):
        settings_of(StorageOptions(data_dir=str(tmp_path), objects="nonsense"))


def test_data_must_be_named_and_be_there(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="say where the data is: dataDir"):
        settings_of(StorageOptions())
    for named in (str(tmp_path), str(tmp_path / "nowhere")):
        with pytest.raises(Invalid, match="there is no data of Headrace at"):
            settings_of(StorageOptions(data_dir=named))
    assert list(tmp_path.iterdir()) == []
