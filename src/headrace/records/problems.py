"""What can be wrong with a batch, in words a handler can map to a Kafka error code."""

from collections.abc import Sequence
from enum import StrEnum

from headrace.errors import Invalid


class Problem(StrEnum):
    """The kind of fault; the comment names the Kafka error that clients expect for it."""

    TRUNCATED = "truncated"  # INVALID_RECORD: fewer bytes than the batch says it has
    LENGTH = "length"  # CORRUPT_MESSAGE: a length that no batch can have
    CHECKSUM = "checksum"  # CORRUPT_MESSAGE
    COMPRESSION = "compression"  # CORRUPT_MESSAGE: the body is not what its codec says
    MAGIC = "magic"  # INVALID_RECORD: a message set of an older format
    COUNT = "count"  # INVALID_RECORD: record count and offset range disagree
    RECORD = "record"  # INVALID_RECORD: a record's own structure
    ATTRIBUTES = "attributes"  # INVALID_RECORD: a bit that only brokers set
    PRODUCER = "producer"  # INVALID_RECORD: producer id, epoch and sequence disagree
    TIMESTAMP = "timestamp"  # INVALID_TIMESTAMP
    CODEC = "codec"  # UNSUPPORTED_COMPRESSION_TYPE
    TOO_LARGE = "too_large"  # MESSAGE_TOO_LARGE: more bytes than the limit once opened
    COLUMNS = "columns"  # never from a client's batch: columns that do not fit together


class InvalidBatch(Invalid):
    """Bytes that are not a batch we can take. `problem` is for code, the message for people.

    `records` are the positions of the records that are at fault in the batch, where it is known to be these alone.
    """

    def __init__(self, problem: Problem, message: str, *, records: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.problem = problem
        self.records = records
