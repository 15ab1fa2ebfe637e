"""What runs in the executors: one file per task, written from start to end in one Python process, or one key scan.

Everything a task needs comes in its message, and everything it has to say goes back in one: row data passes neither
through Java nor through the driver. Nothing here imports broker code, and nothing needs a broker that runs.

Must stay true: an answer is given once the file is durable. What another attempt may mend is raised, so that Spark
tries the task again elsewhere; what none will mend, and what the last attempt could not do either, is an answer.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from headrace import __version__
from headrace.errors import Corrupt, Exists, HeadraceError, Invalid, Missing, OutcomeUnknown, Retryable, Unsupported
from headrace.pipeline.key_scanning import scan_keys
from headrace.pipeline.performing import perform_task
from headrace.pipeline.rewrites import TableTask
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.pipeline.spark.address import ObjectsAddress, open_address
from headrace.records.columns import IMPLEMENTATION
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import Rng, system_rng
from headrace.tables.files import WrittenFile

DISK_THREADS = 4
"""Threads of one task for local files: reads ahead, and the file that is written."""

ATTEMPT_BITS = 48


class TaskMessage(msgspec.Struct, frozen=True):
    """What goes to an executor. `attempts` says how often Spark tries; the last one answers whatever happens."""

    task: TableTask | ScanTask
    objects: ObjectsAddress
    version: str
    decoder: str
    attempts: int


class Written(msgspec.Struct, frozen=True, tag="written"):
    """The file is there."""

    file: WrittenFile


class Scanned(msgspec.Struct, frozen=True, tag="scanned"):
    """The keys were scanned, and the list of what is obsolete is there."""

    stream: ScannedStream


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """There is no file, and `error` names the class of ours that says what to do next."""

    error: str
    reason: str


MESSAGES = msgspec.msgpack.Decoder(TaskMessage)
ANSWERS: msgspec.msgpack.Decoder[Written | Scanned | Failed] = msgspec.msgpack.Decoder(Written | Scanned | Failed)

FINAL = (Missing, Corrupt, Invalid, Unsupported)
"""What no other attempt mends."""

RAISED: Mapping[str, type[HeadraceError]] = {kind.__name__: kind for kind in (*FINAL, Retryable)}
"""The classes that an answer may name."""


def message(task: TableTask | ScanTask, objects: ObjectsAddress, *, attempts: int) -> bytes:
    """Pack a task for an executor that is to be as this driver is."""
    told = TaskMessage(task=task, objects=objects, version=__version__, decoder=IMPLEMENTATION, attempts=attempts)
    return msgspec.msgpack.encode(told)


def perform(packed: bytes) -> bytes:
    """Do one task in this process and return the answer: what Spark maps over messages."""
    from pyspark import TaskContext

    told = MESSAGES.decode(packed)
    context = TaskContext.get()
    assert context is not None, "tasks run in executors"
    attempt = context.attemptNumber()
    answer = answer_to(told, attempt=attempt, name=_attempt_name(context.stageId(), attempt, system_rng()))
    return msgspec.msgpack.encode(answer)


def answer_to(told: TaskMessage, *, attempt: int, name: str) -> Written | Scanned | Failed:
    """Do the task and say what came of it; raises what the next attempt, if there is one, may mend."""
    try:
        _require_same_release(told)
        return asyncio.run(_do(told, name))
    except FINAL as error:
        return Failed(error=_class_of(error), reason=str(error))
    except (Retryable, OutcomeUnknown, Exists) as error:
        # A file of unknown fate has the name of this attempt alone: the next one is not in its way.
        if attempt + 1 < told.attempts:
            raise
        return Failed(error="Retryable", reason=f"after {told.attempts} attempts: {error}")


async def _do(told: TaskMessage, name: str) -> Written | Scanned:
    disk, work = ThreadExecutor("disk", threads=DISK_THREADS), ThreadExecutor("work", threads=1)
    try:
        objects = open_address(told.objects, disk)
        try:
            if isinstance(told.task, ScanTask):
                return Scanned(await scan_keys(told.task, objects, attempt=name, executor=work))
            return Written(await perform_task(told.task, objects, attempt=name, executor=work))
        finally:
            await objects.close()
    finally:
        disk.close()
        work.close()


def _require_same_release(told: TaskMessage) -> None:
    """An executor may have joined after the probe; its release decides what bytes it writes, so it is asked again."""
    if told.version != __version__:
        raise Unsupported(
            f"an executor has Headrace {__version__}, and the pipeline is {told.version}: install the same release"
        )
    if told.decoder != IMPLEMENTATION:
        raise Unsupported(
            f"an executor decodes records with the {IMPLEMENTATION} decoder, and the pipeline with the {told.decoder}"
            " one: install the same wheel"
        )


def _attempt_name(stage: int, attempt: int, rng: Rng) -> str:
    # The token tells apart what Spark does not: a stage that is run again, and drivers that share a saga.
    return f"{stage}.{attempt}.{rng.getrandbits(ATTEMPT_BITS):012x}"


def _class_of(error: HeadraceError) -> str:
    return next(kind.__name__ for kind in FINAL if isinstance(error, kind))
