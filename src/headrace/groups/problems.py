"""How a coordinator says no to a whole request: Kafka's code, because group members act on nothing else."""

from headrace.errors import HeadraceError
from headrace.model.error_codes import ErrorCode


class GroupRefused(HeadraceError):
    """A request cannot be served for a reason that its sender knows by its code: look elsewhere, wait, or give up."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def not_coordinator(group_id: str) -> GroupRefused:
    """Return what a client hears that should look for the group's coordinator again."""
    return GroupRefused(ErrorCode.NOT_COORDINATOR, f"another broker coordinates group '{group_id}'")


def loading(group_id: str) -> GroupRefused:
    """Return what a client hears that should come again in a moment."""
    return GroupRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group '{group_id}' is being loaded")


def unavailable(why: str) -> GroupRefused:
    """Return what a client hears while nobody can coordinate: ask again, perhaps another broker."""
    return GroupRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
