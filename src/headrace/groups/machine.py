"""The machine that a seat holds: one of the two protocols, and the way from one to the other.

    no members ──────────── whoever comes first says which protocol it is
    classic ─────────────── a KIP-848 member joins, and all others are consumers ──▶ consumer, with classic members
    consumer, classic members ── the last KIP-848 member goes ──▶ classic, with a rebalance

Committed offsets do not notice any of it.

Must stay true: a change of protocol is durable in one piece, with what brought it about, before anybody hears of
anything that came of it. A request that is refused changes nothing.
"""

from headrace.errors import Invalid
from headrace.groups.classic import ClassicGroup
from headrace.groups.consumer import ConsumerGroup
from headrace.groups.migration import downgraded, in_one_save, outdated, upgraded
from headrace.groups.protocol import (
    JOINING_EPOCH,
    CommitClaim,
    ConfigChanged,
    ConsumerBeat,
    ConsumerBeatReply,
    Effect,
    Event,
    GroupConfig,
    GroupDescription,
    GroupLimits,
    Join,
    LimitsChanged,
    Moment,
    Noted,
    Pace,
    Reply,
    TopicsChanged,
    TopicsImage,
)
from headrace.groups.records import GroupHead, GroupKind, Loaded
from headrace.model.error_codes import ErrorCode
from headrace.runtime.rng import Rng


class GroupMachine:
    """A classic group or a KIP-848 group: a `Machine`."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        limits: GroupLimits,
        rng: Rng,
        now: Moment,
        image: TopicsImage,
        config: GroupConfig,
        pace: Pace,
    ) -> None:
        self._limits, self._rng, self._image, self._config, self._pace = limits, rng, image, config, pace
        self._machine: ClassicGroup | ConsumerGroup
        is_consumer = loaded.head is not None and loaded.head.kind is GroupKind.CONSUMER
        self._machine = self._consumer(loaded, now) if is_consumer else self._classic(loaded, now)

    def _consumer(self, loaded: Loaded, now: Moment) -> ConsumerGroup:
        return ConsumerGroup(
            loaded,
            limits=self._limits,
            rng=self._rng,
            now=now,
            image=self._image,
            config=self._config,
            pace=self._pace,
        )

    def _classic(self, loaded: Loaded, now: Moment) -> ClassicGroup:
        return ClassicGroup(loaded, limits=self._limits, rng=self._rng, now=now)

    # What others ask

    @property
    def head(self) -> GroupHead:
        return self._machine.head

    @property
    def state(self) -> str:
        return self._machine.state

    @property
    def member_count(self) -> int:
        return self._machine.member_count

    @property
    def next_deadline_ms(self) -> int | None:
        return self._machine.next_deadline_ms

    def check_commit(self, claim: CommitClaim, now: Moment) -> ErrorCode:
        return self._machine.check_commit(claim, now)

    def check_fetch(self, claim: CommitClaim) -> ErrorCode:
        return self._machine.check_fetch(claim)

    def subscribed(self) -> frozenset[str] | None:
        return self._machine.subscribed()

    def describe(self) -> GroupDescription:
        return self._machine.describe()

    # What happens

    def handle(self, event: Event, token: int, now: Moment) -> list[Effect]:
        if isinstance(event, TopicsChanged):
            self._image = event.image
        elif isinstance(event, ConfigChanged):
            self._config = event.config
        elif isinstance(event, LimitsChanged):
            self._limits = event.limits
        machine = self._machine
        if isinstance(machine, ClassicGroup):
            if type(event) is ConsumerBeat and event.member_epoch == JOINING_EPOCH:
                return self._join_classic(machine, event, token, now)
            return machine.handle(event, token, now)
        if type(event) is Join and not machine.member_count:
            self._machine = self._classic(_empty(machine.head, GroupKind.CLASSIC), now)
            return self._machine.handle(event, token, now)
        effects = machine.handle(event, token, now)
        return self._downgrade(machine, effects, now) if machine.has_only_classic_members else effects

    def _join_classic(self, old: ClassicGroup, event: ConsumerBeat, token: int, now: Moment) -> list[Effect]:
        """Let a KIP-848 member join a classic group, which becomes one of its kind."""
        if not old.member_count:
            return self._try(self._consumer(_empty(old.head, GroupKind.CONSUMER), now), event, token, now)
        try:
            move = upgraded(old, self._image)
        except Invalid as error:
            refused = ConsumerBeatReply(error=ErrorCode.GROUP_ID_NOT_FOUND, error_message=str(error))
            return [Reply(token, refused)]
        effects = self._try(self._consumer(move.loaded, now), event, token, now)
        if self._machine is old:
            return effects
        if self._machine.head.epoch == old.head.epoch:
            # It took another one's place and wants the same, so there is no new target. But the old one is only what
            # members have, and if they were rebalancing that is not all.
            effects = self._try(self._consumer(outdated(move.loaded), now), event, token, now)
        noted = Noted("upgraded", f"member {event.member_id} speaks KIP-848: {old.member_count} others do not yet")
        # Whoever waits for a generation or an assignment comes again, and is told what it has here.
        return in_one_save([move.save, *effects, noted, *old.dismiss(ErrorCode.REBALANCE_IN_PROGRESS)])

    def _try(self, new: ConsumerGroup, event: ConsumerBeat, token: int, now: Moment) -> list[Effect]:
        """Go on with this machine if it lets the member in; otherwise with the one that there is."""
        effects = new.handle(event, token, now)
        if not any(_is_refusal(effect) for effect in effects):
            self._machine = new
            return effects
        return [effect for effect in effects if isinstance(effect, Reply)]

    def _downgrade(self, old: ConsumerGroup, effects: list[Effect], now: Moment) -> list[Effect]:
        """Make a classic group of what is left; `effects` are what came of the event that left it so."""
        move = downgraded(old, self._image)
        if move is None:
            return effects
        new = self._classic(move.loaded, now)
        self._machine = new
        reason = f"nobody speaks KIP-848 any more: {new.member_count} classic members are left"
        new.remember(move.former_epochs)
        return in_one_save([*effects, move.save, Noted("downgraded", reason), Noted("rebalance", reason)])


def _empty(head: GroupHead, kind: GroupKind) -> Loaded:
    """Return a group without members under another protocol. It goes on counting where it was."""
    new_head = GroupHead(group_id=head.group_id, kind=kind, epoch=head.epoch, empty_since_ms=head.empty_since_ms)
    return Loaded(group_id=head.group_id, head=new_head)


def _is_refusal(effect: Effect) -> bool:
    return (
        isinstance(effect, Reply)
        and isinstance(effect.reply, ConsumerBeatReply)
        and effect.reply.error is not ErrorCode.NONE
    )
