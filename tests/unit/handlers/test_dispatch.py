"""From frame to answer: one per request, in its own shape, whatever a handler does; only garbage gets none."""

import asyncio
import contextlib
import io
import json
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from headrace.errors import (
    Corrupt,
    Exists,
    Fenced,
    Invalid,
    Missing,
    OutcomeUnknown,
    Retryable,
    Unsupported,
    Unusable,
)
from headrace.handlers.api import Api
from headrace.handlers.call import Call, HangUp, Refusal, Refused, refusal_of
from headrace.handlers.dispatch import LIGHT_ELEMENTS, REFUSAL_REPEATS_S, Dispatcher
from headrace.handlers.node import Node
from headrace.handlers.table import TABLE
from headrace.model.error_codes import ErrorCode
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.testing.clock import ManualClock
from headrace.wire.errors import WireError
from headrace.wire.headers import encode_request, parse_response
from headrace.wire.messages import (
    ApiVersionsRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    Message,
    MetadataRequest,
)
from tests.unit.circles import Buffer, is_gone, no_collection

INIT_PRODUCER_ID, API_VERSIONS, METADATA, DELETE_GROUPS = 22, 18, 3, 42
PATIENCE_S = 60

T = TypeVar("T")
Handle = Callable[[Call, InitProducerIdRequest], Awaitable[Any]]


def refused(call: Call, request: InitProducerIdRequest, refusal: Refusal) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=refusal.code, producer_id=-1, producer_epoch=-1)


class CountingExecutor(InlineExecutor):
    """Counts what was sent to a thread."""

    def __init__(self) -> None:
        self.ran = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.ran += 1
        return await super().run(work)


class Bench:
    """A dispatcher over one scripted API and the real ApiVersions."""

    def __init__(
        self,
        handle: Handle,
        *,
        refuse: Callable[[Call, Any, Refusal], Any] = refused,
        last_version: int = 5,
        max_elements: int = LIGHT_ELEMENTS,
    ) -> None:
        self.executor = CountingExecutor()
        self.written = io.StringIO()
        self.clock = ManualClock()
        self.metrics = Metrics()

        async def through(node: Node, call: Call, request: Any) -> Any:
            return await handle(call, request)

        scripted = Api(
            key=INIT_PRODUCER_ID,
            name="InitProducerId",
            first_version=1,
            last_version=last_version,
            handle=through,
            refused=refuse,
        )
        deleting = Api(
            key=DELETE_GROUPS,
            name="DeleteGroups",
            first_version=0,
            last_version=2,
            handle=through,
            refused=refuse,
            max_elements=max_elements,
        )
        self.dispatcher = Dispatcher(
            cast(Node, SimpleNamespace(executor=self.executor)),
            {INIT_PRODUCER_ID: scripted, API_VERSIONS: TABLE[API_VERSIONS], DELETE_GROUPS: deleting},
            clock=self.clock,
            log=open_log(self.written, clock=self.clock, format="json"),
            metrics=self.metrics,
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written.getvalue().splitlines()]

    def counted(self, name: str) -> list[str]:
        """Return the series of a metric that are not 0."""
        lines = self.metrics.render().decode().splitlines()
        return [line for line in lines if line.startswith(f"headrace_{name}") and not line.endswith(" 0.0")]

    async def ask(
        self,
        request: Message | None = None,
        *,
        api_key: int = INIT_PRODUCER_ID,
        version: int = 4,
        client_id: str | None = "c",
    ) -> Any:
        """Send a request; return the response, or `None` for none."""
        frame = encode_request(api_key, version, 77, client_id, request or InitProducerIdRequest())
        answer = await self.dispatcher.serve(memoryview(frame)[4:], "1.2.3.4:5")
        buffers = await asyncio.wait_for(answer, PATIENCE_S) if isinstance(answer, asyncio.Future) else answer
        if buffers is None:
            return None
        whole = b"".join(bytes(buffer) for buffer in buffers)
        assert int.from_bytes(whole[:4], "big") == len(whole) - 4
        correlation_id, response = parse_response(api_key, version, memoryview(whole)[4:])
        assert correlation_id == 77
        return response


