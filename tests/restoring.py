"""Takes a memory store back to an earlier state, as a fail-over or a restore does with a real one."""

from dataclasses import dataclass

from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Key, Versioned
from headrace.model.ids import SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What a memory store held at one moment."""

    rows: dict[Key, Versioned]
    owners: dict[Key, SessionId]
    revision: int


def save(store: MemoryMetadata) -> Backup:
    """Return the store as it is now."""
    return Backup(rows=dict(store._rows), owners=dict(store._owners), revision=store._revision)


def restore(store: MemoryMetadata, backup: Backup, *, skipped_revisions: int | None = None) -> None:
    """Take the store back. With `skipped_revisions` its revisions go on behind the newest one that it ever gave.

    That is what PostgreSQL does at a fail-over: a sequence jumps ahead, so no revision is given twice.
    """
    store._rows = dict(backup.rows)
    store._order = sorted(backup.rows)
    store._owners = dict(backup.owners)
    store._revision = backup.revision if skipped_revisions is None else store._revision + skipped_revisions
