"""Classic members inside a KIP-848 group, while an application is moved from one protocol to the other, either way.

The group goes by its own rules, and a classic member is told as much of them as its protocol can say:

    its member epoch        is its generation
    JoinGroup               is a step towards its target, with what it owns; nobody leads, nobody is listed
    SyncGroup               brings what it has, in the version of its subscription
    Heartbeat               says REBALANCE_IN_PROGRESS when a step is to be taken: it has to join again for that

A member of an eager assignor lets go of everything before it joins, so it owns nothing then. One of a cooperative
assignor joins with what it owns, is told by SyncGroup what to keep, lets go of the rest, and joins once more.

Must stay true: a classic member that was told to join again, or has joined and not synced, is put out when its
rebalance timeout is over, because others may wait for what it has.
"""

from collections.abc import Callable

from headrace.errors import Invalid
from headrace.groups.consumer_core import CONSUMER_PROTOCOL_TYPE, GroupCore
from headrace.groups.consumer_members import Member
from headrace.groups.consumer_records import ClassicFacts, MemberState
from headrace.groups.consumer_refusals import Refused, unknown_member
from headrace.groups.consumer_subscriptions import Wish
from headrace.groups.protocol import (
    Beat,
    BeatReply,
    GroupLimits,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Partitions,
    Sync,
    SyncReply,
    TopicsImage,
)
from headrace.groups.reconciliation import is_blocked
from headrace.model.error_codes import ErrorCode
from headrace.model.subscriptions import (
    Assignment,
    Subscription,
    TopicPartitions,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from headrace.model.topics import TopicId


def join(core: GroupCore, event: Join, limits: GroupLimits, new_id: Callable[[], str]) -> JoinReply:
    """Let a classic member join, or join again."""
    try:
        subscription = _check(core, event, limits)
        if not event.member_id and event.instance_id is None and event.needs_member_id:
            return JoinReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=new_id())
        member = _member_for(core, event, subscription, new_id)
    except Refused as refused:
        return JoinReply(error=refused.code, member_id=event.member_id)
    has_new_wishes = core.roster.describe(
        member,
        client=event.client,
        instance_id=member.instance_id if event.instance_id is None else event.instance_id,
        rack=member.rack if subscription.rack is None else subscription.rack,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        wish=Wish(tuple(sorted(set(subscription.topics))), None),
        assignor=member.assignor,
        classic=ClassicFacts(session_timeout_ms=event.session_timeout_ms, protocols=event.protocols),
    )
    core.see_to_target(has_new_wishes=has_new_wishes)
    owned = _by_id(subscription.owned, core.subscriptions.image)
    core.reconcile(member, owned, has_new_wishes=has_new_wishes)
    core.moves.clear(member.id)
    core.syncs.set(member.id, core.now.monotonic_ms + event.rebalance_timeout_ms)
    core.touch(member)
    return JoinReply(
        generation=member.standing.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=event.protocols[0][0],
        member_id=member.id,
    )


def sync(core: GroupCore, event: Sync) -> SyncReply:
    """Tell a classic member what it has."""
    try:
        member, classic = _known(core, event.member_id, event.instance_id, event.generation)
        protocol = classic.protocols[0][0]
        if event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or event.protocol not in (None, protocol):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "it is another protocol than JoinGroup said")
        # One that has to let go of something learns here what it may keep. It joins again by itself afterwards.
        if core.head.epoch > member.standing.epoch and member.standing.state is not MemberState.REVOKING:
            _wait_for_join(core, member)
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "the group has a newer epoch: it has to join again")
    except Refused as refused:
        return SyncReply(error=refused.code)
    core.syncs.clear(member.id)
    core.touch(member)
    return SyncReply(
        protocol_type=event.protocol_type,
        protocol=event.protocol,
        assignment=_encoded(member, classic, core.subscriptions.image),
    )


def beat(core: GroupCore, event: Beat) -> BeatReply:
    """Take note that a classic member lives, and tell it whether to join again."""
    try:
        member, _ = _known(core, event.member_id, event.instance_id, event.generation)
    except Refused as refused:
        return BeatReply(error=refused.code)
    core.touch(member)
    standing = member.standing
    is_complete = standing.state is MemberState.STABLE or is_blocked(
        standing, core.target_of(member), core.roster.taken_from(member)
    )
    if core.head.epoch == standing.epoch and is_complete:
        return BeatReply()
    _wait_for_join(core, member)
    return BeatReply(error=ErrorCode.REBALANCE_IN_PROGRESS)