async def answer_with(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def test_handler_learns_who_asks_and_its_answer_goes_back() -> None:
    calls: list[Call] = []

    async def handle(call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
        calls.append(call)
        return await answer_with(5)

    bench = Bench(handle)
    await bench.clock.advance(3)
    assert (await bench.ask()).producer_id == 5
    (call,) = calls
    assert (call.version, call.client_id, call.peer, call.arrived_at) == (4, "c", "1.2.3.4:5", 3)
    assert call.size_bytes > 0
    assert bench.counted("kafka_requests_total") == ['headrace_kafka_requests_total{api="InitProducerId"} 1.0']
    assert bench.lines == []


async def test_promise_is_kept_when_the_handler_s_future_is() -> None:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        return future

    bench = Bench(handle)
    asked = asyncio.create_task(bench.ask())
    await bench.clock.settle()
    assert not asked.done()
    future.set_result(await answer_with(6))
    assert (await asked).producer_id == 6


async def test_handler_may_answer_with_nothing() -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> None:
        return None

    assert await Bench(handle).ask() is None


FAILURES: list[tuple[Exception, ErrorCode, str]] = [
    (Retryable("x"), ErrorCode.KAFKA_STORAGE_ERROR, "warning"),
    (Fenced("x"), ErrorCode.KAFKA_STORAGE_ERROR, "warning"),
    (OutcomeUnknown("x"), ErrorCode.REQUEST_TIMED_OUT, "warning"),
    (Corrupt("x"), ErrorCode.KAFKA_STORAGE_ERROR, "warning"),
    (Unusable("x"), ErrorCode.KAFKA_STORAGE_ERROR, "warning"),
    (Missing("x"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "warning"),
    (Exists("x"), ErrorCode.TOPIC_ALREADY_EXISTS, "warning"),
    (Invalid("x"), ErrorCode.INVALID_REQUEST, "warning"),
    (Unsupported("x"), ErrorCode.UNSUPPORTED_VERSION, "warning"),
    (Refused(ErrorCode.POLICY_VIOLATION, "x"), ErrorCode.POLICY_VIOLATION, "warning"),
    (ZeroDivisionError("x"), ErrorCode.UNKNOWN_SERVER_ERROR, "error"),
    (TimeoutError(), ErrorCode.UNKNOWN_SERVER_ERROR, "error"),
    (AssertionError("x"), ErrorCode.UNKNOWN_SERVER_ERROR, "error"),
]


@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(("error", "code", "level"), FAILURES, ids=[type(error).__name__ for error, _, _ in FAILURES])
async def test_whatever_a_handler_raises_becomes_an_answer_in_its_shape(
    error: Exception, code: ErrorCode, level: str, is_later: bool
) -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        if not is_later:
            raise error
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        return future

    bench = Bench(handle)
    response = await bench.ask()
    assert (response.error_code, response.producer_id) == (code, -1)
    (line,) = bench.lines
    assert line["level"] == level and line["api"] == "InitProducerId" and line["peer"] == "1.2.3.4:5"
    assert bench.counted("kafka_refusals_total") == [
        f'headrace_kafka_refusals_total{{api="InitProducerId",error="{code.name}"}} 1.0'
    ]


async def test_store_that_is_away_refuses_many_in_one_line_with_advice() -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        raise Retryable("PostgreSQL cannot serve now")

    bench = Bench(handle)
    for _ in range(100):
        assert (await bench.ask()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (line,) = bench.lines
    assert line["advice"] and "PostgreSQL cannot serve now" in line["error"]
    await bench.clock.advance(REFUSAL_REPEATS_S)
    await bench.ask()
    assert len(bench.lines) == 2 and bench.counted("kafka_refusals_total")[0].endswith(" 101.0")


async def test_every_refusal_that_is_the_clients_own_is_logged() -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        raise Invalid("not a name")

    bench = Bench(handle)
    for _ in range(3):
        await bench.ask()
    assert len(bench.lines) == 3 and "advice" not in bench.lines[0]


@pytest.mark.parametrize("kind", [Retryable, partial(HangUp, "produce")], ids=["refused", "hung up"])
@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "later"])
async def test_refusal_keeps_nothing_of_the_request_alive(kind: Callable[[str], Exception], is_later: bool) -> None:
    buffers: list[weakref.ref[Buffer]] = []

    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        buffer = Buffer()
        buffers.append(weakref.ref(buffer))
        error = kind("x")
        error.args = (*error.args, buffer)
        if is_later:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            del error
            return future
        try:
            raise error
        finally:
            del error

    async def ask() -> None:
        frame = encode_request(INIT_PRODUCER_ID, 4, 77, "c", InitProducerIdRequest())
        with contextlib.suppress(HangUp):
            answer = await bench.dispatcher.serve(memoryview(frame)[4:], "1.2.3.4:5")
            if isinstance(answer, asyncio.Future):
                await asyncio.wait([answer])
                answer.exception()  # looked at, as a connection does it

    bench = Bench(handle)
    with no_collection():
        await ask()
        assert [is_gone(buffer) for buffer in buffers] == [True]


async def test_mistake_of_ours_is_told_to_the_log_and_not_to_the_client() -> None:
    assert "secret" not in (refusal_of(KeyError("secret")).message or "")


@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "later"])
async def test_handler_may_hang_up(is_later: bool) -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        if not is_later:
            raise HangUp("produce", "no answer to give")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(HangUp("produce", "no answer to give"))
        return future

    with pytest.raises(HangUp, match="no answer to give"):
        await Bench(handle).ask()


