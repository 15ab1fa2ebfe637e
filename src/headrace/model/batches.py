"""What the log needs to know of a record batch without opening it."""

import msgspec

from headrace.model.ids import ProducerId

NO_PRODUCER = ProducerId(-1)
NO_SEQUENCE = -1
NO_TIMESTAMP_MS = -1


class BatchSummary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts of one batch's header. `base_timestamp_ms` is the first record's: a later one may lie before it."""

    size_bytes: int
    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    is_control: bool = False
