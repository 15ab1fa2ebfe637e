"""Every statement of the engine, and the schema they work on.

Keys are compared byte by byte (`COLLATE "C"`). One statement reads all keys and ranges of a transaction from one
snapshot, one function writes all of it and takes the revision: so a transaction takes four round trips, begin and
lock, read, write, commit. Who has to hear of it is notified afterwards: see `notifying.py`.
"""

import hashlib
import re
from functools import lru_cache

from headrace.errors import Invalid

SCHEMA_VERSION = 1
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_ROW = "key, value, version"


class Statements:
    """The statements for one schema; a schema holds one cluster, and its name is the channel of its notifications."""

    def __init__(self, schema: str) -> None:
        if not _NAME.fullmatch(schema):
            raise Invalid(f"not a schema name: {schema!r}; use up to 48 small letters, digits and underscores")
        self.schema = schema
        kv = f"{schema}.kv"
        self.read_keys = f"SELECT 0::bigint, {_ROW} FROM {kv} WHERE key = ANY($1::text[])"
        self.read_all = " UNION ALL ".join(
            (self.read_keys, _ranges(kv, "$2", "$3", "$4", ""), _ranges(kv, "$5", "$6", "$7", "DESC"))
        )
        self.read_one = f"SELECT {_ROW} FROM {kv} WHERE key = $1"
        self.read_range = f"SELECT {_ROW} FROM {kv} WHERE key >= $1 AND key < $2 ORDER BY key LIMIT $3"
        self.read_reverse = self.read_range.replace("ORDER BY key", "ORDER BY key DESC")
        self.read_session_keys = f"SELECT key FROM {kv} WHERE session = $1"
        # It would notify for the units that it is given, inside the transaction; it is given none.
        self.write = f"SELECT {schema}.write($1, $2, $3, $4, $5, $6, '{{}}')"
        # One statement is one transaction. The row is changed after the lock was taken: if the session was ended
        # while it waited, the row is gone and nothing is returned.
        self.renew = (
            "WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared($1::bigint)) "
            f"UPDATE {kv} SET version = nextval('{schema}.revision') FROM locked WHERE key = $2 "
            "RETURNING version"
        )
        self.lock_schema = f"SELECT pg_advisory_xact_lock({self.lock_id('schema')})"
        self.has_schema = f"SELECT to_regclass('{schema}.about') IS NOT NULL"
        self.read_schema_version = f"SELECT max(version) FROM {schema}.about"

    @lru_cache(maxsize=4096)  # noqa: B019  One object per store, and it lives as long as the process.
    def lock_id(self, unit: str) -> int:
        """Return the number of a unit's advisory lock: the same in every process and release."""
        digest = hashlib.blake2b(f"{self.schema}\0{unit}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def begin(self, exclusive: set[int], shared: set[int]) -> str:
        """Return the script that begins a transaction and takes its locks, always in the same order."""
        calls = [
            f"pg_advisory_xact_lock{'' if lock_id in exclusive else '_shared'}({lock_id})"
            for lock_id in sorted(exclusive | shared)
        ]
        return f"BEGIN;SELECT {','.join(calls)}"

    def create(self) -> str:
        """Return the script that creates everything: in one transaction, and never over what is there."""
        schema = self.schema
        return f"""
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE {schema}.about (version integer NOT NULL);
INSERT INTO {schema}.about VALUES ({SCHEMA_VERSION});
CREATE SEQUENCE {schema}.revision;
CREATE TABLE {schema}.kv (
    key text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL,
    version bigint NOT NULL,
    session text
) WITH (fillfactor = 70);
-- Values are checksummed and compact: compressing them costs time and gains nothing.
ALTER TABLE {schema}.kv ALTER COLUMN value SET STORAGE EXTERNAL;
CREATE INDEX kv_session ON {schema}.kv (session) WHERE session IS NOT NULL;
CREATE FUNCTION {schema}.write(
    put_keys text[], put_values bytea[], ephemeral_keys text[], ephemeral_values bytea[], owner text,
    delete_keys text[], units text[]
) RETURNS bigint LANGUAGE plpgsql AS $body$
DECLARE
    next_revision bigint := nextval('{schema}.revision');
    changed_unit text;
BEGIN
    IF cardinality(delete_keys) > 0 THEN
        DELETE FROM {schema}.kv WHERE key = ANY(delete_keys);
    END IF;
    IF cardinality(put_keys) > 0 THEN
        {_put(schema, "put_keys", "put_values", "NULL")};
    END IF;
    IF cardinality(ephemeral_keys) > 0 THEN
        {_put(schema, "ephemeral_keys", "ephemeral_values", "owner")};
    END IF;
    FOREACH changed_unit IN ARRAY units LOOP
        PERFORM pg_notify('{schema}', changed_unit || ' ' || next_revision);
    END LOOP;
    RETURN next_revision;
END $body$;
"""


def _put(schema: str, put_keys: str, put_values: str, owner: str) -> str:
    return (
        f"INSERT INTO {schema}.kv SELECT one.key, one.value, next_revision, {owner} "
        f"FROM unnest({put_keys}, {put_values}) AS one (key, value) ON CONFLICT (key) DO UPDATE "
        "SET value = excluded.value, version = excluded.version, session = excluded.session"
    )


def _ranges(kv: str, starts: str, ends: str, limits: str, order: str) -> str:
    # Rows are told apart by a number: 1, 2 … for forward ranges, -1, -2 … for reverse ones, 0 for keys.
    number = "-wanted.number" if order else "wanted.number"
    return (
        f"SELECT {number}, found.* FROM unnest({starts}::text[], {ends}::text[], {limits}::int[]) "
        'WITH ORDINALITY AS wanted ("start", "end", "limit", number), '
        f'LATERAL (SELECT {_ROW} FROM {kv} WHERE key >= wanted."start" AND key < wanted."end" '
        f'ORDER BY key {order} LIMIT wanted."limit") AS found'
    )
