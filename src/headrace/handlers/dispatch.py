"""From a frame to its answer: parse, find the handler, let it work, encode.

Must stay true: every request gets one answer in its own shape, whatever its handler raises; only what cannot be
answered (garbage, an API or version that is not served) ends the connection.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from headrace.errors import HeadraceError, OutcomeUnknown, Retryable
from headrace.handlers.api import Api
from headrace.handlers.call import Call, Encoded, HangUp, Refusal, Refused, refusal_of
from headrace.handlers.greetings import Greetings
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.runtime.answers import ENDLESS_ROOM, Room
from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log
from headrace.runtime.metrics import CounterSeries, HistogramSeries, Metrics, one_of
from headrace.runtime.repeats import Repeats
from headrace.runtime.services import advice
from headrace.wire.errors import TooManyElements, UnsupportedRequest, WireError
from headrace.wire.headers import API_VERSIONS_KEY, encode_response, frame_body, parse_header, parse_request
from headrace.wire.messages import ApiVersionsRequest, Buffer, RequestHeader

LIGHT_ELEMENTS = 4_096
"""A request with more elements than this is read, and its answer written, on a thread: it would hold up the loop for
milliseconds, and some dozen of them at once for much longer."""

REFUSAL_REPEATS_S = 10.0
"""How long the refusals of one API with one code are not logged again while a store cannot be reached. They are still
counted."""

T = TypeVar("T")

Buffers: TypeAlias = list[Buffer]
Answer: TypeAlias = "Buffers | asyncio.Future[Buffers | None] | None"


class _ApiMetrics:
    """The series of one API, looked up once."""

    __slots__ = ("bytes_in", "bytes_out", "requests", "seconds")

    def __init__(
        self, requests: CounterSeries, bytes_in: CounterSeries, bytes_out: CounterSeries, seconds: HistogramSeries
    ) -> None:
        self.requests = requests
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.seconds = seconds


class Dispatcher:
    """Serves the requests of all connections of a broker."""

    def __init__(self, node: Node, apis: Mapping[int, Api], *, clock: Clock, log: Log, metrics: Metrics) -> None:
        self._node = node
        self._apis = apis
        self._clock = clock
        self._log = log
        self._greetings = Greetings()
        self._repeats = Repeats(clock, every_s=REFUSAL_REPEATS_S)
        by_api = one_of("api", [api.name for api in apis.values()])
        requests = metrics.counters("kafka_requests", "Requests, by API.", by_api)
        bytes_in = metrics.counters("kafka_request_bytes", "Bytes of requests, by API.", by_api)
        bytes_out = metrics.counters("kafka_response_bytes", "Bytes of responses, by API.", by_api)
        seconds = metrics.histograms("kafka_request_seconds", "Time from arrival to answer, by API.", by_api)
        self._refusals = metrics.counters(
            "kafka_refusals",
            "Requests that were refused as a whole, by API and error.",
            one_of("api", [api.name for api in apis.values()]),
            one_of("error", [code.name for code in ErrorCode]),
        )
        self._metrics = {
            key: _ApiMetrics(
                requests.of(api.name), bytes_in.of(api.name), bytes_out.of(api.name), seconds.of(api.name)
            )
            for key, api in apis.items()
        }

    def serves(self, api_key: int) -> bool:
        """Say whether an API is served in any version."""
        return api_key in self._apis

    async def serve(self, frame: memoryview, peer: str, room: Room = ENDLESS_ROOM) -> Answer:
        """Return the answer to a request, or the promise of one; raise `HangUp` where there is none to give."""
        arrived_at = self._clock.monotonic()
        turn_ms = self._greetings.turn_ms(peer, arrived_at)
        is_light = True
        try:
            header, request = parse_request(frame, max_elements=LIGHT_ELEMENTS)
        except UnsupportedRequest as error:
            header, request = error.header, None
        except TooManyElements:
            is_light = False
        except WireError as error:
            raise _garbage(error) from error
        if not is_light:
            header, request = await self._read_heavy(frame)
        api_key, version = header.request_api_key, header.request_api_version
        api = self._apis.get(api_key)
        if api is None:
            raise HangUp("api", f"API {api_key} is not served")
        if request is None or not api.first_version <= version <= api.last_version:
            return self._unsupported(api, version, header.correlation_id)
        call = Call(
            api_key=api_key,
            version=version,
            size_bytes=len(frame),
            client_id=header.client_id,
            peer=peer,
            arrived_at=arrived_at,
            turn_ms=turn_ms,
            room=room,
        )
        metrics = self._metrics[api_key]
        metrics.requests.inc()
        metrics.bytes_in.inc(len(frame))
        response = await self._handled(api, call, request)
        if api_key == API_VERSIONS_KEY:
            self._greetings.greeted(peer, self._clock.monotonic())
        if isinstance(response, asyncio.Future):
            return self._promised(api, call, request, header.correlation_id, response)
        if not is_light and response is not None and not isinstance(response, Encoded):
            return await self._encoded_apart(api, call, request, header.correlation_id, response)
        return self._encoded(api, call, request, header.correlation_id, response)

    async def _read_heavy(self, frame: memoryview) -> tuple[RequestHeader, Any]:
        """Read a request with many elements, off the loop, if it has no more than its API takes."""
        try:
            header, _ = parse_header(frame)
        except WireError as error:  # the header itself has that many
            raise _garbage(error) from error
        api = self._apis.get(header.request_api_key)
        if api is None:
            return header, None
        try:
            return await _to_its_end(
                self._node.executor.run(partial(parse_request, frame, max_elements=api.max_elements))
            )
        except TooManyElements as error:
            raise HangUp(
                "elements", f"a {api.name} request may have {api.max_elements} elements in all: {error}"
            ) from error
        except WireError as error:
            raise _garbage(error) from error

    async def _handled(self, api: Api, call: Call, request: Any) -> Any:
        try:
            return await api.handle(self._node, call, request)
        except HangUp:
            raise
        except Exception as error:
            return self._refused(api, call, request, error)

    def _promised(
        self, api: Api, call: Call, request: Any, correlation_id: int, response: "asyncio.Future[Any]"
    ) -> "asyncio.Future[Buffers | None]":
        promise: asyncio.Future[Buffers | None] = asyncio.get_running_loop().create_future()

        def fulfil(done: "asyncio.Future[Any]") -> None:
            if promise.done():
                return
            # The error is looked at, never raised: a traceback would hold this frame, and the frame the error, for
            # ever, and the request's memory with them.
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if isinstance(error, HangUp):
                promise.set_exception(error)
                return
            try:
                message = done.result() if error is None else self._refused(api, call, request, error)
                promise.set_result(self._encoded(api, call, request, correlation_id, message))
            except Exception as mistake:
                # A promise that stays open would hold up every answer behind it: who waits for it decides what to do.
                promise.set_exception(mistake)

        response.add_done_callback(fulfil)
        return promise

    async def _encoded_apart(
        self, api: Api, call: Call, request: Any, correlation_id: int, response: Any
    ) -> Buffers | None:
        """Write an answer off the loop."""
        try:
            encode = partial(encode_response, api.key, call.version, correlation_id, response)
            buffers = await self._node.executor.run(encode)
        except WireError as error:
            return self._encoded(api, call, request, correlation_id, self._refused(api, call, request, error))
        metrics = self._metrics[api.key]
        metrics.seconds.observe(self._clock.monotonic() - call.arrived_at)
        metrics.bytes_out.inc(sum(map(len, buffers)))
        return buffers

    def _encoded(self, api: Api, call: Call, request: Any, correlation_id: int, response: Any) -> Buffers | None:
        metrics = self._metrics[api.key]
        metrics.seconds.observe(self._clock.monotonic() - call.arrived_at)
        if response is None:
            return None
        try:
            if isinstance(response, Encoded):
                buffers = frame_body(api.key, call.version, correlation_id, response.body)
            else:
                buffers = encode_response(api.key, call.version, correlation_id, response)
        except WireError as error:
            response = self._refused(api, call, request, error)
            buffers = encode_response(api.key, call.version, correlation_id, response)
        metrics.bytes_out.inc(sum(map(len, buffers)))
        return buffers

    def _refused(self, api: Api, call: Call, request: Any, error: BaseException) -> Any:
        refusal = refusal_of(error)
        if isinstance(error, WireError):
            # An answer that cannot be written is a mistake of ours, not of the client's.
            refusal = Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker could not write its answer")
        self._refusals.of(api.name, refusal.code.name).inc()
        values = {"api": api.name, "version": call.version, "client": call.client_id, "peer": call.peer}
        if isinstance(error, HeadraceError | Refused) and not isinstance(error, WireError):
            if isinstance(error, Retryable | OutcomeUnknown):
                values["advice"] = advice(error)
            if self._is_news(api, refusal.code, error):
                self._log.warning("a request was refused", error=error, code=refusal.code.name, **values)
        else:
            self._log.error("a handler failed", exc_info=error, **values)
        return api.refused(call, request, refusal)

    def _is_news(self, api: Api, code: ErrorCode, error: BaseException) -> bool:
        """Say whether a refusal is to be logged. A store that is away refuses everybody: one line now and then."""
        return not isinstance(error, Retryable | OutcomeUnknown) or self._repeats.is_due((api.key, code))

    def _unsupported(self, api: Api, version: int, correlation_id: int) -> Buffers:
        """Answer ApiVersions in version 0, so that the client can choose another; nothing else can be answered."""
        if api.key != API_VERSIONS_KEY:
            raise HangUp(
                "version", f"{api.name} version {version} is not served, {api.first_version}-{api.last_version} are"
            )
        call = Call(api_key=api.key, version=0, client_id=None, peer="", arrived_at=self._clock.monotonic())
        response = api.refused(call, ApiVersionsRequest(), Refusal(ErrorCode.UNSUPPORTED_VERSION))
        return encode_response(api.key, 0, correlation_id, response)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Return what work on a thread brings; if cancelled, end when it has ended: it holds a frame until then."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        if not working.cancelled():
            working.exception()  # nobody else hears of it
        raise
    finally:
        del working  # it may hold an error, whose traceback holds this frame


def _garbage(error: WireError) -> HangUp:
    return HangUp("garbage", f"a request could not be read: {error}")
