"""The connection of one handle of librdkafka: how it is opened, how long we wait for it, what its errors mean.

librdkafka never gives up on a broker that does not answer; whoever waits for one here gives up after the connection's
timeout, and says so in one sentence.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from headrace.cli.options import Connection
from headrace.errors import Exists, HeadraceError, Invalid, Missing, OutcomeUnknown, Retryable
from headrace.runtime.clock import SystemClock

CLIENT_ID = "headrace-cli"
FIRST_WAIT_SECONDS = 0.5
"""A call into librdkafka cannot be interrupted: waits begin short, so that Ctrl-C is heard."""
TOPIC_WAIT_SECONDS = 5.0
"""How long a topic may take to appear. A broker that is creating it says the same as one that never will."""
SERVE_SECONDS = 0.1

NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID)
_UNREACHABLE = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
)
_NOT_LET_IN = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED)

_H = TypeVar("_H")


class Refused(HeadraceError):
    """The cluster said no. The message holds its words."""


class Handle(Protocol):
    """What the three handles of the library have in common."""

    def list_topics(self, topic: str | None = ..., timeout: float = ...) -> Any: ...

    def poll(self, timeout: float = ...) -> object: ...


class Link:
    """What librdkafka says about the connections of one handle, and how long we wait for them."""

    def __init__(self, connection: Connection) -> None:
        self.lost = False
        self._connection = connection
        self._clock = SystemClock()
        self._reason = ""
        self._not_let_in = False

    def open(self, factory: Callable[[dict[str, Any]], _H], defaults: Mapping[str, object]) -> _H:
        """Create a handle. Raises `Invalid` for properties that librdkafka does not take."""
        properties = self._connection.properties
        config: dict[str, Any] = {
            "bootstrap.servers": self._connection.bootstrap,
            "client.id": CLIENT_ID,
            **defaults,
            **properties,
            "error_cb": self._hear,
        }
        if "debug" not in properties:
            config.setdefault("log_level", 0)  # What matters is told as an error, once.
        try:
            return factory(config)
        except KafkaException as error:
            raise Invalid(f"{error.args[0].str()}; -X takes librdkafka's properties") from error
        except (TypeError, ValueError) as error:
            raise Invalid(f"{error}; -X takes librdkafka's properties") from error

    def wait_for_broker(self, handle: Handle, topic: str | None = None, *, serve: bool = True) -> Any:
        """Ask for metadata until a broker answers. Raises `Retryable` when none does in time.

        `serve` lets librdkafka deliver what it has to say; for a consumer that reads, this would lose records.
        """
        deadline = self._clock.monotonic() + self._connection.timeout_seconds
        wait_seconds = FIRST_WAIT_SECONDS
        while (left := deadline - self._clock.monotonic()) > 0:
            try:
                answer = handle.list_topics(topic, timeout=min(wait_seconds, left))
            except KafkaException as error:
                if error.args[0].code() not in _UNREACHABLE:
                    raise self.translated(error.args[0], "ask for metadata") from error
            else:
                self.lost = False
                return answer
            if serve:
                handle.poll(0.01)
            if self._not_let_in:
                raise Refused(f"{self._address} does not let us in: {self._reason}; check what -X gives")
            wait_seconds *= 2
        raise Retryable(self._nobody_answers())

    def wait_for_topic(self, handle: Handle, topic: str) -> list[int]:
        """Return the partitions of a topic as soon as it has any. Raises `Missing` when it does not appear."""
        give_up = self._clock.monotonic() + min(TOPIC_WAIT_SECONDS, self._connection.timeout_seconds)
        while True:
            found = self.wait_for_broker(handle, topic).topics[topic]
            if found.error is None and found.partitions:
                return sorted(found.partitions)
            code = KafkaError.LEADER_NOT_AVAILABLE if found.error is None else found.error.code()
            if code not in (*NO_TOPIC, KafkaError.LEADER_NOT_AVAILABLE):
                raise self.translated(found.error, f"use topic {topic}")
            if self._clock.monotonic() > give_up:
                raise no_topic(topic)
            handle.poll(SERVE_SECONDS)

    def translated(self, error: KafkaError, doing: str, *, changes: bool = False) -> HeadraceError:
        """Return an error of ours. `changes` says whether the call might have had its effect."""
        code = error.code()
        if code in _UNREACHABLE and changes:
            return OutcomeUnknown(f"no answer while trying to {doing}: look whether it was done before trying again")
        if code in _UNREACHABLE:
            return Retryable(self._nobody_answers())
        words = f"cannot {doing}: {error.str()} ({error.name()})"
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return Exists(words)
        if code == KafkaError._INVALID_ARG:
            return Invalid(words)
        if code in NO_TOPIC:
            return Missing(f"{words}; `headrace topic list` shows what there is")
        return Refused(words)

    @property
    def _address(self) -> str:
        return self._connection.properties.get("bootstrap.servers", self._connection.bootstrap)

    def _nobody_answers(self) -> str:
        reason = f" ({self._reason})" if self._reason else ""
        return (
            f"no broker answers at {self._address}{reason}: "
            "start one with `headrace serve`, or name another with --bootstrap"
        )

    def _hear(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.lost = True
        else:
            # "HOST:PORT/bootstrap: why (after 3ms in state CONNECT)": only the middle tells something new.
            self._reason = re.sub(r"^\S+: | \(after [^)]*\)", "", error.str())
        self._not_let_in |= error.code() in _NOT_LET_IN


def no_topic(topic: str) -> Missing:
    """Return the error for a topic that is not there."""
    return Missing(f"there is no topic {topic}: create it with `headrace topic create {topic}`")
