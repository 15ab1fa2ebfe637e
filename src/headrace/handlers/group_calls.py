"""What the handlers of group requests have in common: checks of names, codes that members act on, who the client is.

Members know few codes, and give up on those that they do not expect: the Java consumer throws at its user. So what
may pass is told as *look for the coordinator again*, in the one of its two codes that the request has always had.
"""

from functools import lru_cache

from headrace.groups.problems import GroupRefused
from headrace.groups.protocol import Client
from headrace.handlers.call import Call, Refusal
from headrace.model.error_codes import ErrorCode

MAX_REMEMBERED_CLIENTS = 4096
"""How many clients are remembered as groups know them: each heartbeat would otherwise make its own."""

_PASSING = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT})
"""What the store's troubles are called elsewhere."""

_NO_GROUP_ID = Refusal(ErrorCode.INVALID_GROUP_ID, "a group has a name of at least one character")


def group_refusal(group_id: str) -> Refusal | None:
    """Return what is wrong with the name of a group that is to have members.

    Offsets may be committed under an empty name, as in Kafka: so fetching, describing and deleting take it, too.
    """
    return None if group_id else _NO_GROUP_ID


def member_code(code: ErrorCode) -> ErrorCode:
    """Return the code for a member, or an admin client, that can wait while a group is being loaded."""
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in _PASSING else code


def beat_code(code: ErrorCode) -> ErrorCode:
    """Return the code where no client expects to hear of loading: Heartbeat, SyncGroup, LeaveGroup.

    Kafka's brokers answer such a heartbeat without an error. There only the coordinator loads a group; here it may be
    one that has yet to find out that another broker took the group over, and gave its partitions to others.
    """
    return (
        ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else member_code(code)
    )


def fetch_code(code: ErrorCode) -> ErrorCode:
    """Return the code for OffsetFetch: consumers before 3.9 do not expect COORDINATOR_NOT_AVAILABLE there."""
    if code in _PASSING or code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return ErrorCode.NOT_COORDINATOR
    return code


def refusal_of_group(error: GroupRefused) -> Refusal:
    """Return what a client hears when a coordinator refuses.

    It is answered and not raised: every client that looks for a moved group hears it, and a line in the log for each
    would hide what matters.
    """
    return Refusal(error.code, str(error))


def client_of(call: Call) -> Client:
    """Return who calls, as groups remember it; Kafka's tools show the host with a slash before it."""
    return _client(call.client_id, call.peer)


@lru_cache(maxsize=MAX_REMEMBERED_CLIENTS)
def _client(client_id: str | None, peer: str) -> Client:
    host = peer.rpartition(":")[0] or peer
    return Client(id=client_id or "", host=f"/{host}")
