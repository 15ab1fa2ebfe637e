"""What typed columns cost a task of the pipeline: rows per CPU second with a schema of each language, and without.

One task writes one file from batches of 1,000 orders of seven fields (a list, a map and a struct among them), about
145 bytes each as JSON; object store in memory, one thread. CPU time: neighbours on a shared machine change it less.
`all bad` is a topic whose values fit none of it: every row is copied to the dead letters.
"""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from headrace.objects.memory import MemoryObjects
from headrace.pipeline.plans import Typing, WriteTask
from headrace.pipeline.writing import write_file
from headrace.runtime.clock import SystemClock
from headrace.tables.columns import COLUMNS
from headrace.tables.dead_letters import LETTER_SCHEMA
from headrace.tables.format import DeadLetterFormat
from headrace.tables.typed.model import walk
from headrace.tables.typed.schemas import SchemaSource, ready_schema
from headrace.testing.batches import make_batch
from headrace.topics.table_schema import schema_of
from tests.table_kit import put_piece, table_format, task_of
from tests.typed_kit import CONFIGS, encoded, orders

NAME = "typed_columns"
HAS_QUICK_FORM = True

ROWS = 200_000
QUICK_ROWS = 40_000
BATCH_ROWS = 1_000
BAD_VALUE = b"\xff" * 100


def run(*, is_quick: bool = False) -> list[tuple[str, float, str, float | None]]:
    """Return thousands of rows per CPU second."""
    rows = QUICK_ROWS if is_quick else ROWS
    figures: list[tuple[str, float, str, float | None]] = []
    for language in sorted(CONFIGS):
        values = [encoded(order, language) for order in orders(BATCH_ROWS)]
        source = schema_of(CONFIGS[language])
        figures.append((f"{language}: without a schema", _rate(values, None, rows), "k rows/CPU-s", None))
        figures.append((f"{language}: with its schema", _rate(values, source, rows), "k rows/CPU-s", None))
    bad = _rate([BAD_VALUE] * BATCH_ROWS, schema_of(CONFIGS["json"]), rows)
    figures.append(("json: all bad", bad, "k rows/CPU-s", None))
    return figures


def _rate(values: Sequence[bytes], source: SchemaSource | None, rows: int) -> float:
    return asyncio.run(_measured(values, source, rows))


async def _measured(values: Sequence[bytes], source: SchemaSource | None, rows: int) -> float:
    objects = MemoryObjects(SystemClock())
    batch = make_batch(values)
    task = task_of([await put_piece(objects, [batch] * (rows // BATCH_ROWS))])
    if source is not None:
        task = _typed(task, source)
    began = time.process_time()
    await write_file(task, objects, attempt="bench")
    return rows / (time.process_time() - began) / 1000


def _typed(task: WriteTask, source: SchemaSource) -> WriteTask:
    data = ready_schema(source).struct
    names = [*(column.name for column in COLUMNS), *(name for name, _ in walk(data))]
    ids = {name: number for number, name in enumerate(names, 1)}
    letters = DeadLetterFormat(
        field_ids={name: number for number, name in enumerate(LETTER_SCHEMA.names, 1)},
        spec_id=0,
        data_prefix="tables/letters/data/",
    )
    return msgspec.structs.replace(
        task,
        format=msgspec.structs.replace(table_format(), field_ids=ids, data=data),
        typing=Typing(topic="orders", schema=source, dead_letters=letters, seen_at_ms=0),
    )
