"""Dead letters: copies of rows whose values do not fit their topic's schema, in a table of their own.

    topic, partition, offset       where the record stands; it is in the topic's table as well, with `data` null
    timestamp, append_time         its times, as there
    key, value                     what it holds, whole
    reason                         why its value does not fit
    schema                         the version of the schema that it does not fit
    saga, seen_at                  the run that found it, and when that run was planned

Must stay true: a dead letter is a copy, never a move. No column is nested, so that a file needs one id per name.
"""

from collections.abc import Mapping, Sequence
from struct import pack
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from headrace.tables.columns import APPEND_TIME, KEY, OFFSET, PARTITION, TIME_TYPE, TIMESTAMP, VALUE
from headrace.tables.files import ColumnStats, WrittenFile
from headrace.tables.format import DeadLetterFormat
from headrace.tables.parquet_writing import ParquetSink
from headrace.tables.typed.arrow import FIELD_ID

NAMESPACE: Final = "dead_letters"
"""The namespace in which all dead-letter tables lie; each is called as its topic's table is."""

TOPIC: Final = "topic"
REASON: Final = "reason"
SCHEMA_VERSION: Final = "schema"
SAGA: Final = "saga"
SEEN_AT: Final = "seen_at"

_FIELDS: Final[tuple[Any, ...]] = (
    pa.field(TOPIC, pa.string(), nullable=False),
    pa.field(PARTITION, pa.int32(), nullable=False),
    pa.field(OFFSET, pa.int64(), nullable=False),
    pa.field(TIMESTAMP, TIME_TYPE, nullable=False),
    pa.field(APPEND_TIME, TIME_TYPE, nullable=False),
    pa.field(KEY, pa.binary()),
    pa.field(VALUE, pa.binary()),
    pa.field(REASON, pa.string(), nullable=False),
    pa.field(SCHEMA_VERSION, pa.string(), nullable=False),
    pa.field(SAGA, pa.string(), nullable=False),
    pa.field(SEEN_AT, TIME_TYPE, nullable=False),
)
LETTER_SCHEMA: Final[Any] = pa.schema(_FIELDS)
"""The columns of a dead-letter table, without field ids."""

_COPIED: Final = (PARTITION, OFFSET, TIMESTAMP, APPEND_TIME, KEY, VALUE)


class DeadLetterWriter:
    """One file of dead letters in the making; its bytes are taken as they come."""

    def __init__(
        self, format_: DeadLetterFormat, *, topic: str, schema_version: str, saga_id: str, seen_at_ms: int
    ) -> None:
        self._format = format_
        self._constants: Mapping[str, Any] = {
            TOPIC: topic,
            SCHEMA_VERSION: schema_version,
            SAGA: saga_id,
            SEEN_AT: seen_at_ms * 1000,
        }
        self._schema = pa.schema(
            [field.with_metadata({FIELD_ID: str(format_.field_ids[field.name])}) for field in LETTER_SCHEMA]
        )
        self._sink = ParquetSink()
        self._writer: Any = None
        self._finished: list[Any] = []
        self._nulls = dict.fromkeys(LETTER_SCHEMA.names, 0)
        self._crc = 0
        self._times_us: tuple[int, int] | None = None
        self.row_count = 0

    def add(self, rows: Any, misfits: Mapping[int, str]) -> None:
        """Copy the rows that do not fit, as the next row group."""
        numbers: Sequence[int] = sorted(misfits)
        chosen = rows.take(pa.array(numbers, pa.int64()))
        arrays: dict[str, Any] = {name: chosen.column(name) for name in _COPIED}
        arrays[REASON] = pa.array([misfits[number] for number in numbers], pa.string())
        for name, value in self._constants.items():
            arrays[name] = pa.array([value] * len(numbers), LETTER_SCHEMA.field(name).type)
        letters = pa.Table.from_arrays([arrays[name] for name in LETTER_SCHEMA.names], schema=self._schema)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[TOPIC, PARTITION, REASON, SCHEMA_VERSION, SAGA, SEEN_AT],
                store_schema=False,
                metadata_collector=self._finished,
            )
        self._writer.write_table(letters, row_group_size=letters.num_rows)
        self.row_count += letters.num_rows
        self._note_times(letters.column(APPEND_TIME))
        for name in LETTER_SCHEMA.names:
            self._nulls[name] += letters.column(name).null_count

    def _note_times(self, append_times: Any) -> None:
        found = pc.min_max(append_times.cast(pa.int64())).as_py()
        before = self._times_us or (found["min"], found["max"])
        self._times_us = (min(before[0], found["min"]), max(before[1], found["max"]))

    def take(self) -> memoryview:
        """Return the bytes that came since the last call; they are good until the next one."""
        return self._sink.take()

    def finish(self) -> memoryview:
        """End the file and return its last bytes."""
        assert self._writer is not None, "a file without dead letters is not written"
        self._writer.close()
        data = self._sink.take()
        self._crc = crc32c(data)
        return data

    def written(self, path: str, *, footer_bytes: int) -> WrittenFile:
        """Return what is known of the file once it is finished."""
        metadata = self._finished[0]
        sizes = dict.fromkeys(LETTER_SCHEMA.names, 0)
        starts = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            chunks = [group.column(index) for index in range(group.num_columns)]
            starts.append(min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks))
            for chunk in chunks:
                sizes[chunk.path_in_schema] += chunk.total_compressed_size
        return WrittenFile(
            path=path,
            size_bytes=self._sink.end_byte,
            footer_bytes=footer_bytes,
            footer_crc=self._crc,
            row_count=self.row_count,
            slices=(),
            columns=tuple(
                ColumnStats(
                    self._format.field_ids[name], size_bytes, self.row_count, self._nulls[name], *self._bounds(name)
                )
                for name, size_bytes in sizes.items()
            ),
            split_offsets=tuple(starts),
            bucket=None,
            partition=None,
            spec_id=self._format.spec_id,
        )

    def _bounds(self, name: str) -> tuple[bytes | None, bytes | None]:
        """Return the bounds of the append time, by which the newest letters are found."""
        if name != APPEND_TIME or self._times_us is None:
            return None, None
        return pack("<q", self._times_us[0]), pack("<q", self._times_us[1])
