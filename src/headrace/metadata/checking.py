"""What every engine checks before it locks, and again before it writes: keys, units, ranges, limits.

Must stay true: a transaction that passes touches nothing outside the units it named, so two transactions
that name different units never meet.

This is on the path of every commit. The usual case, some hundred keys of one domain, is settled by the
smallest and the largest key: whatever sorts between two keys with a common prefix has that prefix.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from headrace.errors import Invalid
from headrace.metadata import keys
from headrace.metadata.port import MAX_KEY_BYTES, MAX_RANGE_LIMIT, Decision, Key, Range, Reads, Unit

_SEPARATE = {keys.REGISTRY: (keys.ROOT + "d/", keys.LEASES, keys.SESSIONS)}
"""Prefixes inside the registry whose keys belong to units of their own; a domain has `groups/`."""

_PRINTABLE = bytes(range(0x20, 0x7F))


def check_reads(units: Sequence[Unit], reads: Reads) -> None:
    """Raise `Invalid` unless every key and range to be read lies inside the units."""
    if not units:
        raise Invalid("a transaction names at least one unit")
    if reads.keys:
        _check_keys(units, reads.keys)
    for range_ in reads.ranges:
        check_range(range_)
        unit = _unit_of_range(range_)
        if unit not in units:
            raise _outside(range_.start, unit, units)


def check_range(range_: Range) -> None:
    """Raise `Invalid` unless the range has keys at both ends and a limit."""
    # A range that goes on behind the longest key of all begins one space further.
    keys.check(Key(range_.start.removesuffix(" ")))
    if len(range_.end) > MAX_KEY_BYTES or not range_.end.isascii() or not range_.end.isprintable():
        raise Invalid(f"not the end of a range of metadata keys: {range_.end[:80]!r}")
    if not 0 < range_.limit <= MAX_RANGE_LIMIT:
        raise Invalid(f"a range reads 1 to {MAX_RANGE_LIMIT} keys, not {range_.limit}: read it in pieces")


def check_decision(units: Sequence[Unit], decision: Decision[Any], *, has_session: bool) -> None:
    """Raise `Invalid` unless every write lies inside the units and no key is written twice."""
    puts, ephemerals, deletes = decision.puts, decision.ephemerals, decision.deletes
    if puts:
        _check_writes(units, puts)
    if ephemerals:
        if not has_session:
            raise Invalid(f"ephemeral keys need a session: {next(iter(ephemerals))}")
        _check_writes(units, ephemerals)
    if deletes:
        _check_writes(units, deletes)
    if ephemerals or deletes:
        _check_disjoint(puts, ephemerals, deletes)


def changed_units(units: Sequence[Unit], decision: Decision[Any]) -> list[Unit]:
    """Return the units that a checked decision writes to, sorted; none if it writes nothing."""
    if not (decision.puts or decision.ephemerals or decision.deletes):
        return []
    if len(units) == 1:
        return [units[0]]
    written = (*decision.puts, *decision.ephemerals, *decision.deletes)
    return sorted({keys.unit_of(key) for key in written})


def _check_writes(units: Sequence[Unit], written: Collection[Key]) -> None:
    _check_keys(units, written)
    for unit in units:
        if unit.startswith(keys.SESSIONS) and any(key.startswith(keys.SESSIONS) for key in written):
            raise Invalid(f"{unit} is written by open, renew and end of a session only")


def _check_keys(units: Sequence[Unit], named: Collection[Key]) -> None:
    joined = "".join(named)
    # `isprintable` would cost five times as much as this.
    if joined.encode("utf-8", "replace").translate(None, _PRINTABLE) or max(map(len, named)) > MAX_KEY_BYTES:
        for key in named:
            keys.check(key)
    unit = units[0]
    is_one_domain = len(units) == 1 and _is_domain(unit) and "/groups/" not in joined
    if is_one_domain and min(named).startswith(unit) and max(named).startswith(unit):
        return
    for key in named:
        keys.check(key)
        if keys.unit_of(key) not in units:
            raise _outside(key, keys.unit_of(key), units)


@lru_cache(maxsize=1024)
def _is_domain(unit: Unit) -> bool:
    return unit.startswith(keys.ROOT + "d/") and keys.unit_of(Key(unit)) == unit and "/groups/" not in unit


def _unit_of_range(range_: Range) -> Unit:
    """Return the unit that every possible key of the range belongs to, or raise `Invalid`."""
    start, end = range_.start, range_.end
    unit = keys.unit_of(start)
    inside = unit if unit.endswith("/") else unit + "/"
    # "0" follows "/": the end of a prefix range may fall just behind the unit.
    is_inside = inside <= start and end <= inside[:-1] + "0"
    separate = (unit + "groups/",) if _is_domain(unit) else _SEPARATE.get(unit, ())
    if not is_inside or any(start < prefix[:-1] + "0" and end > prefix for prefix in separate):
        raise Invalid(f"the range from {start} to {end} crosses lock units: read it unit by unit")
    return unit


def _check_disjoint(puts: Mapping[Key, bytes], ephemerals: Mapping[Key, bytes], deletes: Sequence[Key]) -> None:
    twice = (puts.keys() & ephemerals.keys()) | ({*puts, *ephemerals} & {*deletes})
    if twice:
        raise Invalid(f"one decision writes {min(twice)} twice: put it or delete it, plain or ephemeral")


def _outside(key: Key, unit: Unit, units: Sequence[Unit]) -> Invalid:
    return Invalid(
        f"{key} belongs to the unit {unit}, which the transaction does not name: it names {', '.join(units)}"
    )