def leave(core: GroupCore, event: Leave) -> LeaveReply:
    """Let members go, of either protocol: an admin client may put out anybody."""
    codes = []
    gone: dict[str, Member] = {}
    for leaver in event.leavers:
        try:
            member = _leaving(core, leaver)
            gone[member.id] = member
            codes.append(ErrorCode.NONE)
        except Refused as refused:
            codes.append(refused.code)
    core.remove(*gone.values())
    return LeaveReply(leavers=tuple(codes))


def _check(core: GroupCore, event: Join, limits: GroupLimits) -> Subscription:
    """Return what the member wants, or raise `Refused` if it cannot be let in, whoever it is."""
    if not limits.min_session_timeout_ms <= event.session_timeout_ms <= limits.max_session_timeout_ms:
        raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT, f"a session timeout of {event.session_timeout_ms} ms")
    if sum(len(name) + len(metadata) for name, metadata in event.protocols) > limits.max_metadata_bytes:
        raise Refused(ErrorCode.INVALID_REQUEST, f"metadata of more than {limits.max_metadata_bytes} bytes")
    if event.protocol_type != CONSUMER_PROTOCOL_TYPE or not core.roster.supports(name for name, _ in event.protocols):
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol that all classic members know")
    try:
        subscription = decode_subscription(event.protocols[0][1])
    except Invalid as error:
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
    if len(subscription.topics) > limits.max_subscribed_topics:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{len(subscription.topics)} topics to subscribe to")
    is_new = not event.member_id or core.roster.get(event.member_id) is None
    is_return = event.instance_id is not None and core.roster.static(event.instance_id) is not None
    if is_new and not is_return and len(core.roster) >= limits.max_members:
        raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{len(core.roster)} members")
    return subscription


def _member_for(core: GroupCore, event: Join, subscription: Subscription, new_id: Callable[[], str]) -> Member:
    if event.instance_id is not None:
        static = core.roster.static(event.instance_id)
        if event.member_id:
            return _static_member(static, event.member_id)
        if static is not None:
            # Whoever comes without an id is a new process: in the classic protocol it takes the place at once.
            return core.replace(static, new_id())
    member = core.roster.get(event.member_id)
    if member is None:
        # As in Kafka, whatever id somebody comes with is taken. But who owns something was put out and does not know:
        # this answer makes it drop what others may have by now, where Kafka's leaves that to the next SyncGroup.
        if any(partitions for _, partitions in subscription.owned):
            raise unknown_member(event.member_id)
        member = Member(event.member_id or new_id())
        core.add(member)
    return member


def _known(core: GroupCore, member_id: str, instance_id: str | None, generation: int) -> tuple[Member, ClassicFacts]:
    """Return a classic member that is in the generation that it says; raise `Refused` otherwise."""
    if instance_id is None:
        member = core.roster.get(member_id)
        if member is None:
            raise unknown_member(member_id)
    else:
        member = _static_member(core.roster.static(instance_id), member_id)
    if member.classic is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id} speaks another protocol")
    if member.standing.epoch != generation:
        raise Refused(ErrorCode.ILLEGAL_GENERATION, f"member {member_id} is in {member.standing.epoch}")
    return member, member.classic


def _static_member(member: Member | None, member_id: str) -> Member:
    if member is None:
        raise unknown_member(member_id)
    if member.id != member_id:
        raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"member {member_id} had to give way to {member.id}")
    return member


def _leaving(core: GroupCore, leaver: Leaver) -> Member:
    if leaver.instance_id is None:
        member = core.roster.get(leaver.member_id)
        if member is None:
            raise unknown_member(leaver.member_id)
        return member
    static = core.roster.static(leaver.instance_id)
    if static is not None and not leaver.member_id:
        return static
    return _static_member(static, leaver.member_id)


def _wait_for_join(core: GroupCore, member: Member) -> None:
    if member.id not in core.moves:
        core.moves.set(member.id, core.now.monotonic_ms + member.rebalance_timeout_ms)


def _by_id(owned: TopicPartitions, image: TopicsImage) -> Partitions:
    """Return partitions by the ids of their topics; those of topics that do not exist are nobody's business."""
    found: dict[TopicId, frozenset[int]] = {}
    for name, partitions in owned:
        topic = image.by_name.get(name)
        if topic is not None:
            found[topic.id] = found.get(topic.id, frozenset()).union(partitions)
    return found


def _encoded(member: Member, classic: ClassicFacts, image: TopicsImage) -> bytes:
    held = sorted(
        (image.by_id[topic_id].name, tuple(sorted(partitions)))
        for topic_id, partitions in member.standing.assigned.items()
        if topic_id in image.by_id
    )
    return encode_assignment(Assignment(partitions=tuple(held)), decode_version(classic.protocols[0][1]))
