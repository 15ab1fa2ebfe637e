"""What all requests to a KIP-848 group have in common: epochs, targets, steps, deadlines, and what has to be saved.

    a member comes, goes or wants something else, or topics change ──▶ the group epoch grows
    the group epoch is ahead of the target's ────────────────────────▶ a new target is computed, for that epoch
    a member is heard of ────────────────────────────────────────────▶ it takes a step towards its target

Must stay true:
- The target is computed from everything that is known at that moment, so a group epoch that is ahead of the target's
  means that a new target is due, now or at `assign_at_ms`, and nothing else is forgotten.
- Everything that was changed is in the next `Save`, and that comes before any reply.
"""

from collections import Counter
from dataclasses import replace

import msgspec

from headrace.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, MemberSubscription
from headrace.groups.consumer_members import Member, Roster
from headrace.groups.consumer_records import TARGET, MemberState, target_partitions, target_record
from headrace.groups.consumer_subscriptions import Subscriptions
from headrace.groups.deadlines import Deadlines
from headrace.groups.pace import patient_interval_ms
from headrace.groups.protocol import (
    STATIC_LEAVING_EPOCH,
    AnyReply,
    Effect,
    GroupConfig,
    Moment,
    Noted,
    Pace,
    Partitions,
    Reply,
    Save,
    TopicsImage,
)
from headrace.groups.reconciliation import Goal, Standing, next_standing
from headrace.groups.records import GroupHead, GroupKind, Loaded

CONSUMER_PROTOCOL_TYPE = "consumer"

MAX_MEMBERS_AT_ONCE = 100
MAX_PARTITIONS_AT_ONCE = 2_000
"""Up to so many members and partitions a target is computed with the change that asks for it, in one or two ms."""

ASSIGN_DELAY_MS = 50
"""How long the target of a larger group waits for more changes: a hundred members may be about to join."""

NO_TARGET: Partitions = {}


