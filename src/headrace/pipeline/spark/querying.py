"""Ask Spark SQL one question and take the answer as plain values.

What Spark says of a wrong question fills a screen; here it is one line, and where a table is not known, it says which
there are. Times come as text: Spark knows years that Python does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, Invalid
from headrace.pipeline.spark.session import first_line
from headrace.pipeline.spark.sql import CATALOG, NAMESPACE, SqlHandle
from headrace.pipeline.spark.statements import check_statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_NAMED_TABLES = 20
_UNKNOWN_NAMES = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")


class QueryFailed(HeadraceError):
    """Spark could not carry the question out, though there is nothing wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Rows of plain values, and whether there were more than asked for. A statement without rows has no columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    has_more: bool


def ask(handle: SqlHandle, question: str, *, max_rows: int, may_write: bool = False) -> Answer:
    """Ask, and take at most `max_rows` rows.

    Raises `Invalid` for a wrong question, or for one that does more than it may; `QueryFailed` if Spark fails.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        check_statement(handle.session, question, may_write=may_write)
        found = handle.session.sql(question)
        if not found.columns:
            return Answer(columns=(), rows=(), has_more=False)
        rows = _shown(found).take(max_rows + 1)
        return Answer(
            columns=list(found.columns), rows=[list(row) for row in rows[:max_rows]], has_more=len(rows) > max_rows
        )
    except ParseException as error:
        raise Invalid(f"this is not SQL that Spark understands: {_sentence(error)}") from error
    except AnalysisException as error:
        known = _known_tables(handle) if error.getCondition() in _UNKNOWN_NAMES else ""
        raise Invalid(f"{_sentence(error)}{known}") from error
    except (PySparkException, Py4JError) as error:
        raise QueryFailed(f"Spark failed: {_sentence(error)}") from error


def table_names(handle: SqlHandle) -> list[str]:
    """Return the names of all tables of topics."""
    from pyspark.errors import PySparkException

    try:
        found = handle.session.sql(f"SHOW TABLES IN {CATALOG}.{NAMESPACE}").collect()
    except PySparkException:  # There is no such namespace before the first table.
        return []
    return sorted(str(row["tableName"]) for row in found)


def _shown(found: "DataFrame") -> "DataFrame":
    """Return the rows with times as text; columns are counted, because two may bear one name."""
    from pyspark.sql.functions import col
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    times = (DateType, TimestampType, TimestampNTZType)
    numbered = found.toDF(*(f"c{number}" for number in range(len(found.columns))))
    return numbered.select(
        *(
            col(field.name).cast("string") if isinstance(field.dataType, times) else col(field.name)
            for field in numbered.schema.fields
        )
    )


def _known_tables(handle: SqlHandle) -> str:
    names = table_names(handle)
    if not names:
        return "; there are no tables yet: the pipeline has not brought any record there"
    more = f" and {len(names) - MAX_NAMED_TABLES} more" if len(names) > MAX_NAMED_TABLES else ""
    # What is no plain identifier has to be quoted, and whoever sees it quoted knows how.
    quoted = [name if name.isidentifier() else f"`{name}`" for name in names[:MAX_NAMED_TABLES]]
    return f"; there are: {', '.join(quoted)}{more}"


def _sentence(error: Exception) -> str:
    """Return the first thing an error says, without its condition in brackets and Spark's advice."""
    line = first_line(error)
    if line.startswith("["):
        line = line.partition("] ")[2] or line
    for advice in (" Verify the spelling", " SQLSTATE", " To tolerate the error"):
        line = line.partition(advice)[0]
    return line.rstrip(" .;")
