"""Two brokers on one SQLite file, one of them stopped in the middle of a transaction: what the other can still do."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.model.error_codes import ErrorCode
from headrace.testing.batches import make_batch
from tests.integration.clients.flows import LOST_SOCKETS, Flows
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.test_pauses import RETRIABLE, serves
from tests.integration.clients.test_two_brokers import both, running_pair
from tests.integration.clients.waiting import eventually
from tests.integration.clients.wire_client import PRODUCE, PRODUCE_VERSION, WireClient, produce_request
from tests.servers.headrace import HeadraceProcess

pytestmark = pytest.mark.filterwarnings(LOST_SOCKETS)

SHORT_SESSIONS = {"broker.session.timeout.ms": "1000"}
LONG_SESSIONS = {"broker.session.timeout.ms": "60000"}
PRODUCE_TIMEOUT_MS = 300
LOST = "this broker's session or writer is gone: joining the cluster anew"


def lines_of(broker: HeadraceProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in list(broker.log) if line.startswith("{")]


def names_the_holder(broker: HeadraceProcess, holder: HeadraceProcess) -> bool:
    lines = [line for line in lines_of(broker) if line["event"] == "nothing can be written to the metadata store"]
    return any(f"process {holder.process.pid} (" in line["why"] and "is stopped" in line["why"] for line in lines)


@pytest.mark.parametrize("sessions", [LONG_SESSIONS, SHORT_SESSIONS], ids=["shorter", "longer than a session"])
def test_broker_that_is_stopped_in_a_transaction_holds_up_others_only_meanwhile(
    tmp_path: Path, sessions: dict[str, str]
) -> None:
    with running_pair(tmp_path, sessions) as (first, second), Flows(both((first, second))) as flows:
        create_topic(first.bootstrap, "direct")
        flows.wait_for_more()
        with WireClient(second.kafka_port) as client:
            assert client.produce("direct", make_batch([b"before"])).error_code == ErrorCode.NONE
            first.pause(in_transaction=True)
            request = produce_request("direct", make_batch([b"meanwhile"]))
            client.send(PRODUCE, PRODUCE_VERSION, msgspec.structs.replace(request, timeout_ms=PRODUCE_TIMEOUT_MS))
            assert client.produced().error_code in RETRIABLE, "bounded by what the client wants to wait"
            assert client.values("direct") == [b"before"], "reading goes on"
        eventually("the log names the holder", lambda: names_the_holder(second, first))
        if sessions is SHORT_SESSIONS:
            eventually("it cannot renew its session", lambda: any(line["event"] == LOST for line in lines_of(second)))
        first.resume()
        for broker in (second, first):
            eventually("it serves again", partial(serves, broker))
        flows.wait_for_more()
        flows.verify(both((first, second)))
        if sessions is LONG_SESSIONS:
            assert not [line for line in (*lines_of(first), *lines_of(second)) if line["event"] == LOST]
        assert not [line for line in lines_of(second) if "traceback" in line]
