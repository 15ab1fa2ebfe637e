"""Writers: process incarnations that commit numbered frames, strictly one after another.

Must stay true: once a frame's fate is told (results, or abandoned), it never changes; nothing behind a frame
commits before its fate is recorded.
"""

from headrace.errors import Exists, Fenced
from headrace.index.commit import Outcome, superseded_records
from headrace.index.rule import Rule
from headrace.index.values import DOMAIN_STATE, WRITER_STATE, DomainState, WriterState
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Reads, Seen
from headrace.model.ids import SessionId, WriterId


def register_writer(keys: DomainKeys, writer: WriterId, *, session: SessionId, now_ms: int) -> Rule[None]:
    """Return the rule that makes a new incarnation known; repeating it is harmless until its first frame."""
    key = keys.writer(writer)

    def decide(seen: Seen) -> Decision[None]:
        known = WRITER_STATE.seen(seen, key)
        if known is not None and (known.session != session or known.last_frame >= 0):
            raise Exists(f"writer {writer} is registered by session {known.session}: take a new incarnation")
        return Decision(result=None, puts={key: WRITER_STATE.encode(WriterState(session, now_ms))})

    return Rule(keys.unit, Reads(keys=[key]), decide)


def abandon_frame(keys: DomainKeys, writer: WriterId, frame_number: int) -> Rule[Outcome | None]:
    """Return the rule that settles a frame whose commit is in doubt.

    It either finds the frame committed, and returns its outcome, or records that it never will be and
    returns `None`. Raises `Fenced` if the writer is gone or has moved on.
    """
    key = keys.writer(writer)

    def decide(seen: Seen) -> Decision[Outcome | None]:
        state = WRITER_STATE.seen(seen, key)
        if state is None:
            raise Fenced(f"writer {writer} is not registered any more: start a new incarnation")
        committed_seq = state.seq_of(frame_number)
        if committed_seq is not None:
            return Decision(result=Outcome(committed_seq, None))
        if state.last_frame == frame_number:
            return Decision(result=None)
        if state.last_frame + 1 != frame_number:
            raise Fenced(f"frame {frame_number} of writer {writer} cannot be given up after frame {state.last_frame}")
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        given_up = WriterState(state.session, state.registered_at_ms, frame_number, -1)
        return Decision(
            result=None,
            puts={key: WRITER_STATE.encode(given_up)},
            deletes=superseded_records(keys, state, domain),
        )

    return Rule(keys.unit, Reads(keys=[key, keys.state]), decide)


def retire_writer(keys: DomainKeys, writer: WriterId) -> Rule[None]:
    """Return the rule that forgets a writer: at its own clean end, or after its session has ended.

    From then on everything it still tries to commit is fenced.
    """
    key = keys.writer(writer)

    def decide(seen: Seen) -> Decision[None]:
        state = WRITER_STATE.seen(seen, key)
        if state is None:
            return Decision(result=None)
        domain = DOMAIN_STATE.seen(seen, keys.state) or DomainState()
        return Decision(result=None, deletes=[key, *superseded_records(keys, state, domain)])

    return Rule(keys.unit, Reads(keys=[key, keys.state]), decide)
