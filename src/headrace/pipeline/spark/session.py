"""One Spark in this process: started with what it needs and nothing else, quiet, and gone when it is closed.

PySpark runs a Java process beside ours and keeps it in a global of its own, so there is one at a time. It ends when
we end, however we end: it reads a pipe from us until that closes.

Must stay true:
- Nothing of Spark's own talk reaches our stdout or stderr: it goes to `log_file`. Its end is shown when Spark fails.
- No property that may hold a secret stands on a command line: only what the Java process must know before it can be
  talked to is given to it there.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, Unsupported, Unusable
from headrace.pipeline.spark.requirements import require_spark

if TYPE_CHECKING:
    from pyspark import SparkContext

LOCAL_MASTER = "local[*,4]"
"""All cores of this host, and four tries for each task: plain `local[*]` never repeats a failed one."""

TASK_ATTEMPTS = 4
END_LIMIT_S = 20.0
SHOWN_LOG_BYTES = 2_000
MAX_SHOWN_CHARS = 500

# What Spark's scripts read before there is a process that we could tell.
_AT_LAUNCH = ("spark.driver.", "spark.jars", "spark.submit.", "spark.archives", "spark.files", "spark.kerberos.")

_LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.filePattern = {folder}/spark.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 8MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """How Spark is started. `conf` holds further properties, which win over ours."""

    master: str = LOCAL_MASTER
    python: str | None = None
    """The Python of the executors; None is this very one on this host, and `python3` elsewhere."""
    conf: Mapping[str, str] = field(default_factory=dict)
    driver_memory: str = "1g"
    app_name: str = "headrace"
    java_flags: str = ""

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")

    @property
    def task_attempts(self) -> int:
        """How often a task is tried, as the master's name or the properties say."""
        if self.is_local:
            tries = self.master.partition(",")[2].rstrip("]").strip()
            return int(tries) if tries.isdecimal() else 1
        told = self.conf.get("spark.task.maxFailures", "")
        return int(told) if told.isdecimal() else TASK_ATTEMPTS

    @property
    def executor_python(self) -> str:
        return self.python or (sys.executable if self.is_local else "python3")


class SparkFailed(Unusable):
    """Spark could not be started, or is gone: start a new one."""


class SparkHandle:
    """A running Spark; `close` ends it with everything that belongs to it."""

    def __init__(self, context: "SparkContext", gateway: Any, folder: Path, options: SparkOptions) -> None:
        self.context = context
        self.options = options
        self._gateway = gateway
        self._folder = folder

    @property
    def process_id(self) -> int | None:
        """The Java process, where we have started it."""
        return None if self._gateway.proc is None else int(self._gateway.proc.pid)

    @property
    def log_file(self) -> Path:
        """Where Spark's own warnings are."""
        return self._folder / "spark.log"

    def is_alive(self) -> bool:
        """Return whether Spark still takes jobs: its Java process runs, and no master has sent it away."""
        if self._gateway.proc is not None and self._gateway.proc.poll() is not None:
            return False
        try:
            return self.context._jsc is not None and not self.context._jsc.sc().isStopped()
        except Exception:  # Py4J raises what it likes when the other side is going.
            return False

    def close(self) -> None:
        """End Spark. Safe to call again, and after Spark has died."""
        with contextlib.suppress(Exception):  # A Java process that is gone cannot stop its context any more.
            self.context.stop()
        _end(self._gateway, self._folder)


