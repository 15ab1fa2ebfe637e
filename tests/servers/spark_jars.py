"""The jars that a Spark session needs beside pyspark's own: the Kafka connector, and Iceberg with SQLite's driver.

They come from Maven Central once and are kept under `build/`. A folder appears only when it is complete, so a run
that was broken off leaves nothing behind that a later one would trust. Sessions get them through `spark.jars`, which
needs no network: a test that starts a session never waits for a repository.
"""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.servers.kafka_jars import BUILD, FETCH_LIMIT_SECONDS

SPARK_VERSION = "4.1.3"
TOKEN_PROVIDER_VERSION = "4.0.0"
ICEBERG_VERSION = "1.12.0"
SQLITE_JDBC_VERSION = "3.46.1.3"

# What pyspark brings along already: a second copy in another version is asking for trouble.
LEFT_OUT_GROUPS = ("org.apache.hadoop", "org.scala-lang", "org.slf4j", "org.xerial.snappy", "org.lz4", "at.yawk.lz4")

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>spark-jars</artifactId><version>1</version>
  <dependencyManagement><dependencies>{pinned}</dependencies></dependencyManagement>
  <dependencies>{wanted}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{0.group}</groupId><artifactId>{0.name}</artifactId><version>{0.version}</version>"
    "</dependency>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A jar as Maven names it."""

    group: str
    name: str
    version: str


KAFKA_SOURCE = Artifact(group="org.apache.spark", name="spark-sql-kafka-0-10_2.13", version=SPARK_VERSION)
# Not every repository has the token provider at the connector's own version. It matters for secured clusters only.
TOKEN_PROVIDER = Artifact(
    group="org.apache.spark", name="spark-token-provider-kafka-0-10_2.13", version=TOKEN_PROVIDER_VERSION
)
ICEBERG = Artifact(group="org.apache.iceberg", name="iceberg-spark-runtime-4.1_2.13", version=ICEBERG_VERSION)
SQLITE_JDBC = Artifact(group="org.xerial", name="sqlite-jdbc", version=SQLITE_JDBC_VERSION)


def kafka_source_jars() -> list[Path]:
    """Return the jars of `format("kafka")`, fetching them first if they are not there."""
    return _jars(f"spark-kafka-{SPARK_VERSION}", KAFKA_SOURCE, TOKEN_PROVIDER)


def iceberg_jars() -> list[Path]:
    """Return Iceberg's runtime for Spark and the driver of a catalog in SQLite, fetching them first if need be."""
    return _jars(f"spark-iceberg-{ICEBERG_VERSION}", ICEBERG, SQLITE_JDBC)


def as_setting(jars: list[Path]) -> str:
    """Return the value of `spark.jars`."""
    return ",".join(str(jar) for jar in jars)


def _jars(name: str, *artifacts: Artifact) -> list[Path]:
    folder = BUILD / name
    if not folder.is_dir():
        _fetch(folder, artifacts)
    return sorted(folder.glob("*.jar"))


def _fetch(folder: Path, artifacts: tuple[Artifact, ...]) -> None:
    """Fill the folder with the artifacts and what they need. Raises `CalledProcessError` if Maven cannot."""
    BUILD.mkdir(exist_ok=True)
    dependencies = "".join(_DEPENDENCY.format(artifact) for artifact in artifacts)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="spark-jars-") as made:
        scratch = Path(made)
        (scratch / "pom.xml").write_text(_POM.format(pinned=dependencies, wanted=dependencies), encoding="utf-8")
        subprocess.run(
            [
                "mvn",
                "--quiet",
                "--batch-mode",
                "dependency:copy-dependencies",
                f"-DoutputDirectory={scratch}/jars",
                "-DincludeScope=runtime",
                f"-DexcludeGroupIds={','.join(LEFT_OUT_GROUPS)}",
            ],
            cwd=scratch,
            check=True,
            timeout=FETCH_LIMIT_SECONDS,
        )
        try:
            (scratch / "jars").rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
            shutil.rmtree(scratch / "jars")
