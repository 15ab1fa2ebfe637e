"""Consumer groups, as the commands ask a cluster about them and change them.

librdkafka's admin calls know classic and KIP-848 consumer groups. A group of another kind (share, streams, Connect)
is only found by name, through the older call behind `_all_names`; a description takes it for one that is not there.
"""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headrace.cli.client.admin import EARLIEST, LATEST
from headrace.cli.client.link import Link, Refused, no_topic
from headrace.cli.group_details import (
    GroupDetails,
    GroupListing,
    GroupState,
    GroupType,
    MemberDetails,
    PartitionLag,
    Place,
)
from headrace.cli.offset_reset import PartitionSurvey, choose_partitions
from headrace.cli.options import Connection
from headrace.errors import HeadraceError, Missing, OutcomeUnknown

_STATES = {
    ConsumerGroupState.STABLE: GroupState.STABLE,
    ConsumerGroupState.EMPTY: GroupState.EMPTY,
    ConsumerGroupState.PREPARING_REBALANCING: GroupState.PREPARING_REBALANCE,
    ConsumerGroupState.COMPLETING_REBALANCING: GroupState.COMPLETING_REBALANCE,
    ConsumerGroupState.DEAD: GroupState.DEAD,
}
_MEMBERS_IN_THE_WAY = (
    KafkaError.NON_EMPTY_GROUP,
    # What a commit from outside is told while a group has members.
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGroups:
    """The groups of a cluster, and what went wrong where a broker did not tell its own."""

    groups: tuple[GroupListing, ...]
    failures: tuple[HeadraceError, ...]


class GroupAdmin:
    """Lists, shows and deletes groups, and commits offsets for those without members."""

    def __init__(self, connection: Connection) -> None:
        self._link = Link(connection)
        self._client = self._link.open(AdminClient, {})
        self._timeout_seconds = connection.timeout_seconds
        self._limits = {"request_timeout": connection.timeout_seconds}

    def find(self) -> FoundGroups:
        """Return the groups of a cluster, by name."""
        self._link.wait_for_broker(self._client)
        answer = self._result(self._client.list_consumer_groups(**self._limits), "list groups")
        found = {group.group_id: _listing(group) for group in answer.valid}
        failures = [self._link.translated(_kafka_error(error), "list groups") for error in answer.errors]
        for name in self._all_names() - found.keys():
            found[name] = GroupListing(name=name, type=GroupType.OTHER, state=GroupState.UNKNOWN)
        return FoundGroups(groups=tuple(found[name] for name in sorted(found)), failures=tuple(failures))

    def describe(self, names: Sequence[str]) -> dict[str, GroupDetails | HeadraceError]:
        """Return what there is to know about each group, or why not."""
        return {
            name: group if isinstance(group, HeadraceError) else self._details(group)
            for name, group in self._found(names).items()
        }

    def delete(self, names: Sequence[str]) -> dict[str, HeadraceError | None]:
        """Delete groups with their offsets and return, for each, what went wrong."""
        self._link.wait_for_broker(self._client)
        futures = self._client.delete_consumer_groups(list(names), **self._limits)
        answers = {name: self._try(futures[name], f"delete group {name}", name, changes=True) for name in names}
        return {name: answer if isinstance(answer, HeadraceError) else None for name, answer in answers.items()}

    def require_empty(self, name: str) -> bool:
        """Return whether a group is there. Raises `Refused` while it has members, since they would commit over us."""
        [group] = self._found([name]).values()
        if isinstance(group, Missing):
            return False
        if isinstance(group, HeadraceError):
            raise group
        if _state(group) is not GroupState.EMPTY:
            raise Refused(_stop_members(f"reset the offsets of group {name}", name))
        return True

    def survey(
        self, name: str, topics: Mapping[str, Collection[int] | None] | None, moment_ms: int | None
    ) -> list[PartitionSurvey]:
        """Return what a reset is planned from, for partitions by topic (None: all of them), in order.

        Without `topics` these are all topics that the group has committed in. Raises `Missing` where a topic or a
        partition is not there, or where the group has committed nothing.
        """
        committed = self._committed(name)
        wanted = {topic: None for topic, _ in committed} if topics is None else topics
        if not wanted:
            raise Missing(f"group {name} has committed no offsets: name what to reset with --topic")
        existing = self._partitions(wanted, must_exist=topics is not None)
        if not existing:
            raise Missing(f"all topics that group {name} has committed in are gone: there is nothing to reset")
        places = [
            (topic, partition)
            for topic in sorted(existing)
            for partition in choose_partitions(topic, wanted[topic], existing[topic])
        ]
        starts, ends = self._offsets(places, EARLIEST), self._offsets(places, LATEST)
        moments = {} if moment_ms is None else self._offsets(places, OffsetSpec.for_timestamp(moment_ms))
        return [
            PartitionSurvey(
                topic=place[0],
                partition=place[1],
                committed_offset=committed.get(place),
                start_offset=(start_offset := self._known(starts[place])),
                # Two questions, one after the other: between them a topic may have been created anew.
                end_offset=max(start_offset, self._known(ends[place])),
                offset_at=_at_least_zero(self._known(moments[place])) if place in moments else None,
            )
            for place in places
        ]

    def commit(self, name: str, offsets: Mapping[Place, int]) -> dict[Place, HeadraceError | None]:
        """Commit offsets for a group without members and return, for each partition, what went wrong."""
        if not offsets:
            return {}
        asked = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(name, asked)
        future = self._client.alter_consumer_group_offsets([request], **self._limits)[name]
        answer = self._try(future, f"reset the offsets of group {name}", name, changes=True)
        if isinstance(answer, HeadraceError):
            return dict.fromkeys(offsets, answer)
        # What an answer leaves out may or may not have been done.
        silence = OutcomeUnknown(f"not every partition was answered: look at `headrace group describe {name}`")
        failures: dict[Place, HeadraceError | None] = dict.fromkeys(offsets, silence)
        for place in answer.topic_partitions:
            doing = f"reset group {name} in {place.topic} [{place.partition}]"
            error = place.error
            failures[(place.topic, place.partition)] = (
                None if error is None else self._translated(error, doing, name, changes=True)
            )
        return failures

    def _found(self, names: Sequence[str]) -> dict[str, Any]:
        """Return librdkafka's description of each group, or why there is none."""
        self._link.wait_for_broker(self._client)
        futures = self._client.describe_consumer_groups(list(names), **self._limits)
        answers = {name: self._try(futures[name], f"describe group {name}", name) for name in names}
        return {name: self._unless_dead(name, answer) for name, answer in answers.items()}

    def _unless_dead(self, name: str, answer: Any) -> Any:
        is_absent = isinstance(answer, Missing) if isinstance(answer, HeadraceError) else _is_dead(answer)
        if not is_absent:
            return answer
        if name in self._all_names(name):
            return Refused(
                f"{name} is no consumer group: a share or streams group, or another kind that is not shown"
            )
        return _no_group(name)

    def _all_names(self, name: str | None = None) -> set[str]:
        """Return the names of all groups of any kind, or only this one if it is there."""
        with warnings.catch_warnings():
            # What it is deprecated for finds consumer groups only.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                found = self._client.list_groups(*(() if name is None else (name,)), timeout=self._timeout_seconds)
            except KafkaException as error:
                raise self._link.translated(error.args[0], "list groups") from error
        return {str(group.id) for group in found}

    def _details(self, group: Any) -> GroupDetails | HeadraceError:
        members = tuple(_member(member) for member in group.members)
        owners = {place: member.member_id for member in members for place in member.assigned}
        try:
            committed = self._committed(group.group_id)
        except HeadraceError as error:
            return error
        places = sorted(committed.keys() | owners.keys())
        ends = self._offsets(places, LATEST)
        coordinator = group.coordinator
        return GroupDetails(
            name=group.group_id,
            type=_type(group),
            state=_state(group),
            assignor=group.partition_assignor or None,
            coordinator=None if coordinator is None else coordinator.id,
            coordinator_address=None if coordinator is None else f"{coordinator.host}:{coordinator.port}",
            members=tuple(sorted(members, key=lambda member: member.member_id)),
            partitions=tuple(
                PartitionLag(
                    topic=place[0],
                    partition=place[1],
                    committed_offset=committed.get(place),
                    latest_offset=None if isinstance(end := ends[place], HeadraceError) else end,
                    owner=owners.get(place),
                )
                for place in places
            ),
        )

    def _committed(self, name: str) -> dict[Place, int]:
        future = self._client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], **self._limits)[name]
        answer = self._result(future, f"read the offsets of group {name}", name)
        found = {}
        for place in answer.topic_partitions:
            if place.error is not None:
                raise self._translated(place.error, f"read the offsets of group {name} in {place.topic}", name)
            if place.offset >= 0:
                found[(place.topic, place.partition)] = place.offset
        return found

    def _partitions(self, topics: Iterable[str], *, must_exist: bool) -> dict[str, list[int]]:
        futures = self._client.describe_topics(TopicCollection(list(topics)), **self._limits)
        found = {}
        for topic, future in futures.items():
            answer = self._try(future, f"describe topic {topic}")
            if isinstance(answer, Missing) and not must_exist:
                continue  # Deleted since the group committed in it: there is nothing to go back to.
            if isinstance(answer, Missing):
                raise no_topic(topic)
            if isinstance(answer, HeadraceError):
                raise answer
            found[topic] = [partition.id for partition in answer.partitions]
        return found

    def _offsets(self, places: Collection[Place], spec: OffsetSpec) -> dict[Place, int | HeadraceError]:
        if not places:
            return {}
        asked = {TopicPartition(topic, partition): spec for topic, partition in places}
        return {
            (place.topic, place.partition): self._offset(place, future)
            for place, future in self._client.list_offsets(asked, **self._limits).items()
        }

    def _offset(self, place: TopicPartition, future: "Future[Any]") -> int | HeadraceError:
        answer = self._try(future, f"look up the offsets of {place.topic} [{place.partition}]")
        return answer if isinstance(answer, HeadraceError) else int(answer.offset)

    def _known(self, answer: int | HeadraceError) -> int:
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    def _translated(self, error: KafkaError, doing: str, name: str, *, changes: bool = False) -> HeadraceError:
        if error.code() in _MEMBERS_IN_THE_WAY:
            return Refused(_stop_members(doing, name))
        if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return _no_group(name)
        return self._link.translated(error, doing, changes=changes)

    def _result(self, future: "Future[Any]", doing: str, name: str = "", *, changes: bool = False) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            raise self._translated(error.args[0], doing, name, changes=changes) from error

    def _try(self, future: "Future[Any]", doing: str, name: str = "", *, changes: bool = False) -> Any:
        try:
            return self._result(future, doing, name, changes=changes)
        except HeadraceError as error:
            return error