class GroupCore:
    """One group: its members, its epochs, and how both go on."""

    def __init__(self, loaded: Loaded, *, now: Moment, image: TopicsImage, config: GroupConfig, pace: Pace) -> None:
        self.group_id = loaded.group_id
        self.config = config
        self.now = now
        self.head = _head_of(loaded, now)
        self.subscriptions = Subscriptions(image)
        self.roster = Roster(self.subscriptions)
        self.targets: dict[str, Partitions] = {}
        self.sessions = Deadlines()
        self.moves = Deadlines()
        """By when members have to move: let go of partitions, or, if they are classic ones, join again."""
        self.syncs = Deadlines()
        self._pace = pace
        self.assign_at_ms: int | None = None
        """When a new target is due; `None`: the target is the newest that there can be."""
        self._behind: set[str] = set()
        self._away: set[str] = set()
        self._stored_targets: set[str] = set()
        self._changed_targets: set[str] = set()
        self._is_head_changed = False
        self._effects: list[Effect] = []
        self._load(loaded)

    # What is known

    @property
    def state(self) -> str:
        """Kafka's name for the state. `Dead` is for groups that do not exist, so no machine is ever in it."""
        if not len(self.roster):
            return "Empty"
        if self.head.epoch > self.head.target_epoch:
            return "Assigning"
        return "Reconciling" if self._behind else "Stable"

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; of equals the default one, then the first by name."""
        votes = Counter(member.assignor for member in self.roster if member.assignor is not None)
        return min(votes, key=lambda name: (-votes[name], name != DEFAULT_ASSIGNOR, name), default=DEFAULT_ASSIGNOR)

    @property
    def next_deadline_ms(self) -> int | None:
        """When a tick is due."""
        due_ms = self.sessions.next_ms
        for other_ms in (self.moves.next_ms, self.syncs.next_ms, self.assign_at_ms):
            if other_ms is not None and (due_ms is None or other_ms < due_ms):
                due_ms = other_ms
        return due_ms

    @property
    def interval_ms(self) -> int:
        """How long members should wait with their next heartbeat."""
        if self.config.heartbeat_interval_ms is not None:
            return self.config.heartbeat_interval_ms
        # Nobody can do anything about a static member that is away, so the others need not hurry.
        if len(self._behind) > len(self._away) or self.assign_at_ms is not None:
            return self._pace.busy_interval_ms
        return self._pace.stable_interval_ms(len(self.roster))

    def interval_of(self, member: Member) -> int:
        """How long this member should wait: longer than the others if answers take long to reach it."""
        if self.config.heartbeat_interval_ms is not None:
            return self.config.heartbeat_interval_ms
        return patient_interval_ms(self.interval_ms, member.turn_ms)

    def target_of(self, member: Member) -> Partitions:
        """Return what a member should have."""
        return self.targets.get(member.id, NO_TARGET)

    # One event after the other

    def begin(self, now: Moment) -> None:
        """Take an event."""
        self.now = now
        self._effects = []
        if self.assign_at_ms is not None and self.assign_at_ms <= now.monotonic_ms:
            if self.subscriptions.topics_hash() != self.head.topics_hash:
                self._begin_epoch()
            self._assign()

    def note(self, what: str, text: str) -> None:
        """Tell operators."""
        self._effects.append(Noted(what, text))

    def finish(self, token: int | None = None, reply: AnyReply | None = None) -> list[Effect]:
        """Return what is to be done about the event: save what has changed, then answer."""
        members = self.roster.take_changes()
        assignments: dict[str, bytes | None] = {}
        for member_id in self._changed_targets:
            target = self.targets.get(member_id)
            if target is not None:
                assignments[member_id] = TARGET.encode(target_record(member_id, target))
                self._stored_targets.add(member_id)
            elif member_id in self._stored_targets:
                assignments[member_id] = None
                self._stored_targets.discard(member_id)
        self._changed_targets.clear()
        if members or assignments or self._is_head_changed:
            self._effects.append(Save(head=self.head, members=members, assignments=assignments))
            self._is_head_changed = False
        if token is not None and reply is not None:
            self._effects.append(Reply(token, reply))
        return self._effects

    # Members

    def add(self, member: Member) -> None:
        """Let a member in; it has said nothing of itself yet."""
        self.roster.add(member)
        self._watch(member)
        if self.head.empty_since_ms is not None:
            self._change_head(empty_since_ms=None)

    def remove(self, *members: Member) -> None:
        """Put members out for good. What they had is free at once, and goes to others with a new target."""
        if not members:
            return
        for member in members:
            self.roster.remove(member)
            self._unwatch(member)
            self._set_target(member.id, NO_TARGET)
        if not len(self.roster):
            self._change_head(empty_since_ms=self.now.wall_ms)
        self.bump()

    def replace(self, old: Member, new_id: str) -> Member:
        """Let a static member come back as another one, with its target and with what it had."""
        if not old.is_away:
            self.note("fenced", f"member {old.id} of group '{self.group_id}' has to give way to {new_id}")
        target = self.target_of(old)
        self._unwatch(old)
        new = self.roster.replace(old, new_id)
        self._watch(new)
        self._set_target(old.id, NO_TARGET)
        self._set_target(new_id, target)
        return new

    def send_away(self, member: Member) -> None:
        """Keep a static member's place: it has let go of everything, and may come back until its session ends."""
        self.moves.clear(member.id)
        self._move(
            member,
            replace(member.standing, epoch=STATIC_LEAVING_EPOCH, state=MemberState.STABLE, revoking={}),
        )

    def touch(self, member: Member) -> None:
        """Take note that a member lives."""
        classic = member.classic
        timeout_ms = self.config.session_timeout_ms if classic is None else classic.session_timeout_ms
        self.sessions.set(member.id, self.now.monotonic_ms + timeout_ms)

    def expire(self) -> None:
        """Put out who was silent for too long, or did not do in time what it has to do."""
        late: dict[str, Member] = {}
        for deadlines, what in (
            (self.sessions, "was not heard of for too long"),
            (self.moves, "did not let go of its partitions, or join again, in time"),
            (self.syncs, "did not sync in time"),
        ):
            while (member_id := deadlines.pop_due(self.now.monotonic_ms)) is not None:
                member = self.roster.get(member_id)
                if member is not None and member_id not in late:
                    late[member_id] = member
                    self.note("expired", f"member {member_id} of group '{self.group_id}' {what}")
        self.remove(*late.values())

    def reconcile(self, member: Member, owned: Partitions | None, *, has_new_wishes: bool) -> None:
        """Let a member that was heard of take its next step."""
        head = self.head
        if not has_new_wishes and member.standing.is_reconciled_to(head.target_epoch):
            return
        goal = Goal(
            epoch=head.target_epoch,
            target=self.target_of(member),
            wanted=self.subscriptions.topic_ids(member.wish),
        )
        standing = next_standing(
            member.standing,
            goal,
            owned=owned,
            has_new_wishes=has_new_wishes,
            is_taken=self.roster.taken_from(member),
        )
        if standing is member.standing:
            return
        self._move(member, standing)
        if member.classic is None:
            if standing.state is MemberState.REVOKING:
                self.moves.set(member.id, self.now.monotonic_ms + member.rebalance_timeout_ms)
            else:
                self.moves.clear(member.id)

    # Epochs and targets

    def bump(self) -> None:
        """Begin a new group epoch, and see to a target for it."""
        self._begin_epoch()
        is_large = (
            len(self.roster) > MAX_MEMBERS_AT_ONCE
            or sum(self.subscriptions.partition_counts().values()) > MAX_PARTITIONS_AT_ONCE
        )
        if not is_large or not self.head.target_epoch:
            self._assign()
        elif self.assign_at_ms is None:
            self.assign_at_ms = self.now.monotonic_ms + ASSIGN_DELAY_MS

    def see_to_target(self, *, has_new_wishes: bool) -> None:
        """Begin a new group epoch if a member wants something else, or if there is no target to lead it to."""
        head = self.head
        is_behind = head.epoch > head.target_epoch and self.assign_at_ms is None
        if has_new_wishes or is_behind or not head.target_epoch:
            self.bump()

    def bump_if_topics_changed(self) -> None:
        """Begin a new group epoch if topics that somebody wants are others than they were."""
        if len(self.roster) and self.subscriptions.topics_hash() != self.head.topics_hash:
            self.bump()

    def _begin_epoch(self) -> None:
        self._change_head(epoch=self.head.epoch + 1, topics_hash=self.subscriptions.topics_hash())

    def _assign(self) -> None:
        self.assign_at_ms = None
        assignor = self.assignor
        members = [
            MemberSubscription(
                member_id=member.id,
                instance_id=member.instance_id,
                rack=member.rack,
                topics=self.subscriptions.topic_ids(member.wish),
                current=self.target_of(member),
            )
            for member in self.roster
        ]
        targets = ASSIGNORS[assignor](members, self.subscriptions.partition_counts())
        for member_id, target in targets.items():
            self._set_target(member_id, target)
        self._change_head(target_epoch=self.head.epoch, assignor=assignor)
        # The epoch is new, so nobody is in it.
        self._behind = {member.member_id for member in members}
        if members:
            self.note(
                "rebalance",
                f"group '{self.group_id}' has a new target for epoch {self.head.epoch}: "
                f"{len(members)} members, assignor {assignor}",
            )

    def _set_target(self, member_id: str, target: Partitions) -> None:
        if target == self.targets.get(member_id, NO_TARGET):
            return
        if target:
            self.targets[member_id] = target
        else:
            del self.targets[member_id]
        self._changed_targets.add(member_id)

    # Keeping count

    def _move(self, member: Member, standing: Standing) -> None:
        self.roster.move(member, standing)
        self._watch(member)

    def _watch(self, member: Member) -> None:
        """Take note of how far a member is."""
        if member.is_away:
            self._away.add(member.id)
        else:
            self._away.discard(member.id)
        if member.standing.is_reconciled_to(self.head.target_epoch):
            self._behind.discard(member.id)
        else:
            self._behind.add(member.id)

    def _unwatch(self, member: Member) -> None:
        self._behind.discard(member.id)
        self._away.discard(member.id)
        for deadlines in (self.sessions, self.moves, self.syncs):
            deadlines.clear(member.id)

    def _change_head(self, **changes: object) -> None:
        self.head = msgspec.structs.replace(self.head, **changes)
        self._is_head_changed = True

    def _load(self, loaded: Loaded) -> None:
        self.roster.load(loaded.members)
        for key, raw in loaded.assignments:
            record = TARGET.decode(raw, key)
            self.targets[record.member_id] = target_partitions(record)
            self._stored_targets.add(record.member_id)
        for member in self.roster:
            self.touch(member)
            self._watch(member)
            if member.standing.state is MemberState.REVOKING and member.classic is None:
                self.moves.set(member.id, self.now.monotonic_ms + member.rebalance_timeout_ms)
        head = self.head
        is_current = head.epoch == head.target_epoch and head.topics_hash == self.subscriptions.topics_hash()
        if len(self.roster) and not is_current:
            self.assign_at_ms = self.now.monotonic_ms


def _head_of(loaded: Loaded, now: Moment) -> GroupHead:
    """Return the head to begin with. An empty classic group becomes one of ours and keeps counting where it was."""
    head = loaded.head
    if head is None:
        return GroupHead(group_id=loaded.group_id, kind=GroupKind.CONSUMER, epoch=0, empty_since_ms=now.wall_ms)
    if head.kind is GroupKind.CONSUMER:
        return head
    assert not loaded.members, "a classic group with members is converted first"
    return GroupHead(
        group_id=loaded.group_id, kind=GroupKind.CONSUMER, epoch=head.epoch, empty_since_ms=head.empty_since_ms
    )
