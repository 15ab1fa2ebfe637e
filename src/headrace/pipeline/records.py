"""What the pipeline keeps in the metadata store: every value, in the order its fields lie on disk.

Structs are arrays at rest: a field is never moved or removed, a new one goes last and has a default.
`docs/data-at-rest.md` shows which key holds which.
"""

import enum

import msgspec

from headrace.metadata.values import ValueCodec
from headrace.model.topics import TopicId
from headrace.pipeline.compaction_state import StreamRound
from headrace.tables.files import WrittenFile
from headrace.tables.port import MainPolicy


class SagaKind(enum.IntEnum):
    """What a saga does with its topic's table."""

    APPEND = 0
    """Records of the log come in."""
    MERGE = 1
    """Small files become larger ones that hold the same rows."""
    COMPACT = 2
    """Files are written anew without the rows that a later record of the same key has made obsolete."""
    RELEASE = 3
    """Files go that the index does not name any more: the log has forgotten what is in them."""
    MERGE_MAIN = 4
    """Small files that only `main` names become larger ones there. The branch and the index stay as they are."""


class SagaState(enum.IntEnum):
    """planned → written → in table → swapped; a saga that is done has no record any more.

    From `IN_TABLE` on it only goes forward. Before that it may be given up, and its files are tidied away.
    """

    PLANNED = 0
    WRITTEN = 1
    IN_TABLE = 2
    SWAPPED = 3


class SagaRecord(msgspec.Struct, frozen=True, array_like=True):
    """One run of one topic: one Iceberg commit. There is at most one per topic; its key holds the topic's id.

    What follows `kind` is for rewrites and releases: `inputs` are the object keys of files that go from the branch
    (`MERGE_MAIN`: from `main`), `input_rows` and `input_bytes` what they hold, `main` what becomes of `main`. Their
    `after` and `ends` are empty.

    `epoch` is that of the lease under which it was last moved. `after` and `ends` are vectors: partition → offset.
    `files` are known from `WRITTEN` on, `snapshot_id` from `IN_TABLE` on. `freed` are objects that its commit's
    expiry set free; they are condemned when the saga is done.
    """

    saga_id: str
    epoch: int
    state: SagaState
    topic_name: str
    data_prefix: str
    after: dict[int, int]
    ends: dict[int, int]
    planned_at_ms: int
    planned_bytes: int
    oldest_append_ms: int
    newest_append_ms: int
    files: tuple[WrittenFile, ...] = ()
    snapshot_id: int = -1
    freed: tuple[str, ...] = ()
    kind: SagaKind = SagaKind.APPEND
    inputs: tuple[str, ...] = ()
    input_rows: int = 0
    input_bytes: int = 0
    main: MainPolicy = MainPolicy.NEVER
    rounds: dict[int, StreamRound] = {}
    """What a compaction means for its topic's partitions once the index has it."""
    dead_letter_prefix: str = ""
    """What the keys of its dead letters' files begin with; empty where its topic has no schema."""


class TableStatus(enum.IntEnum):
    """How it stands with a topic's table."""

    OK = 0
    FOREIGN = 1
    """A table of that name is not ours, or ours was changed so that we cannot write it; `problem` says which."""
    FAILING = 2
    """The last run failed; `problem` says why. It is tried again."""


class TableState(msgspec.Struct, frozen=True, array_like=True):
    """What the pipeline knows of a topic's table; its key holds the topic's id.

    `ends` is the branch head's vector as last seen: below it every offset is in the table, held back, or a hole. WAL
    entries of the index below it are exactly the batches that were held back. `rows`, `files` and `size_bytes` are
    the branch's, other counters count since the table's birth.
    """

    topic_name: str
    identifier: tuple[str, ...] = ()
    uuid: str = ""
    location: str = ""
    status: TableStatus = TableStatus.OK
    problem: str = ""
    deletes_with_topic: bool = False
    ends: dict[int, int] = {}
    snapshot_id: int = -1
    committed_at_ms: int = 0
    caught_up_to_ms: int = 0
    """Append time of the newest record that is in the table."""
    runs: int = 0
    failures: int = 0
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    held_back_batches: int = 0
    dead_letters: int = 0
    last_run_ms: int = 0
    """How long the last run took, from its plan to its end."""
    merges: int = 0
    released_files: int = 0
    held_twice_bytes: int = 0
    """Bytes of rows that branch and `main` hold in files of their own, as last looked."""
    new_files: int = 0
    """Files that runs have added since somebody last looked whether files are to be merged."""
    merge_looked_at_ms: int = 0
    released_to: dict[int, int] = {}
    """Partition → log start up to which files that the log has forgotten were released."""
    release_looked_at_ms: int = 0
    expired_at_ms: int = 0
    """When snapshots were last looked at for their age."""


class TidyRecord(msgspec.Struct, frozen=True, array_like=True):
    """A saga that is over: what lies under `prefix` and is not in `kept` belongs to attempts that lost.

    They are deleted once `since_ms` is so long ago that no attempt can still be writing. The key holds the saga's id.
    """

    topic_id: TopicId
    prefix: str
    kept: tuple[str, ...]
    since_ms: int


class CondemnedFiles(msgspec.Struct, frozen=True, array_like=True):
    """Objects of a table that neither the index nor any snapshot names; deleted after a grace."""

    topic_id: TopicId
    paths: tuple[str, ...]
    since_ms: int
    prefix: str = ""
    """If not empty, everything that lies under it goes, too: the table was dropped with its topic."""


SAGA_RECORD = ValueCodec(SagaRecord)
TABLE_STATE = ValueCodec(TableState)
TIDY_RECORD = ValueCodec(TidyRecord)
CONDEMNED_FILES = ValueCodec(CondemnedFiles)
