"""Lengths that lie, in every array and string of every served API and version: closed, answered, never believed."""

import socket
from collections.abc import Iterator

import pytest

from tests.integration.wire.lengths import NULL, Length, lengths_of
from tests.integration.wire.raw import API_VERSIONS, RawClient, framed
from tests.integration.wire.templates import SIZE_BYTES, Template, templates
from tests.integration.wire.watching import MIB, forget_peak, mistakes, peak_memory_bytes
from tests.servers.headrace import HeadraceProcess, running_headrace

GREATEST = 2**31 - 1
GREATEST_SHORT = 2**15 - 1
CORRELATION = bytes((0, 0, 0, 7))
AT_ONCE = 64
"""How many connections wait for their end at the same time."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data")) as running:
        yield running
        assert mistakes(running) == []


def lies_of(template: Template, length: Length) -> Iterator[tuple[str, bytes]]:
    """Yield requests with another length in one place, which nothing but a closed connection can answer."""
    # Compact lengths have no -2: the same bits are a length of 2^32-2 there.
    lies = [-2, GREATEST if length.is_compact or length.size_bytes == 4 else GREATEST_SHORT]
    if not length.is_nullable:
        lies.append(NULL)
    for lie in lies:
        yield f"{template.name} {length.name} = {lie}", length.replaced(template.payload, lie)


def test_no_length_is_believed_in_any_array_or_string_of_any_request(broker: HeadraceProcess) -> None:
    before = forget_peak(broker)
    waiting: list[tuple[str, RawClient]] = []
    count = 0
    for template in templates():
        for length in lengths_of(template.api, template.version, template.payload):
            for name, payload in lies_of(template, length):
                client = RawClient(broker.kafka_port)
                client.send(framed(payload))
                waiting.append((name, client))
                count += 1
                if len(waiting) == AT_ONCE:
                    all_closed(waiting)
    all_closed(waiting)
    assert count > 2000
    assert peak_memory_bytes(broker) < before + 96 * MIB
    with RawClient(broker.kafka_port) as client:
        assert client.ask(API_VERSIONS, 0, b"").number(2) == 0


def all_closed(waiting: list[tuple[str, RawClient]]) -> None:
    for name, client in waiting:
        with client:
            assert client.rest() == b"", f"{name} was answered"
    waiting.clear()


def test_bytes_that_are_no_text_in_any_string_of_any_request_close_the_connection(broker: HeadraceProcess) -> None:
    waiting: list[tuple[str, RawClient]] = []
    for template in templates(seed=3):
        for length in lengths_of(template.api, template.version, template.payload):
            if length.kind == "string" and length.content_bytes:
                payload = bytearray(template.payload)
                payload[length.end_byte] = 0xFF
                client = RawClient(broker.kafka_port)
                client.send(framed(bytes(payload)))
                waiting.append((f"{template.name} {length.name}", client))
                if len(waiting) == AT_ONCE:
                    all_closed(waiting)
    all_closed(waiting)


def test_null_where_it_is_allowed_is_answered_or_closed(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as bystander:
        for template in templates(seed=2):
            for length in lengths_of(template.api, template.version, template.payload):
                if not length.is_nullable:
                    continue
                with RawClient(broker.kafka_port) as client:
                    # Where the array was not empty, its elements are taken for the fields behind it.
                    client.send(framed(length.replaced(template.payload, NULL)))
                    client.socket.shutdown(socket.SHUT_WR)
                    answer = client.rest()
                    assert answer == b"" or answer[SIZE_BYTES:8] == CORRELATION, f"{template.name} {length.name}"
        assert bystander.ask(API_VERSIONS, 0, b"").number(2) == 0
