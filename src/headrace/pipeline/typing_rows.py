"""Give rows their typed columns, and keep copies of those whose values do not fit.

Must stay true: rows come out as they went in, with `data` beside the raw columns; a row that does not fit is in the
file with `data` null, and in the dead letters with a reason.
"""

from typing import Any

import pyarrow as pa

from headrace.errors import Invalid
from headrace.pipeline.file_sending import FileSender
from headrace.pipeline.plans import Typing
from headrace.tables.columns import SCHEMA, VALUE
from headrace.tables.dead_letters import DeadLetterWriter
from headrace.tables.files import WrittenFile
from headrace.tables.typed.arrow import data_field, decode_values
from headrace.tables.typed.model import FieldType, InvalidSchema
from headrace.tables.typed.schemas import ReadySchema, ready_schema


class RowTyper:
    """Decodes the values of one file's rows, row group by row group. Without a schema all of `data` is null."""

    def __init__(self, saga_id: str, data: FieldType, typing: Typing | None) -> None:
        """`data` is what the table has. Raises `Invalid` for a schema that cannot be used here."""
        field = data_field(data, None)
        self._data_type = field.type
        self._row_schema = SCHEMA.append(field)
        self._schema: ReadySchema | None = None
        self.letters: DeadLetterWriter | None = None
        if typing is None:
            return
        try:
            self._schema = ready_schema(typing.schema)
        except InvalidSchema as error:
            raise Invalid(f"headrace.table.schema of {typing.topic} cannot be used: {error}") from error
        self.letters = DeadLetterWriter(
            typing.dead_letters,
            topic=typing.topic,
            schema_version=typing.schema.version,
            saga_id=saga_id,
            seen_at_ms=typing.seen_at_ms,
        )

    def typed(self, rows: Any) -> Any:
        """Return rows with their `data`; copies of those that do not fit go to the letters."""
        return pa.RecordBatch.from_arrays([*rows.columns, self._data(rows)], schema=self._row_schema)

    def _data(self, rows: Any) -> Any:
        if self._schema is None or self.letters is None:
            return pa.nulls(rows.num_rows, self._data_type)
        data, misfits = decode_values(rows.column(VALUE), self._schema, self._data_type)
        if misfits:
            self.letters.add(rows, misfits)
        return data


class LetterSender:
    """Sends the dead letters of a file as they come. Where there are none, nothing is written."""

    def __init__(self, typer: RowTyper | None, sender: FileSender) -> None:
        self._letters = None if typer is None else typer.letters
        self._sender = sender

    async def send(self) -> None:
        """Send what came since the last time."""
        if self._letters is not None and self._letters.row_count:
            await self._sender.send(self._letters.take())

    async def finish(self) -> WrittenFile | None:
        """End the file, and return what is known of it; it is durable then."""
        if self._letters is None or not self._letters.row_count:
            return None
        footer = self._letters.finish()
        await self._sender.send(footer)
        await self._sender.complete()
        return self._letters.written(self._sender.key, footer_bytes=len(footer))

    async def abort(self) -> None:
        """Leave nothing behind of a file that is not going to be."""
        await self._sender.abort()
