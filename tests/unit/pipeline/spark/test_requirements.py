import importlib.metadata
from pathlib import Path

import pytest

from headrace.errors import Unsupported
from headrace.pipeline.spark.requirements import java_version, require_java, require_pyspark, require_spark


def put_java(directory: Path, *, told: str) -> Path:
    """Make a `java` that says this of itself, and return the folder it lies in."""
    directory.mkdir(parents=True)
    script = directory / "java"
    script.write_text(f"#!/bin/sh\necho '{told}' >&2\n")
    script.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_a_java_tells_its_version(told: str, version: int | None) -> None:
    assert java_version(told) == version


def test_no_java_at_all_is_told_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="apt install openjdk-17-jre-headless; or set JAVA_HOME"):
        require_java({"PATH": str(tmp_path)})


def test_a_java_that_is_too_old_is_told_with_its_path(tmp_path: Path) -> None:
    folder = put_java(tmp_path / "bin", told='openjdk version "11.0.2"')
    with pytest.raises(Unsupported, match=rf"needs Java 17 or newer, and {folder}/java is Java 11"):
        require_java({"PATH": str(folder)})


def test_java_home_goes_first_because_spark_takes_nothing_else_then(tmp_path: Path) -> None:
    put_java(tmp_path / "home" / "bin", told='openjdk version "21.0.1"')
    old = put_java(tmp_path / "path", told='openjdk version "11.0.2"')
    found = require_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(old)})
    assert found == tmp_path / "home" / "bin" / "java"


def test_a_java_home_without_java_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="correct it, or unset it"):
        require_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_a_java_that_says_nonsense_is_told(tmp_path: Path) -> None:
    folder = put_java(tmp_path / "bin", told="hello")
    with pytest.raises(Unsupported, match="does not tell its version"):
        require_java({"PATH": str(folder)})


def test_a_python_without_pyspark_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", gone)
    with pytest.raises(Unsupported, match=r"pip install 'headrace\[spark\]'"):
        require_spark({})


def test_another_line_of_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "3.5.1")
    with pytest.raises(Unsupported, match=r"needs PySpark 4\.1, and this Python has 3\.5\.1"):
        require_pyspark()
