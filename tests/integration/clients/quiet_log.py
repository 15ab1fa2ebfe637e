"""What a broker's log must say in the end, and what it must not."""

from tests.integration.clients.waiting import eventually
from tests.servers.headrace import HeadraceProcess


def assert_quiet(broker: HeadraceProcess) -> None:
    """A stop on request is no reason for the log to complain."""
    eventually("the log is there to its end", lambda: any('"event": "stopped"' in line for line in broker.log))
    worse = [line for line in broker.log if '"level": "error"' in line or "Traceback" in line]
    assert worse == []