def open_spark(options: SparkOptions, *, environment: Mapping[str, str] | None = None) -> SparkHandle:
    """Start Spark and return when it takes jobs; blocks for some seconds. Raises `Unsupported` or `SparkFailed`."""
    require_spark(os.environ if environment is None else environment)
    # Imported late: it takes a while, and a host without Spark is told so above.
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._active_spark_context is not None:
        raise Unsupported("this process runs a Spark already, and there can be one only: close that first")
    folder = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    conf = _properties(options, folder)
    at_launch = {name: value for name, value in conf.items() if name.startswith(_AT_LAUNCH)}
    gateway: Any = None
    try:
        (folder / "log4j2.properties").write_text(_LOG_SETTINGS.format(folder=folder), encoding="utf-8")
        with (folder / "jvm.log").open("wb") as output:
            launching = SparkConf(loadDefaults=False).setAll(list(at_launch.items()))
            gateway = launch_gateway(launching, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        rest = SparkConf(_jvm=gateway.jvm).setAll(list(conf.items()))
        context = SparkContext(gateway=gateway, conf=rest)
        _require_registered(context, options)
    except HeadraceError:
        _end(gateway, folder)
        raise
    except Exception as error:  # PySpark and Py4J raise whatever they have.
        # A Java process that did not even come up has told its reasons to nobody but its log.
        words = _end_of_logs(folder) if gateway is None else ""
        told = f"Spark did not start on {options.master}: {first_line(error)}{words}"
        _end(gateway, folder)
        raise SparkFailed(told) from None
    # What a plain environment variable would say, without changing the environment of this whole process.
    context.pythonExec = options.executor_python
    return SparkHandle(context, gateway, folder, options)


def _require_registered(context: "SparkContext", options: SparkOptions) -> None:
    """Raise `SparkFailed` if the master has not taken us.

    Spark waits for a minute, and then returns a context that it stops behind our back: what gives it away at once is
    that no master has given it its name.
    """
    is_nameless = options.master.startswith("spark://") and not context.applicationId.startswith("app-")
    if is_nameless or context._jsc.sc().isStopped():
        raise SparkFailed(
            f"no Spark master answers at {options.master}: is it running, and can it be reached from here?"
        )


def _properties(options: SparkOptions, folder: Path) -> dict[str, str]:
    ours = {
        "spark.master": options.master,
        "spark.app.name": options.app_name,
        "spark.driver.memory": options.driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Also without its pages Spark remembers what they would show.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        "spark.ui.retainedDeadExecutors": "10",
        "spark.sql.ui.retainedExecutions": "10",
        # Runs of several topics share the cores, instead of one backlog keeping all others waiting.
        "spark.scheduler.mode": "FAIR",
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        "spark.python.worker.reuse": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": f"{folder}/scratch",
    }
    if options.is_local:
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if options.python is None:
            ours["spark.python.daemon.module"] = "headrace.pipeline.spark.daemon"
    conf = {**ours, **options.conf}
    flags = [f"-Dlog4j2.configurationFile=file:{folder}/log4j2.properties", options.java_flags]
    flags.append(conf.get("spark.driver.extraJavaOptions", ""))
    conf["spark.driver.extraJavaOptions"] = " ".join(flag for flag in flags if flag)
    return conf


def _end(gateway: Any, folder: Path) -> None:
    from pyspark import SparkContext

    if gateway is not None:
        with contextlib.suppress(Exception):  # The other side may be gone already, in as many ways as Py4J knows.
            gateway.shutdown()
        if gateway.proc is not None:
            _end_process(gateway.proc)
        if SparkContext._gateway in (None, gateway):
            SparkContext._gateway = SparkContext._jvm = None
            SparkContext._active_spark_context = None
    shutil.rmtree(folder, ignore_errors=True)


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def text_of(error: BaseException) -> str:
    """Return what an error says. One of Py4J's asks the Java process for it, which may be gone by now."""
    try:
        return str(error).strip() or type(error).__name__
    except Exception:  # whatever it is, the first error is the one to tell
        return f"{type(error).__name__}, and Spark is gone"


def first_line(error: BaseException) -> str:
    """Return what an error says first: Py4J's go on for a hundred lines."""
    lines = text_of(error).splitlines()
    # Py4J's own first line names a Java object by its number; what it raised comes after that.
    told = next((line for line in lines if not line.startswith("An error occurred while calling")), lines[0])
    return told.lstrip(": ")[:MAX_SHOWN_CHARS]


def _end_of_logs(folder: Path) -> str:
    told = ""
    for name in ("jvm.log", "spark.log"):
        with contextlib.suppress(OSError):
            told += (folder / name).read_bytes()[-SHOWN_LOG_BYTES:].decode("utf-8", "replace")
    return f"\nSpark's own last words:\n{told.strip()}" if told.strip() else ""
