"""What verifying the log has found, for people and for programs.

Must stay true: every damage is counted; only so many are kept, so that a log that lost its whole object store still
makes a report that fits into memory.
"""

from dataclasses import dataclass, field

import msgspec

from headrace.fetch.damage import Damage

MAX_DAMAGES = 100_000
"""How many damages are kept; more are only counted."""


class LogDamage(msgspec.Struct, frozen=True, kw_only=True):
    """A damage and where it is. Without a topic it concerns the domain's commit records; without a key, the index."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    object_key: str
    start_byte: int
    size_bytes: int
    why: str


@dataclass(slots=True, kw_only=True)
class LogReport:
    """What is true of the log. It grows while the walk goes on."""

    partitions: int = 0
    entries: int = 0
    table_entries: int = 0
    read_bytes: int = 0
    count: int = 0
    _damages: list[LogDamage] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether everything that the index names is there, as it was written."""
        return self.count == 0

    @property
    def uncounted(self) -> int:
        """How many damages are counted and not kept."""
        return self.count - len(self._damages)

    def add(self, damage: Damage, *, topic: str = "", partition: int = -1) -> None:
        """Take note of a damage."""
        self.count += 1
        if len(self._damages) < MAX_DAMAGES:
            self._damages.append(
                LogDamage(
                    topic=topic,
                    partition=partition,
                    start_offset=damage.start_offset,
                    end_offset=damage.end_offset,
                    object_key=damage.object_key,
                    start_byte=damage.start_byte,
                    size_bytes=damage.size_bytes,
                    why=damage.why,
                )
            )

    def damages(self) -> list[LogDamage]:
        """Return what was found in the order of topics and offsets; neighbours with one cause are one."""
        joined: list[LogDamage] = []
        for damage in sorted(self._damages, key=lambda one: (one.topic, one.partition, one.start_offset)):
            if joined and _continues(joined[-1], damage):
                end_byte = max(joined[-1].start_byte + joined[-1].size_bytes, damage.start_byte + damage.size_bytes)
                start_byte = min(joined[-1].start_byte, damage.start_byte)
                joined[-1] = msgspec.structs.replace(
                    joined[-1], end_offset=damage.end_offset, start_byte=start_byte, size_bytes=end_byte - start_byte
                )
            else:
                joined.append(damage)
        return joined


def _continues(last: LogDamage, damage: LogDamage) -> bool:
    return (
        bool(damage.object_key)
        and last.end_offset == damage.start_offset
        and (last.topic, last.partition, last.object_key, last.why)
        == (damage.topic, damage.partition, damage.object_key, damage.why)
    )
