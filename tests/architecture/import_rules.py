"""The import rules of DESIGN §5, as a function from a source tree to its violations.

Imports point down the layers, or sideways inside one; sideways never in a circle. All imports count: those inside
functions, those for type checkers, and relative ones.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = "headrace"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"model", "runtime"}),
    frozenset({"records", "wire"}),
    frozenset({"wal", "tables", "metadata", "objects"}),
    frozenset({"index"}),
    frozenset({"topics", "cluster"}),
    frozenset({"produce", "fetch", "groups", "pipeline", "gc"}),
    frozenset({"txn", "queues", "registry"}),
    frozenset({"handlers"}),
    frozenset({"server", "http_api"}),
    frozenset({"broker"}),
    frozenset({"cli", "pyspark_headrace"}),
)
"""From the bottom to the top. `errors`, `settings` and `testing` have rules of their own."""

IMPORTED_BY_ONLY: Mapping[str, frozenset[str]] = {
    "wire": frozenset({"handlers", "server"}),
    # Settings are data a person may tune; components get plain values.
    "settings": frozenset({"broker", "cli"}),
    # The harness may lean on everything, so nothing may lean on the harness.
    "testing": frozenset(),
}

IMPORTS_ONLY: Mapping[str, frozenset[str]] = {
    "errors": frozenset(),
    "model": frozenset({"errors"}),
    "runtime": frozenset({"errors"}),
    "settings": frozenset({"errors", "runtime"}),
}

NEVER: Mapping[str, frozenset[str]] = {
    "http_api": frozenset({"wire", "handlers"}),
    "metadata": frozenset({"objects"}),
    "wal": frozenset({"metadata"}),
    # The index is rules above the metadata port; bytes are somebody else's business.
    "index": frozenset({"objects", "wal", "tables"}),
}

HOMES: Mapping[str, tuple[str, ...]] = {
    "antlr4": ("tables/typed/",),
    "apsw": ("metadata/",),
    "asyncpg": ("metadata/",),
    "confluent_kafka": ("cli/client/",),
    "fastavro": ("tables/typed/",),
    "google": ("tables/typed/",),
    "jsonschema_rs": ("tables/typed/",),
    "obstore": ("objects/",),
    "prometheus_client": ("runtime/metrics.py",),
    "proto_schema_parser": ("tables/typed/",),
    "pyarrow": ("records/arrow.py", "tables/", "pipeline/"),
    "pyiceberg": ("tables/iceberg/",),
    "pyspark": ("pipeline/spark/", "pyspark_headrace/"),
    "re2": ("groups/",),
    "requests": ("tables/iceberg/",),
    "rich": ("cli/",),
    "sqlalchemy": ("tables/iceberg/",),
    "starlette": ("http_api/",),
    "structlog": ("runtime/logs.py",),
    "typer": ("cli/",),
    "uvicorn": ("http_api/",),
    "uvloop": ("cli/",),
}
"""One SDK, one home: a library's types and errors stop where it lives."""

BESIDE = ("pyspark_headrace",)
"""Top-level modules of ours beside the package, because others look for them under that name: edges, like `cli`."""

EVERYBODY = frozenset({"errors"})
RANKS = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
KNOWN = frozenset(RANKS) | EVERYBODY | frozenset(IMPORTED_BY_ONLY)


@dataclass(frozen=True, slots=True)
class Import:
    """A file that imports a module. `path` is relative to the package."""

    path: str
    line: int
    module: str

    @property
    def part(self) -> str:
        """The part of the tree that imports: a package, or a module at the top."""
        return self.path.split("/", 1)[0].removesuffix(".py")

    @property
    def target(self) -> str | None:
        """The part of our own tree that is imported, if it is one."""
        root, _, rest = self.module.partition(".")
        return rest.split(".", 1)[0] or None if root == ROOT else None

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"


def violations(package: Path) -> list[str]:
    """Return one sentence for each rule that the package breaks, or an edge that lies beside it."""
    imports = [found for path in sorted(package.rglob("*.py")) for found in imports_of(package, path)]
    for edge in BESIDE:
        found_files = sorted((package.parent / edge).rglob("*.py"))
        imports += [found for path in found_files for found in imports_of(package.parent, path)]
    parts = sorted({found.part for found in imports} - {"__init__"})
    unknown = [
        f"{part} stands in no layer: say where it belongs in import_rules.py" for part in parts if part not in KNOWN
    ]
    broken = [f"{found}: {why}" for found in imports for why in _judge(found)]
    return unknown + broken + _circles(imports)


def imports_of(package: Path, path: Path) -> Iterator[Import]:
    """Find all imports of one file, with relative ones resolved."""
    relative = path.relative_to(package)
    here = [ROOT, *relative.parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(relative.as_posix(), node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from headrace import wal` names the part only in its last word.
            names = [f"{module}.{alias.name}" for alias in node.names] if module == ROOT else [module]
            for name in names:
                yield Import(relative.as_posix(), node.lineno, name)


def _judge(found: Import) -> Iterator[str]:
    if found.part == "testing":
        return
    yield from _judge_library(found)
    target = found.target
    if target is None or target == found.part or target not in KNOWN:
        return
    allowed = IMPORTS_ONLY.get(found.part)
    if allowed is not None and target not in allowed:
        yield f"{found.part} imports only {', '.join(sorted(allowed)) or 'nothing'}"
    elif target in IMPORTED_BY_ONLY and found.part not in IMPORTED_BY_ONLY[target]:
        yield f"{target} is imported by {', '.join(sorted(IMPORTED_BY_ONLY[target])) or 'nobody'} only"
    elif target in NEVER.get(found.part, ()):
        yield f"{found.part} never imports {target}"
    elif RANKS.get(target, -1) > RANKS.get(found.part, len(LAYERS)):
        yield f"{target} stands above {found.part}"


def _judge_library(found: Import) -> Iterator[str]:
    library = found.module.split(".", 1)[0]
    homes = HOMES.get(library)
    if homes is not None and not any(
        found.path == home or (home[-1] == "/" and found.path.startswith(home)) for home in homes
    ):
        yield f"{library} lives in {', '.join(homes)} only"


def _circles(imports: list[Import]) -> list[str]:
    """Find parts of one layer that import each other, directly or through others."""
    reaches: dict[str, set[str]] = {}
    for found in imports:
        target = found.target
        if target in RANKS and found.part in RANKS and target != found.part:
            reaches.setdefault(found.part, set()).add(target)
    circles = []
    for start in sorted(reaches):
        seen: set[str] = set()
        ahead = list(reaches[start])
        while ahead:
            part = ahead.pop()
            if part not in seen:
                seen.add(part)
                ahead.extend(reaches.get(part, ()))
        if start in seen:
            circles.append(f"{start} imports itself through others: break the circle")
    return circles
