"""All configs that a topic may have, by Kafka's names, with Kafka's defaults and limits (4.3).

To add one of our own, add an entry whose name begins with `headrace.`; everything else follows from the table. What
Kafka has taken away (`message.format.version`, `message.downconversion.enable`,
`message.timestamp.difference.max.ms`) is unknown here too: a topic that still sets it is refused, as by Kafka 4.

A sentence says what a config does *here*. Where it does nothing, it says so, and why: nobody should tune a switch
that is connected to nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.tables.typed.schemas import Framing, SchemaType
from headrace.topics.config_kinds import (
    MAX_INT64,
    REPLICAS_LISTED,
    ConfigKind,
    Flag,
    Real,
    Text,
    Word,
    int32,
    int64,
    words_listed,
)
from headrace.topics.partition_by import PartitionBy

DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588
"""Kafka's: one MiB of records and the head of the batch."""

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
DEFAULT_RETENTION_MS: Final = 7 * DAY_MS

AS_PRODUCED: Final = "producer"
CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip")
CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"
COMPACT: Final = "compact"
DELETE: Final = "delete"

COMPRESSED_CHECK: Final = "headrace.compressed.check"
CHECK_FULL: Final = "full"
CHECK_HEADER: Final = "header"

TABLE_ENABLE: Final = "headrace.table.enable"
TABLE_TARGET_LAG_MS: Final = "headrace.table.target.lag.ms"
TABLE_PARTITION_BY: Final = "headrace.table.partition.by"
TABLE_DELETE_WITH_TOPIC: Final = "headrace.table.delete.with.topic"
TABLE_COMPACTION: Final = "headrace.table.compaction"
TABLE_HISTORY: Final = "history"
TABLE_LATEST: Final = "latest"
TABLE_RETENTION: Final = "headrace.table.retention"
KEEP: Final = "keep"
FOLLOW: Final = "follow"
TABLE_SCHEMA: Final = "headrace.table.schema"
TABLE_SCHEMA_TYPE: Final = "headrace.table.schema.type"
TABLE_SCHEMA_MESSAGE: Final = "headrace.table.schema.message"
TABLE_SCHEMA_FRAMING: Final = "headrace.table.schema.framing"
MIN_TABLE_LAG_MS: Final = 5_000
"""A shorter lag would make so many small files and snapshots that reading the table suffers."""

_NOT_YET = " This release keeps the value and does not act on it yet."
_NO_REPLICAS = " It has no effect here: the object store keeps the bytes safe, and there are no replicas."
_NO_SEGMENTS = " It has no effect here: a partition has no files of its own; the broker's wal.* settings rule."
_NO_FLUSH = " It has no effect here: every batch is durable before it is acknowledged."
_NO_TIERS = " It has no effect here: there is one tier, and all records lie in the object store."


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One config: `broker_name` is the broker's config that gives the default, where Kafka has one."""

    name: str
    kind: ConfigKind
    default: str
    sentence: str
    broker_name: str | None = None


