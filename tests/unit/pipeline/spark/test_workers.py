"""What a task leaves behind for the next one in the same Python process."""

import gc
import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.pipeline.spark import workers


def test_a_zip_file_is_not_looked_into_again_and_still_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("zipped_one.py", "VALUE = 1")
        packed.writestr("zipped_two.py", "VALUE = 2")
    monkeypatch.syspath_prepend(str(path))
    assert importlib.import_module("zipped_one").VALUE == 1
    assert str(path) in sys.path_importer_cache
    workers.spare_next_task()
    assert str(path) not in sys.path_importer_cache
    assert importlib.import_module("zipped_two").VALUE == 2


def test_the_heap_is_settled_once_and_only_where_tasks_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: settled.append("frozen"))
    monkeypatch.setattr(workers, "_is_settled", False)
    monkeypatch.delenv(workers.REUSED, raising=False)
    workers.spare_next_task()
    assert settled == []
    monkeypatch.setenv(workers.REUSED, "1")
    workers.spare_next_task()
    workers.spare_next_task()
    assert settled == ["frozen"]
