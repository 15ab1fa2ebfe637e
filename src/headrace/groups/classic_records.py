"""What a group of the classic protocol keeps of each member: who it is and what it offered, and what it was assigned.

Structs are arrays at rest: a field is never moved or removed, a new one goes last and has a default.

Must stay true: while a generation has no assignment, only static members have one stored that did not join it: theirs
of the last generation, by which they may still go.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from headrace.groups.protocol import Save
from headrace.groups.records import GroupHead, Loaded
from headrace.metadata.port import Key
from headrace.metadata.values import ValueCodec


class ClassicMemberRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What lies at `members/<member id>` of a classic group. All protocols are kept, in the order of preference.

    Apache Kafka keeps only the one that was chosen, and after a restart takes a member that joins again with all of
    them for one that has changed.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]

    def metadata(self, protocol: str) -> bytes | None:
        """Return what the member says under one protocol; `None`: it does not know that one."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return None


class ClassicAssignmentRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What lies at `assignment/<member id>` of a classic group: the bytes that the leader wrote for this member."""

    member_id: str
    assignment: bytes


CLASSIC_MEMBER = ValueCodec(ClassicMemberRecord)
CLASSIC_ASSIGNMENT = ValueCodec(ClassicAssignmentRecord)


class StoredMembers:
    """What is stored of a group's members once all saves are durable, so that the next one names changes only."""

    __slots__ = ("_assignments", "_members")

    def __init__(self, loaded: Loaded) -> None:
        self._members = {record.member_id: record for record in decode_members(loaded.members)}
        self._assignments = decode_assignments(loaded.assignments)

    @property
    def member_ids(self) -> Collection[str]:
        """Members that are stored, whether they still are members or not."""
        return self._members.keys()

    @property
    def assignment_ids(self) -> Collection[str]:
        """Members whose assignment is stored."""
        return self._assignments.keys()

    def save(
        self, head: GroupHead, members: Mapping[str, ClassicMemberRecord], assignments: Mapping[str, bytes]
    ) -> Save:
        """Return what makes exactly these stored. An empty assignment is not stored: it is what one without has."""
        wanted = {member_id: assignment for member_id, assignment in assignments.items() if assignment}
        member_changes: dict[str, bytes | None] = {
            member_id: CLASSIC_MEMBER.encode(record)
            for member_id, record in members.items()
            if self._members.get(member_id) != record
        }
        assignment_changes: dict[str, bytes | None] = {
            member_id: CLASSIC_ASSIGNMENT.encode(ClassicAssignmentRecord(member_id=member_id, assignment=assignment))
            for member_id, assignment in wanted.items()
            if self._assignments.get(member_id) != assignment
        }
        member_changes.update({member_id: None for member_id in self._members if member_id not in members})
        assignment_changes.update({member_id: None for member_id in self._assignments if member_id not in wanted})
        self._members = dict(members)
        self._assignments = wanted
        return Save(head=head, members=member_changes, assignments=assignment_changes)


def decode_members(stored: Sequence[tuple[Key, bytes]]) -> list[ClassicMemberRecord]:
    """Return the members of a classic group as they are stored."""
    return [CLASSIC_MEMBER.decode(raw, key) for key, raw in stored]


def decode_assignments(stored: Sequence[tuple[Key, bytes]]) -> dict[str, bytes]:
    """Return the assignments of a classic group by member id; who is not there has an empty one."""
    records = (CLASSIC_ASSIGNMENT.decode(raw, key) for key, raw in stored)
    return {record.member_id: record.assignment for record in records}
