"""The dead-letter tables of all topics in an Iceberg catalog: found by their topic's id, created, appended to.

Blocking, as PyIceberg is: `IcebergCatalog` calls it on its executor's threads.

Must stay true: a table of that name which is not ours is never written; one of an earlier topic is renamed first.
"""

from collections.abc import Callable, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table
from sqlalchemy.exc import IntegrityError

from headrace.errors import Retryable
from headrace.runtime.logs import Log
from headrace.runtime.rng import Rng
from headrace.tables.dead_letters import NAMESPACE
from headrace.tables.format import DeadLetterFormat
from headrace.tables.iceberg import layout
from headrace.tables.iceberg.dead_letters import (
    letter_format,
    letter_properties,
    letter_schema,
    listed_ends,
    prepare_letters,
)
from headrace.tables.iceberg.failures import committing
from headrace.tables.iceberg.locations import ObjectsRoot, topic_uuid
from headrace.tables.iceberg.snapshots import discard_files
from headrace.tables.names import NameStyle, retired_names, table_name
from headrace.tables.port import DeadLetterAppend, ForeignTable, TopicTable, are_letters_there

ENSURE_ATTEMPTS = 6

Commit = Callable[..., Table]
"""Sends a commit once and returns the table as it is then."""


class LetterTables:
    """Dead-letter tables; each is called as its topic's table is, in a namespace of their own."""

    def __init__(self, *, root: ObjectsRoot, style: NameStyle, rng: Rng, log: Log) -> None:
        self._root = root
        self._style = style
        self._rng = rng
        self._log = log

    def load(self, catalog: Catalog, table: TopicTable) -> Table | None:
        """Return the topic's own dead-letter table, under whatever name it lies, or `None`."""
        uuid, name = topic_uuid(table.topic_id), table_name(table.topic_name, self._style)
        for candidate in (name, *retired_names(name, uuid)):
            try:
                loaded = catalog.load_table((NAMESPACE, candidate))
            except NoSuchTableError:
                continue
            if self._is_own(loaded, table):
                return loaded
        return None

    def ensure(self, catalog: Catalog, table: TopicTable) -> DeadLetterFormat:
        """Return how the topic's dead-letter table wants files; create it if there is none. Raises `ForeignTable`."""
        return letter_format(self._ensured(catalog, table), table.topic_id)

    def append(self, catalog: Catalog, append: DeadLetterAppend, *, commit: Commit, now_ms: int) -> Table:
        """Add a run's letters unless they are there, and return the table as it then is."""
        loaded = self._ensured(catalog, append.table)
        if are_letters_there(listed_ends(loaded), append):
            return loaded
        prepared = prepare_letters(loaded, append, root=self._root, rng=self._rng, now_ms=now_ms)
        try:
            with committing(f"the dead letters of run {append.saga_id}"):
                return commit(catalog, loaded, prepared.requirements, prepared.updates)
        except Retryable:
            discard_files(loaded, prepared.written)
            raise

    def _ensured(self, catalog: Catalog, table: TopicTable) -> Table:
        identifier = (NAMESPACE, table_name(table.topic_name, self._style))
        for _ in range(ENSURE_ATTEMPTS):
            own = self.load(catalog, table)
            if own is not None:
                return own
            try:
                self._free_name(catalog, identifier)
                catalog.create_namespace_if_not_exists(NAMESPACE)
                catalog.create_table(
                    identifier,
                    letter_schema(),
                    location=self._root.dead_letter_location(table.topic_id),
                    properties=letter_properties(topic_uuid(table.topic_id), table.topic_name),
                )
                self._log.info("dead-letter table created", table=".".join(identifier))
            except (TableAlreadyExistsError, NamespaceAlreadyExistsError, IntegrityError, NoSuchTableError):
                continue  # Somebody was quicker; the next look says who.
        raise Retryable(f"the dead-letter table of the topic {table.topic_name} is being created by others as well")

    def _free_name(self, catalog: Catalog, identifier: tuple[str, str]) -> None:
        """Rename the dead-letter table of an earlier topic of that name. Raises `ForeignTable` if it is not ours."""
        try:
            loaded = catalog.load_table(identifier)
        except NoSuchTableError:
            return
        owner = loaded.properties.get(layout.TOPIC_ID)
        names: Sequence[str] = () if owner is None else retired_names(identifier[1], owner)
        for name in names:
            if not catalog.table_exists((NAMESPACE, name)):
                catalog.rename_table(identifier, (NAMESPACE, name))
                self._log.info("dead-letter table of an earlier topic renamed", table=name)
                return
        raise ForeignTable(
            f"a table called {'.'.join(identifier)} is there and was not made for this topic, so its dead letters"
            " have no place: rename it, or unset headrace.table.schema"
        )

    def _is_own(self, loaded: Table, table: TopicTable) -> bool:
        is_here = loaded.location().rstrip("/") == self._root.dead_letter_location(table.topic_id)
        return is_here and loaded.properties.get(layout.TOPIC_ID) == topic_uuid(table.topic_id)
