"""Before the first job: are the executors what the driver takes them for?

One task per executor says which Headrace, which decoder and which Python it has, and what it reads where the driver
has just written. A release that writes other bytes, or a folder that only the driver's host knows, is found here and
not in a table.

The question is asked in plain Python that is sent along: also an executor without Headrace can answer it.
"""

import contextlib
import platform
from collections.abc import Callable, Sequence

import msgspec
from crc32c import crc32c

from headrace import __version__
from headrace.errors import HeadraceError, Unsupported
from headrace.objects.port import ObjectStore, object_key
from headrace.objects.probe import PREFIX
from headrace.pipeline.spark.address import ObjectsAddress
from headrace.pipeline.spark.session import SparkHandle, text_of
from headrace.pipeline.spark.writer import reason_of
from headrace.records.columns import IMPLEMENTATION
from headrace.runtime.executor import Executor
from headrace.runtime.rng import Rng

PROBE_BYTES = 4096
MAX_ROUNDS = 5
"""How often tasks are sent out until every executor has had one; one that comes later is asked by its first task."""


class Report(msgspec.Struct, frozen=True):
    """What an executor says of itself. `problem` is why it could not say more."""

    host: str
    process: int
    python: str = ""
    version: str = ""
    decoder: str = ""
    crc: int = -1
    problem: str = ""


async def probe_executors(
    spark: SparkHandle, objects: ObjectStore, address: ObjectsAddress, *, executor: Executor, rng: Rng
) -> list[Report]:
    """Ask every executor; raise `Unsupported` with a sentence for the first that will not do."""
    content = rng.getrandbits(PROBE_BYTES * 8).to_bytes(PROBE_BYTES, "big")
    key = object_key(f"{PREFIX}{rng.getrandbits(128):032x}/executors")
    await objects.put(key, [content])
    try:
        reports = await executor.run(lambda: _ask(spark, address, key))
    finally:
        # What is left under the probe's own prefix does no harm, and hides no better reason.
        with contextlib.suppress(HeadraceError):
            await objects.delete([key])
    for report in reports:
        _judge(report, address, crc=crc32c(content))
    return reports


def _judge(report: Report, address: ObjectsAddress, *, crc: int) -> None:
    """Raise `Unsupported` unless this executor may write our files."""
    where = f"the executor on host {report.host} (Python {report.python})"
    if not report.version:
        raise Unsupported(
            f"{where} has no Headrace: {report.problem}. Install Headrace {__version__} there, and let"
            " pipeline.spark.python name that Python"
        )
    if report.version != __version__:
        raise Unsupported(
            f"{where} has Headrace {report.version}, and the pipeline is {__version__}: install {__version__} there,"
            " or let pipeline.spark.python name a Python that has it"
        )
    if report.decoder != IMPLEMENTATION:
        raise Unsupported(
            f"{where} has the {report.decoder} decoder of records, and the pipeline the {IMPLEMENTATION} one: install"
            " the same wheel of Headrace on both"
        )
    if report.problem:
        raise Unsupported(
            f"{where} cannot read what was just written to {address.url}: {report.problem}. Executors on other hosts"
            " need an object store that all hosts reach, and its credentials in their own environment"
        )
    if report.crc != crc:
        raise Unsupported(
            f"{where} reads other bytes than were just written to {address.url}: it looks at another store. Name one"
            " that all hosts share"
        )


def _ask(spark: SparkHandle, address: ObjectsAddress, key: str) -> list[Report]:
    context = spark.context
    question = _question(msgspec.msgpack.encode(address), key)
    found: dict[tuple[str, int], Report] = {}
    for _ in range(MAX_ROUNDS):
        executors = 1 if spark.options.is_local else max(1, context._jsc.sc().getExecutorMemoryStatus().size() - 1)
        tasks = max(context.defaultParallelism, executors)
        try:
            answers: Sequence[tuple[str, int, str, str, str, int, str]] = (
                context.parallelize(range(tasks), tasks).map(question).collect()
            )
        except Exception as error:  # Whatever Py4J raises: the executor could not even begin.
            raise _cannot_begin(spark, error) from None
        found |= {(answer[0], answer[1]): Report(*answer) for answer in answers}
        if len(found) >= executors:
            break
    return [found[name] for name in sorted(found)]


def _cannot_begin(spark: SparkHandle, error: Exception) -> Unsupported:
    reason, told = reason_of(error), text_of(error)
    if "PYTHON_VERSION_MISMATCH" in told:
        reason = (
            f"the executors have another Python than the pipeline's {platform.python_version()}; let"
            " pipeline.spark.python name one of the same minor version there"
        )
    elif "Cannot run program" in told:
        reason = (
            f"there is no {spark.options.executor_python!r} on the executors; let pipeline.spark.python name their"
            f" Python ({reason})"
        )
    return Unsupported(f"a task could not begin on {spark.options.master}: {reason}")


def _question(address: bytes, key: str) -> Callable[[int], tuple[str, int, str, str, str, int, str]]:
    """Return what an executor is asked. A function inside a function is sent by value, so it needs nothing there."""

    def ask(_number: int) -> tuple[str, int, str, str, str, int, str]:
        import os
        import platform
        import socket

        # Its parent is the one process that starts all Python of this executor.
        who = (socket.gethostname(), os.getppid(), platform.python_version())
        try:
            from headrace import __version__ as version
        except ImportError as error:
            return (*who, "", "", -1, str(error))
        try:
            from headrace.pipeline.spark.answering import crc_of
            from headrace.records.columns import IMPLEMENTATION as decoder  # noqa: N811
        except ImportError as error:
            return (*who, version, "", -1, str(error))
        try:
            return (*who, version, decoder, crc_of(address, key), "")
        except Exception as error:
            return (*who, version, decoder, -1, f"{type(error).__name__}: {error}")

    return ask
