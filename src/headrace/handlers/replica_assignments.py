"""Replicas that a request places by hand: checked as Kafka checks them, then without effect.

Bytes lie in the object store and any broker serves any partition: there is nothing to place. Tools and clients send
such lists all the same; what Kafka would take is taken, and what it would refuse is a mistake here too.
"""

from collections.abc import Collection, Mapping, Sequence

from headrace.handlers.call import Refused
from headrace.model.error_codes import ErrorCode


def check_replicas(lists: Sequence[Sequence[int]], living: Collection[int]) -> None:
    """Raise `Refused` unless each list names living brokers, each once, and all lists are of one length."""
    for brokers in lists:
        if not brokers:
            raise _refused("a partition has no broker in its list")
        if len(set(brokers)) != len(brokers):
            raise _refused(f"a partition names a broker twice: {list(brokers)}")
        unknown = sorted(set(brokers) - set(living))
        if unknown:
            raise _refused(f"broker {unknown[0]} is not there: living brokers are {sorted(living)}")
        if len(brokers) != len(lists[0]):
            raise _refused(f"one partition has {len(lists[0])} replicas and another {len(brokers)}")


def partition_count_of(assignments: Sequence[tuple[int, Sequence[int]]], living: Collection[int]) -> int:
    """Return how many partitions a new topic's assignments describe; raise `Refused` for what Kafka refuses."""
    by_partition: Mapping[int, Sequence[int]] = dict(assignments)
    if len(by_partition) != len(assignments):
        raise _refused("a partition is assigned more than once")
    check_replicas([brokers for _, brokers in assignments], living)
    if sorted(by_partition) != list(range(len(by_partition))):
        raise _refused("partitions are numbered from 0 on, without gaps")
    return len(by_partition)


def _refused(what: str) -> Refused:
    return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what}; assignments may also be left out")
