"""How a KIP-848 group says no to one request. Only raised and caught inside the machine."""

from headrace.model.error_codes import ErrorCode


class Refused(Exception):
    """A request cannot be served; its sender hears the code, and where the protocol has room for it the sentence."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def unknown_member(member_id: str) -> Refused:
    """Return what somebody hears who is no member."""
    return Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of this group: it has to join")
