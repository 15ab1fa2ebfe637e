"""Is there what Spark needs: PySpark in this Python, and a Java runtime on this host?

Asked before anything is started, because what Spark itself says of a missing Java fills a screen and names no remedy.
"""

import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import Unsupported

SPARK_LINE = "4.1"
"""The line of Spark that this release was built and tested with; Iceberg's runtime jar belongs to it, too."""

OLDEST_JAVA = 17
JAVA_ANSWER_LIMIT_S = 60.0

INSTALL_SPARK = "install it with: pip install 'headrace[spark]'"
INSTALL_JAVA = (
    f"install a Java {OLDEST_JAVA} runtime, for example with: apt install openjdk-17-jre-headless; or set JAVA_HOME"
)

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def require_spark(environment: Mapping[str, str]) -> Path:
    """Return the Java that Spark will run on. Raises `Unsupported`, with what to install."""
    require_pyspark()
    return require_java(environment)


def require_pyspark() -> None:
    """Raise `Unsupported` unless the right PySpark is installed. Loads nothing of it."""
    try:
        found = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise Unsupported(f"the pipeline needs PySpark, and this Python has none: {INSTALL_SPARK}") from None
    if not found.startswith(f"{SPARK_LINE}."):
        raise Unsupported(f"the pipeline needs PySpark {SPARK_LINE}, and this Python has {found}: {INSTALL_SPARK}")


def require_java(environment: Mapping[str, str]) -> Path:
    """Find the Java that Spark's scripts will find, and check that it is new enough. Raises `Unsupported`."""
    java = _find_java(environment)
    try:
        answer = subprocess.run(
            [java, "-version"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=JAVA_ANSWER_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(f"{java} cannot be run ({error}): {INSTALL_JAVA}") from error
    version = java_version(answer.stderr + answer.stdout)
    if version is None:
        raise Unsupported(f"{java} does not tell its version: {INSTALL_JAVA}")
    if version < OLDEST_JAVA:
        raise Unsupported(f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is Java {version}: {INSTALL_JAVA}")
    return java


def java_version(told: str) -> int | None:
    """Read the feature number out of what `java -version` prints: 8 for 1.8.0, 17 for 17.0.15."""
    found = _VERSION.search(told)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def _find_java(environment: Mapping[str, str]) -> Path:
    # Spark's scripts look into JAVA_HOME first and take nothing else if it is set, so a wrong one must be told.
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise Unsupported(f"JAVA_HOME is {home}, and there is no bin/java in it: correct it, or unset it")
        return java
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise Unsupported(f"Spark needs Java, and there is none on this host: {INSTALL_JAVA}")
    return Path(found)
