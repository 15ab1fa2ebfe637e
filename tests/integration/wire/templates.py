"""One sound request of every served API and version, as the material that tests then damage."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.handlers.table import TABLE
from headrace.runtime.rng import seeded_rng
from headrace.testing.fuzz_wire import random_message
from headrace.wire.headers import encode_request
from headrace.wire.schema import Api, apis

SIZE_BYTES = 4
TRIES = 40
CLIENT = "template"


@dataclass(frozen=True, slots=True)
class Template:
    """A request without its size."""

    api: Api
    version: int
    payload: bytes

    @property
    def name(self) -> str:
        return f"{self.api.name} v{self.version}"


def templates(*, seed: int = 1) -> Iterator[Template]:
    """Yield one per API and version: the fullest of several random messages with harmless numbers."""
    for key in TABLE:
        api = apis()[key]
        for version in range(api.versions[0], api.versions[1] + 1):
            yield template(api, version, seed)


def template(api: Api, version: int, seed: int) -> Template:
    """Return the longest of some random requests: it has the most in its arrays."""
    payloads = []
    for number in range(TRIES):
        message = random_message(f"{api.name}Request", version, seeded_rng(seed * 1000 + number), max_number=3)
        payloads.append(encode_request(api.key, version, 7, CLIENT, message)[SIZE_BYTES:])
    return Template(api, version, max(payloads, key=len))
