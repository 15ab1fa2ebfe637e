"""A broker that is stopped, killed or crashes at any moment comes back with everything that it acknowledged."""

import contextlib
import signal
from pathlib import Path

import pytest

from tests.integration.clients.all_clients import CLIENTS
from tests.integration.clients.flows import LOST_SOCKETS, Flows
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.messages import CALL_LIMIT_SECONDS, as_stored, assorted, ends_of
from tests.integration.clients.quiet_log import assert_quiet
from tests.integration.clients.waiting import free_port
from tests.servers.headrace import running_headrace

pytestmark = pytest.mark.filterwarnings(LOST_SOCKETS)

CRASHES = (
    "writer.after-stage:2",
    "writer.after-write:40",
    "writer.after-commit:40",
    "writer.after-seal:1",
    "metadata.before-commit:100",
    "fold.after-read:2",
    "fold.after-step:2",
    "repack.after-stage:1",
    "repack.after-write:1",
    "swap.after-step:2",
    "repack.after-swaps:1",
)
"""Where the broker crashes, and at which arrival: late enough that it is ready and busy by then."""

SMALL_STEPS = {
    "wal.segment.max.age.ms": "1000",
    "wal.repack.min.age.ms": "1000",
    "index.fold.lag.records": "0",
    "swap.max.entries": "5",
}
"""So that segments are sealed, records folded and the WAL repacked all the time, and crash points are reached."""


def test_everything_is_there_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    sent = assorted(0, null_headers=True)
    writer, reader = CLIENTS["librdkafka"], CLIENTS["kafka-python"]
    with running_headrace(tmp_path) as broker:
        create_topic(broker.bootstrap, "kept")
        writer.produce(broker.bootstrap, "kept", sent)
        assert broker.terminate() == 0
    expected = as_stored(sent * 2)
    with running_headrace(tmp_path) as broker:
        offsets = writer.produce(broker.bootstrap, "kept", sent, codec="zstd", idempotent=True)
        assert offsets == list(range(len(sent), 2 * len(sent)))
        broker.kill()
    with running_headrace(tmp_path) as broker:
        assert reader.read(broker.bootstrap, "kept", ends_of(expected)) == expected


def test_stops_and_kills_while_producing_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(running_headrace(tmp_path, kafka_port=port))
        flows = stack.enter_context(Flows(broker.bootstrap))
        for is_kill in (True, False, True):
            flows.wait_for_more()
            if is_kill:
                broker.kill()
            else:
                assert broker.terminate() == 0
                assert_quiet(broker)
            broker = stack.enter_context(running_headrace(tmp_path, kafka_port=port))
        flows.wait_for_more()
        flows.verify(broker.bootstrap)


def test_crash_between_any_two_durable_steps_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(running_headrace(tmp_path, kafka_port=port, settings=SMALL_STEPS))
        flows = stack.enter_context(Flows(broker.bootstrap))
        flows.wait_for_more()
        broker.kill()
        for crash in CRASHES:
            crashing = stack.enter_context(
                running_headrace(
                    tmp_path, kafka_port=port, settings=SMALL_STEPS, environment={"HEADRACE_CRASH_AT": crash}
                )
            )
            crashing.process.wait(CALL_LIMIT_SECONDS)
            assert crashing.process.returncode == -signal.SIGKILL, crash
        broker = stack.enter_context(running_headrace(tmp_path, kafka_port=port, settings=SMALL_STEPS))
        flows.wait_for_more()
        flows.verify(broker.bootstrap)
