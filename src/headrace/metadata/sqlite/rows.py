"""Reading and writing rows: every statement of the engine, each one run in as few steps as there can be.

SQLite gives the GIL away at every step, and beside a busy event loop each step then waits for it. So a
hundred keys are read in one step (aggregated into one row, cut up here) and written in a few (statements of
64, 32 … 1 rows). Measured beside a spinning thread, 100 puts: 0.3 ms against 2.0 ms row by row.

The table has row ids on purpose: with the key as its cluster (`WITHOUT ROWID`) a value beyond a quarter page
is read from its overflow pages at every comparison, and a commit took twice as long.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import apsw
import msgspec

from headrace.errors import Corrupt
from headrace.metadata.port import Key, Range, Versioned
from headrace.model.ids import SessionId

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE kv (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    session TEXT
) STRICT;
CREATE INDEX kv_session ON kv (session) WHERE session IS NOT NULL;
CREATE TABLE units (unit TEXT PRIMARY KEY, revision INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX units_revision ON units (revision);
"""

_TOGETHER = (
    "group_concat(kv.key, char(10)), json_group_array(kv.version), json_group_array(length(kv.value)), "
    "CAST(group_concat(kv.value, '') AS BLOB)"
)
_READ_KEYS = f"SELECT {_TOGETHER} FROM carray(?) AS wanted CROSS JOIN kv ON kv.key = wanted.value"
_READ_RANGE = (
    f"SELECT {_TOGETHER} FROM "
    "(SELECT key, value, version FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?) AS kv"
)
_READ_REVERSE = _READ_RANGE.replace("ORDER BY key", "ORDER BY key DESC")
_READ_SESSION_KEYS = "SELECT key FROM kv WHERE session = ? ORDER BY key"
_DELETE = "DELETE FROM kv WHERE key IN (SELECT value FROM carray(?))"
_PUT_SIZES = (64, 32, 16, 8, 4, 2, 1)


def _put_statement(rows: int) -> str:
    values = ",".join(f"(?{2 * row + 3},?{2 * row + 4},?1,?2)" for row in range(rows))
    return (
        f"INSERT INTO kv (key, value, version, session) VALUES {values} ON CONFLICT (key) DO UPDATE "
        "SET value = excluded.value, version = excluded.version, session = excluded.session"
    )


_PUT = {size: _put_statement(size) for size in _PUT_SIZES}
_PUT_UNIT = "INSERT INTO units VALUES (?, ?) ON CONFLICT (unit) DO UPDATE SET revision = excluded.revision"
_LAST_REVISION = "SELECT coalesce(max(revision), 0) FROM units"
_CHANGED_UNITS = "SELECT unit, revision FROM units WHERE revision > ? ORDER BY revision"

_decode_numbers = msgspec.json.Decoder(list[int]).decode


def read_keys(connection: apsw.Connection, wanted: Sequence[Key]) -> dict[Key, Versioned]:
    """Return the rows of those keys that exist."""
    if not wanted:
        return {}
    found = connection.execute(_READ_KEYS, (apsw.carray(tuple(wanted)),)).get
    return {row.key: row for row in _cut(found)}


def read_range(connection: apsw.Connection, range_: Range) -> list[Versioned]:
    """Return the rows of a range, in its order."""
    statement = _READ_REVERSE if range_.reverse else _READ_RANGE
    return _cut(connection.execute(statement, (range_.start, range_.end, range_.limit)).get)


def read_session_keys(connection: apsw.Connection, session: SessionId) -> list[Key]:
    """Return the ephemeral keys of a session."""
    return [Key(str(key)) for (key,) in connection.execute(_READ_SESSION_KEYS, (session,))]


def put(connection: apsw.Connection, puts: Mapping[Key, bytes], revision: int, session: SessionId | None) -> None:
    """Write keys and their values; with a session they are its ephemeral keys.

    In key order, because folding puts thousands of new keys at the ends of a hundred runs: run by run they take half
    the time that they take all mixed up.
    """
    flat: list[object] = list(chain.from_iterable(sorted(puts.items())))
    start = 0
    for size in _PUT_SIZES:
        while len(flat) - start >= 2 * size:
            connection.execute(_PUT[size], (revision, session, *flat[start : start + 2 * size]))
            start += 2 * size


def delete(connection: apsw.Connection, deletes: Sequence[Key]) -> None:
    """Delete keys; those that do not exist are no error."""
    if deletes:
        connection.execute(_DELETE, (apsw.carray(tuple(deletes)),))


def put_units(connection: apsw.Connection, changed: Iterable[tuple[str, int]]) -> None:
    """Record the revision at which units last changed: what watches of other processes read."""
    connection.executemany(_PUT_UNIT, changed)


def last_revision(connection: apsw.Connection) -> int:
    """Return the store-wide revision: every transaction that writes also records a unit."""
    return int(connection.execute(_LAST_REVISION).get)


def changed_since(connection: apsw.Connection, revision: int) -> list[tuple[str, int]]:
    """Return the units that changed after a revision, with the revision at which they last did."""
    return [(str(unit), int(last)) for unit, last in connection.execute(_CHANGED_UNITS, (revision,))]


def _cut(found: tuple[str | None, str, str, bytes]) -> list[Versioned]:
    """Cut one aggregated row into the rows it was made of."""
    joined_keys, versions, sizes, values = found
    if joined_keys is None:
        return []
    rows = []
    start = 0
    for key, version, size in zip(
        joined_keys.split("\n"), _decode_numbers(versions), _decode_numbers(sizes), strict=True
    ):
        end = start + size
        rows.append(Versioned(Key(key), values[start:end], version))
        start = end
    if start != len(values):
        raise Corrupt(f"metadata rows of {len(values)} bytes say they have {start}: check the database file")
    return rows