_ALL = (
    TopicConfig(
        name="cleanup.policy",
        kind=words_listed((COMPACT, DELETE)),
        default=DELETE,
        sentence="How old records go: deleted by age and size, compacted by key, both, or (empty) never. With "
        "compact, records without a key are refused, and the pipeline keeps the latest record per key; a topic "
        "without a table is not compacted.",
        broker_name="log.cleanup.policy",
    ),
    TopicConfig(
        name="compression.gzip.level",
        kind=int32(1, 9, or_else=-1),
        default="-1",
        sentence="How hard gzip tries where compression.type is gzip; -1 is its own default.",
        broker_name="compression.gzip.level",
    ),
    TopicConfig(
        name="compression.lz4.level",
        kind=int32(1, 17),
        default="9",
        sentence="How hard LZ4 tries where compression.type is lz4; 9, the default, is its fast mode, as in Kafka.",
        broker_name="compression.lz4.level",
    ),
    TopicConfig(
        name="compression.type",
        kind=Word((*CODECS, AS_PRODUCED)),
        default=AS_PRODUCED,
        sentence="How batches are stored: as the producer compressed them, or compressed anew with this codec, which "
        "costs the broker time for every batch that came otherwise.",
        broker_name="compression.type",
    ),
    TopicConfig(
        name="compression.zstd.level",
        kind=int32(-131_072, 22),
        default="3",
        sentence="How hard Zstandard tries where compression.type is zstd.",
        broker_name="compression.zstd.level",
    ),
    TopicConfig(
        name="delete.retention.ms",
        kind=int64(0),
        default=str(DAY_MS),
        sentence="How long compaction keeps the marker of a deleted key, so that slow readers learn of it; counted "
        "from the round that first came past it.",
        broker_name="log.cleaner.delete.retention.ms",
    ),
    TopicConfig(
        name="file.delete.delay.ms",
        kind=int64(0),
        default="60000",
        sentence="How long a file that is no longer needed stays on disk." + _NO_SEGMENTS,
        broker_name="log.segment.delete.delay.ms",
    ),
    TopicConfig(
        name="flush.messages",
        kind=int64(1),
        default=str(MAX_INT64),
        sentence="After how many records they are forced to disk." + _NO_FLUSH,
        broker_name="log.flush.interval.messages",
    ),
    TopicConfig(
        name="flush.ms",
        kind=int64(0),
        default=str(MAX_INT64),
        sentence="After what time records are forced to disk." + _NO_FLUSH,
        broker_name="log.flush.interval.ms",
    ),
    TopicConfig(
        name="follower.replication.throttled.replicas",
        kind=REPLICAS_LISTED,
        default="",
        sentence="Which replicas are held back while they copy." + _NO_REPLICAS,
    ),
    TopicConfig(
        name=COMPRESSED_CHECK,
        kind=Word((CHECK_FULL, CHECK_HEADER)),
        default=CHECK_FULL,
        sentence="How compressed batches are checked: opened, with every record looked at, as Kafka does (full), or "
        "by their head alone (header). The latter saves the broker time and trusts producers: readers may never get "
        "past a batch that is not what its head says.",
    ),
    TopicConfig(
        name=TABLE_COMPACTION,
        kind=Word((TABLE_HISTORY, TABLE_LATEST)),
        default=TABLE_HISTORY,
        sentence="What the table shows of a topic that is compacted by key: every record that ever was (history), or "
        "what compaction leaves of them (latest). The latter makes overwrite snapshots, which stream readers of the "
        "table must be told to skip.",
    ),
    TopicConfig(
        name=TABLE_DELETE_WITH_TOPIC,
        kind=Flag(),
        default="false",
        sentence="Whether the table and its files go when the topic is deleted; otherwise the table stays, for its "
        "owner to drop.",
    ),
    TopicConfig(
        name=TABLE_ENABLE,
        kind=Flag(),
        default="true",
        sentence="Whether the pipeline moves records into an Iceberg table; when it is switched off, what is in the "
        "table stays there.",
    ),
    TopicConfig(
        name=TABLE_PARTITION_BY,
        kind=PartitionBy(),
        default="day(append_time)",
        sentence="What the table is partitioned by: the day or hour at which the broker took a record in, the "
        "topic's partition, or such a time and the partition. A change counts for new files.",
    ),
    TopicConfig(
        name=TABLE_RETENTION,
        kind=Word((KEEP, FOLLOW)),
        default=KEEP,
        sentence="What becomes of rows that the log has forgotten: `keep` leaves them in the table's main, `follow` "
        "takes their files out as soon as all rows of a file are forgotten.",
    ),
    TopicConfig(
        name=TABLE_SCHEMA,
        kind=Text("the text of a schema"),
        default="",
        sentence="The schema of the topic's values, its whole text: the table gets a struct column `data` with their "
        "fields, and values that do not fit are listed as dead letters. Empty: no typed columns. `headrace topic` "
        "reads it from a file where the value is @FILE. See docs/guides/typed-columns.md.",
    ),
    TopicConfig(
        name=TABLE_SCHEMA_FRAMING,
        kind=Word(tuple(Framing)),
        default=Framing.NONE.value,
        sentence="What stands in front of each value: nothing, or (confluent) a zero byte, the four bytes of a "
        "registry's schema id and the place of a protobuf message in its file, which are skipped.",
    ),
    TopicConfig(
        name=TABLE_SCHEMA_MESSAGE,
        kind=Text("the name of a message"),
        default="",
        sentence="Which message of a .proto file the values are; needed where the file has several.",
    ),
    TopicConfig(
        name=TABLE_SCHEMA_TYPE,
        kind=Word(tuple(SchemaType)),
        default=SchemaType.JSON.value,
        sentence="The language of headrace.table.schema: a JSON Schema, an Avro schema, or a .proto file.",
    ),
    TopicConfig(
        name=TABLE_TARGET_LAG_MS,
        kind=int64(MIN_TABLE_LAG_MS),
        default="60000",
        sentence="How old a record should be at most when it appears in the table; the pipeline begins at half of "
        "it, and shorter times make more and smaller files.",
    ),
    TopicConfig(
        name="index.interval.bytes",
        kind=int32(0),
        default="4096",
        sentence="How densely offsets are indexed." + _NO_SEGMENTS,
        broker_name="log.index.interval.bytes",
    ),
    TopicConfig(
        name="leader.replication.throttled.replicas",
        kind=REPLICAS_LISTED,
        default="",
        sentence="Which replicas are held back while others copy from them." + _NO_REPLICAS,
    ),
    TopicConfig(
        name="local.retention.bytes",
        kind=int64(-2),
        default="-2",
        sentence="How much of a partition stays on local disk; -2 means as much as retention.bytes." + _NO_TIERS,
        broker_name="log.local.retention.bytes",
    ),
    TopicConfig(
        name="local.retention.ms",
        kind=int64(-2),
        default="-2",
        sentence="How long records stay on local disk; -2 means as long as retention.ms." + _NO_TIERS,
        broker_name="log.local.retention.ms",
    ),
    TopicConfig(
        name="max.compaction.lag.ms",
        kind=int64(1),
        default=str(MAX_INT64),
        sentence="When a record must have been compacted at the latest, whatever min.cleanable.dirty.ratio says.",
        broker_name="log.cleaner.max.compaction.lag.ms",
    ),
    TopicConfig(
        name="max.message.bytes",
        kind=int32(0),
        default=str(DEFAULT_MAX_MESSAGE_BYTES),
        sentence="The largest record batch that is accepted, as it is sent and as it is stored.",
        broker_name="message.max.bytes",
    ),
    TopicConfig(
        name="message.timestamp.after.max.ms",
        kind=int64(0),
        default=str(HOUR_MS),
        sentence="How far ahead of the broker's clock a record's time may lie; with LogAppendTime it does not count.",
        broker_name="log.message.timestamp.after.max.ms",
    ),
    TopicConfig(
        name="message.timestamp.before.max.ms",
        kind=int64(0),
        default=str(MAX_INT64),
        sentence="How far behind the broker's clock a record's time may lie; with LogAppendTime it does not count. A "
        "limit makes the broker open every compressed batch.",
        broker_name="log.message.timestamp.before.max.ms",
    ),
    TopicConfig(
        name="message.timestamp.type",
        kind=Word((CREATE_TIME, LOG_APPEND_TIME)),
        default=CREATE_TIME,
        sentence="Whose time a record carries: its producer's, or that of the broker that took it in.",
        broker_name="log.message.timestamp.type",
    ),
    TopicConfig(
        name="min.cleanable.dirty.ratio",
        kind=Real(minimum=0, maximum=1),
        default="0.5",
        sentence="Which part of a log must be uncompacted before it is compacted again, by the size of its table "
        "files.",
        broker_name="log.cleaner.min.cleanable.ratio",
    ),
    TopicConfig(
        name="min.compaction.lag.ms",
        kind=int64(0),
        default="0",
        sentence="How long a record is spared from compaction at least, by its time.",
        broker_name="log.cleaner.min.compaction.lag.ms",
    ),
    TopicConfig(
        name="min.insync.replicas",
        kind=int32(1),
        default="1",
        sentence="How many replicas must have a record before it is acknowledged." + _NO_REPLICAS,
        broker_name="min.insync.replicas",
    ),
    TopicConfig(
        name="preallocate",
        kind=Flag(),
        default="false",
        sentence="Whether files are given their full size when they are created." + _NO_SEGMENTS,
        broker_name="log.preallocate",
    ),
    TopicConfig(
        name="remote.log.copy.disable",
        kind=Flag(),
        default="false",
        sentence="Whether nothing more is moved to the remote tier." + _NO_TIERS,
    ),
    TopicConfig(
        name="remote.log.delete.on.disable",
        kind=Flag(),
        default="false",
        sentence="Whether the remote tier is emptied when a topic leaves it." + _NO_TIERS,
    ),
    TopicConfig(
        name="remote.storage.enable",
        kind=Flag(),
        default="false",
        sentence="Whether older records are moved to a remote tier." + _NO_TIERS,
    ),
    TopicConfig(
        name="retention.bytes",
        kind=int64(),
        default="-1",
        sentence="How large a partition may grow before its oldest records are deleted; -1 means without end. What "
        "counts are the bytes as produced, and records go by whole entries of the index, never below the limit.",
        broker_name="log.retention.bytes",
    ),
    TopicConfig(
        name="retention.ms",
        kind=int64(-1),
        default=str(DEFAULT_RETENTION_MS),
        sentence="How old records may become before they are deleted; -1 means without end. What counts is the "
        "newest record of an index entry, by the topic's own timestamps, against the slowest clock of all brokers.",
        broker_name="log.retention.ms",
    ),
    TopicConfig(
        name="segment.bytes",
        kind=int32(1_048_576),
        default="1073741824",
        sentence="How large one file of a partition becomes." + _NO_SEGMENTS,
        broker_name="log.segment.bytes",
    ),
    TopicConfig(
        name="segment.index.bytes",
        kind=int32(4),
        default="10485760",
        sentence="How large the index of one file becomes." + _NO_SEGMENTS,
        broker_name="log.index.size.max.bytes",
    ),
    TopicConfig(
        name="segment.jitter.ms",
        kind=int64(0),
        default="0",
        sentence="How far apart the ends of files are spread by chance." + _NO_SEGMENTS,
        broker_name="log.roll.jitter.ms",
    ),
    TopicConfig(
        name="segment.ms",
        kind=int64(1),
        default=str(7 * DAY_MS),
        sentence="How old one file of a partition becomes before the next one is begun." + _NO_SEGMENTS,
        broker_name="log.roll.ms",
    ),
    TopicConfig(
        name="unclean.leader.election.enable",
        kind=Flag(),
        default="false",
        sentence="Whether a replica that lacks records may lead." + _NO_REPLICAS,
        broker_name="unclean.leader.election.enable",
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {config.name: config for config in _ALL}
