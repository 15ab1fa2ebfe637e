"""Every way to be a burden: each function is one turn of it, and says what the broker has to answer.

What a batch or a request deserves stands in FAULTS.md's table: a code for its partition, or a closed connection.
"""

import time
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from struct import pack
from types import MappingProxyType

import cramjam
import lz4.frame
import zstandard

from benchmarks.hostile import frames
from benchmarks.hostile.plan import BACKLOG, COMPACTED, MIB, NARROW, WIDE
from benchmarks.hostile.stage import CLOSED, SENT, Stage
from headrace.model.error_codes import ErrorCode
from tests.integration.groups.frames import SUBSCRIPTION, GroupFrames, join_body
from tests.integration.wire.batches import GZIP, LZ4, SNAPPY, ZSTD, batch, old_message, record
from tests.integration.wire.raw import (
    API_VERSIONS,
    METADATA,
    PRODUCE,
    fetch_request,
    framed,
    new_topic,
    produce_request,
    request,
    text,
)

Kind = Callable[[Stage], None]

LARGE_BYTES = 3 * MIB // 2
BOMB_BYTES = 160 * MIB
ROUNDS = 20
STORM_CONNECTIONS = 300
HALF_SENT_CONNECTIONS = 30
SLOW_READERS = 6
HOLD_SECONDS = 2.0
TINY_BATCHES = 250_000
SHORTEST_SESSION_MS = 6_000

