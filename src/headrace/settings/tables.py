"""Tables: the Iceberg catalog that names them, the pipeline that fills them, and how long what is old is kept."""

from dataclasses import dataclass
from typing import Annotated

from headrace.runtime.configuration import Setting
from headrace.runtime.setting_kinds import OneOf, OptionalText, Pairs, Switch, Url, Whole
from headrace.settings.units import DAY_MS, GIB, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS

CATALOG_SCHEMES = ("sqlite", "http", "https")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """Which Iceberg catalog names the tables."""

    url: Annotated[
        str,
        Setting(
            "catalog.url",
            "sqlite:{data.dir}/catalog.db",
            Url(CATALOG_SCHEMES),
            "The Iceberg catalog: a SQLite file for processes on one host, or the address of a REST catalog.",
        ),
    ]
    warehouse: Annotated[
        str | None,
        Setting(
            "catalog.warehouse",
            "",
            OptionalText(),
            "Which warehouse of a REST catalog is meant; empty where it has but one.",
        ),
    ]
    properties: Annotated[
        tuple[tuple[str, str], ...],
        Setting(
            "catalog.properties",
            "",
            Pairs(),
            "What else a REST catalog asks for, by PyIceberg's names, such as `token` or `rest.sigv4-enabled`.",
        ),
    ]
    table_names: Annotated[
        str,
        Setting(
            "catalog.table.names",
            "exact",
            OneOf(("exact", "escaped")),
            "How a topic's table is called: `exact` as the topic, `escaped` with lower-case letters, digits and `_` "
            "only, for catalogs that take nothing else; choose before the first table is made.",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """How records become rows: the pipeline, its Spark, and what it leaves behind."""

    enable: Annotated[
        bool,
        Setting(
            "pipeline.enable",
            False,
            Switch(),
            "Whether this broker runs the pipeline beside itself, in a process of its own; it needs Java and Spark.",
        ),
    ]
    spark_master: Annotated[
        str | None,
        Setting(
            "pipeline.spark.master",
            "local[*,4]",
            OptionalText(),
            "Where tasks run: on this host (the 4 lets a failed one be tried again), or a Spark master's address.",
        ),
    ]
    spark_python: Annotated[
        str | None,
        Setting(
            "pipeline.spark.python",
            "",
            OptionalText(),
            "The Python that executors start, as a path on their hosts; empty for the one that runs the pipeline.",
        ),
    ]
    spark_conf: Annotated[
        tuple[tuple[str, str], ...],
        Setting(
            "pipeline.spark.conf",
            "",
            Pairs(),
            "Further Spark properties, such as `spark.executor.memory=2g`; they win over ours.",
        ),
    ]
    interval_ms: Annotated[
        int,
        Setting(
            "pipeline.interval.ms",
            SECOND_MS,
            Whole(minimum=10, maximum=HOUR_MS),
            "The pause between two looks at what is due; a topic's own target lag says when its run begins.",
            unit="ms",
        ),
    ]
    run_max_bytes: Annotated[
        int,
        Setting(
            "pipeline.run.max.bytes",
            GIB,
            Whole(minimum=MIB, maximum=1024 * GIB),
            "The most that one run of one topic takes from the log; more makes fewer commits of a large backlog.",
            unit="bytes",
        ),
    ]
    run_max_entries: Annotated[
        int,
        Setting(
            "pipeline.run.max.entries",
            100_000,
            Whole(minimum=1, maximum=10_000_000),
            "The most index entries that one run of one topic takes; it bounds the memory of planning.",
            unit="entries",
        ),
    ]
    file_target_bytes: Annotated[
        int,
        Setting(
            "pipeline.file.target.bytes",
            256 * MIB,
            Whole(minimum=MIB, maximum=16 * GIB),
            "How many bytes of the log go into one Parquet file, before compression; less spreads over more tasks.",
            unit="bytes",
        ),
    ]
    row_group_bytes: Annotated[
        int,
        Setting(
            "pipeline.row.group.bytes",
            8 * MIB,
            Whole(minimum=64 * KIB, maximum=256 * MIB),
            "The size of a row group before compression: less makes a read in the middle quicker, more packs better.",
            unit="bytes",
        ),
    ]
    compaction_keys_bytes: Annotated[
        int,
        Setting(
            "pipeline.compaction.keys.bytes",
            64 * MIB,
            Whole(minimum=MIB, maximum=4 * GIB),
            "How much memory a task has for the keys of one partition while it compacts it; a round that meets more "
            "ends there, and the next one goes on. A task takes about four times as much altogether.",
            unit="bytes",
        ),
    ]
    compaction_max_bytes: Annotated[
        int,
        Setting(
            "pipeline.compaction.max.bytes",
            GIB,
            Whole(minimum=MIB, maximum=1024 * GIB),
            "The most that one round of compaction of one topic writes anew, by the size of the files that go.",
            unit="bytes",
        ),
    ]
    compaction_interval_ms: Annotated[
        int,
        Setting(
            "pipeline.compaction.interval.ms",
            15 * SECOND_MS,
            Whole(minimum=0, maximum=DAY_MS),
            "How often a topic that is compacted by key is looked at for something to compact.",
            unit="ms",
        ),
    ]
    merge_enable: Annotated[
        bool,
        Setting(
            "pipeline.merge.enable",
            True,
            Switch(),
            "Whether small files of tables are merged into larger ones when all runs of a round are done.",
        ),
    ]
    merge_min_files: Annotated[
        int,
        Setting(
            "pipeline.merge.min.files",
            8,
            Whole(minimum=2, maximum=1000),
            "From how many small files on they are merged, also if they do not make a file of the target size yet.",
            unit="files",
        ),
    ]
    merge_max_bytes: Annotated[
        int,
        Setting(
            "pipeline.merge.max.bytes",
            512 * MIB,
            Whole(minimum=MIB, maximum=1024 * GIB),
            "About how many bytes of Parquet files one round merges, so that the next runs do not wait long.",
            unit="bytes",
        ),
    ]
    keeping_max_topics: Annotated[
        int,
        Setting(
            "pipeline.keeping.max.topics",
            16,
            Whole(minimum=1, maximum=10_000),
            "How many tables one round looks at for files to merge or to release, or for snapshots to expire.",
            unit="topics",
        ),
    ]
    release_interval_ms: Annotated[
        int,
        Setting(
            "pipeline.release.interval.ms",
            MINUTE_MS,
            Whole(minimum=SECOND_MS, maximum=DAY_MS),
            "How long after a look at what a topic's log has forgotten the next one comes, if it forgets more.",
            unit="ms",
        ),
    ]
    quiet_expiry_ms: Annotated[
        int,
        Setting(
            "pipeline.quiet.expiry.ms",
            6 * HOUR_MS,
            Whole(minimum=MINUTE_MS, maximum=30 * DAY_MS),
            "How often snapshots of a table that gets no records are looked at for their age.",
            unit="ms",
        ),
    ]
    topics_at_once: Annotated[
        int,
        Setting(
            "pipeline.topics.at.once",
            4,
            Whole(minimum=1, maximum=1000),
            "How many topics have a run under way at the same time, so that one backlog does not delay the others.",
            unit="topics",
        ),
    ]
    attempt_age_floor_ms: Annotated[
        int,
        Setting(
            "pipeline.attempt.age.floor.ms",
            HOUR_MS,
            Whole(minimum=MINUTE_MS, maximum=30 * DAY_MS),
            "How long after a run the files of its failed attempts are left alone; keep it above the slowest task.",
            unit="ms",
        ),
    ]
    failure_backoff_max_ms: Annotated[
        int,
        Setting(
            "pipeline.failure.backoff.max.ms",
            5 * MINUTE_MS,
            Whole(minimum=SECOND_MS, maximum=DAY_MS),
            "The longest pause after failures of one topic's runs; the first pause is a second, and it doubles.",
            unit="ms",
        ),
    ]
    child_max_runs: Annotated[
        int,
        Setting(
            "pipeline.child.max.runs",
            10_000,
            Whole(minimum=1, maximum=1_000_000_000),
            "After how many rounds the pipeline's process is started anew; a long-lived Spark session grows.",
            unit="rounds",
        ),
    ]
    child_max_memory_bytes: Annotated[
        int,
        Setting(
            "pipeline.child.max.memory.bytes",
            4 * GIB,
            Whole(minimum=256 * MIB, maximum=1024 * GIB),
            "Above which memory, Spark's included, the pipeline's process is started anew between two rounds.",
            unit="bytes",
        ),
    ]
    snapshots_max: Annotated[
        int,
        Setting(
            "table.snapshots.max.count",
            100,
            Whole(minimum=1, maximum=10_000),
            "How many snapshots of a table are kept for readers under way and time travel; many slow every commit.",
            unit="snapshots",
        ),
    ]
    snapshots_max_age_ms: Annotated[
        int,
        Setting(
            "table.snapshots.max.age.ms",
            HOUR_MS,
            Whole(minimum=MINUTE_MS, maximum=365 * DAY_MS),
            "The age at which a table's snapshots go, the newest excepted; tags and branches of yours stay.",
            unit="ms",
        ),
    ]
    orphan_age_floor_ms: Annotated[
        int,
        Setting(
            "table.orphan.age.floor.ms",
            3 * DAY_MS,
            Whole(minimum=HOUR_MS, maximum=365 * DAY_MS),
            "How old a file below a table must be before it goes because nothing names it; keep it above the longest "
            "write of yours to that table.",
            unit="ms",
        ),
    ]
    orphan_interval_ms: Annotated[
        int,
        Setting(
            "table.orphan.interval.ms",
            DAY_MS,
            Whole(minimum=MINUTE_MS, maximum=365 * DAY_MS),
            "How often the pipeline looks for files that nothing names; it lists all files and reads all manifests.",
            unit="ms",
        ),
    ]
    files_grace_ms: Annotated[
        int,
        Setting(
            "table.files.grace.ms",
            10 * MINUTE_MS,
            Whole(minimum=SECOND_MS, maximum=30 * DAY_MS),
            "How long a file that neither the index nor a snapshot names is kept for readers under way.",
            unit="ms",
        ),
    ]
