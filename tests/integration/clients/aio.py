"""aiokafka: the client of asyncio programs."""

import asyncio
from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.integration.clients.messages import CALL_LIMIT_SECONDS, Failed, Gathered, Message, Stored, stored_of

LIMIT_MS = int(CALL_LIMIT_SECONDS * 1000)


class Aiokafka:
    """The `Client` of this library."""

    name = "aiokafka"
    sends_null_headers = True

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        idempotent: bool = False,
        max_request_bytes: int = 1_048_588,
    ) -> list[int]:
        return asyncio.run(_produce(bootstrap, topic, messages, codec, idempotent, max_request_bytes))

    def read(self, bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[int, list[Stored]]:
        return asyncio.run(_read(bootstrap, topic, ends))


async def _produce(
    bootstrap: str, topic: str, messages: Sequence[Message], codec: str, idempotent: bool, max_request_bytes: int
) -> list[int]:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        max_request_size=max_request_bytes,
        acks="all",
        request_timeout_ms=LIMIT_MS,
    )
    await producer.start()
    try:
        sending = [
            await producer.send(
                topic,
                message.value,
                message.key,
                message.partition,
                message.timestamp_ms,
                list(message.headers),
            )
            for message in messages
        ]
        return [(await one).offset for one in sending]
    except KafkaError as error:
        raise Failed(getattr(error, "errno", -1), repr(error)) from error
    finally:
        await producer.stop()


async def _read(bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[int, list[Stored]]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, request_timeout_ms=LIMIT_MS)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, partition) for partition in ends])
        await consumer.seek_to_beginning()
        gathered = Gathered(ends)
        async with asyncio.timeout(CALL_LIMIT_SECONDS):
            while not gathered.is_complete:
                for rows in (await consumer.getmany(timeout_ms=500)).values():
                    for row in rows:
                        gathered.add(stored_of(row))
        return gathered.rows
    finally:
        await consumer.stop()
