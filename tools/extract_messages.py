"""Take the facts of the Kafka messages that we serve out of Apache Kafka's own definitions.

    python tools/extract_messages.py            fetch the jars with Maven, write the table and the stub
    python tools/extract_messages.py --stub     write the stub again from the table that is there

The jars hold one JSON file (with comments) per message. Of these only facts are kept: names, types, versions,
nullability, tags, defaults; prose stays out. The newest jar says how things are; the old one adds the fields of
versions that Kafka 4 no longer knows and old clients still send. What is written depends on the jars and on
`SERVED` only.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.wire.schema import snake_case

Json = dict[str, Any]
Range = tuple[int, int]

WIRE = Path(__file__).parents[1] / "src" / "headrace" / "wire"
TABLE = WIRE / "messages.json"
STUB = WIRE / "messages.pyi"

NEW_RELEASE = "4.3.1"
OLD_RELEASE = "3.9.1"
NO_END = 32767

# Name, first and last version. Where Kafka 4 begins later, the rest is for clients as old as 0.10.2.
SERVED: dict[str, Range] = {
    "Produce": (0, 13),
    "Fetch": (0, 18),
    "ListOffsets": (0, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (0, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "SaslHandshake": (0, 1),
    "ApiVersions": (0, 4),
    "CreateTopics": (0, 7),
    "DeleteTopics": (0, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "TxnOffsetCommit": (0, 5),
    "DescribeAcls": (1, 3),
    "CreateAcls": (1, 3),
    "DeleteAcls": (1, 3),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "AlterReplicaLogDirs": (1, 2),
    "DescribeLogDirs": (1, 5),
    "SaslAuthenticate": (0, 2),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "ElectLeaders": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "AlterPartitionReassignments": (0, 1),
    "ListPartitionReassignments": (0, 0),
    "OffsetDelete": (0, 0),
    "DescribeClientQuotas": (0, 1),
    "AlterClientQuotas": (0, 1),
    "DescribeUserScramCredentials": (0, 0),
    "AlterUserScramCredentials": (0, 0),
    "DescribeQuorum": (0, 2),
    "UpdateFeatures": (0, 2),
    "DescribeCluster": (0, 2),
    "DescribeProducers": (0, 0),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "ConsumerGroupHeartbeat": (0, 1),
    "ConsumerGroupDescribe": (0, 1),
    "GetTelemetrySubscriptions": (0, 0),
    "PushTelemetry": (0, 0),
    "ListConfigResources": (0, 1),
    "DescribeTopicPartitions": (0, 0),
    "ShareGroupHeartbeat": (1, 1),
    "ShareGroupDescribe": (1, 1),
    "ShareFetch": (1, 2),
    "ShareAcknowledge": (1, 2),
    "DescribeShareGroupOffsets": (0, 1),
    "AlterShareGroupOffsets": (0, 0),
    "DeleteShareGroupOffsets": (0, 0),
}
HEADERS: dict[str, Range] = {"RequestHeader": (0, 2), "ResponseHeader": (0, 1)}

INTEGERS = {"int8", "int16", "uint16", "int32", "uint32", "int64"}
PYTHON_TYPES = {
    **dict.fromkeys(INTEGERS, "int"),
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "uuid": "bytes",
    "records": "Records",
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the table of Kafka's messages and its stub.")
    parser.add_argument("--stub", action="store_true", help="only write the stub, from the table that is there")
    if not parser.parse_args(arguments).stub:
        with tempfile.TemporaryDirectory() as folder:
            new, old = (definitions(fetch_jar(release, Path(folder))) for release in (NEW_RELEASE, OLD_RELEASE))
        TABLE.write_text(render_table(build_table(new, old)), encoding="utf-8")
    STUB.write_text(render_stub(json.loads(TABLE.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


def fetch_jar(release: str, folder: Path) -> Path:
    """Let Maven bring the jar of the Kafka client."""
    artifact = f"org.apache.kafka:kafka-clients:{release}"
    subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"], check=True
    )
    return folder / f"kafka-clients-{release}.jar"


def definitions(jar: Path) -> dict[str, Json]:
    """Return the message definitions of a jar by name."""
    with zipfile.ZipFile(jar) as archive:
        files = [name for name in archive.namelist() if re.fullmatch(r"common/message/\w+\.json", name)]
        found = [json.loads(re.sub(r"(?m)^\s*//.*$", "", archive.read(name).decode())) for name in sorted(files)]
    return {message["name"]: message for message in found}


def build_table(new: dict[str, Json], old: dict[str, Json]) -> Json:
    """Return the table: the served APIs in the order of their keys, and the headers."""
    apis = []
    for name, served in sorted(SERVED.items(), key=lambda item: int(new[item[0] + "Request"]["apiKey"])):
        request, response = new[name + "Request"], new[name + "Response"]
        _check_served(request, old.get(name + "Request"), served)
        if request["flexibleVersions"] != response["flexibleVersions"]:
            raise SystemExit(f"{name}: request and response become flexible at different versions")
        api: Json = {"key": request["apiKey"], "name": name, "versions": list(served)}
        first_flexible = _range(request["flexibleVersions"])[0]
        if first_flexible <= served[1]:
            api["flexible"] = first_flexible
        for kind, message in (("request", request), ("response", response)):
            api[kind] = _message(message, old.get(message["name"]), served)
        apis.append(api)
    headers = []
    for name, served in HEADERS.items():
        header: Json = {"name": name, "versions": list(served), "flexible": _range(new[name]["flexibleVersions"])[0]}
        headers.append(header | _message(new[name], old[name], served))
    return {"apis": apis, "headers": headers}


def _check_served(request: Json, old: Json | None, served: Range) -> None:
    first, last = _range(request["validVersions"])
    if request.get("latestVersionUnstable"):
        last -= 1
    if old is not None:
        first = min(first, _range(old["validVersions"])[0])
    if served[0] < first or served[1] > last:
        raise SystemExit(f"{request['name']}: {served} is served, {(first, last)} is defined and stable")


def _message(new: Json, old: Json | None, served: Range) -> Json:
    begins_earlier = old is not None and served[0] < _range(new["validVersions"])[0]
    old_fields = old["fields"] if begins_earlier and old is not None else []
    message: Json = {"fields": _fields(new["fields"], old_fields, served)}
    common = [
        {"name": struct["name"], "fields": _fields(struct["fields"], [], served)}
        for struct in new.get("commonStructs", [])
    ]
    if common:
        message["structs"] = common
    return message


def _fields(new: list[Json], old: list[Json], served: Range) -> list[Json]:
    """Keep the facts of the fields that some served version has; old ones stand where they stood."""
    merged = list(new)
    known = {field["name"]: place for place, field in enumerate(merged)}
    for place, field in enumerate(old):
        if field["name"] not in known:
            before = old[place - 1]["name"] if place else None
            at = next((i + 1 for i, other in enumerate(merged) if other["name"] == before), 0)
            merged.insert(at, field)
            known[field["name"]] = at
    old_by_name = {field["name"]: field for field in old}
    kept = (_field(field, old_by_name.get(field["name"], {}), served) for field in merged)
    return [field for field in kept if field is not None]


def _field(field: Json, old: Json, served: Range) -> Json | None:
    versions = _within(field["versions"], served)
    if versions is None:
        return None
    facts: Json = {"name": field["name"], "type": field["type"]}
    if versions != served:
        facts["versions"] = list(versions)
    nullable = _within(field.get("nullableVersions", "none"), served)
    if nullable is not None:
        facts["nullable"] = list(nullable)
    if "tag" in field:
        if _within(field["taggedVersions"], served) != versions:
            raise SystemExit(f"{field['name']}: tagged in some of its versions only")
        facts["tag"] = field["tag"]
    if "default" in field:
        facts["default"] = _default(field["type"], field["default"])
    if field.get("flexibleVersions") == "none":
        facts["rigid"] = True
    if field.get("ignorable"):
        facts["ignorable"] = True
    if "fields" in field:
        facts["fields"] = _fields(field["fields"], old.get("fields", []), served)
    return facts


def _default(kind: str, text: Any) -> Any:
    if text == "null":
        return None
    if kind == "bool":
        return str(text).lower() == "true"
    if kind in INTEGERS:
        return int(str(text), 0)
    return text


def _range(text: str) -> Range:
    if text == "none":
        return (NO_END, -1)
    first, _, last = text.partition("-")
    if first.endswith("+"):
        return (int(first[:-1]), NO_END)
    return (int(first), int(last or first))


def _within(text: str, served: Range) -> Range | None:
    first, last = _range(text)
    first, last = max(first, served[0]), min(last, served[1])
    return (first, last) if first <= last else None


def render_table(table: Json) -> str:
    """Write the table with one field per line, so that a change shows as what it is."""
    lines: list[str] = []

    def fields_of(fields: list[Json], indent: str) -> None:
        for place, field in enumerate(fields):
            comma = "," if place < len(fields) - 1 else ""
            plain = {key: value for key, value in field.items() if key != "fields"}
            if "fields" not in field:
                lines.append(f"{indent}{_compact(plain)}{comma}")
                continue
            lines.append(f'{indent}{_compact(plain)[:-1]},"fields":[')
            fields_of(field["fields"], indent + " ")
            lines.append(f"{indent}]}}{comma}")

    def message_of(message: Json, close: str) -> None:
        fields_of(message["fields"], "  ")
        for struct in message.get("structs", []):
            is_first, is_last = struct is message["structs"][0], struct is message["structs"][-1]
            opening = '],"structs":[' if is_first else ""
            lines.append(f'  {opening}{{"name":{json.dumps(struct["name"])},"fields":[')
            fields_of(struct["fields"], "   ")
            lines.append("  ]}" if is_last else "  ]},")
        lines.append(f" ]{close}")

    lines.append('{"apis":[')
    for place, api in enumerate(table["apis"]):
        head = {key: value for key, value in api.items() if key not in ("request", "response")}
        lines.append(f'{_compact(head)[:-1]},"request":{{"fields":[')
        message_of(api["request"], '},"response":{"fields":[')
        message_of(api["response"], "}}" + ("," if place < len(table["apis"]) - 1 else ""))
    lines.append('],"headers":[')
    for place, header in enumerate(table["headers"]):
        head = {key: value for key, value in header.items() if key != "fields"}
        lines.append(f'{_compact(head)[:-1]},"fields":[')
        message_of(header, "}" + ("," if place < len(table["headers"]) - 1 else ""))
    lines.append("]}")
    text = "\n".join(lines) + "\n"
    if json.loads(text) != table:
        raise SystemExit("the table does not read back as it was built: mend render_table")
    return text


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


def render_stub(table: Json) -> str:
    """Write what a type checker must know of the classes that `messages.py` makes out of the table."""
    lines = [
        '"""The messages as a type checker sees them. Written by tools/extract_messages.py: do not edit."""',
        "",
        "from collections.abc import Mapping",
        "from typing import Any",
        "",
        "from msgspec import Struct",
        "",
        "from headrace.wire.schema import Field",
        "",
        "Buffer = bytes | bytearray | memoryview",
        "Records = Buffer | list[Buffer]",
        "",
        "ZERO_UUID: bytes",
        "",
        "class Message(Struct, frozen=True, kw_only=True): ...",
        "",
        "def message_class(name: str) -> type[Message]: ...",
        "def default_of(field: Field, structs: Mapping[str, Any]) -> Any: ...",
    ]
    for api in table["apis"]:
        for kind in ("request", "response"):
            lines += ["", *_stub_class(api["name"] + kind.capitalize(), api[kind])]
    for header in table["headers"]:
        lines += ["", *_stub_class(header["name"], header)]
    return "\n".join(lines) + "\n"


def _stub_class(name: str, message: Json) -> list[str]:
    structs: dict[str, list[Json]] = {}
    collect_structs(message, structs)
    lines = [f"class {name}(Message, frozen=True, kw_only=True):"]
    for struct, fields in structs.items():
        lines += [f"    class {struct}(Message, frozen=True, kw_only=True):", *_stub_fields(fields, name, "        ")]
        lines.append("")
    body = _stub_fields(message["fields"], name, "    ")
    if body == ["    ..."] and not structs:
        return [lines[0] + " ..."]
    return lines + body


def collect_structs(message: Json, structs: dict[str, list[Json]]) -> None:
    """Gather the structs of a message by name, inner ones first."""

    def walk(fields: list[Json]) -> None:
        for field in fields:
            if "fields" in field:
                walk(field["fields"])
                structs[field["type"].removeprefix("[]")] = field["fields"]

    for struct in message.get("structs", []):
        walk(struct["fields"])
        structs[struct["name"]] = struct["fields"]
    walk(message["fields"])


def _stub_fields(fields: list[Json], scope: str, indent: str) -> list[str]:
    return [f"{indent}{snake_case(field['name'])}: {_annotation(field, scope)} = ..." for field in fields] or [
        indent + "..."
    ]


def _annotation(field: Json, scope: str) -> str:
    element = field["type"].removeprefix("[]")
    python = PYTHON_TYPES.get(element) or f"{scope}.{element}"
    if field["type"].startswith("[]"):
        python = f"list[{python}]"
    is_nullable = "nullable" in field or element == "records" or field.get("default", 0) is None
    return f"{python} | None" if is_nullable else python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
