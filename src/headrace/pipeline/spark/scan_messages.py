"""What a read's plan sends to executors: one packed message per task.

Must stay true: this loads nothing that only executors need. Plans are made in Python processes that begin for them.
"""

import msgspec

from headrace import __version__
from headrace.pipeline.scan.conditions import Condition
from headrace.pipeline.scan.pinning import PinNote
from headrace.pipeline.scan.scanner import PlannedScan
from headrace.pipeline.scan.tasks import ScanTask
from headrace.pipeline.spark.address import ObjectsAddress


class ScanMessage(msgspec.Struct, frozen=True):
    """What goes to an executor."""

    task: ScanTask
    pin: PinNote
    objects: ObjectsAddress
    columns: tuple[str, ...]
    condition: Condition
    max_open_bytes: int
    version: str


MESSAGES = msgspec.msgpack.Decoder(ScanMessage)


def messages_of(
    planned: PlannedScan,
    *,
    objects: ObjectsAddress,
    columns: tuple[str, ...],
    condition: Condition,
    max_open_bytes: int,
) -> list[bytes]:
    """Pack the tasks of a plan for executors that are to be as this driver is."""
    if planned.pin is None:
        return []
    return [
        msgspec.msgpack.encode(
            ScanMessage(
                task=task,
                pin=planned.pin,
                objects=objects,
                columns=columns,
                condition=condition,
                max_open_bytes=max_open_bytes,
                version=__version__,
            )
        )
        for task in planned.tasks
    ]
