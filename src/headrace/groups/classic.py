"""The classic group protocol: members join, one of them assigns, all of them sync; then they send heartbeats.

    Empty ──────────────── the first member joins ──▶ PreparingRebalance
    PreparingRebalance ─── all came, or time is up ─▶ CompletingRebalance, with the next generation; Empty without any
    CompletingRebalance ── the leader assigns ──────▶ Stable
    CompletingRebalance, Stable ── somebody comes, goes, is silent or changes ──▶ PreparingRebalance

Behaves as Apache Kafka's coordinator does. Where we differ on purpose, a comment says so and why.

What is durable is a generation with its members (before any of them hears of it) and its assignments (before any of
them hears of one). Joins and syncs that wait, ids that were given out and not used yet, the preparing phase and all
deadlines are memory only. After a restart members go on with their generation, and sessions begin anew; whoever left
before a new generation came is put out when its session ends.

Must stay true:
- A generation is saved with the members that are answered with it, and does not change afterwards, but for the id of
  a static member that came back.
- Every request is answered exactly once. One that comes again while the first still waits takes its place, and the
  first is answered too.
- A member that waits for an answer is not put out for being silent, unless it is new.
"""

import uuid

import msgspec

from headrace.groups.classic_members import (
    CONSUMER_PROTOCOL_TYPE,
    Member,
    described,
    record_of,
    wanted_topics,
)
from headrace.groups.classic_phases import Phases, State
from headrace.groups.classic_records import ClassicMemberRecord
from headrace.groups.protocol import (
    Beat,
    BeatReply,
    CommitClaim,
    ConsumerBeat,
    ConsumerBeatReply,
    Effect,
    Event,
    GroupDescription,
    GroupLimits,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    LimitsChanged,
    Moment,
    Noted,
    Reply,
    Sync,
    SyncReply,
    Tick,
)
from headrace.groups.records import Loaded, Phase
from headrace.model.error_codes import ErrorCode
from headrace.runtime.rng import Rng

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long a new member may wait for its first generation. Its client may be gone, and nobody would notice."""

MAX_IDS_GIVEN_OUT = 10_000
"""How many ids may be given out and not used yet. They cost memory until the session timeout that was asked for."""

MAX_ID_PREFIX_CHARS = 255
"""How much of a client's own name goes into a member id, which has to fit into a string of the protocol."""

_BEAT_REPLIES = {code: BeatReply(error=code) for code in ErrorCode}


