"""Consumer groups: how long members may be silent, how large groups may be, how long offsets are kept."""

from dataclasses import dataclass
from typing import Annotated

from headrace.runtime.configuration import Setting
from headrace.runtime.setting_kinds import MAX_INT32, Whole
from headrace.settings.units import DAY_MS, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What brokers allow groups, and what they do for them."""

    min_session_timeout_ms: Annotated[
        int,
        Setting(
            "group.min.session.timeout.ms",
            6 * SECOND_MS,
            Whole(minimum=1, maximum=HOUR_MS),
            "The shortest session timeout that a classic member may ask for; shorter finds dead members sooner.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    max_session_timeout_ms: Annotated[
        int,
        Setting(
            "group.max.session.timeout.ms",
            30 * MINUTE_MS,
            Whole(minimum=1, maximum=DAY_MS),
            "The longest session timeout that a classic member may ask for.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    initial_rebalance_delay_ms: Annotated[
        int,
        Setting(
            "group.initial.rebalance.delay.ms",
            250,
            Whole(maximum=5 * MINUTE_MS),
            "How long a classic group that was empty waits for more members before its first rebalance; raise it "
            "where many members start together and rebalances are expensive for them.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    max_size: Annotated[
        int,
        Setting(
            "group.max.size",
            5_000,
            Whole(minimum=1, maximum=10_000),
            "The most members that one group may have; it bounds what a rebalance costs.",
            unit="members",
            is_dynamic=True,
        ),
    ]
    max_groups: Annotated[
        int,
        Setting(
            "group.max.groups",
            20_000,
            Whole(minimum=1, maximum=MAX_INT32),
            "How many groups one broker coordinates at a time; groups that nobody uses do not count.",
            unit="groups",
            is_dynamic=True,
        ),
    ]
    idle_timeout_ms: Annotated[
        int,
        Setting(
            "group.idle.timeout.ms",
            MINUTE_MS,
            Whole(minimum=SECOND_MS, maximum=DAY_MS),
            "How long a group without members stays in memory; what it has committed stays in the store.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    member_metadata_max_bytes: Annotated[
        int,
        Setting(
            "group.member.metadata.max.bytes",
            MIB,
            Whole(minimum=KIB, maximum=64 * MIB),
            "The most that a member may say of its subscription; it bounds what a group weighs in memory and store.",
            unit="bytes",
            is_dynamic=True,
        ),
    ]
    max_subscribed_topics: Annotated[
        int,
        Setting(
            "group.max.subscribed.topics",
            10_000,
            Whole(minimum=1, maximum=100_000),
            "The most topics that one member may subscribe to by name.",
            unit="topics",
            is_dynamic=True,
        ),
    ]
    consumer_session_timeout_ms: Annotated[
        int,
        Setting(
            "group.consumer.session.timeout.ms",
            45 * SECOND_MS,
            Whole(minimum=SECOND_MS, maximum=HOUR_MS),
            "How long a member of the newer protocol (KIP-848) may be silent before its partitions go to others.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    consumer_heartbeat_interval_ms: Annotated[
        int,
        Setting(
            "group.consumer.heartbeat.interval.ms",
            0,
            Whole(maximum=HOUR_MS),
            "How often members of the newer protocol report; 0 lets the coordinator choose: often while partitions "
            "change hands and while there are few members, seldom when there are many and nothing happens.",
            unit="ms",
            is_dynamic=True,
        ),
    ]
    heartbeats_per_second: Annotated[
        int,
        Setting(
            "group.consumer.heartbeats.per.second",
            1_600,
            Whole(minimum=1, maximum=1_000_000),
            "How many heartbeats a second this broker aims at when it chooses intervals; more make hand-overs faster "
            "in large groups and cost more of a core.",
            unit="heartbeats",
            is_dynamic=True,
        ),
    ]
    offsets_retention_minutes: Annotated[
        int,
        Setting(
            "offsets.retention.minutes",
            7 * 24 * 60,
            Whole(minimum=1, maximum=MAX_INT32),
            "How long committed offsets are kept after a group has lost its last member.",
            unit="minutes",
            is_dynamic=True,
        ),
    ]
    offsets_retention_check_interval_ms: Annotated[
        int,
        Setting(
            "offsets.retention.check.interval.ms",
            10 * MINUTE_MS,
            Whole(minimum=100, maximum=DAY_MS),
            "How often all groups are looked through for offsets that have expired or whose topic is gone.",
            unit="ms",
        ),
    ]
    offset_metadata_max_bytes: Annotated[
        int,
        Setting(
            "offset.metadata.max.bytes",
            4 * KIB,
            Whole(maximum=MIB),
            "The most that a consumer may write down beside one committed offset.",
            unit="bytes",
            is_dynamic=True,
        ),
    ]