def _no_group(name: str) -> Missing:
    return Missing(f"there is no group {name}: `headrace group list` shows what there is")


def _stop_members(doing: str, name: str) -> str:
    return (
        f"cannot {doing}: it has members; stop them first, and try again "
        f"when `headrace group describe {name}` says empty"
    )


def _kafka_error(error: KafkaError | KafkaException) -> KafkaError:
    """Return what an exception holds; the library announces exceptions and answers with the bare error."""
    held: KafkaError = error.args[0] if isinstance(error, KafkaException) else error
    return held


def _listing(group: Any) -> GroupListing:
    return GroupListing(name=group.group_id, type=_type(group), state=_state(group))


def _type(group: Any) -> GroupType:
    # Brokers that are too old to tell know no other than classic ones.
    return GroupType.CONSUMER if group.type is ConsumerGroupType.CONSUMER else GroupType.CLASSIC


def _state(group: Any) -> GroupState:
    # The states that KIP-848 added have no name in librdkafka, and brokers that know the type tell the state.
    unnamed = GroupState.REBALANCING if _type(group) is GroupType.CONSUMER else GroupState.UNKNOWN
    return _STATES.get(group.state, unnamed)


def _is_dead(group: Any) -> bool:
    return _state(group) is GroupState.DEAD


def _member(member: Any) -> MemberDetails:
    target = member.target_assignment
    return MemberDetails(
        member_id=member.member_id,
        instance_id=member.group_instance_id or None,
        client_id=member.client_id,
        # Apache Kafka writes addresses as Java prints them.
        host=member.host.removeprefix("/"),
        assigned=_places(member.assignment.topic_partitions),
        target=None if target is None else _places(target.topic_partitions),
    )


def _places(partitions: Iterable[TopicPartition]) -> tuple[Place, ...]:
    return tuple(sorted((place.topic, place.partition) for place in partitions))


def _at_least_zero(offset: int) -> int | None:
    return offset if offset >= 0 else None
