"""One member's next step towards its target: let go of what it should not have, then get what is free.

    STABLE ──── a newer target takes something away ──▶ REVOKING, in its old epoch, told to keep the rest
    REVOKING ── it reports that it has let go ────────▶ on towards the newest target
    on ──────── nothing to let go of ─────────────────▶ the target's epoch; what is free is given to it:
                                                        STABLE with all of it, WAITING while others hold some of it
    WAITING ─── they have let go ─────────────────────▶ STABLE, in the same epoch

The rules are those of Apache Kafka's coordinator. A member takes a step when it is heard of, never otherwise.

Must stay true: a partition is given to a member only while nobody else has it in `assigned` or `revoking`, and it
leaves both only when its member has reported that it does not own it, or has gone.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from headrace.groups.consumer_records import MemberState, PartitionEpochs
from headrace.groups.protocol import JOINING_EPOCH, Partitions
from headrace.model.topics import TopicId

_NOTHING: Mapping[int, int] = {}
_NOTHING_HELD: PartitionEpochs = {}
_NO_PARTITIONS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a member is on its way. Mappings are never changed in place, so that unchanged ones can be shared."""

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs
    revoking: PartitionEpochs

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Say whether the member has everything that the target of this epoch gives it."""
        return self.epoch == target_epoch and self.state is MemberState.STABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Where a member should get to. `wanted` is what it subscribes to now; the target may not know of that yet."""

    epoch: int
    target: Partitions
    wanted: AbstractSet[TopicId]


def next_standing(
    standing: Standing,
    goal: Goal,
    *,
    owned: Partitions | None,
    has_new_wishes: bool,
    is_taken: Callable[[TopicId, int], bool],
) -> Standing:
    """Return where the member stands after it was heard of; the same object if nothing changes.

    `owned` is what it reports to own, `None` if it says nothing about that. `is_taken` says whether somebody else has
    a partition. `has_new_wishes`: it has just changed its subscription.
    """
    if standing.state is MemberState.REVOKING and _owns_any(owned, standing.revoking):
        return _drop_unwanted(standing, goal, owned) if has_new_wishes else standing
    if standing.is_reconciled_to(goal.epoch):
        return _drop_unwanted(standing, goal, owned) if has_new_wishes else standing
    return _approach(standing, goal, owned, is_taken)


def is_blocked(standing: Standing, target: Partitions, is_taken: Callable[[TopicId, int], bool]) -> bool:
    """Say whether others still hold something that a waiting member will get."""
    return standing.state is MemberState.WAITING and any(
        is_taken(topic_id, partition)
        for topic_id, partitions in target.items()
        for partition in partitions - standing.assigned.get(topic_id, _NOTHING).keys()
    )


def partitions_of(held: PartitionEpochs) -> dict[TopicId, frozenset[int]]:
    """Return partitions without their epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in held.items()}


def _approach(
    standing: Standing, goal: Goal, owned: Partitions | None, is_taken: Callable[[TopicId, int], bool]
) -> Standing:
    assigned = standing.assigned
    kept: dict[TopicId, Mapping[int, int]] = {}
    lost: dict[TopicId, Mapping[int, int]] = {}
    given: dict[TopicId, list[int]] = {}
    is_waiting = False
    for topic_id in dict.fromkeys((*assigned, *goal.target)):
        target = goal.target.get(topic_id, _NO_PARTITIONS) if topic_id in goal.wanted else _NO_PARTITIONS
        current = assigned.get(topic_id, _NOTHING)
        keeps = current
        if not current.keys() <= target:
            keeps = {partition: epoch for partition, epoch in current.items() if partition in target}
            lost[topic_id] = {partition: epoch for partition, epoch in current.items() if partition not in target}
        if keeps:
            kept[topic_id] = keeps
        if len(keeps) < len(target):
            pending = target - keeps.keys()
            free = [partition for partition in pending if not is_taken(topic_id, partition)]
            if free:
                given[topic_id] = free
            is_waiting |= len(free) < len(pending)
    if lost and _owns_any(owned, lost):
        return Standing(
            epoch=standing.epoch,
            # Not the one before: a request that comes late from an earlier epoch must not confirm this.
            previous_epoch=standing.epoch,
            state=MemberState.REVOKING,
            assigned=kept,
            revoking=lost,
        )
    for topic_id, partitions in given.items():
        kept[topic_id] = {**kept.get(topic_id, _NOTHING), **dict.fromkeys(partitions, goal.epoch)}
    reached = Standing(
        epoch=goal.epoch,
        previous_epoch=standing.epoch,
        state=MemberState.WAITING if is_waiting else MemberState.STABLE,
        assigned=kept if lost or given else assigned,
        revoking=_NOTHING_HELD if standing.revoking else standing.revoking,
    )
    return standing if reached == standing else reached


def _drop_unwanted(standing: Standing, goal: Goal, owned: Partitions | None) -> Standing:
    """Let a member revoke topics that it has just unsubscribed from, though the target still gives them to it.

    The target of a large group comes a moment later. The member would be told to keep what it does not want.
    """
    unwanted = {topic_id: held for topic_id, held in standing.assigned.items() if topic_id not in goal.wanted}
    if not unwanted:
        return standing
    kept = {topic_id: held for topic_id, held in standing.assigned.items() if topic_id in goal.wanted}
    revoking = dict(standing.revoking)
    for topic_id, held in unwanted.items():
        revoking[topic_id] = {**revoking.get(topic_id, _NOTHING), **held}
    has_to_revoke = _owns_any(owned, revoking)
    return Standing(
        epoch=standing.epoch,
        previous_epoch=standing.epoch,
        state=MemberState.REVOKING if has_to_revoke else standing.state,
        assigned=kept,
        revoking=revoking if has_to_revoke else standing.revoking,
    )


def _owns_any(owned: Partitions | None, revoking: PartitionEpochs) -> bool:
    """Say whether a member may still own what it has to let go of: it does unless it has said otherwise."""
    if owned is None:
        return True
    return any(
        not owned[topic_id].isdisjoint(partitions) for topic_id, partitions in revoking.items() if topic_id in owned
    )
