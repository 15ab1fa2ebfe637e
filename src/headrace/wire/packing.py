"""Pack runs of fixed-size values with arrays of numbers among them, in one call per run.

A layout is a `struct` format in which every array stands as `B*i` (a compact count, then numbers) or `i*i`. How many
numbers there are is known only when a message is written, so a packer is made per combination of counts, and kept.
"""

import re
from collections.abc import Callable
from struct import Struct

from headrace.wire.varint import ONE_BYTE_END, varint

Pack = Callable[..., bytes]

# Clusters have few shapes (replicas per partition); what is rarer is made anew each time.
MAX_KEPT_SHAPES = 256
MAX_KEPT_ELEMENTS = 64

_ITEM = re.compile(r"(?P<count>[Bi])\*(?P<number>\w)|(?P<plain>\d*[a-zA-Z?])")


class Packers(dict[tuple[int, ...], Pack]):
    """The packers of one layout by the lengths of its arrays."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self._layout = layout

    def __missing__(self, lengths: tuple[int, ...]) -> Pack:
        pack = self._make(lengths)
        if len(self) < MAX_KEPT_SHAPES and sum(lengths) <= MAX_KEPT_ELEMENTS:
            self[lengths] = pack
        return pack

    def _make(self, lengths: tuple[int, ...]) -> Pack:
        parts, ahead = [">"], list(lengths)
        long_counts: list[int] = []
        place = 0
        for item in _ITEM.finditer(self._layout):
            if item["plain"]:
                parts.append(item["plain"])
                place += 1
                continue
            length = ahead.pop(0)
            if item["count"] == "B" and length + 1 >= ONE_BYTE_END:
                parts.append(f"{len(varint(length + 1))}s")
                long_counts.append(place)
            else:
                parts.append(item["count"])
            parts.append(f"{length}{item['number']}")
            place += 1 + length
        pack = Struct("".join(parts)).pack
        return _with_varints(pack, long_counts) if long_counts else pack


def _with_varints(pack: Pack, places: list[int]) -> Pack:
    def pack_long(*values: object) -> bytes:
        changed = list(values)
        for place in places:
            changed[place] = varint(int(changed[place]))  # type: ignore[call-overload]
        return pack(*changed)

    return pack_long