LARGE = bytes(LARGE_BYTES)
NOISE = bytes(range(256)) * (LARGE_BYTES // 256)
SOUND = record(0, b"value") + record(1, b"other")
LONG_SOUND = b"".join(record(index, bytes(1000)) for index in range(500))

CODECS: dict[int, Callable[[bytes], bytes]] = {
    GZIP: lambda body: zlib.compress(body, 1, wbits=31),
    SNAPPY: lambda body: bytes(cramjam.snappy.compress_raw(body)),
    LZ4: lambda body: bytes(lz4.frame.compress(body)),
    ZSTD: lambda body: bytes(zstandard.compress(body)),
}


def _gzip_bomb() -> bytes:
    stream = zlib.compressobj(9, wbits=31)
    return b"".join((*(stream.compress(bytes(MIB)) for _ in range(BOMB_BYTES // MIB)), stream.flush()))


BOMBS: dict[int, Callable[[], bytes]] = {
    GZIP: _gzip_bomb,
    LZ4: lambda: bytes(lz4.frame.compress(bytes(BOMB_BYTES))),
    ZSTD: lambda: bytes(zstandard.compress(bytes(BOMB_BYTES))),
}


@cache
def _bomb(codec: int) -> bytes:
    return batch(body=BOMBS[codec](), attributes=codec)


def _refused(
    stage: Stage, topic: str, sent: bytes, code: ErrorCode, *, rounds: int = ROUNDS, version: int = 8
) -> None:
    """Send a batch again and again over one connection; every time its partition gets this code."""
    frame = produce_request(topic, {0: sent}, version=version)
    with stage.connect() as client:
        for _ in range(rounds):
            client.send(frame)
            stage.heard(client.produced(version)[0].code, code)


# Refusals


def too_large(stage: Stage) -> None:
    """Batches of 1.5 MB to a topic that takes 1 MB."""
    _refused(stage, NARROW, batch([LARGE]), ErrorCode.MESSAGE_TOO_LARGE)


def wrong_crc(stage: Stage) -> None:
    """Batches of 1.5 MB with a wrong CRC."""
    _refused(stage, WIDE, batch([LARGE], crc=1), ErrorCode.CORRUPT_MESSAGE)


def no_keys(stage: Stage) -> None:
    """Records without keys for a compacted topic."""
    _refused(stage, COMPACTED, batch([LARGE], key=None), ErrorCode.INVALID_RECORD)


def lying_codecs(stage: Stage) -> None:
    """Compressed batches that claim other counts than they have, and some that are not compressed at all."""
    for codec, compress in CODECS.items():
        for body, count in ((SOUND, 5), (SOUND, 2**31 - 1), (LONG_SOUND, 1)):
            lie = batch(body=compress(body), attributes=codec, count=count)
            _refused(stage, WIDE, lie, ErrorCode.INVALID_RECORD, rounds=2)
        _refused(stage, WIDE, batch(body=NOISE, attributes=codec), ErrorCode.CORRUPT_MESSAGE, rounds=2)
        _refused(stage, COMPACTED, batch(body=NOISE, attributes=codec), ErrorCode.CORRUPT_MESSAGE, rounds=2)


def bombs(stage: Stage) -> None:
    """Batches of some kilobytes that would become 160 MiB."""
    codec = stage.rng.choice(list(BOMBS))
    _refused(stage, WIDE, _bomb(codec), ErrorCode.MESSAGE_TOO_LARGE, rounds=1)


def unknown_places(stage: Stage) -> None:
    """Topics and partitions that are not there, with large batches, and thousands of names to ask for."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    _refused(stage, "missing", batch([LARGE]), unknown)
    frame = produce_request(WIDE, {9: batch([LARGE])})
    with stage.connect() as client:
        for _ in range(ROUNDS):
            client.send(frame)
            stage.heard(client.produced()[9].code, unknown)
        names = [f"nobody-{stage.rng.randrange(10**9)}" for _ in range(1000)]
        for code in frames.unknown_metadata(client, names):
            stage.heard(code, unknown)


def wrong_sequences(stage: Stage) -> None:
    """New producers by the dozen that skip sequences and come with old epochs."""
    with stage.connect() as client:
        for _ in range(ROUNDS):
            code, producer_id, epoch = frames.init_producer_id(client)
            stage.heard(code, ErrorCode.NONE)
            for producer, expected in (
                ((producer_id, epoch, 0), ErrorCode.NONE),
                ((producer_id, epoch, 0), ErrorCode.NONE),
                ((producer_id, epoch, 9), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
                ((producer_id, epoch + 1, 0), ErrorCode.NONE),
                ((producer_id, epoch, 1), ErrorCode.INVALID_PRODUCER_EPOCH),
            ):
                stage.heard(client.produce(WIDE, {0: batch(producer=producer)})[0].code, expected)


def old_messages(stage: Stage) -> None:
    """Message sets of 2012: damaged ones, large ones, and some that are right."""
    damaged = old_message(LARGE, magic=1)[:-1] + b"x"
    _refused(stage, WIDE, damaged, ErrorCode.CORRUPT_MESSAGE, version=2)
    _refused(stage, WIDE, old_message(LARGE, magic=1), ErrorCode.INVALID_RECORD, rounds=5)
    _refused(stage, WIDE, old_message(b"old", magic=0), ErrorCode.NONE, version=2)


def unacknowledged(stage: Stage) -> None:
    """Refused batches that want no acknowledgement: the only answer there can be is a closed connection."""
    for _ in range(5):
        with stage.connect() as client:
            client.send(produce_request(NARROW, {0: batch([LARGE])}, acks=0))
            stage.closes(client)


# Connections


def resets(stage: Stage) -> None:
    """Connections that are reset in the middle of requests of every size, and right behind whole ones."""
    for power in range(10, 24):
        frame = produce_request(WIDE, {0: batch([bytes(1 << power)], crc=1)})
        for share in (stage.rng.random(), 1.0):
            client = stage.connect()
            client.socket.settimeout(5.0)
            try:
                client.send(frame[: max(1, int(len(frame) * share))])
                stage.heard(SENT, SENT)
            except TimeoutError:
                stage.heard("held back", "held back")
            stage.reset(client)


def half_sent(stage: Stage) -> None:
    """Requests of every size of which half is sent, on many connections at once; then silence, then a reset."""
    clients = [stage.connect() for _ in range(HALF_SENT_CONNECTIONS)]
    for client in clients:
        size_bytes = 1 << stage.rng.randrange(6, 26)
        client.socket.settimeout(0.2)
        try:
            client.send(pack(">i", size_bytes) + pack(">hhih", PRODUCE, 8, 7, -1))
            client.send(bytes(min(size_bytes // 2, 4 * MIB)))
            stage.heard(SENT, SENT)
        except TimeoutError:
            stage.heard("held back", "held back")
        except ConnectionError:
            stage.heard(CLOSED, CLOSED)
    time.sleep(HOLD_SECONDS)
    for client in clients:
        stage.reset(client)


def slow_senders(stage: Stage) -> None:
    """A request that comes in small pieces: answered in the end, or closed because it took too long."""
    frame = produce_request(NARROW, {0: batch([LARGE])})
    with stage.connect() as client:
        try:
            for position in range(0, len(frame), 64 * 1024):
                client.send(frame[position : position + 64 * 1024])
                time.sleep(0.05)
            stage.heard(client.produced()[0].code, ErrorCode.MESSAGE_TOO_LARGE)
        except ConnectionError:
            stage.heard(CLOSED, CLOSED)


def slow_readers(stage: Stage) -> None:
    """Connections that ask for a backlog many times over and do not read the answers."""
    clients = [stage.connect(receive_buffer_bytes=4096) for _ in range(SLOW_READERS)]
    for client in clients:
        for _ in range(4):
            client.send(fetch_request(BACKLOG, 0, 0))
            stage.heard(SENT, SENT)
    time.sleep(HOLD_SECONDS)
    for client in clients:
        stage.reset(client)


def parked_fetches(stage: Stage) -> None:
    """Fetches that wait for more than there will ever be, of clients that go away."""
    clients = [stage.connect() for _ in range(50)]
    for client in clients:
        client.send(fetch_request(NARROW, 0, 0, min_bytes=1 << 30, max_wait_ms=300_000))
        stage.heard(SENT, SENT)
    time.sleep(0.2)
    for client in clients:
        client.socket.close()


def storms(stage: Stage) -> None:
    """Hundreds of connections at once, some of which say hello."""
    clients = []
    for _ in range(STORM_CONNECTIONS):
        clients.append(stage.connect())
        if stage.rng.random() < 0.5:
            clients[-1].send(request(API_VERSIONS, 0, b""))
    for client in clients:
        stage.heard(SENT, SENT)
        if stage.rng.random() < 0.5:
            stage.reset(client)
        else:
            client.socket.close()


def foreigners(stage: Stage) -> None:
    """HTTP, TLS, SSH and noise on Kafka's port."""
    for hello in (
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"POST /topics HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\xff" * 1000,
        pack(">i", -1),
        pack(">i", 0),
        pack(">i", 2**31 - 1),
        framed(b"\x00"),
    ):
        with stage.connect() as client:
            client.send(hello)
            stage.closes(client)


# Requests of absurd sizes


def huge_requests(stage: Stage) -> None:
    """Batches of 30 MB, and a request of more bytes than any may have."""
    _refused(stage, WIDE, batch([bytes(30 * MIB)]), ErrorCode.MESSAGE_TOO_LARGE, rounds=2)
    with stage.connect() as client:
        client.send(pack(">i", 200 * MIB) + pack(">hhih", PRODUCE, 8, 7, -1))
        stage.closes(client)


def tiny_batches(stage: Stage) -> None:
    """A Produce of 250,000 batches, and one of as many as are still taken, for partitions that are not there."""
    one = batch([b""], key=None)
    part = pack(">i", len(one)) + one
    head = pack(">hhi", -1, -1, 60_000) + pack(">i", 1) + text(WIDE)
    for count in (TINY_BATCHES, 20_000):
        parts = b"".join(pack(">i", index + 1000) + part for index in range(count))
        with stage.connect() as client:
            client.send(request(PRODUCE, 8, head + pack(">i", count) + parts))
            if count == TINY_BATCHES:
                stage.closes(client)
            else:
                codes = {one.code for one in client.produced().values()}
                stage.heard(codes.pop() if len(codes) == 1 else "several codes", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def absurd_arrays(stage: Stage) -> None:
    """Arrays of 2^31 - 1 elements, and of fewer than none, with large bodies behind them."""
    for api_key, version, head in (
        (METADATA, 1, b""),
        (PRODUCE, 8, pack(">hhi", -1, -1, 60_000)),
        (19, 4, b""),
        (2, 1, pack(">i", -1)),
        (8, 2, text("group") + pack(">i", -1) + text("") + pack(">q", -1)),
    ):
        for length in (2**31 - 1, -2, 1_000_000):
            with stage.connect() as client:
                client.send(request(api_key, version, head + pack(">i", length) + bytes(LARGE_BYTES)))
                stage.closes(client)


# State


def groups(stage: Stage) -> None:
    """Joins with metadata of 10 MiB, joins that are never finished, and members that vanish."""
    group = f"hostile-{stage.rng.randrange(50)}"
    with stage.connect() as client:
        code, _, _ = client.join(join_body(group, metadata=b"x" * (10 * MIB)))
        stage.heard(code, ErrorCode.INVALID_REQUEST)
        for _ in range(ROUNDS):
            code, _, _ = client.join(join_body(group, session_ms=SHORTEST_SESSION_MS))
            stage.heard(code, ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED)
            stage.heard(client.beat(group, 1, "nobody"), ErrorCode.UNKNOWN_MEMBER_ID)
            code, _, _ = client.join(join_body(group, session_ms=1))
            stage.heard(code, ErrorCode.INVALID_SESSION_TIMEOUT)
        stage.heard(client.commit(group, WIDE, metadata=b"x" * 32_767), *_COMMIT_REFUSALS)
    crowd = f"crowd-{stage.rng.randrange(10)}"
    metadata = SUBSCRIPTION + bytes(50_000)
    clients: list[GroupFrames] = []
    for _ in range(ROUNDS):
        client = stage.connect()
        clients.append(client)
        given = client.join(join_body(crowd, metadata=metadata, session_ms=SHORTEST_SESSION_MS))[2]
        client.send(request(11, 5, join_body(crowd, given, metadata=metadata, session_ms=SHORTEST_SESSION_MS)))
        stage.heard(SENT, SENT)
    for client in clients:
        stage.reset(client)


_COMMIT_REFUSALS = (ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNKNOWN_MEMBER_ID)


def patterns(stage: Stage) -> None:
    """KIP-848 members with regular expressions: harmless, dear and broken ones; most leave, some vanish."""
    with stage.connect() as client:
        for number in range(ROUNDS):
            group, member = f"regex-{stage.rng.randrange(100)}", f"member-{stage.rng.randrange(10**12)}"
            regex = stage.rng.choice([f"topic-{number}.*", "(.{0,60}){0,10}b", "(a|b|c)*d{0,500}", "[", "(?P<x"])
            code = frames.member_beat(client, group, member, 0, regex=regex)
            stage.heard(code, ErrorCode.NONE, ErrorCode.INVALID_REGULAR_EXPRESSION)
            if code == ErrorCode.NONE and number:
                stage.heard(frames.member_beat(client, group, member, frames.LEAVING_EPOCH), ErrorCode.NONE)


def topics(stage: Stage) -> None:
    """Topics that come, are written to, and go."""
    names = [f"brief-{stage.rng.randrange(10**12)}" for _ in range(10)]
    with stage.connect() as client:
        for name, code in client.try_create(*(new_topic(name, partitions=5) for name in names)):
            stage.heard(code, ErrorCode.NONE)
            assert name is not None
            for answer in client.produce(name, {index: batch() for index in range(5)}).values():
                stage.heard(answer.code, ErrorCode.NONE)
        for code in frames.delete_topics(client, *names):
            stage.heard(code, ErrorCode.NONE)
        stage.heard(client.produce(names[0], {0: batch()})[0].code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for bad in ("", "..", "a/b", "x" * 250):
            stage.heard(client.try_create(new_topic(bad))[0][1], ErrorCode.INVALID_TOPIC_EXCEPTION)


def fetch_sessions(stage: Stage) -> None:
    """Fetch sessions that nobody ever uses again."""
    with stage.connect() as client:
        for _ in range(ROUNDS):
            client.send(frames.fetch_session(NARROW, 1))
            stage.heard(frames.begun_session(client)[0], ErrorCode.NONE)


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "too-large": too_large,
        "wrong-crc": wrong_crc,
        "no-keys": no_keys,
        "lying-codecs": lying_codecs,
        "bombs": bombs,
        "unknown-places": unknown_places,
        "wrong-sequences": wrong_sequences,
        "old-messages": old_messages,
        "unacknowledged": unacknowledged,
        "resets": resets,
        "half-sent": half_sent,
        "slow-senders": slow_senders,
        "slow-readers": slow_readers,
        "parked-fetches": parked_fetches,
        "storms": storms,
        "foreigners": foreigners,
        "huge-requests": huge_requests,
        "tiny-batches": tiny_batches,
        "absurd-arrays": absurd_arrays,
        "groups": groups,
        "patterns": patterns,
        "topics": topics,
        "fetch-sessions": fetch_sessions,
    }
)
"""All kinds by the names that the report, and `--without`, use."""
