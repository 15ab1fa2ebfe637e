"""The tables of all topics in an Iceberg catalog: found, created, appended to, dropped.

PyIceberg blocks, so every call runs on an executor's thread. The catalog is opened by the first call that needs it:
a process starts, and serves, while the catalog is away.

Must stay true:
- Only a table that carries our topic's id and lies in our object store is written, renamed or dropped.
- A commit goes to the catalog once. PyIceberg's own transactions, which try again by themselves, are not used.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from sqlalchemy.exc import IntegrityError

from headrace.errors import Corrupt, HeadraceError, Invalid, Retryable
from headrace.runtime.executor import Executor
from headrace.runtime.logs import Log
from headrace.runtime.rng import Rng
from headrace.tables.iceberg import layout
from headrace.tables.iceberg.commit import PreparedCommit, branch_head, prepare_commit
from headrace.tables.iceberg.expiry import (
    ManifestPaths,
    expiring_snapshots,
    freed_data,
    freed_files,
    may_free_data,
)
from headrace.tables.iceberg.failures import asking, committing
from headrace.tables.iceberg.known_files import KnownFiles
from headrace.tables.iceberg.letter_tables import LetterTables
from headrace.tables.iceberg.listing import list_branch
from headrace.tables.iceberg.locations import TABLES_PREFIX, ObjectsRoot, topic_uuid
from headrace.tables.iceberg.naming import unnamed_files
from headrace.tables.iceberg.rewriting import prepare_rewrite
from headrace.tables.iceberg.scan import IcebergLook
from headrace.tables.iceberg.snapshots import discard_files, stands_on
from headrace.tables.iceberg.typed_columns import data_of, schema_with, wanted_data
from headrace.tables.names import NAMESPACE, NameStyle, retired_names, table_name
from headrace.tables.port import (
    LOG_BRANCH,
    Appended,
    BranchHead,
    DeadLetterAppend,
    ExpiryRule,
    ForeignTable,
    MainPolicy,
    Rewritten,
    TableAppend,
    TableInfo,
    TableListing,
    TableRewrite,
    TableStale,
    TopicTable,
    Verdict,
    decide_append,
    decide_rewrite,
)
from headrace.tables.typed.model import InvalidSchema
from headrace.tables.typed.schemas import ready_schema

ENSURE_ATTEMPTS = 6
"""How often `ensure` looks again when somebody else creates or renames the same table at the same moment."""

T = TypeVar("T")
Connect = Callable[[], tuple[Catalog, Callable[[], None]]]


class IcebergCatalog:
    """`TableCatalog` and `TableScanner` on PyIceberg."""

    def __init__(
        self, *, connect: Connect, root: ObjectsRoot, style: NameStyle, executor: Executor, rng: Rng, log: Log
    ) -> None:
        self._connect = connect
        self._root = root
        self._style = style
        self._executor = executor
        self._rng = rng
        self._log = log
        self._letters = LetterTables(root=root, style=style, rng=rng, log=log)
        self._manifest_paths = ManifestPaths()
        self._known_files = KnownFiles()
        self._lock = threading.Lock()
        self._opened: tuple[Catalog, Callable[[], None]] | None = None

    async def ensure(self, table: TopicTable) -> TableInfo:
        return await self._run("finding the table", lambda catalog: self._ensure(catalog, table))

    async def find(self, table: TopicTable) -> TableInfo | None:
        def find(catalog: Catalog) -> TableInfo | None:
            loaded = self._load_own(catalog, table)
            return None if loaded is None else self._info(loaded, table)

        return await self._run("finding the table", find)

    async def append(self, append: TableAppend, *, now_ms: int, expiry: ExpiryRule) -> Appended:
        return await self._run("appending", lambda catalog: self._append(catalog, append, now_ms, expiry))

    async def rewrite(self, rewrite: TableRewrite, *, now_ms: int, expiry: ExpiryRule) -> Rewritten:
        return await self._run("rewriting", lambda catalog: self._rewrite(catalog, rewrite, now_ms, expiry))

    async def expire(self, table: TopicTable, *, now_ms: int, expiry: ExpiryRule) -> Sequence[str]:
        def expire(catalog: Catalog) -> list[str]:
            loaded = self._load_own(catalog, table)
            return [] if loaded is None else self._expire(catalog, loaded, expiry, now_ms)

        return await self._run("expiring snapshots", expire)

    async def listing(self, table: TopicTable, *, with_spans: bool = False) -> TableListing | None:
        def list_files(catalog: Catalog) -> TableListing | None:
            loaded = self._load_own(catalog, table)
            if loaded is None:
                return None
            info = self._info(loaded, table)
            return list_branch(loaded, info, known=self._known_files, root=self._root, with_spans=with_spans)

        return await self._run("listing files", list_files)

    async def append_dead_letters(
        self, append: DeadLetterAppend, *, now_ms: int, expiry: ExpiryRule
    ) -> Sequence[str]:
        def list_letters(catalog: Catalog) -> Sequence[str]:
            after = self._letters.append(catalog, append, commit=self._commit, now_ms=now_ms)
            return self._expire(catalog, after, expiry, now_ms)

        return await self._run("listing dead letters", list_letters)

    async def drop(self, table: TopicTable) -> bool:
        def drop(catalog: Catalog) -> bool:
            # The letters first: whoever has to try again finds the topic's table still there.
            self._drop(catalog, self._letters.load(catalog, table))
            return self._drop(catalog, self._load_own(catalog, table))

        return await self._run("dropping the table", drop)

    async def data_files(self, table: TopicTable, *, ref: str) -> Sequence[str]:
        """Return the object keys of a ref's data files. One that lies outside of the object store keeps its URI."""
        return await self._run("listing files", lambda catalog: self._data_files(catalog, table, ref))

    async def unnamed(self, table: TopicTable, keys: Collection[str]) -> frozenset[str] | None:
        def unnamed(catalog: Catalog) -> frozenset[str] | None:
            loaded = self._load_own(catalog, table)
            return None if loaded is None else unnamed_files(loaded, keys, topic_uuid(table.topic_id))

        return await self._run("reading what the table names", unnamed)

    async def look(self, table: TopicTable) -> IcebergLook | None:
        """Return the topic's own table as it is now, to be read at leisure, or `None`. Raises `ForeignTable`."""

        def look(catalog: Catalog) -> IcebergLook | None:
            loaded = self._load_own(catalog, table)
            return None if loaded is None else IcebergLook(loaded, root=self._root, executor=self._executor)

        return await self._run("looking at the table", look)

    async def look_at_dead_letters(self, table: TopicTable) -> IcebergLook | None:
        """Return the topic's dead-letter table as it is now, or `None`."""

        def look(catalog: Catalog) -> IcebergLook | None:
            loaded = self._letters.load(catalog, table)
            return None if loaded is None else IcebergLook(loaded, root=self._root, executor=self._executor)

        return await self._run("looking at dead letters", look)

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await self._executor.run(opened[1])

    async def _run(self, what: str, work: Callable[[Catalog], T]) -> T:
        def run() -> T:
            with asking(what):
                return work(self._catalog())

        return await self._executor.run(run)

    def _catalog(self) -> Catalog:
        with self._lock:
            if self._opened is None:
                self._opened = self._connect()
            return self._opened[0]

    def _drop(self, catalog: Catalog, loaded: Table | None) -> bool:
        if loaded is None:
            return False
        try:
            catalog.drop_table(loaded.name())
        except NoSuchTableError:
            return False
        return True

    # Finding and creating

    def _identifier(self, table: TopicTable) -> tuple[str, str]:
        return (NAMESPACE, table_name(table.topic_name, self._style))

    def _load(self, catalog: Catalog, identifier: tuple[str, ...]) -> Table | None:
        try:
            return catalog.load_table(identifier)
        except NoSuchTableError:
            return None

    def _load_own(self, catalog: Catalog, table: TopicTable) -> Table | None:
        """Load the topic's table, also where a later topic of that name has taken its name. Raises `ForeignTable`."""
        namespace, name = self._identifier(table)
        loaded = self._load(catalog, (namespace, name))
        if loaded is not None and self._is_own(loaded, table):
            return loaded
        uuid = topic_uuid(table.topic_id)
        for retired in retired_names(name, uuid):
            loaded = self._load(catalog, (namespace, retired))
            if loaded is not None and self._owner(loaded) == uuid:
                return loaded
        return None

    def _owner(self, loaded: Table) -> str | None:
        """Return the UUID of the topic of ours that a table belongs to, or `None` if it is not ours."""
        owner = loaded.properties.get(layout.TOPIC_ID)
        is_ours = owner is not None and loaded.location().rstrip("/") == self._root.uri_of(TABLES_PREFIX + owner)
        return owner if is_ours else None

    def _is_own(self, loaded: Table, table: TopicTable) -> bool:
        """Tell whether a table is this topic's (`True`) or an earlier topic's of ours. Raises `ForeignTable`."""
        name, location = ".".join(loaded.name()), loaded.location()
        owner = self._owner(loaded)
        if owner is None and layout.TOPIC_ID not in loaded.properties:
            raise ForeignTable(
                f"a table called {name} is there and was not made by Headrace, so the topic has none: rename it, or"
                f" set headrace.table.enable=false for the topic {table.topic_name}"
            )
        if owner is None:
            raise ForeignTable(
                f"the table {name} lies at {location}, not in this cluster's object store {self._root.uri}: either"
                " another cluster shares this catalog (give each its own), or the object store was moved (Iceberg's"
                " metadata names files by their full location: move it back)"
            )
        return owner == topic_uuid(table.topic_id)

    def _ensure(self, catalog: Catalog, table: TopicTable) -> TableInfo:
        for _ in range(ENSURE_ATTEMPTS):
            loaded = self._load(catalog, self._identifier(table))
            if loaded is None:
                self._call_back_or_create(catalog, table)
            elif not self._is_own(loaded, table):
                self._retire(catalog, loaded)
            else:
                laid_out = self._typed(catalog, self._laid_out(catalog, loaded, table), table)
                letters = None if table.schema is None else self._letters.ensure(catalog, table)
                return replace(self._info(laid_out, table), dead_letters=letters)
        raise Retryable(f"the table of the topic {table.topic_name} is being created or renamed by others as well")

    def _call_back_or_create(self, catalog: Catalog, table: TopicTable) -> None:
        """Give the topic's table its name. It has lost it where a pipeline that was paused acted, much too late, for
        an earlier topic of that name; a second table beside it would lack its records."""
        own = self._load_own(catalog, table)
        if own is None:
            self._create(catalog, table)
            return
        try:
            catalog.rename_table(own.name(), self._identifier(table))
        except (TableAlreadyExistsError, NoSuchTableError):
            return  # somebody was quicker; the next look says who
        self._log.info("table renamed back", table=".".join(own.name()), topic=table.topic_name)

    def _create(self, catalog: Catalog, table: TopicTable) -> None:
        schema = layout.table_schema()
        uuid = topic_uuid(table.topic_id)
        try:
            catalog.create_namespace_if_not_exists(NAMESPACE)
            catalog.create_table(
                self._identifier(table),
                schema,
                location=self._root.table_location(table.topic_id),
                partition_spec=layout.first_spec(table.partitioning, schema),
                properties=layout.table_properties(uuid, table.topic_name, table.partitioning),
            )
        except (TableAlreadyExistsError, NamespaceAlreadyExistsError, IntegrityError):
            # Somebody was quicker; the next look says who. PyIceberg looks whether the namespace is there and then
            # inserts it: of two topics' first runs at once one finds a row that was not there before.
            return
        self._log.info("table created", table=".".join(self._identifier(table)), topic_id=uuid)

    def _retire(self, catalog: Catalog, loaded: Table) -> None:
        """Give the table of an earlier topic another name."""
        namespace, name = loaded.name()
        for retired in retired_names(name, loaded.properties[layout.TOPIC_ID]):
            if catalog.table_exists((namespace, retired)):
                continue
            try:
                catalog.rename_table(loaded.name(), (namespace, retired))
            except (TableAlreadyExistsError, NoSuchTableError):
                return
            self._log.info("table of an earlier topic renamed", table=f"{namespace}.{name}", renamed_to=retired)
            return
        raise ForeignTable(
            f"the table {namespace}.{name} belongs to an earlier topic and cannot be renamed: all names for it are"
            " taken; rename or drop one of them"
        )

    def _laid_out(self, catalog: Catalog, loaded: Table, table: TopicTable) -> Table:
        """Give the table the partition spec that its topic asks for, if that was changed."""
        metadata = loaded.metadata
        layout.require_columns(metadata, ".".join(loaded.name()))
        wanted = layout.partitioning_text(table.partitioning)
        spec = layout.find_spec(table.partitioning, metadata)
        if spec is not None and loaded.properties.get(layout.PARTITIONED_BY) == wanted:
            return loaded
        updates: list[TableUpdate] = []
        if spec is None:
            updates.append(AddPartitionSpecUpdate(spec=layout.next_spec(table.partitioning, metadata)))
        if spec is None or spec.spec_id != metadata.default_spec_id:
            updates.append(SetDefaultSpecUpdate.model_validate({"spec-id": -1 if spec is None else spec.spec_id}))
        updates.append(SetPropertiesUpdate(updates={layout.PARTITIONED_BY: wanted}))
        requirements: list[TableRequirement] = [
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertLastAssignedPartitionId.model_validate({"last-assigned-partition-id": metadata.last_partition_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        ]
        catalog.commit_table(loaded, tuple(requirements), tuple(updates))
        self._log.info("table partitioned anew", table=".".join(loaded.name()), by=wanted)
        return catalog.load_table(loaded.name())

    def _typed(self, catalog: Catalog, loaded: Table, table: TopicTable) -> Table:
        """Give the table the typed columns its topic's schema asks for, if that has changed. Raises `Invalid`."""
        if table.schema is None:
            return loaded
        metadata, name = loaded.metadata, ".".join(loaded.name())
        try:
            struct = ready_schema(table.schema).struct
        except InvalidSchema as error:  # Another release has let it through.
            raise Invalid(f"headrace.table.schema of the topic {table.topic_name} cannot be used: {error}") from error
        data = wanted_data(metadata, struct, table=name, topic=table.topic_name)
        if data == data_of(metadata.schema(), name):
            return loaded
        updates: list[TableUpdate] = [
            AddSchemaUpdate.model_validate({"schema": schema_with(metadata, data)}),
            SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
        ]
        requirements: list[TableRequirement] = [
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id}),
        ]
        catalog.commit_table(loaded, tuple(requirements), tuple(updates))
        self._log.info("typed columns changed", table=name, schema=table.schema.version)
        return catalog.load_table(loaded.name())

    def _info(self, loaded: Table, table: TopicTable) -> TableInfo:
        metadata = loaded.metadata
        name = ".".join(loaded.name())
        layout.require_columns(metadata, name)
        spec = layout.find_spec(table.partitioning, metadata)
        partitioning = table.partitioning
        if spec is None:  # The topic's setting was changed and no run has come by since.
            newest = [(found, layout.partitioning_of(found, metadata.schema())) for found in metadata.partition_specs]
            ours = [(found, layout_) for found, layout_ in newest if layout_ is not None]
            if not ours:  # Somebody has replaced the spec, and had those cleaned away that no file uses.
                raise ForeignTable(f"the table {name} has no partition spec of ours any more: the next run adds one")
            spec, partitioning = ours[-1]
        return TableInfo(
            identifier=loaded.name(),
            uuid=str(metadata.table_uuid),
            location=loaded.location(),
            data_prefix=self._root.data_prefix(table.topic_id),
            format=layout.table_format(metadata, spec, partitioning),
            head=self._head(loaded),
        )

    def _head(self, loaded: Table) -> BranchHead | None:
        try:
            return branch_head(loaded)
        except Corrupt as error:
            raise ForeignTable(str(error)) from error

    # Appending

    def _append(self, catalog: Catalog, append: TableAppend, now_ms: int, expiry: ExpiryRule) -> Appended:
        # Its name may have gone to a later topic: a run of the earlier one must still hear that it is in the table.
        loaded = self._load_own(catalog, append.table)
        if loaded is None:
            raise TableStale(f"the table of the topic {append.table.topic_name} is gone: it is created anew")
        layout.require_columns(loaded.metadata, ".".join(loaded.name()))
        head = self._head(loaded)
        verdict = decide_append(head, append)
        if verdict is Verdict.STALE:
            ends = {} if head is None else dict(head.ends)
            raise TableStale(
                f"run {append.saga_id} was planned behind {dict(append.after)}, the table is at {ends}: plan again"
            )
        if verdict is Verdict.THERE_ALREADY:
            assert head is not None
            return Appended(head=head, was_there=True, freed=self._expire(catalog, loaded, expiry, now_ms))
        specs = loaded.metadata.specs()
        if any(file.path and file.spec_id not in specs for file in append.files):
            raise TableStale(f"run {append.saga_id} was written for another table of that name: plan again")
        prepared = prepare_commit(loaded, append, head=head, root=self._root, rng=self._rng, now_ms=now_ms)
        after = self._make(catalog, loaded, prepared)
        return Appended(head=prepared.head, freed=self._expire(catalog, after, expiry, now_ms))

    def _rewrite(self, catalog: Catalog, rewrite: TableRewrite, now_ms: int, expiry: ExpiryRule) -> Rewritten:
        loaded = self._load_own(catalog, rewrite.table)
        if loaded is None:
            raise TableStale(
                f"the table of the topic {rewrite.table.topic_name} is gone: there is nothing to rewrite"
            )
        layout.require_columns(loaded.metadata, ".".join(loaded.name()))
        head = self._head(loaded)
        main = self._keys_of(loaded, MAIN_BRANCH) if rewrite.main is MainPolicy.ALONE else frozenset()
        verdict = decide_rewrite(head, rewrite, branch=self._keys_of(loaded, LOG_BRANCH), main=main)
        if verdict is Verdict.THERE_ALREADY:
            assert head is not None
            return Rewritten(head=head, was_there=True, freed=self._expire(catalog, loaded, expiry, now_ms))
        specs = loaded.metadata.specs()
        if head is None or verdict is Verdict.STALE or any(f.path and f.spec_id not in specs for f in rewrite.files):
            raise TableStale(
                f"files that rewrite {rewrite.saga_id} was planned from are not in the table: plan again"
            )
        prepared = prepare_rewrite(
            loaded, rewrite, head=head, known=self._known_files, root=self._root, rng=self._rng, now_ms=now_ms
        )
        after = self._make(catalog, loaded, prepared)
        freed = self._expire(catalog, after, expiry, now_ms)
        return Rewritten(head=prepared.head, main_moved=prepared.main_moved, freed=freed)

    def _keys_of(self, loaded: Table, ref: str) -> frozenset[str]:
        """Return the object keys of all files that a ref's snapshot names."""
        snapshot = loaded.metadata.snapshot_by_name(ref)
        keys = (self._root.key_of(file.location) for file in self._known_files.of_snapshot(snapshot, loaded.io))
        return frozenset(key for key in keys if key is not None)

    def _make(self, catalog: Catalog, loaded: Table, prepared: PreparedCommit) -> Table:
        """Make a commit and return the table as it is then; what was written for one that was refused is deleted."""
        try:
            with committing(f"the commit of run {prepared.head.saga_id}"):
                return self._commit(catalog, loaded, prepared.requirements, prepared.updates)
        except Retryable:
            discard_files(loaded, prepared.written)
            raise

    def _commit(
        self,
        catalog: Catalog,
        loaded: Table,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
    ) -> Table:
        """Send a commit once, and return the table as it is then."""
        response = catalog.commit_table(loaded, tuple(requirements), tuple(updates))
        if loaded.properties.get(layout.DELETES_OLD_METADATA) == "true":
            before = {entry.metadata_file for entry in loaded.metadata.metadata_log}
            now = {entry.metadata_file for entry in response.metadata.metadata_log}
            discard_files(loaded, sorted(before - now - {response.metadata_location}))
        return Table(
            identifier=loaded.name(),
            metadata=response.metadata,
            metadata_location=response.metadata_location,
            io=loaded.io,
            catalog=catalog,
        )

    def _expire(self, catalog: Catalog, loaded: Table, rule: ExpiryRule, now_ms: int) -> list[str]:
        """Take old snapshots out and return the keys of what they leave behind. If it fails, there is a next run."""
        gone = expiring_snapshots(loaded.metadata, rule, now_ms=now_ms)
        if not gone:
            return []
        ids = {snapshot.snapshot_id for snapshot in gone}
        left = [snapshot for snapshot in loaded.metadata.snapshots if snapshot.snapshot_id not in ids]
        refs = loaded.metadata.refs.items()
        try:
            with asking("expiring snapshots"):
                self._freed(loaded, gone, left)  # What cannot be read now is not let go of.
                after = self._commit(
                    catalog,
                    loaded,
                    [
                        AssertTableUUID(uuid=loaded.metadata.table_uuid),
                        # Somebody who sets a ref back to an old snapshot must find it there.
                        *(stands_on(name, ref.snapshot_id) for name, ref in refs),
                    ],
                    [RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(ids)})],
                )
                # What others have committed meanwhile may name some of it. Those that were there before go along: a
                # catalog may forget whose successors they are together with the snapshots that went.
                freed = self._freed(after, gone, after.metadata.snapshots, before=left)
        except HeadraceError as error:
            self._log.warning(
                "snapshots not expired", table=".".join(loaded.name()), count=len(gone), reason=str(error)
            )
            return []
        prefix = loaded.location().rstrip("/") + "/"
        keys = [self._root.key_of(location) for location in freed if location.startswith(prefix)]
        return [key for key in keys if key is not None]

    def _freed(
        self, loaded: Table, gone: Sequence[Snapshot], left: Sequence[Snapshot], *, before: Sequence[Snapshot] = ()
    ) -> list[str]:
        """Return the locations of all files that only snapshots that are gone name."""
        freed = freed_files(gone, left, lambda snapshot: self._manifest_paths.of(snapshot, loaded.io))
        if may_free_data(gone, [*left, *before]):
            freed += freed_data(gone, left, lambda snapshot: self._locations(snapshot, loaded))
        return freed

    def _locations(self, snapshot: Snapshot, loaded: Table) -> list[str]:
        return [file.location for file in self._known_files.of_snapshot(snapshot, loaded.io)]

    # Listing

    def _data_files(self, catalog: Catalog, table: TopicTable, ref: str) -> list[str]:
        loaded = self._load_own(catalog, table)
        found = None if loaded is None else loaded.metadata.refs.get(ref)
        snapshot = None if loaded is None or found is None else loaded.metadata.snapshot_by_id(found.snapshot_id)
        if loaded is None or snapshot is None:
            return []
        locations = [
            entry.data_file.file_path
            for manifest in snapshot.manifests(loaded.io)
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(io=loaded.io, discard_deleted=True)
        ]
        return [self._root.key_of(location) or location for location in locations]
