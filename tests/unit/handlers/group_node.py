"""A node for handlers of groups: a real topic registry, and a coordinator that answers as the test says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from headrace.cluster.view import BrokerInfo
from headrace.errors import Retryable
from headrace.groups.listing import GroupListing
from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import AnyReply, CommitClaim, Event, GroupDescription
from headrace.groups.records import OffsetRecord
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId
from tests.unit.handlers.topic_node import TopicNode

MAX_METADATA = 16

Partition = tuple[TopicId, int]

MOVED = GroupRefused(ErrorCode.NOT_COORDINATOR, "another broker coordinates it")
LOADING = GroupRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it is being loaded")
AWAY = GroupRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody can coordinate")
DOWN = Retryable("the store is down")


@dataclass(slots=True)
class ScriptedGroups:
    """What a test wants every question to be answered with, and what was asked."""

    reply: AnyReply | None = None
    failure: Exception | None = None
    failing_groups: Mapping[str, Exception] = field(default_factory=dict)
    coordinator: BrokerInfo | None = None
    commit_code: ErrorCode = ErrorCode.NONE
    offsets: dict[Partition, OffsetRecord] = field(default_factory=dict)
    deleted_offsets: Mapping[Partition, ErrorCode] = field(default_factory=dict)
    described: Mapping[str, GroupDescription] = field(default_factory=dict)
    listings: Sequence[GroupListing] = ()
    deleted: Mapping[str, ErrorCode] = field(default_factory=dict)
    found: list[tuple[str, bool]] = field(default_factory=list)
    events: list[tuple[str, Event]] = field(default_factory=list)
    commits: list[tuple[str, CommitClaim, dict[Partition, OffsetRecord]]] = field(default_factory=list)
    fetches: list[tuple[str, CommitClaim | None, list[Partition] | None]] = field(default_factory=list)
    deletions: list[tuple[str, list[Partition]]] = field(default_factory=list)

    async def find(self, key: str, *, is_group: bool) -> BrokerInfo | None:
        self._fail(key)
        self.found.append((key, is_group))
        return self.coordinator

    async def call(self, group_id: str, event: Event) -> AnyReply:
        self._fail(group_id)
        self.events.append((group_id, event))
        assert self.reply is not None, "the test did not expect this call"
        return self.reply

    async def commit(self, group_id: str, claim: CommitClaim, offsets: Mapping[Partition, OffsetRecord]) -> ErrorCode:
        self._fail(group_id)
        self.commits.append((group_id, claim, dict(offsets)))
        return self.commit_code

    async def fetch(
        self, group_id: str, claim: CommitClaim | None, wanted: Sequence[Partition] | None
    ) -> Mapping[Partition, OffsetRecord]:
        self._fail(group_id)
        self.fetches.append((group_id, claim, None if wanted is None else list(wanted)))
        if wanted is None:
            return self.offsets
        return {partition: self.offsets[partition] for partition in wanted if partition in self.offsets}

    async def delete_offsets(self, group_id: str, partitions: Sequence[Partition]) -> Mapping[Partition, ErrorCode]:
        self._fail(group_id)
        self.deletions.append((group_id, list(partitions)))
        return {partition: self.deleted_offsets.get(partition, ErrorCode.NONE) for partition in partitions}

    async def describe(self, group_id: str) -> GroupDescription | None:
        self._fail(group_id)
        return self.described.get(group_id)

    async def listed(self) -> list[GroupListing]:
        self._fail("")
        return list(self.listings)

    async def delete(self, group_id: str) -> ErrorCode:
        self._fail(group_id)
        return self.deleted.get(group_id, ErrorCode.GROUP_ID_NOT_FOUND)

    def _fail(self, group_id: str) -> None:
        failure = self.failing_groups.get(group_id, self.failure)
        if failure is not None:
            raise failure


class GroupNode(TopicNode):
    """The registry, the scripted coordinator, and the node over both."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = ScriptedGroups()
        self.node = cast(
            Node,
            SimpleNamespace(
                topics=self.directory,
                admin=self.admin,
                cluster=self.cluster,
                clock=self.clock,
                groups=self.groups,
                offset_metadata_max_bytes=MAX_METADATA,
            ),
        )

    async def create_elsewhere(self, *names: str, partitions: int = 1) -> None:
        """Create topics through another broker: this one has not heard of them."""
        here, self.admin = self.admin, self.admin_over(self.another_directory())
        await self.create(*names, partitions=partitions)
        self.admin = here

    async def grow_elsewhere(self, name: str, partitions: int) -> None:
        await self.admin_over(self.another_directory()).add_partitions(name, partitions)

    def id(self, name: str) -> TopicId:
        return self.topic(name).id
