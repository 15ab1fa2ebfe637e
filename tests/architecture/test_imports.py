"""The import rules hold in our tree, and each rule is seen to bite in a planted one."""

from pathlib import Path

import pytest

import headrace
from tests.architecture.import_rules import violations

PACKAGE = Path(headrace.__file__).parent


def _plant(tmp_path: Path, files: dict[str, str]) -> list[str]:
    package = tmp_path / "headrace"
    for name, source in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return violations(package)


def test_our_tree_keeps_the_import_rules() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("metadata/a.py", "from headrace.index import commit", "index stands above metadata"),
        ("produce/a.py", "import headrace.queues.state", "queues stands above produce"),
        ("broker.py", "from headrace.cli.main import main", "cli stands above broker"),
        ("records/a.py", "from headrace.wal.frame import X", "wal stands above records"),
        ("model/a.py", "from headrace.runtime.clock import Clock", "model imports only errors"),
        ("runtime/a.py", "from headrace.model.ids import StreamId", "runtime imports only errors"),
        ("errors.py", "from headrace.model.ids import StreamId", "errors imports only nothing"),
        ("settings.py", "from headrace.objects.port import Buffer", "settings imports only errors, runtime"),
        ("wal/a.py", "from headrace.settings import Settings", "settings is imported by broker, cli only"),
        ("http_api/a.py", "from headrace.wire import codec", "wire is imported by handlers, server only"),
        ("http_api/a.py", "from headrace.handlers import table", "http_api never imports handlers"),
        ("metadata/a.py", "from headrace.objects.port import Buffer", "metadata never imports objects"),
        ("wal/a.py", "from headrace.metadata.port import Key", "wal never imports metadata"),
        ("index/a.py", "from headrace.objects.port import Buffer", "index never imports objects"),
        ("broker.py", "from headrace.testing.clock import ManualClock", "testing is imported by nobody only"),
        ("cli/a.py", "import apsw", "apsw lives in metadata/ only"),
        ("wal/a.py", "from obstore.store import S3Store", "obstore lives in objects/ only"),
        ("index/a.py", "import asyncpg.exceptions", "asyncpg lives in metadata/ only"),
        ("records/batch.py", "import pyarrow as pa", "pyarrow lives in records/arrow.py, tables/, pipeline/ only"),
        ("pipeline/plan.py", "import pyspark.sql", "pyspark lives in pipeline/spark/, pyspark_headrace/ only"),
        ("../pyspark_headrace/__init__.py", "from headrace.settings import X", "settings is imported by broker, cli"),
        (
            "../pyspark_headrace/__init__.py",
            "import pyarrow",
            "pyarrow lives in records/arrow.py, tables/, pipeline/",
        ),
        ("handlers/a.py", "import re2", "re2 lives in groups/ only"),
        ("broker.py", "import typer", "typer lives in cli/ only"),
        ("server/a.py", "from rich import print", "rich lives in cli/ only"),
        ("gc/a.py", "import prometheus_client", "prometheus_client lives in runtime/metrics.py only"),
        ("runtime/metrics.py", "import structlog", "structlog lives in runtime/logs.py only"),
        ("utilities/a.py", "import os", "utilities stands in no layer"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, path: str, source: str, complaint: str) -> None:
    [found] = _plant(tmp_path, {path: source + "\n"})
    assert complaint in found


@pytest.mark.parametrize(
    "source",
    [
        "def late():\n    from headrace.index import commit\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import headrace.index.commit\n",
        "from headrace import index\n",
        "from .. import index\n",
        "from ..index import commit\n",
        "try:\n    import headrace.index as i\nexcept ImportError:\n    pass\n",
    ],
)
def test_no_way_of_writing_an_import_hides_it(tmp_path: Path, source: str) -> None:
    [found] = _plant(tmp_path, {"metadata/a.py": source})
    assert "index stands above metadata" in found


def test_the_place_of_a_violation_is_told(tmp_path: Path) -> None:
    [found] = _plant(tmp_path, {"wal/deep/a.py": "import os\nfrom headrace.metadata import port\n"})
    assert found.startswith("wal/deep/a.py:2 imports headrace.metadata: ")


def test_a_circle_inside_a_layer_is_found(tmp_path: Path) -> None:
    found = _plant(
        tmp_path,
        {
            "produce/a.py": "import headrace.fetch.b\n",
            "fetch/b.py": "import headrace.gc.c\n",
            "gc/c.py": "import headrace.produce.a\n",
        },
    )
    assert len(found) == 3 and all("break the circle" in sentence for sentence in found)


def test_what_the_rules_allow_is_left_alone(tmp_path: Path) -> None:
    files = {
        "errors.py": "import enum\n",
        "settings.py": "from headrace.errors import Invalid\nfrom headrace.runtime import configuration\n",
        "broker.py": "from headrace.settings import Settings\nfrom headrace.server import listen\n",
        "cli/main.py": "import typer\nfrom headrace import __version__\nfrom headrace.broker import x\n",
        "handlers/produce.py": "from headrace.wire import codec\nfrom headrace.produce import writer\n",
        "index/commit.py": "from headrace.metadata.port import Key\nfrom headrace.model.ids import StreamId\n",
        "metadata/sqlite.py": "import apsw\nfrom headrace.metadata.port import Key\nfrom . import keys\n",
        "wal/reader.py": "from headrace.objects.port import ObjectStore\nfrom headrace.records import batch\n",
        "pipeline/spark/job.py": "import pyspark\nimport pyarrow\n",
        "testing/simulation/world.py": "import apsw\nfrom headrace import broker, settings\n",
    }
    assert _plant(tmp_path, files) == []
