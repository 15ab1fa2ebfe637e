"""`headrace sql`: one question to Spark SQL over the tables of all topics."""

import csv
import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.cells import cell, plain
from headrace.cli.options import Config, DataDir, Metadata, Objects, Set, configure_storage
from headrace.cli.printing import complain, print_json, print_table, working
from headrace.errors import Invalid, Missing
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.pipeline.spark.querying import Answer

MAX_QUESTION_BYTES = 1024 * 1024
DEFAULT_LIMIT = 1000
MAX_LIMIT = 1_000_000
"""All rows of an answer are held in memory: a larger one belongs into a file or a table of its own."""


class SqlOutput(enum.StrEnum):
    """How an answer is printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The question; - reads it from stdin.")],
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_LIMIT, help="Print at most this many rows.")
    ] = DEFAULT_LIMIT,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    output: Annotated[SqlOutput, typer.Option("--output", help="How to print the answer.")] = SqlOutput.TEXT,
    write: Annotated[
        bool,
        typer.Option("--write", help="Also take statements that change data; topics' tables are never dropped."),
    ] = False,
) -> None:
    """Run a query of Spark SQL over the tables; a topic's table is `headrace.topics.NAME`, or just NAME."""
    question = read_question(query)
    settings = configure_storage(data_dir, metadata, objects, config, set_).tree
    require_catalog(settings)
    with working("Spark starts and answers"):
        answer = _ask(settings, question, limit, may_write=write)
    print_answer(answer, output)
    if answer.has_more:
        complain(f"there are more rows than the {limit} printed: --limit takes a larger number")


def read_question(query: str) -> str:
    """Return the query without its last semicolon, from stdin if it is `-`. Raises `Invalid` if there is none."""
    if query == "-":
        raw = sys.stdin.buffer.read(MAX_QUESTION_BYTES + 1)
        if len(raw) > MAX_QUESTION_BYTES:
            raise Invalid(f"the query on stdin is longer than {MAX_QUESTION_BYTES} bytes")
        try:
            query = raw.decode()
        except UnicodeDecodeError as error:
            raise Invalid(f"the query on stdin is not UTF-8: {error}") from error
    question = query.strip().removesuffix(";").strip()
    if not question:
        raise Invalid('there is no query; try: headrace sql "show tables"')
    return question


def require_catalog(settings: Settings) -> None:
    """Raise `Missing` if the embedded catalog is not there: Spark would make an empty one without a word."""
    url = settings.catalog.url
    path = Path(url.removeprefix("sqlite:").removeprefix("//"))
    if url.startswith("sqlite:") and not path.exists():
        raise Missing(
            f"there are no tables yet: {path} does not exist. `headrace pipeline run --once` makes them of what is "
            "in the topics; if that has run, give its --data-dir here, too"
        )


def print_answer(answer: "Answer", output: SqlOutput) -> None:
    """Print rows; what was done without any is told in words."""
    if output is SqlOutput.JSON:
        print_json([dict(zip(answer.columns, map(plain, row), strict=True)) for row in answer.rows])
        return
    if output is SqlOutput.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if answer.columns:
            writer.writerow(answer.columns)
        writer.writerows([_csv_cell(value) for value in row] for row in answer.rows)
        return
    if answer.columns:
        print_table(answer.columns, [[cell(value) for value in row] for row in answer.rows])
    if not answer.rows:
        print("(no rows)" if answer.columns else "(done)")


def _csv_cell(value: object) -> object:
    return value if value is None or isinstance(value, int | float) else cell(value)


def _ask(settings: Settings, question: str, limit: int, *, may_write: bool) -> "Answer":
    # Imported late: they load Spark's Python side, and a wrong option should not wait for that.
    from headrace.broker.spark import catalog_access, sql_options
    from headrace.pipeline.spark.querying import ask
    from headrace.pipeline.spark.sql import sql_session

    handle = sql_session(catalog_access(settings), sql_options(settings))
    try:
        return ask(handle, question, max_rows=limit, may_write=may_write)
    finally:
        handle.close()
