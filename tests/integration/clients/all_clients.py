"""The client libraries that the tests go through."""

from tests.integration.clients.aio import Aiokafka
from tests.integration.clients.kafka_python import KafkaPython
from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.clients.messages import Client

CLIENTS: dict[str, Client] = {client.name: client for client in (Librdkafka(), Aiokafka(), KafkaPython())}
