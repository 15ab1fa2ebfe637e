"""A process that loads tables freshly, again and again, and says what each of them shows.

It is what a reader sees who opens the table at that moment: the catalog is asked and the metadata is read anew every
time. The first line names the catalog's file and the tables; a line of JSON goes out per look, until the input ends.
"""

import json
import select
import sys
import time
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from headrace.tables.iceberg.commit import ENDS
from headrace.tables.port import LOG_BRANCH

CATALOG, NAMESPACE = "headrace", "topics"
PAUSE_SECONDS = 0.2


def watch(database: Path, topics: list[str]) -> None:
    """Look at all tables in turn until nobody listens any more."""
    catalog = SqlCatalog(CATALOG, uri=f"sqlite:///{database}")
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
        for topic in topics:
            try:
                table = catalog.load_table((NAMESPACE, topic))
            except NoSuchTableError:
                continue
            ends, rows = look(table)
            seen_ns = time.monotonic_ns()
            print(json.dumps({"topic": topic, "seen_ns": seen_ns, "ends": ends, "rows": rows}), flush=True)
    catalog.engine.dispose()


def look(table: Table) -> tuple[dict[str, int], int]:
    """Return up to which offset each partition is in the table, and how many rows users see on `main`."""
    head, log = table.current_snapshot(), table.snapshot_by_name(LOG_BRANCH)
    if head is None or head.summary is None or log is None or log.summary is None:
        return {}, 0
    ends: dict[str, int] = json.loads(log.summary.additional_properties[ENDS])
    return ends, int(head.summary.additional_properties["total-records"])


if __name__ == "__main__":
    wanted = json.loads(sys.stdin.readline())
    watch(Path(wanted["database"]), wanted["topics"])
