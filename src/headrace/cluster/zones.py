"""Which zone a client stands in. Kafka's Metadata request has no field for it, so clients say it in their client id.

    client.id=orders;zone=eu-1a         zone=eu-1a         zone=eu-1a;orders

The rule: a client id is a list of parts between semicolons; the first part `zone=NAME` with a name of 1 to 64
printable characters counts, spaces around part and name do not. `zone=` is written in small letters; the name is
compared with `broker.rack` letter by letter. Frameworks that put something behind a client id (`-0`,
`-StreamThread-1-consumer`) would change the name of a zone at its end: put the zone first there, or a semicolon
behind it.

Whatever a client writes can do no harm: an id that names no zone, or one without brokers, is sent to all brokers.
"""

import re

MAX_ZONE_CHARS = 64

_ZONE = re.compile(rf"(?:\A|;) *zone=([^;]{{1,{MAX_ZONE_CHARS}}})(?=;|\Z)")


def zone_of(client_id: str | None) -> str | None:
    """Return the zone that a client id names, or `None`."""
    if client_id is None or "zone=" not in client_id:
        return None
    for named in _ZONE.finditer(client_id):
        zone = named.group(1).strip(" ")
        if zone and zone.isprintable():
            return zone
    return None