def hang_up(call: Call, request: Any, refusal: Refusal) -> Any:
    raise HangUp("produce", "cannot even refuse")


def fail(call: Call, request: Any, refusal: Refusal) -> Any:
    raise KeyError("refusing failed")


def unwritable(call: Call, request: Any, refusal: Refusal) -> Any:
    return InitProducerIdResponse(producer_id=2**70)


@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("refuse", [hang_up, fail, unwritable])
async def test_refusal_that_fails_itself_ends_the_request_instead_of_leaving_it_open(
    refuse: Callable[[Call, Any, Refusal], Any], is_later: bool
) -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        if not is_later:
            raise Retryable("away")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(Retryable("away"))
        return future

    with pytest.raises((HangUp, KeyError, WireError)):
        await Bench(handle, refuse=refuse).ask()


async def test_cancelled_work_of_a_handler_ends_the_request_instead_of_leaving_it_open() -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.cancel()
        return future

    bench = Bench(handle)
    assert (await bench.ask()).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "later"])
async def test_answer_that_the_version_cannot_carry_is_refused_in_its_shape(is_later: bool) -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        response = InitProducerIdResponse(producer_id=2**70)
        if not is_later:
            return response
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(response)
        return future

    bench = Bench(handle)
    assert (await bench.ask()).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert [line["level"] for line in bench.lines] == ["error"]


async def test_cancellation_passes_through() -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        await asyncio.Event().wait()

    bench = Bench(handle)
    asked = asyncio.create_task(bench.ask())
    await bench.clock.settle()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def never(call: Call, request: InitProducerIdRequest) -> Any:
    raise AssertionError("nobody is asked")


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (b"", "garbage"),
        (b"\x00", "garbage"),
        (b"\x7f\xff" + bytes(20), "garbage"),
        (encode_request(METADATA, 12, 1, "c", MetadataRequest())[4:], "api"),
        (encode_request(INIT_PRODUCER_ID, 0, 1, "c", InitProducerIdRequest())[4:], "version"),
        (encode_request(INIT_PRODUCER_ID, 5, 1, "c", InitProducerIdRequest())[4:], "version"),
        (encode_request(INIT_PRODUCER_ID, 4, 1, "c", InitProducerIdRequest())[4:-3], "garbage"),
    ],
)
async def test_what_cannot_be_answered_ends_the_connection(frame: bytes, kind: str) -> None:
    bench = Bench(never, last_version=4)
    with pytest.raises(HangUp) as caught:
        await bench.dispatcher.serve(memoryview(frame), "peer")
    assert caught.value.kind == kind


async def test_every_truncation_of_a_request_is_garbage_or_a_request() -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        return await answer_with(1)

    bench = Bench(handle)
    frame = encode_request(INIT_PRODUCER_ID, 4, 1, "client", InitProducerIdRequest(transactional_id="tx"))[4:]
    for size in range(len(frame)):
        with pytest.raises(HangUp):
            await bench.dispatcher.serve(memoryview(frame[:size]), "peer")


@pytest.mark.parametrize("version", [5, 99, 32767])
async def test_version_of_api_versions_that_nobody_knows_is_answered_in_version_0(version: int) -> None:
    bench = Bench(never)
    header = bytes([0, API_VERSIONS]) + version.to_bytes(2, "big") + (9).to_bytes(4, "big") + b"\x00\x01c\x00"
    buffers = await bench.dispatcher.serve(memoryview(header + b"whatever follows"), "peer")
    assert isinstance(buffers, list)
    whole = b"".join(bytes(buffer) for buffer in buffers)
    correlation_id, response = parse_response(API_VERSIONS, 0, memoryview(whole)[4:])
    assert correlation_id == 9
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert API_VERSIONS in [api.api_key for api in response.api_keys]


async def test_client_that_names_itself_in_many_lines_gets_one() -> None:
    async def handle(call: Call, request: InitProducerIdRequest) -> Any:
        raise Retryable("away")

    bench = Bench(handle)
    await bench.ask(client_id="a\nb\x1b[2Jc")
    assert len(bench.written.getvalue().splitlines()) == 1


