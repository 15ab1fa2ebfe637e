"""Apache Kafka's own jars: broker, command line tools and Java client, from Maven Central, kept under `build/`.

They are fetched once. A folder appears only when it is complete, so a run that was broken off leaves nothing behind
that a later one would trust.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

KAFKA_VERSION = "4.3.1"
SCALA_VERSION = "2.13"
ARTIFACTS = (f"kafka_{SCALA_VERSION}", "kafka-tools", "kafka-clients")

BUILD = Path(__file__).parents[2] / "build"
FETCH_LIMIT_SECONDS = 600

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId>"
    "<version>{version}</version></dependency>"
)


def kafka_class_path() -> str:
    """Return a Java class path with everything of Apache Kafka, fetching it first if it is not there."""
    return f"{fetch_kafka_jars()}/*"


def fetch_kafka_jars() -> Path:
    """Return the folder that holds the jars. Raises `CalledProcessError` if Maven cannot fill it."""
    folder = BUILD / f"kafka-{KAFKA_VERSION}"
    if folder.is_dir():
        return folder
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="kafka-jars-") as made:
        scratch = Path(made)
        dependencies = "".join(_DEPENDENCY.format(name=name, version=KAFKA_VERSION) for name in ARTIFACTS)
        (scratch / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
        subprocess.run(
            ["mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", f"-DoutputDirectory={scratch}/jars"],
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
    return folder


def java() -> str:
    """Return the `java` to run: that of JAVA_HOME, or the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"
