"""Each answer of a server, shown to a real client: what obstore makes of it, and what we make of that."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from obstore.store import AzureStore, S3Store

from headrace.errors import Exists, HeadraceError, Invalid, Missing, OutcomeUnknown, Retryable, Throttled
from headrace.objects.port import ByteRange, object_key
from headrace.objects.remote import RemoteObjects

KEY = object_key("wal/one")
ONE_BYTE = [ByteRange(start_byte=0, size_bytes=1)]


def answer(status: int, code: str = "Whatever", body: bytes | None = None, size_bytes: int | None = None) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode() if body is None else body
    head = f"HTTP/1.1 {status} Status\r\ncontent-length: {len(body) if size_bytes is None else size_bytes}\r\n"
    head += 'connection: close\r\netag: "x"\r\nlast-modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n'
    return head.encode() + body


RESET = b"reset"
SILENCE = b"silence"


class Server:
    """Reads a request and gives the one answer."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.split(b":")[1]))
            self.requests += 1
            if self._reply is SILENCE:
                await reader.read()
            elif self._reply is RESET:
                writer.transport.abort()
            else:
                writer.write(self._reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(reply: bytes) -> AsyncIterator[tuple[int, Server]]:
    server = Server(reply)
    socket = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    try:
        yield socket.sockets[0].getsockname()[1], server
    finally:
        socket.close()


@asynccontextmanager
async def remote(reply: bytes) -> AsyncIterator[tuple[RemoteObjects, Server]]:
    async with listening(reply) as (port, server):
        yield RemoteObjects(handle(port, timeout="1s" if reply is SILENCE else "60s")), server


def handle(port: int, timeout: str) -> S3Store:
    return S3Store(
        "bucket",
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="any",
        secret_access_key="any",
        client_options={"allow_http": True, "timeout": timeout},
        retry_config={"max_retries": 0},
    )


CONDITIONAL_WRITES = [
    (answer(412, "PreconditionFailed"), Exists),
    (answer(409, "ConditionalRequestConflict"), Retryable),
    (answer(503, "SlowDown"), Throttled),
    (answer(429), Throttled),
    (answer(503, "ServiceUnavailable"), OutcomeUnknown),
    (answer(500, "InternalError"), OutcomeUnknown),
    (answer(502), OutcomeUnknown),
    (answer(504), OutcomeUnknown),
    (answer(408, "RequestTimeout"), OutcomeUnknown),
    (RESET, OutcomeUnknown),
    (SILENCE, OutcomeUnknown),
    (answer(400, "InvalidRequest"), Invalid),
    (answer(401), Invalid),
    (answer(403, "AccessDenied"), Invalid),
    (answer(404, "NoSuchBucket"), Invalid),
]


@pytest.mark.parametrize(("reply", "expected"), CONDITIONAL_WRITES)
async def test_a_failed_conditional_write_is_told_by_its_remedy(reply: bytes, expected: type[HeadraceError]) -> None:
    async with remote(reply) as (store, server):
        with pytest.raises(HeadraceError) as caught:
            await store.put_if_absent(KEY, [b"x"])
    assert type(caught.value) is expected
    assert "wal/one" in str(caught.value)
    assert server.requests == 1


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (answer(409, "BlobAlreadyExists"), Exists),
        (answer(412, "ConditionNotMet"), Exists),
        (answer(409, "BlobBeingRehydrated"), Retryable),
        (answer(503, "ServerBusy"), Throttled),
        (answer(500, "OperationTimedOut"), OutcomeUnknown),
        (answer(404, "ContainerNotFound"), Invalid),
    ],
)
async def test_azure_has_its_own_way_to_say_that_a_blob_is_there(reply: bytes, expected: type[HeadraceError]) -> None:
    async with listening(reply) as (port, _):
        azure = AzureStore(
            "container",
            account_name="any",
            account_key=base64.b64encode(b"any").decode(),
            endpoint=f"http://127.0.0.1:{port}",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        with pytest.raises(HeadraceError) as caught:
            await RemoteObjects(azure).put_if_absent(KEY, [b"x"])
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [(r, e) for r, e in CONDITIONAL_WRITES if e is not Exists],
)
async def test_a_failed_plain_write_too(reply: bytes, expected: type[HeadraceError]) -> None:
    async with remote(reply) as (store, _):
        with pytest.raises(HeadraceError) as caught:
            await store.put(KEY, [b"x"])
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (answer(404, "NoSuchKey"), Missing),
        (answer(503, "SlowDown"), Throttled),
        (answer(503, "ServiceUnavailable"), Retryable),
        (answer(500), Retryable),
        (RESET, Retryable),
        (SILENCE, Retryable),
        (answer(403, "AccessDenied"), Invalid),
        (answer(200, body=b"abc", size_bytes=100), Retryable),
    ],
)
async def test_a_failed_read_has_no_unknown_outcome(reply: bytes, expected: type[HeadraceError]) -> None:
    async with remote(reply) as (store, _):
        with pytest.raises(HeadraceError) as caught:
            await store.get(KEY)
        assert type(caught.value) is expected
        with pytest.raises(HeadraceError) as caught:
            await store.get_ranges(KEY, ONE_BYTE)
        assert type(caught.value) is expected


async def test_a_server_that_ignores_the_range_is_not_believed() -> None:
    async with remote(answer(200, body=b"abc")) as (store, _):
        with pytest.raises(Retryable):
            await store.get_ranges(KEY, ONE_BYTE)


async def test_a_connection_that_was_never_made_wrote_nothing() -> None:
    gone = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = gone.sockets[0].getsockname()[1]
    gone.close()
    await gone.wait_closed()
    with pytest.raises(Retryable, match="no connection"):
        await RemoteObjects(handle(port, timeout="60s")).put(KEY, [b"x"])


async def test_a_failed_delete_has_an_unknown_outcome() -> None:
    async with remote(answer(500)) as (store, _):
        with pytest.raises(OutcomeUnknown):
            await store.delete([KEY])


@pytest.mark.parametrize("reply", [answer(500), RESET, answer(503, "SlowDown")])
async def test_an_upload_that_fails_before_complete_left_nothing(reply: bytes) -> None:
    async with remote(reply) as (store, _):
        upload = await store.upload(KEY)
        with pytest.raises(Retryable):
            for _ in range(100):
                await upload.write(bytes(1024 * 1024))
        await upload.abort()


@pytest.mark.parametrize("reply", [answer(500), RESET, answer(404, "NoSuchUpload")])
async def test_an_upload_that_fails_at_complete_may_have_landed(reply: bytes) -> None:
    async with remote(reply) as (store, _):
        upload = await store.upload(KEY)
        upload_ended = upload.complete()
        with pytest.raises(OutcomeUnknown):
            await upload_ended


async def test_an_endpoint_that_needs_plain_http_is_said_clearly() -> None:
    refusing = S3Store("bucket", endpoint="http://127.0.0.1:1", region="x", access_key_id="a", secret_access_key="b")
    with pytest.raises(Invalid, match="AWS_ALLOW_HTTP"):
        await RemoteObjects(refusing).put(KEY, [b"x"])
