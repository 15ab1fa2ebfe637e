"""Does a producer notice that a large backlog leaves the log for the table?

A backlog of many index entries is made: one record per batch, one batch per partition and request, one request at a
time, so that every batch becomes an entry. Then the pipeline takes all of it in one run, while a producer goes on at
a steady, low rate in another topic. What its slowest acknowledgements took is told apart by what the pipeline did at
that moment; the same producer alone, before, shows what the machine itself does.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.groups_beside_kafka.connection import connect
from benchmarks.table_lag.pacing import Ack, Pace, produce_request, small_batch, stamped, write_steadily
from benchmarks.table_lag.stages import TABLE_ENABLE, create_topic
from benchmarks.tables_beside_spark.load import wait_for_topic
from benchmarks.tables_beside_spark.processes import SideProcess, running_side
from headrace.model.error_codes import ErrorCode
from tests.servers.headrace import HeadraceProcess

BACKLOG_PARTITIONS = 300
PACE = Pace(records_per_second=1000, partitions=1, partitions_per_request=1)
QUIET_SECONDS = 10.0

_PRODUCE_KEY, _PRODUCE_VERSION = 0, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """Latencies of the producer in ms: alone, while files were written, while the index was swapped."""

    entries: int
    swap_seconds: float
    alone_ms: Sequence[float]
    writing_ms: Sequence[float]
    swapping_ms: Sequence[float]


def measure_swap(broker: HeadraceProcess, *, entries: int) -> Swapped:
    """Make a backlog of so many entries and let the pipeline take it beside a producer."""
    with warm_pipeline(broker) as pipeline:
        backlog = create_topic(broker, BACKLOG_PARTITIONS)
        asyncio.run(_make_backlog(broker.bootstrap, backlog, entries // BACKLOG_PARTITIONS))
        other = create_topic(broker, PACE.partitions, **{TABLE_ENABLE: "false"})
        return asyncio.run(_measure(broker, pipeline, other, entries))


@contextlib.contextmanager
def warm_pipeline(broker: HeadraceProcess) -> Iterator[SideProcess]:
    """Start a pipeline on the broker's data, with Spark running and its first job behind it."""
    settings = {"data_dir": str(broker.data_dir)}
    with running_side("benchmarks.tables_beside_spark.pipeline_side", settings) as pipeline:
        yield pipeline


async def _make_backlog(bootstrap: str, topic: str, requests: int) -> None:
    host, _, port = bootstrap.rpartition(":")
    connection = await connect((host, int(port)))
    try:
        await wait_for_topic(connection, topic, BACKLOG_PARTITIONS)
        batch = small_batch(1)
        for _ in range(requests):
            data = stamped(batch)
            request = produce_request(topic, dict.fromkeys(range(BACKLOG_PARTITIONS), data))
            answer = await connection.ask(_PRODUCE_KEY, _PRODUCE_VERSION, request)
            codes = {part.error_code for part in answer.responses[0].partition_responses}
            if codes != {ErrorCode.NONE}:
                raise RuntimeError(f"the backlog in {topic} was refused: errors {sorted(codes)}")
    finally:
        await connection.close()


async def _measure(broker: HeadraceProcess, pipeline: SideProcess, topic: str, entries: int) -> Swapped:
    until = asyncio.Event()
    writing = asyncio.create_task(write_steadily(broker.bootstrap, topic, PACE, until=until))
    await asyncio.sleep(QUIET_SECONDS)
    answer = await asyncio.to_thread(pipeline.ask, do="run")
    until.set()
    acks = await writing
    # A backlog may take several runs: the first time that a step was reached, and the last.
    first, last = dict(reversed(answer["steps"])), dict(answer["steps"])
    warm_ns = acks[0].sent_ns + QUIET_SECONDS / 5 * 1e9
    return Swapped(
        entries=entries,
        swap_seconds=(last["swapped"] - first["in table"]) / 1e9,
        alone_ms=_between(acks, warm_ns, acks[0].sent_ns + QUIET_SECONDS * 1e9 - 1e9),
        writing_ms=_between(acks, first["planned"], first["in table"]),
        swapping_ms=_between(acks, first["in table"], last["swapped"]),
    )


def _between(acks: Sequence[Ack], start_ns: float, end_ns: float) -> list[float]:
    """Return the latencies of what was under way at some moment between the two."""
    return [ack.latency_ms for ack in acks if ack.acked_ns >= start_ns and ack.sent_ns <= end_ns]
