"""What a hostile driver works with: a port, a seed, and a tally of what it heard against what it had to hear.

Must stay true: whatever a broker does is counted under its kind: a code by its name, a closed connection, silence.
"""

import socket
import struct
from collections import Counter
from collections.abc import Iterable
from random import Random

from headrace.model.error_codes import ErrorCode
from tests.integration.groups.frames import GroupFrames

CLOSED = "closed"
SILENT = "no answer"
SENT = "sent"
"""For what no answer is expected to: half of a request, a reset."""

ANSWER_LIMIT_SECONDS = 60.0
MAX_SURPRISES = 20

_RESET = struct.pack("ii", 1, 0)


def named(code: int) -> str:
    """Return the name of an error code; `NONE` for success."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"code {code}"


class Tally:
    """How often each kind was answered in which way, and what should not have been."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str]] = Counter()
        self.surprises: list[str] = []

    def add(self, kind: str, answer: str, expected: Iterable[str], count: int = 1) -> None:
        """Count an answer; one that was not expected is a surprise."""
        self.answers[kind, answer] += count
        if answer not in expected:
            self.surprise(f"{kind}: {answer}, expected {' or '.join(expected)}")

    def surprise(self, text: str) -> None:
        """Take note of something that must not be; only the first ones are told."""
        if len(self.surprises) < MAX_SURPRISES:
            self.surprises.append(text)


class Stage:
    """One turn of one kind of hostility."""

    def __init__(self, kind: str, port: int, rng: Random, tally: Tally) -> None:
        self.kind = kind
        self.port = port
        self.rng = rng
        self._tally = tally

    def connect(self, *, receive_buffer_bytes: int | None = None) -> GroupFrames:
        """Open a connection."""
        client = GroupFrames(self.port, receive_buffer_bytes=receive_buffer_bytes)
        client.socket.settimeout(ANSWER_LIMIT_SECONDS)
        return client

    def heard(self, answer: int | str, *expected: int | str, count: int = 1) -> None:
        """Count an answer: a code, or what else happened."""
        names = [one if isinstance(one, str) else named(one) for one in (answer, *expected)]
        self._tally.add(self.kind, names[0], names[1:], count)

    def closes(self, client: GroupFrames) -> None:
        """Expect that the broker closes without an answer."""
        try:
            answer = client.rest()
        except TimeoutError:
            self.heard(SILENT, CLOSED)
            return
        self.heard("an answer" if answer else CLOSED, CLOSED)

    @staticmethod
    def reset(client: GroupFrames) -> None:
        """End a connection by a reset, whatever is under way."""
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        client.socket.close()
