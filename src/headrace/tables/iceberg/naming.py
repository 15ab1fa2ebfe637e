"""Which files a loaded table names, all its snapshots together.

Must stay true: in doubt a file is named. Engines spell one location in several ways (`file:/…` and `file:///…`, `s3:`
and `s3a:`, with and without percent signs), so a location is known by what follows the topic's UUID in it.
"""

from collections.abc import Collection, Iterator
from urllib.parse import unquote

from pyiceberg.table import Table

from headrace.tables.iceberg.locations import TABLES_PREFIX


def unnamed_files(table: Table, keys: Collection[str], uuid: str) -> frozenset[str]:
    """Return those of the keys that the table of a topic's UUID does not name. It goes through all its manifests."""
    left = set(keys)
    for location in _locations(table):
        if not left:
            break
        for spelled in (location, unquote(location)):
            _, found, behind = spelled.partition(f"/{uuid}/")
            if found:
                left.discard(f"{TABLES_PREFIX}{uuid}/{behind}")
    return frozenset(left)


def _locations(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    for entry in metadata.metadata_log:
        yield entry.metadata_file
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            # Those that a snapshot took away are named here, too: whoever reads an older one may need them.
            for named in manifest.fetch_manifest_entry(io=table.io, discard_deleted=False):
                yield named.data_file.file_path