class ClassicGroup(Phases):
    """One group under the classic protocol: a `Machine`."""

    def __init__(self, loaded: Loaded, *, limits: GroupLimits, rng: Rng, now: Moment) -> None:
        super().__init__(loaded, limits=limits, now=now)
        self._rng = rng

    # What others ask

    def check_commit(self, claim: CommitClaim, now: Moment) -> ErrorCode:
        if claim.epoch < 0 and self._state is State.EMPTY:
            return ErrorCode.NONE
        if claim.epoch < 0 and not claim.member_id and claim.instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = self._roster.check(claim.member_id, claim.instance_id)
        if code is not ErrorCode.NONE:
            return code
        # While members join they may commit for the generation that ends.
        if self._check_generation(claim.member_id, claim.epoch) is ErrorCode.ILLEGAL_GENERATION:
            return ErrorCode.ILLEGAL_GENERATION
        if self._state is State.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._now = now
        self._sign_of_life(self._roster.members[claim.member_id])
        return ErrorCode.NONE

    def check_fetch(self, claim: CommitClaim) -> ErrorCode:
        return ErrorCode.NONE

    def subscribed(self) -> frozenset[str] | None:
        if len(self._roster) and self._head.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        wanted = [wanted_topics(member.record, self._head.protocol) for member in self._roster.members.values()]
        readable = [topics for topics in wanted if topics is not None]
        return frozenset().union(*readable) if len(readable) == len(wanted) else None

    def describe(self) -> GroupDescription:
        protocol = self._head.protocol if self._state is State.STABLE else ""
        members = tuple(described(member, protocol) for member in self._roster.members.values())
        return GroupDescription(head=self._head, state=self.state, protocol=protocol, classic_members=members)

    # What happens

    def handle(self, event: Event, token: int, now: Moment) -> list[Effect]:
        if type(event) is Beat:
            return [Reply(token, _BEAT_REPLIES[self._beat(event, now)])]
        self._now = now
        self._effects = []
        match event:
            case Join():
                self._join(event, token)
            case Sync():
                self._sync(event, token)
            case Leave():
                self._leave(event, token)
            case Tick():
                self._tick()
            case ConsumerBeat():
                self._effects.append(Reply(token, ConsumerBeatReply(error=ErrorCode.GROUP_ID_NOT_FOUND)))
            case LimitsChanged():
                self._limits = event.limits
        return self._effects

    # Heartbeats and time

    def _beat(self, event: Beat, now: Moment) -> ErrorCode:
        member_id = event.member_id
        code = self._roster.check(member_id, event.instance_id)
        if code is not ErrorCode.NONE:
            return code
        # A member that was told its generation may send heartbeats before it syncs: those are fine.
        code = self._check_generation(member_id, event.generation)
        if code is not ErrorCode.ILLEGAL_GENERATION:
            self._sessions.set(member_id, now.monotonic_ms + self._roster.members[member_id].session_timeout_ms)
        return code

    def _tick(self) -> None:
        now_ms = self._now.monotonic_ms
        while (member_id := self._sessions.pop_due(now_ms)) is not None:
            self._silent(member_id)
        if self._phase_deadline_ms is not None and self._phase_deadline_ms <= now_ms:
            self._phase_deadline_ms = None
            self._phase_over()

    def _silent(self, member_id: str) -> None:
        """Put out a member whose session has ended, or take back an id that nobody used."""
        if member_id in self._ids_given_out:
            self._ids_given_out.discard(member_id)
        else:
            member = self._roster.members[member_id]
            if member.is_waiting:
                return  # its session begins anew when it is answered
            self._effects.append(Noted("expired", f"member {member_id} was not heard of for too long"))
            self._remove(member)
            if self._state is not State.PREPARING:
                self._prepare(f"member {member_id} was not heard of for too long")
        if self._state is State.PREPARING and self._have_all_joined():
            self._complete_join()

    # Joining

    def _join(self, event: Join, token: int) -> None:
        refusal = self._refusal(event)
        if refusal is not None:
            self._effects.append(Reply(token, refusal))
        elif event.member_id:
            self._join_with_id(event, token)
        elif event.instance_id is not None:
            old_id = self._roster.static_id(event.instance_id)
            new_id = self._new_id(event.instance_id)
            if old_id is None:
                self._add(event, new_id, token)
            else:
                self._return_of_static(event, old_id, new_id, token)
        elif event.needs_member_id:
            self._give_out_id(event, token)
        else:
            self._add(event, self._new_id(event.client.id), token)

    def _refusal(self, event: Join) -> JoinReply | None:
        """Return the answer to somebody who cannot be let in, whoever it is."""
        limits = self._limits
        if not limits.min_session_timeout_ms <= event.session_timeout_ms <= limits.max_session_timeout_ms:
            return JoinReply(error=ErrorCode.INVALID_SESSION_TIMEOUT, member_id=event.member_id)
        if sum(len(name) + len(metadata) for name, metadata in event.protocols) > limits.max_metadata_bytes:
            # Kafka has no such limit, and no code for it: it fails later, when it cannot write the group down. This
            # code ends a client with a message, where one that can be retried would make it come again for ever.
            return JoinReply(error=ErrorCode.INVALID_REQUEST, member_id=event.member_id)
        # Kafka counts a static member that comes back as one more, and leaves it out of a full group.
        if not self._has_room_for(event.member_id or self._roster.static_id(event.instance_id) or ""):
            self._drop_surplus(event.member_id)
            return JoinReply(error=ErrorCode.GROUP_MAX_SIZE_REACHED)
        if self._state is State.EMPTY:
            is_consistent = bool(event.protocol_type and event.protocols)
        else:
            is_consistent = event.protocol_type == self._head.protocol_type and self._roster.supports(event.protocols)
        if not is_consistent:
            return JoinReply(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=event.member_id)
        return None

    def _has_room_for(self, member_id: str) -> bool:
        """Say whether one more may join.

        In the joining phase those who have joined count. So if the limit was lowered, the last to come are left out.
        """
        if self._state is State.EMPTY:
            return True
        member = self._roster.members.get(member_id)
        if self._state is State.PREPARING:
            has_joined = member is not None and member.join_token is not None
            return has_joined or self._roster.joined_count < self._limits.max_members
        return member is not None or len(self._roster) < self._limits.max_members

    def _drop_surplus(self, member_id: str) -> None:
        """Forget somebody for whom there is no room."""
        if member_id in self._roster.members:
            self._remove(self._roster.members[member_id])
        self._take_back_id(member_id)
        # In Kafka those who have joined now wait for nobody until the time is up.
        self._maybe_complete_join()

    def _give_out_id(self, event: Join, token: int) -> None:
        """Let a new member come again with the id that it is told: if it does not, nobody has waited for it."""
        reply = JoinReply(error=ErrorCode.GROUP_MAX_SIZE_REACHED)
        if len(self._ids_given_out) < MAX_IDS_GIVEN_OUT:
            member_id = self._new_id(event.client.id)
            self._ids_given_out.add(member_id)
            self._sessions.set(member_id, self._now.monotonic_ms + event.session_timeout_ms)
            reply = JoinReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        self._effects.append(Reply(token, reply))

    def _take_back_id(self, member_id: str) -> bool:
        """Forget an id that was given out; say whether it was one."""
        if member_id not in self._ids_given_out:
            return False
        self._ids_given_out.discard(member_id)
        self._sessions.clear(member_id)
        return True

    def _new_id(self, prefix: str) -> str:
        return f"{prefix[:MAX_ID_PREFIX_CHARS]}-{uuid.UUID(int=self._rng.getrandbits(128), version=4)}"

    def _join_with_id(self, event: Join, token: int) -> None:
        if event.member_id in self._ids_given_out and event.instance_id is None:
            self._add(event, event.member_id, token)
            return
        code = self._roster.check(event.member_id, event.instance_id)
        if code is not ErrorCode.NONE:
            self._effects.append(Reply(token, JoinReply(error=code, member_id=event.member_id)))
            return
        member = self._roster.members[event.member_id]
        record = record_of(event, member.id)
        is_changed = record.protocols != member.record.protocols
        # A leader that joins a stable group again wants a rebalance: it has seen something that is in nobody's
        # metadata, such as new partitions. Anybody else who is as before may have missed an answer.
        wants_more = self._state is State.STABLE and self._roster.leader_id == member.id
        if self._state is not State.PREPARING and not is_changed and not wants_more:
            self._sign_of_life(member)
            self._effects.append(Reply(token, self._join_reply(member)))
            return
        self._roster.update(member, record)
        self._park_join(member, token)
        self._prepare_or_complete(f"member {member.id} joined again")

    def _add(self, event: Join, member_id: str, token: int) -> None:
        """Take a new member in."""
        self._take_back_id(member_id)
        if not len(self._roster):
            self._head = msgspec.structs.replace(self._head, protocol_type=event.protocol_type)
        self._has_grown = True
        member = Member(record_of(event, member_id), is_new=True)
        self._roster.add(member)
        self._park_join(member, token)
        self._sessions.set(member_id, self._now.monotonic_ms + NEW_MEMBER_TIMEOUT_MS)
        self._prepare_or_complete(f"member {member_id} is new")

    def _return_of_static(self, event: Join, old_id: str, new_id: str, token: int) -> None:
        """Give a static member that was started again its place back, under a new id; fence who has the old one."""
        old = self._roster.members[old_id]
        had_led = self._roster.leader_id
        self._effects.append(Noted("fenced", f"member {new_id} takes the place of {old_id}"))
        self._answer_join(old, JoinReply(error=ErrorCode.FENCED_INSTANCE_ID, member_id=old_id))
        self._answer_sync(old, SyncReply(error=ErrorCode.FENCED_INSTANCE_ID))
        self._sessions.clear(old_id)
        if old_id in self._unsynced:
            self._unsynced ^= {old_id, new_id}
        member = self._roster.rename(old_id, new_id)
        self._roster.update(member, record_of(event, new_id))
        self._sign_of_life(member)
        if self._state is not State.STABLE or self._changes_assignment(old.record, member.record):
            self._park_join(member, token)
            self._prepare_or_complete(f"static member {event.instance_id} came back as {new_id}")
            return
        self._save(Phase.STABLE)
        leads = self._roster.leader_id == new_id
        if event.can_skip_assignment:
            reply = self._join_reply(member, skip_assignment=leads)
        else:
            # Who cannot be told to leave the assignment as it is must not find out that it leads.
            reply = self._join_reply(member, leader=had_led)
        self._effects.append(Reply(token, reply))

    def _changes_assignment(self, old: ClassicMemberRecord, new: ClassicMemberRecord) -> bool:
        """Say whether what a member is now asks for another assignment than what it was.

        Kafka looks at the chosen protocol only (KAFKA-12759), so a member that comes back with other topics goes
        without them. We look at the topics, not at all of the metadata: which partitions a member owned, and what
        its assignor notes down, is different after every start.
        """
        if self._roster.select_protocol() != self._head.protocol:
            return True
        if self._head.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        before, after = wanted_topics(old, self._head.protocol), wanted_topics(new, self._head.protocol)
        return before is not None and after is not None and before != after

    # Syncing

    def _sync(self, event: Sync, token: int) -> None:
        code = self._check_sync(event)
        if code is not ErrorCode.NONE:
            self._effects.append(Reply(token, SyncReply(error=code)))
            return
        member = self._roster.members[event.member_id]
        self._unsynced.discard(member.id)
        if not self._unsynced:
            self._phase_deadline_ms = None
        if self._state is State.STABLE:
            self._sign_of_life(member)
            self._effects.append(Reply(token, self._sync_reply(member)))
            return
        self._answer_sync(member, SyncReply(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_token = token
        if self._roster.leader_id == member.id:
            self._assign(dict(event.assignments))

    def _check_sync(self, event: Sync) -> ErrorCode:
        code = self._roster.check(event.member_id, event.instance_id)
        if code is not ErrorCode.NONE:
            return code
        code = self._check_generation(event.member_id, event.generation)
        if code is ErrorCode.ILLEGAL_GENERATION:
            return code
        if event.protocol_type not in (None, self._head.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if event.protocol not in (None, self._head.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if code is not ErrorCode.NONE:
            return code
        if any(len(assignment) > self._limits.max_metadata_bytes for _, assignment in event.assignments):
            return ErrorCode.INVALID_REQUEST  # as with metadata that are too large
        return ErrorCode.NONE

    # Leaving

    def _leave(self, event: Leave, token: int) -> None:
        count = len(self._roster)
        reply = LeaveReply(leavers=tuple(self._let_go(leaver) for leaver in event.leavers))
        # In Kafka a stable group rebalances even if only an id goes that was never used.
        if len(self._roster) < count and self._state is not State.PREPARING:
            self._prepare(f"{count - len(self._roster)} members left")
        else:
            self._maybe_complete_join()
        self._effects.append(Reply(token, reply))

    def _let_go(self, leaver: Leaver) -> ErrorCode:
        if not leaver.member_id:
            member_id = self._roster.static_id(leaver.instance_id)
            if member_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif self._take_back_id(leaver.member_id):
            return ErrorCode.NONE
        else:
            member_id = leaver.member_id
            code = self._roster.check(member_id, leaver.instance_id)
            if code is not ErrorCode.NONE:
                return code
        self._remove(self._roster.members[member_id])
        return ErrorCode.NONE
