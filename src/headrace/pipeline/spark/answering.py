"""What an executor does to answer the probe: read one object and say its checksum."""

import asyncio

import msgspec
from crc32c import crc32c

from headrace.objects.port import object_key
from headrace.pipeline.spark.address import ObjectsAddress, open_address
from headrace.runtime.executor import ThreadExecutor


def crc_of(address: bytes, key: str) -> int:
    """Return the CRC-32C of an object as this process reads it."""
    return asyncio.run(_crc_of(msgspec.msgpack.decode(address, type=ObjectsAddress), key))


async def _crc_of(address: ObjectsAddress, key: str) -> int:
    disk = ThreadExecutor("disk", threads=1)
    try:
        objects = open_address(address, disk)
        try:
            return int(crc32c(await objects.get(object_key(key))))
        finally:
            await objects.close()
    finally:
        disk.close()
