"""An OffsetCommit request that is encoded once and then patched, so that the load costs little beside the broker.

Correlation id and offsets are all that changes from one commit to the next. The offsets do grow: a coordinator that
notices that nothing changed would have nothing to do. Version 9 names topics, as version 10 names their ids.
"""

import struct
from collections.abc import Sequence

from headrace.model.error_codes import ErrorCode
from headrace.wire.headers import SIZE_BYTES, encode_request, encode_response, parse_response
from headrace.wire.messages import OffsetCommitRequest, OffsetCommitResponse

KEY = 8
VERSION = 9

_OFFSET = struct.Struct(">q")
_CORRELATION = struct.Struct(">i")
_CORRELATION_AT = SIZE_BYTES + 4  # API key and version come first
_RESPONSE_BODY_AT = _CORRELATION.size
# Bytes that occur nowhere else in the request: no name is not UTF-8.
_MARK = 0x7FFE_FDFC_FBFA_F9F8


class CommitFrame:
    """The commits of one member for partitions of one topic."""

    def __init__(
        self, *, client_id: str, group_id: str, member_id: str, epoch: int, topic: str, partitions: Sequence[int]
    ) -> None:
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=_MARK, committed_metadata=""
                        )
                        for partition in partitions
                    ],
                )
            ],
        )
        self._frame = bytearray(encode_request(KEY, VERSION, 0, client_id, request))
        self._offsets_at = _places(bytes(self._frame), _OFFSET.pack(_MARK))
        assert len(self._offsets_at) == len(partitions), "the mark stands for every offset and for nothing else"
        self._accepted = _accepted_body(topic, partitions)

    def encode(self, correlation_id: int, offset: int) -> bytes:
        """Return the frame that commits this offset for all partitions."""
        _CORRELATION.pack_into(self._frame, _CORRELATION_AT, correlation_id)
        for place in self._offsets_at:
            _OFFSET.pack_into(self._frame, place, offset)
        return bytes(self._frame)

    def first_error(self, response: bytes) -> ErrorCode:
        """Return the first error of an answer (a frame without its size), or `NONE` if all was committed."""
        if response[_RESPONSE_BODY_AT:] == self._accepted:
            return ErrorCode.NONE
        _, answer = parse_response(KEY, VERSION, memoryview(response))
        codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
        return ErrorCode(next((code for code in codes if code), ErrorCode.NONE))


def _accepted_body(topic: str, partitions: Sequence[int]) -> bytes:
    response = OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=partition)
                    for partition in partitions
                ],
            )
        ]
    )
    frame = b"".join(encode_response(KEY, VERSION, 0, response))
    return frame[SIZE_BYTES + _RESPONSE_BODY_AT :]


def _places(data: bytes, part: bytes) -> list[int]:
    found = []
    place = data.find(part)
    while place >= 0:
        found.append(place)
        place = data.find(part, place + len(part))
    return found
