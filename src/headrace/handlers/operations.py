"""What a client may do, as the bit sets that Metadata and the Describe APIs carry: bit n stands for operation n.

Nothing is forbidden to anybody so far, so each set holds every operation that the resource knows.
"""

import enum
from collections.abc import Iterable

NOT_ASKED = -(2**31)
"""What stands in the answer when the client did not ask for the set."""


class Operation(enum.IntEnum):
    """Kafka's numbers for what an access rule can allow."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def bits_of(operations: Iterable[Operation]) -> int:
    """Return the operations as a bit set."""
    return sum(1 << operation for operation in set(operations))


TOPIC_OPERATIONS = bits_of(
    [
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ]
)

CLUSTER_OPERATIONS = bits_of(
    [
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ]
)

GROUP_OPERATIONS = bits_of(
    [
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ]
)
