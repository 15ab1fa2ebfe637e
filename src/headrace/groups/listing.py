"""A group as ListGroups shows it, for groups in memory and for those that rest in the store."""

from dataclasses import dataclass

from headrace.groups.protocol import Machine
from headrace.groups.records import GroupHead, GroupKind, Phase

_CLASSIC_STATES = {
    Phase.EMPTY: "Empty",
    Phase.PREPARING: "PreparingRebalance",
    Phase.COMPLETING: "CompletingRebalance",
    Phase.STABLE: "Stable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One line of a list of groups; `state` is Kafka's name for it."""

    group_id: str
    kind: GroupKind
    protocol_type: str
    state: str


def listing_of(machine: Machine) -> GroupListing:
    """Return the line of a group that is in memory."""
    return _line(machine.head, machine.state)


def listing_of_head(head: GroupHead) -> GroupListing:
    """Return the line of a group that nobody coordinates now: it is as it was left."""
    if head.kind is GroupKind.CONSUMER:
        return _line(head, "Stable" if head.empty_since_ms is None else "Empty")
    return _line(head, _CLASSIC_STATES[head.phase])


def _line(head: GroupHead, state: str) -> GroupListing:
    protocol_type = "consumer" if head.kind is GroupKind.CONSUMER else head.protocol_type
    return GroupListing(group_id=head.group_id, kind=head.kind, protocol_type=protocol_type, state=state)
