"""SIGTERM: what is under way is finished, clients see nothing worse than a retry, and the exit code is 0."""

import contextlib
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from headrace.model.error_codes import ErrorCode
from headrace.testing.batches import make_batch
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.quiet_log import assert_quiet
from tests.integration.clients.waiting import eventually
from tests.integration.clients.wire_client import (
    FETCH,
    FETCH_VERSION,
    PRODUCE,
    PRODUCE_VERSION,
    WireClient,
    fetch_request,
    produce_request,
)
from tests.servers.headrace import HeadraceProcess, running_headrace

RETRIABLE = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER}
PIPELINED = 20


def test_requests_under_way_are_answered_and_their_records_kept(tmp_path: Path) -> None:
    with running_headrace(tmp_path) as broker:
        create_topic(broker.bootstrap, "pipelined")
        accepted: dict[int, bytes] = {}
        answered = threading.Event()

        def produce() -> None:
            with WireClient(broker.kafka_port) as client, contextlib.suppress(OSError):
                number = 0
                while True:
                    batches = [b"%d" % (number + n) for n in range(PIPELINED)]
                    number += PIPELINED
                    for value in batches:
                        client.send(PRODUCE, PRODUCE_VERSION, produce_request("pipelined", make_batch([value])))
                    for value in batches:
                        answer = client.produced()
                        if answer.error_code == ErrorCode.NONE:
                            accepted[answer.base_offset] = value
                        else:
                            refused.append(answer.error_code)
                    answered.set()

        refused: list[int] = []
        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        assert answered.wait(60)
        assert broker.terminate() == 0
        producer.join(60)
        assert not producer.is_alive(), "the broker closed the connection"
        assert_quiet(broker)
    assert set(refused) <= RETRIABLE
    with running_headrace(tmp_path) as broker, WireClient(broker.kafka_port) as client:
        values = client.values("pipelined")
        assert {offset: values[offset] for offset in accepted} == accepted


def test_a_draining_broker_says_that_it_is_not_ready(tmp_path: Path) -> None:
    with running_headrace(tmp_path) as broker, WireClient(broker.kafka_port) as client:
        create_topic(broker.bootstrap, "empty")
        # A request under way keeps the broker from ending at once.
        client.send(FETCH, FETCH_VERSION, fetch_request("empty", max_wait_ms=3_000))
        with WireClient(broker.kafka_port) as other:
            other.metadata()  # The broker has surely read the fetch by now.
        broker.process.terminate()
        told = eventually("/readyz says that it drains", lambda: not_ready(broker))
        assert "draining" in told["checks"]["cluster"]["reason"]
        answer = client.receive(FETCH, FETCH_VERSION)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
        assert broker.process.wait(60) == 0
        assert_quiet(broker)


def not_ready(broker: HeadraceProcess) -> Any:
    """Return what /readyz says with 503; `None` while it still says 200."""
    assert broker.process.poll() is None, "it was gone before it said anything"
    try:
        with urllib.request.urlopen(f"{broker.http}/readyz", timeout=10):
            return None
    except urllib.error.HTTPError as error:
        with error:
            assert error.code == 503
            return json.load(error)
