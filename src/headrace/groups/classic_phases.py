"""The phases of a classic group: how one generation ends and the next one begins. `classic.py` says when.

Must stay true: a generation is saved before anybody is answered with it, and its assignments before anybody is
answered with one of them.
"""

from collections.abc import Mapping
from enum import Enum

from headrace.errors import Corrupt
from headrace.groups.classic_members import Member, Roster
from headrace.groups.classic_records import StoredMembers, decode_assignments, decode_members
from headrace.groups.deadlines import Deadlines
from headrace.groups.protocol import (
    Effect,
    GroupLimits,
    JoinReply,
    Moment,
    Noted,
    Reply,
    SyncReply,
)
from headrace.groups.records import GroupHead, GroupKind, Loaded, Phase
from headrace.model.error_codes import ErrorCode

SHORTEST_SYNC_WAIT_MS = 1_000
"""How long members may take to sync at least. Clients that leave their rebalance timeout unset ask for 0 ms, and
would be put out before their SyncGroup can arrive."""

NOBODY_CAME_RETRY_MS = 1_000
"""How long to wait at least for members to join, after none of them did in time."""


class State(Enum):
    """Where a group stands, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


_STATE_OF_PHASE = {
    Phase.EMPTY: State.EMPTY,
    Phase.PREPARING: State.PREPARING,
    Phase.COMPLETING: State.COMPLETING,
    Phase.STABLE: State.STABLE,
}


class Phases:
    """A group's members, its generation, and how it gets from one to the next."""

    def __init__(self, loaded: Loaded, *, limits: GroupLimits, now: Moment) -> None:
        self._limits = limits
        self._now = now
        self._effects: list[Effect] = []
        self._head = loaded.head or GroupHead(
            group_id=loaded.group_id, kind=GroupKind.CLASSIC, epoch=0, empty_since_ms=None
        )
        assert self._head.kind is GroupKind.CLASSIC, f"{loaded.group_id} is not a classic group"
        self._stored = StoredMembers(loaded)
        assigned = decode_assignments(loaded.assignments)
        members = [
            Member(record, assignment=assigned.get(record.member_id, b""))
            for record in decode_members(loaded.members)
        ]
        self._roster = Roster(members, leader_id=self._head.leader)
        self._generation = self._head.epoch
        self._state = _STATE_OF_PHASE[self._head.phase]
        if bool(members) is (self._state is State.EMPTY):
            raise Corrupt(f"group '{loaded.group_id}' is stored as {self._state.value} with {len(members)} members")
        self._ids_given_out: set[str] = set()
        self._sessions = Deadlines()
        self._phase_deadline_ms: int | None = None
        # The first rebalance of a group that was empty is delayed, by a part of the time that members have to join.
        self._is_first_rebalance = False
        self._has_grown = False
        self._delay_ms = 0
        self._delay_left_ms = 0
        self._unsynced: set[str] = set()
        self._former_epochs: Mapping[str, int] = {}
        for member in members:
            self._sign_of_life(member)
        if self._state is State.COMPLETING:
            self._await_syncs()
        elif self._state is State.PREPARING:
            self._phase_deadline_ms = now.monotonic_ms + self._roster.rebalance_timeout_ms

    @property
    def head(self) -> GroupHead:
        return self._head

    @property
    def state(self) -> str:
        return self._state.value

    @property
    def member_count(self) -> int:
        return len(self._roster)

    @property
    def roster(self) -> Roster:
        """The members, for whoever moves the group to another protocol."""
        return self._roster

    @property
    def stored(self) -> StoredMembers:
        """What is stored of the members, for whoever rewrites it."""
        return self._stored

    @property
    def next_deadline_ms(self) -> int | None:
        session_ms, phase_ms = self._sessions.next_ms, self._phase_deadline_ms
        if phase_ms is None:
            return session_ms
        return phase_ms if session_ms is None or phase_ms < session_ms else session_ms

    def remember(self, former_epochs: Mapping[str, int]) -> None:
        """Know members by epochs that they had in a group of the other protocol, until they have come together.

        So they hear that there is a rebalance, not that they are lost, and can commit before they let go.
        """
        self._former_epochs = former_epochs

    def dismiss(self, code: ErrorCode) -> list[Effect]:
        """Answer everybody who waits with this code: this machine will not be asked any more."""
        self._effects = []
        for member in self._roster.members.values():
            self._answer_join(member, JoinReply(error=code, member_id=member.id))
            self._answer_sync(member, SyncReply(error=code))
        return self._effects

    # Phases

    def _check_generation(self, member_id: str, generation: int) -> ErrorCode:
        """Say whether a member is in the generation that it says, and whether there is a rebalance for it to join."""
        if generation != self._generation and self._former_epochs.get(member_id) != generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.REBALANCE_IN_PROGRESS if self._state is State.PREPARING else ErrorCode.NONE

    def _sign_of_life(self, member: Member) -> None:
        self._sessions.set(member.id, self._now.monotonic_ms + member.session_timeout_ms)

    def _phase_over(self) -> None:
        """Go on when a phase has taken as long as it may."""
        if self._state is not State.PREPARING:
            gone = [member for member in self._roster.members.values() if member.id in self._unsynced]
            for member in gone:
                self._effects.append(Noted("expired", f"member {member.id} did not sync in time"))
                self._remove(member)
            if gone:
                self._prepare(f"{len(gone)} members did not sync in time")
        elif self._is_first_rebalance and self._has_grown and self._delay_left_ms > 0:
            # Somebody came during the delay: wait once more for others, within the rebalance timeout.
            self._has_grown = False
            past_ms, left_ms = self._delay_ms, self._delay_left_ms
            self._delay_ms = min(self._limits.initial_rebalance_delay_ms, left_ms)
            self._delay_left_ms = max(0, left_ms - past_ms)
            self._phase_deadline_ms = self._now.monotonic_ms + self._delay_ms
        else:
            self._complete_join()

    def _park_join(self, member: Member, token: int) -> None:
        """Let a member wait for the next generation."""
        # If it waits already, its client has asked again over a new connection. Nobody listens on the old one, or
        # somebody who does as this code says: join again.
        self._answer_join(member, JoinReply(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.id))
        self._roster.park_join(member, token)

    def _prepare_or_complete(self, reason: str) -> None:
        if self._state is State.PREPARING:
            self._maybe_complete_join()
        else:
            self._prepare(reason)

    def _prepare(self, reason: str) -> None:
        """Begin a rebalance: members hear of it by their heartbeats, and join."""
        for member in self._roster.members.values():
            self._answer_sync(member, SyncReply(error=ErrorCode.REBALANCE_IN_PROGRESS))
        self._unsynced.clear()
        self._is_first_rebalance = self._state is State.EMPTY
        self._state = State.PREPARING
        self._effects.append(Noted("rebalance", reason))
        timeout_ms = self._roster.rebalance_timeout_ms
        if self._is_first_rebalance and self._limits.initial_rebalance_delay_ms > 0:
            self._has_grown = False
            self._delay_ms = self._limits.initial_rebalance_delay_ms
            self._delay_left_ms = max(0, timeout_ms - self._delay_ms)
            self._phase_deadline_ms = self._now.monotonic_ms + self._delay_ms
        elif self._is_first_rebalance or not len(self._roster) or self._have_all_joined():
            self._complete_join()
        else:
            self._phase_deadline_ms = self._now.monotonic_ms + timeout_ms

    def _have_all_joined(self) -> bool:
        return self._roster.joined_count == len(self._roster) and not self._ids_given_out

    def _maybe_complete_join(self) -> None:
        if self._state is State.PREPARING and not self._is_first_rebalance and self._have_all_joined():
            self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation with those who have joined, and with static members whether they have or not."""
        members = self._roster.members
        for member in [found for found in members.values() if found.join_token is None and found.instance_id is None]:
            self._effects.append(Noted("expired", f"member {member.id} did not join again in time"))
            self._remove(member)
        if members and not self._roster.elect():
            # Static members only, and none of them came: they stay until their sessions end.
            wait_ms = max(self._roster.rebalance_timeout_ms, NOBODY_CAME_RETRY_MS)
            self._phase_deadline_ms = self._now.monotonic_ms + wait_ms
            return
        self._generation += 1
        self._former_epochs = {}
        self._is_first_rebalance = False
        self._phase_deadline_ms = None
        if not members:
            self._state = State.EMPTY
            self._save(Phase.EMPTY)
            return
        self._state = State.COMPLETING
        for member in members.values():
            # A static member that did not come keeps what it was given: it may still go by it.
            if member.join_token is not None:
                member.assignment = b""
            member.is_new = False
            self._sign_of_life(member)
        self._save(Phase.COMPLETING)
        for member in members.values():
            self._answer_join(member, self._join_reply(member))
        self._await_syncs()

    def _await_syncs(self) -> None:
        self._unsynced = set(self._roster.members)
        wait_ms = max(self._roster.rebalance_timeout_ms, SHORTEST_SYNC_WAIT_MS)
        self._phase_deadline_ms = self._now.monotonic_ms + wait_ms

    def _assign(self, assignments: dict[str, bytes]) -> None:
        """Take the leader's assignments; who is not named gets an empty one."""
        self._state = State.STABLE
        for member in self._roster.members.values():
            member.assignment = assignments.get(member.id, b"")
        self._save(Phase.STABLE)
        for member in self._roster.members.values():
            self._answer_sync(member, self._sync_reply(member))

    def _remove(self, member: Member) -> None:
        """Let a member go, whatever it waits for. If its client lives, it comes again as somebody new."""
        self._answer_join(member, JoinReply(error=ErrorCode.UNKNOWN_MEMBER_ID))
        self._answer_sync(member, SyncReply(error=ErrorCode.UNKNOWN_MEMBER_ID))
        self._roster.remove(member.id)
        self._sessions.clear(member.id)
        self._unsynced.discard(member.id)

    # Saving and answering

    def _save(self, phase: Phase) -> None:
        members = self._roster.members
        self._head = GroupHead(
            group_id=self._head.group_id,
            kind=GroupKind.CLASSIC,
            epoch=self._generation,
            empty_since_ms=None if members else self._now.wall_ms,
            phase=phase,
            protocol_type=self._head.protocol_type,
            protocol=self._chosen_protocol(phase),
            leader=self._roster.leader_id,
        )
        records = {member.id: member.record for member in members.values()}
        assignments = {member.id: member.assignment for member in members.values()}
        self._effects.append(self._stored.save(self._head, records, assignments))

    def _chosen_protocol(self, phase: Phase) -> str:
        """A generation chooses its protocol when it begins."""
        if phase is Phase.COMPLETING:
            return self._roster.select_protocol()
        return self._head.protocol if phase is Phase.STABLE else ""

    def _join_reply(self, member: Member, *, leader: str | None = None, skip_assignment: bool = False) -> JoinReply:
        leader_id = self._roster.leader_id if leader is None else leader
        everybody = self._roster.members.values() if leader_id == member.id else ()
        protocol = self._head.protocol
        return JoinReply(
            generation=self._generation,
            protocol_type=self._head.protocol_type,
            protocol=protocol,
            leader=leader_id,
            skip_assignment=skip_assignment,
            member_id=member.id,
            members=tuple((one.id, one.instance_id, one.record.metadata(protocol) or b"") for one in everybody),
        )

    def _sync_reply(self, member: Member) -> SyncReply:
        return SyncReply(
            protocol_type=self._head.protocol_type, protocol=self._head.protocol, assignment=member.assignment
        )

    def _answer_join(self, member: Member, reply: JoinReply) -> None:
        token = self._roster.take_join(member)
        if token is not None:
            self._effects.append(Reply(token, reply))

    def _answer_sync(self, member: Member, reply: SyncReply) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            self._effects.append(Reply(token, reply))
            self._sign_of_life(member)
