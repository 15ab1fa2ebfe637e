"""Take a group's coordinator away, or all brokers at once, while members read, and see them go on.

Must stay true: members keep their ids and their partitions, nothing that was committed is read again, every record is
read, and whoever coordinates afterwards lets another member join and leave.
"""

import functools
import threading
import time
from collections.abc import Callable

from confluent_kafka import ConsumerGroupState

from compat.driver_kit import WAIT_LIMIT_SECONDS, check, check_equal, wait_until
from compat.librdkafka.failover import Pair, running_pair
from compat.librdkafka.team import CLASSIC, CONSUMER, Settings, Team, running_team

PARTITIONS = 6
RECORDS = 60
# While the fault happens, this many times RECORDS are sent.
STRETCHES = 10

Fault = Callable[[Pair, int], None]


def failover_cases() -> dict[str, Callable[[], str | None]]:
    """Name the cases: both faults, for both protocols."""
    return {
        f"group_{name}_{protocol}": functools.partial(_survive, settings, fault)
        for name, fault in (("failover", _kill_coordinator), ("restart", _restart_all))
        for protocol, settings in (("classic", CLASSIC), ("consumer", CONSUMER))
    }


def _kill_coordinator(pair: Pair, coordinator: int) -> None:
    pair.kill(coordinator - 1)


def _restart_all(pair: Pair, _: int) -> None:
    for number in (0, 1):
        pair.kill(number)
    for number in (0, 1):
        pair.start(number)


def _survive(settings: Settings, fault: Fault) -> str:
    with running_pair() as pair, running_team(",".join(pair.bootstrap), "survivors", PARTITIONS) as team:
        members = [team.join("a", settings), team.join("b", settings)]
        team.await_shares(3, 3)
        team.send_and_read(RECORDS)
        wait_until(lambda: team.describe().state is ConsumerGroupState.STABLE, "the group is stable")
        before = [(member.member_id, member.owned, member.changes) for member in members]
        coordinator = team.describe().coordinator.id
        sending = threading.Thread(target=_send_along, args=(team,), daemon=True)
        sending.start()
        wait_until(lambda: team.ledger.records_read >= 2 * RECORDS, "records arrive")
        started = time.monotonic()
        fault(pair, coordinator)
        sending.join(4 * WAIT_LIMIT_SECONDS)
        check_equal(team.sent, RECORDS * (1 + STRETCHES), "records that were sent")
        team.await_read()
        team.send_and_read(RECORDS)
        seconds = time.monotonic() - started
        after = [(member.member_id, member.owned, member.changes) for member in members]
        check_equal(after, before, "ids, partitions and changes of the members")
        check_equal([member.losses for member in members], [0, 0], "partitions that were lost")
        third = team.join("c", settings)
        team.await_shares(2, 2, 2)
        team.send_and_read(RECORDS)
        team.leave(third)
        team.await_shares(3, 3)
        team.send_and_read(RECORDS)
        check_equal(team.ledger.faults, [], "faults")
        check(team.ledger.records_read_again == 0, f"{team.ledger.records_read_again} records were read again")
        return f"all read {seconds:.1f} s after the fault"


def _send_along(team: Team) -> None:
    for _ in range(STRETCHES):
        team.send(RECORDS)
