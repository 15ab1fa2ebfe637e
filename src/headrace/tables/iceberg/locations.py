"""Where the object store lies in the eyes of Iceberg, and where in it a topic's table does.

Must stay true: an object's key and its URI name each other one to one, and a URI outside of the store has no key.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import UUID

from headrace.errors import Invalid, Unsupported
from headrace.model.topics import TopicId

TABLES_PREFIX = "tables/"
DEAD_LETTERS_SUFFIX = "-dead-letters"
"""Beside the topic's own table, not inside of it: Iceberg's removal of orphans looks at all that lies inside."""

S3_CONNECT_TIMEOUT_S = 5
S3_REQUEST_TIMEOUT_S = 30

# Characters that end the path of a URI, or make it another one when it is read back.
_UNFIT_FOR_URIS = frozenset("#?%;")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsRoot:
    """The object store's root: its URI without a slash at the end."""

    uri: str

    def uri_of(self, key: str) -> str:
        """Return what an object is called in a table's metadata."""
        return f"{self.uri}/{key}"

    def key_of(self, uri: str) -> str | None:
        """Return the key of the object that a URI names, or `None` if it lies elsewhere."""
        return uri[len(self.uri) + 1 :] if uri.startswith(self.uri + "/") else None

    def table_location(self, topic_id: TopicId) -> str:
        """Return where the table of a topic lies."""
        return self.uri_of(TABLES_PREFIX + topic_uuid(topic_id))

    def dead_letter_location(self, topic_id: TopicId) -> str:
        """Return where the dead-letter table of a topic lies."""
        return self.uri_of(dead_letter_prefix(topic_id).rstrip("/"))

    def data_prefix(self, topic_id: TopicId) -> str:
        """Return what the keys of a topic's data files begin with."""
        return f"{TABLES_PREFIX}{topic_uuid(topic_id)}/data/"


def dead_letter_prefix(topic_id: TopicId) -> str:
    """Return what the keys of all that belongs to a topic's dead-letter table begin with."""
    return f"{TABLES_PREFIX}{topic_uuid(topic_id)}{DEAD_LETTERS_SUFFIX}/"


def topic_uuid(topic_id: TopicId) -> str:
    """Return a topic's id as people write UUIDs."""
    return str(UUID(bytes=bytes(topic_id)))


def objects_root(objects_url: str) -> ObjectsRoot:
    """Return the root that `objects.url` names. Raises `Unsupported` where tables cannot lie."""
    parts = urlsplit(objects_url) if ":" in objects_url else None
    scheme = "file" if parts is None else parts.scheme
    if scheme == "file":
        raw = objects_url if parts is None else unquote(parts.path)
        # Without `..`, because engines compare locations as text; links stay, so that what they lead to may move.
        directory = Path(os.path.normpath(Path(raw).absolute()))
        if _UNFIT_FOR_URIS & set(str(directory)):
            raise Invalid(f"tables cannot lie in {directory}: choose a path without any of # ? % ;")
        return ObjectsRoot(uri=f"file://{directory}")
    if parts is not None and scheme in ("s3", "gs"):
        return ObjectsRoot(uri=f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}")
    raise Unsupported(f"tables cannot lie in {scheme}: yet; use file:, s3:// or gs:// for objects.url")


def storage_properties(root: ObjectsRoot, environment: Mapping[str, str]) -> dict[str, str]:
    """Return PyIceberg's properties for the store, from the variables that the object store itself goes by."""
    if not root.uri.startswith("s3:"):
        return {}
    found = {
        "s3.endpoint": _first(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "s3.region": _first(environment, "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1",
        "s3.access-key-id": environment.get("AWS_ACCESS_KEY_ID", ""),
        "s3.secret-access-key": environment.get("AWS_SECRET_ACCESS_KEY", ""),
        "s3.session-token": _first(environment, "AWS_SESSION_TOKEN", "AWS_TOKEN"),
        "s3.anonymous": environment.get("AWS_SKIP_SIGNATURE", "").lower(),
        "s3.force-virtual-addressing": environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower(),
        "s3.connect-timeout": str(S3_CONNECT_TIMEOUT_S),
        "s3.request-timeout": str(S3_REQUEST_TIMEOUT_S),
    }
    return {name: value for name, value in found.items() if value}


def _first(environment: Mapping[str, str], *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")
