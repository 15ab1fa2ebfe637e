"""The side port of a running broker: alive, ready, and figures for Prometheus that follow what clients do."""

import http.client
import json
import re

import pytest

from tests.integration.clients.all_clients import CLIENTS
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.messages import Message
from tests.integration.clients.wire_client import WireClient
from tests.servers.headrace import HeadraceProcess

SERIES = (
    "headrace_kafka_requests_total",
    "headrace_kafka_request_bytes_total",
    "headrace_kafka_response_bytes_total",
    "headrace_kafka_request_seconds",
    "headrace_kafka_refusals_total",
    "headrace_kafka_connections",
    "headrace_kafka_connections_accepted_total",
    "headrace_kafka_connections_ended_by_broker_total",
    "headrace_kafka_request_memory_bytes",
    "headrace_buffers_leased_bytes",
    "headrace_buffers_idle_bytes",
    "headrace_tail_cache_bytes",
    "headrace_catch_up_cache_bytes",
    "headrace_object_store_call_seconds",
    "headrace_object_store_bytes_total",
    "headrace_metadata_store_call_seconds",
    "headrace_metadata_store_bytes_total",
    "headrace_service_ticks_total",
    "headrace_wal_flushes_total",
    "headrace_wal_bytes_total",
)


def get(broker: HeadraceProcess, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def value_of(metrics: str, series: str) -> float:
    """Return one series' value; 0 if it is not there yet."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_a_running_broker_is_alive_and_ready(broker: HeadraceProcess) -> None:
    status, body = get(broker, "/healthz")
    assert (status, json.loads(body)) == (200, {"status": "alive"})
    status, body = get(broker, "/readyz")
    assert status == 200
    assert json.loads(body)["checks"] == {name: {"status": "ok"} for name in ("metadata", "objects", "cluster")}
    assert get(broker, "/nowhere")[0] == 404


@pytest.mark.parametrize(
    "series",
    SERIES,
)
def test_there_is_a_figure_for_everything_that_matters(broker: HeadraceProcess, series: str) -> None:
    status, metrics = get(broker, "/metrics")
    assert status == 200
    assert re.search(rf"^# TYPE {series} (counter|gauge|histogram)$", metrics, re.MULTILINE)


def test_figures_follow_what_clients_do(broker: HeadraceProcess) -> None:
    create_topic(broker.bootstrap, "counted")
    with WireClient(broker.kafka_port):
        before = get(broker, "/metrics")[1]
        assert value_of(before, "headrace_kafka_connections") >= 1
    CLIENTS["librdkafka"].produce(broker.bootstrap, "counted", [Message(value=b"x" * 100_000)])
    CLIENTS["librdkafka"].read(broker.bootstrap, "counted", {0: 1})
    after = get(broker, "/metrics")[1]
    grown = {
        'headrace_kafka_requests_total{api="Produce"}': 1,
        'headrace_kafka_request_bytes_total{api="Produce"}': 100_000,
        'headrace_kafka_request_seconds_count{api="Produce"}': 1,
        'headrace_kafka_requests_total{api="Fetch"}': 1,
        'headrace_kafka_response_bytes_total{api="Fetch"}': 100_000,
        "headrace_kafka_connections_accepted_total": 2,
    }
    for series, least in grown.items():
        assert value_of(after, series) - value_of(before, series) >= least, series