async def test_api_versions_is_served_in_its_known_versions() -> None:
    bench = Bench(never)
    for version in range(5):
        response = await bench.ask(ApiVersionsRequest(), api_key=API_VERSIONS, version=version)
        assert response.error_code == 0


async def test_says_which_apis_it_serves() -> None:
    dispatcher = Bench(never).dispatcher
    assert dispatcher.serves(INIT_PRODUCER_ID) and not dispatcher.serves(METADATA)


# Many elements


def names(count: int) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=[f"g{n}" for n in range(count)])


def told(sentence: str) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=[DeleteGroupsResponse.DeletableGroupResult(group_id=sentence)])


async def test_light_request_is_read_and_answered_without_a_thread() -> None:
    async def handle(call: Call, request: Any) -> Any:
        return told(f"{len(request.groups_names)} names")

    bench = Bench(handle)
    response = await bench.ask(names(LIGHT_ELEMENTS), api_key=DELETE_GROUPS, version=2)
    assert response.results[0].group_id == f"{LIGHT_ELEMENTS} names"
    assert bench.executor.ran == 0


async def test_heavy_request_is_read_and_its_answer_written_off_the_loop() -> None:
    async def handle(call: Call, request: Any) -> Any:
        return told(f"{len(request.groups_names)} names")

    bench = Bench(handle, max_elements=LIGHT_ELEMENTS + 1)
    response = await bench.ask(names(LIGHT_ELEMENTS + 1), api_key=DELETE_GROUPS, version=2)
    assert response.results[0].group_id == f"{LIGHT_ELEMENTS + 1} names"
    assert bench.executor.ran == 2, "once to read, once to write"
    assert bench.counted("kafka_response_bytes_total")


async def test_heavy_answer_that_cannot_be_written_is_refused_in_its_shape() -> None:
    async def handle(call: Call, request: Any) -> Any:
        return told("x" * 40_000)

    def refuse(call: Call, request: Any, refusal: Refusal) -> Any:
        return told(refusal.code.name)

    bench = Bench(handle, refuse=refuse, max_elements=LIGHT_ELEMENTS + 1)
    response = await bench.ask(names(LIGHT_ELEMENTS + 1), api_key=DELETE_GROUPS, version=2)
    assert response.results[0].group_id == "UNKNOWN_SERVER_ERROR"


async def test_header_with_very_many_tags_is_garbage() -> None:
    bench = Bench(never)
    body = encode_request(INIT_PRODUCER_ID, 4, 77, "c", InitProducerIdRequest())[4:]
    tags_at = 8 + 2 + len("c")
    assert body[tags_at] == 0
    very_many = bytes((0x80, 0x80, 0x80, 0x80, 0x08))
    with pytest.raises(HangUp) as caught:
        await bench.dispatcher.serve(memoryview(body[:tags_at] + very_many + bytes(2**17)), "1.2.3.4:5")
    assert caught.value.kind == "garbage"


async def test_request_with_more_elements_than_its_api_takes_hangs_up_and_says_the_limit() -> None:
    bench = Bench(never, max_elements=LIGHT_ELEMENTS + 1)
    with pytest.raises(HangUp, match=f"a DeleteGroups request may have {LIGHT_ELEMENTS + 1} elements") as caught:
        await bench.ask(names(LIGHT_ELEMENTS + 2), api_key=DELETE_GROUPS, version=2)
    assert caught.value.kind == "elements"


async def test_heavy_request_that_is_broken_hangs_up_as_garbage() -> None:
    bench = Bench(never, max_elements=LIGHT_ELEMENTS + 1)
    frame = encode_request(DELETE_GROUPS, 2, 1, "c", names(LIGHT_ELEMENTS + 1))[4:-3]
    with pytest.raises(HangUp) as caught:
        await bench.dispatcher.serve(memoryview(frame), "peer")
    assert caught.value.kind == "garbage"


async def test_heavy_request_that_is_cancelled_ends_when_its_thread_does() -> None:
    bench = Bench(never, max_elements=LIGHT_ELEMENTS + 1)
    begun, gate = asyncio.Event(), asyncio.Event()

    async def run(work: Any) -> Any:
        begun.set()
        await gate.wait()
        return work()

    bench.executor.run = run  # type: ignore[method-assign]
    frame = encode_request(DELETE_GROUPS, 2, 1, "c", names(LIGHT_ELEMENTS + 1))[4:]
    serving = asyncio.create_task(bench.dispatcher.serve(memoryview(frame), "peer"))
    await begun.wait()
    serving.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not serving.done(), "the thread still holds the frame, so its memory still counts"
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await serving
