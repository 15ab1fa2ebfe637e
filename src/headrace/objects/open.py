"""Find the object store that a URL names.

    data/objects, file:data/objects          local disk, from the working directory
    file:///var/lib/headrace                 local disk
    memory:                                  this process's memory, gone with it
    s3://bucket/prefix                       S3 and what speaks its API
    gs://bucket/prefix                       Google Cloud Storage
    az://container/prefix                    Azure Blob Storage

Credentials, regions and endpoints come from the environment variables that each cloud's own tools use
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, …), never from
the URL, which ends up in logs. `?listing=levels` is for servers that list directory by directory.
"""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import obstore.store
from obstore.exceptions import BaseError

from headrace.errors import Invalid
from headrace.objects.local import SYNC_EVERY_BYTES, LocalObjects
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import ObjectStore
from headrace.objects.remote import RemoteObjects
from headrace.objects.retrying import RetryingObjects, RetryPolicy
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoints
from headrace.runtime.executor import Executor
from headrace.runtime.rng import Rng

if TYPE_CHECKING:
    from obstore.store import RetryConfig

REMOTE_SCHEMES = ("s3", "gs", "az")
KNOWN = ("a path", "file:", "memory:", *(f"{scheme}://" for scheme in REMOTE_SCHEMES))

# obstore repeats a part of a multipart upload this often; everything else it does once.
UPLOAD_PART_RETRIES = 4
UPLOAD_RETRY_TIMEOUT = timedelta(seconds=60)


def open_objects(
    url: str,
    *,
    executor: Executor,
    clock: Clock,
    rng: Rng,
    crash_points: CrashPoints | None = None,
    policy: RetryPolicy | None = None,
    drops_cache: bool = False,
    sync_every_bytes: int = SYNC_EVERY_BYTES,
) -> ObjectStore:
    """Return the store that `url` names. Remote ones repeat failed calls by `policy`. Raises `Invalid`.

    `drops_cache` and `sync_every_bytes` are for local disk: see `LocalObjects`.
    """
    is_url = "://" in url or url.startswith(("file:", "memory:"))
    parts = urlsplit(url) if is_url else SplitResult("", "", url, "", "")
    if parts.scheme in ("", "file"):
        return LocalObjects(
            _local_path(parts, url),
            executor=executor,
            crash_points=crash_points,
            drops_cache=drops_cache,
            sync_every_bytes=sync_every_bytes,
        )
    if parts.scheme == "memory":
        return MemoryObjects(clock)
    if parts.scheme in REMOTE_SCHEMES:
        return RetryingObjects(_open_remote(parts), clock=clock, rng=rng, policy=policy)
    raise Invalid(f"unknown object store {parts.scheme}://; known are {', '.join(KNOWN)}")


def _local_path(parts: SplitResult, url: str) -> Path:
    if not parts.path:
        raise Invalid("the object store's path is empty; name a directory")
    if parts.netloc not in ("", "localhost") or parts.path == "/":
        raise Invalid(f"{url}: name a directory, as in file:data/objects or file:///var/lib/headrace")
    return Path(unquote(parts.path) if parts.scheme else parts.path)


def _open_remote(parts: SplitResult) -> RemoteObjects:
    if not parts.netloc or "@" in parts.netloc:
        raise Invalid(f"{parts.scheme}:// needs the name of a bucket and nothing else before the first slash")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    listing = options.pop("listing", "flat")
    if options or listing not in ("flat", "levels"):
        raise Invalid(f"{parts.scheme}://{parts.netloc}: the only option is listing=flat or listing=levels")
    plain_url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    # No client options: they would hide AWS_ALLOW_HTTP and its like. obstore's own limits are what we want anyway:
    # 5 s to connect, 30 s for a whole request.
    once: RetryConfig = {"max_retries": 0}
    bounded: RetryConfig = {"max_retries": UPLOAD_PART_RETRIES, "retry_timeout": UPLOAD_RETRY_TIMEOUT}
    try:
        return RemoteObjects(
            obstore.store.from_url(plain_url, retry_config=once),
            uploads=obstore.store.from_url(plain_url, retry_config=bounded),
            lists_by_key=listing == "flat",
        )
    except BaseError as error:
        raise Invalid(f"cannot open {plain_url}: {str(error).partition(chr(10))[0]}") from error
