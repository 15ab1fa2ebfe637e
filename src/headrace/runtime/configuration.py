"""How a setting is declared, and how its value is found in the layers above its default.

A tree of settings is a frozen dataclass of groups; a group is a frozen dataclass whose fields are
`Annotated[type, Setting(...)]`. The layers are, from weak to strong: default, TOML file, environment, command line.

Must stay true:
- Every value remembers where it came from, and every error names that place.
- A key that nobody declared is an error, never silence: a typo must not become a default.
- A password inside a URL is never shown, neither in a listing nor in an error.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from headrace.errors import Invalid
from headrace.runtime.setting_kinds import Kind
from headrace.runtime.text import one_line

T = TypeVar("T")

VARIABLE_PREFIX = "HEADRACE_"
MAX_SHOWN_CHARS = 200

_PLACEHOLDER = re.compile(r"\{([a-z.]+)\}")


@dataclass(frozen=True, slots=True)
class Setting:
    """What is declared of one setting: `Setting(key, default, kind, "One sentence.", unit=...)`.

    A dynamic one can change while the process runs: who declares it so sees to it that all who use it follow.

    A text default may name an earlier setting in braces, such as `{data.dir}`, and then follows it; a value that
    somebody gave is taken as it is.
    """

    key: str
    default: object
    kind: Kind
    sentence: str
    unit: str = ""
    is_dynamic: bool = False

    @property
    def variable(self) -> str:
        """Return the environment variable that sets it."""
        return VARIABLE_PREFIX + self.key.upper().replace(".", "_")

    @property
    def default_text(self) -> str:
        """Return the default as a person would write it."""
        return self.default if isinstance(self.default, str) else self.kind.show(self.default)


@dataclass(frozen=True, slots=True)
class Group:
    """One group of the tree: its field name in the tree, its class, and its settings by field name."""

    name: str
    shape: type[Any]
    settings: Mapping[str, Setting]

    @property
    def sentence(self) -> str:
        """Return the first line of the group's docstring."""
        return (self.shape.__doc__ or "").strip().splitlines()[0]


@dataclass(frozen=True, slots=True)
class Given:
    """A raw value and the place where somebody gave it."""

    raw: object
    source: str


@dataclass(frozen=True, slots=True)
class Origin:
    """A setting's value as it holds now, and where it came from."""

    setting: Setting
    value: object
    source: str

    @property
    def shown(self) -> str:
        """Return the value as text that may be printed: without passwords."""
        return self.setting.kind.show(self.value)


@dataclass(frozen=True, slots=True)
class Configuration(Generic[T]):
    """A resolved tree, and where each of its values came from."""

    tree: T
    origins: Sequence[Origin]


def groups_of(tree: type[Any]) -> list[Group]:
    """Return the groups of a settings tree, in the order of their declaration."""
    hints = get_type_hints(tree)
    return [Group(f.name, hints[f.name], _settings_of(hints[f.name])) for f in dataclasses.fields(tree)]


def _settings_of(shape: type[Any]) -> dict[str, Setting]:
    hints = get_type_hints(shape, include_extras=True)
    return {f.name: hints[f.name].__metadata__[0] for f in dataclasses.fields(shape)}


def read_file(path: Path) -> dict[str, Given]:
    """Read a TOML file. `num.partitions = 3`, a `[num]` table and `"num.partitions" = 3` all mean the same."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"cannot read the settings file {path}: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise Invalid(f"the settings file {path} is not TOML: {error}") from error
    found: dict[str, Given] = {}
    for key, raw in _flatten(document, ""):
        _add(found, key, Given(raw, f"file {path}"))
    return found


def _flatten(table: Mapping[str, object], prefix: str) -> Iterable[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def read_environment(
    environment: Mapping[str, str], settings: Collection[Setting], *, not_settings: Collection[str] = ()
) -> dict[str, Given]:
    """Read the `HEADRACE_*` variables. Those in `not_settings` belong to somebody else and are passed over."""
    by_variable = {setting.variable: setting for setting in settings}
    found: dict[str, Given] = {}
    for variable, raw in sorted(environment.items()):
        if not variable.startswith(VARIABLE_PREFIX) or variable in not_settings:
            continue
        setting = by_variable.get(variable)
        if setting is None:
            nearest = _nearest(variable, by_variable)
            raise Invalid(f"no setting belongs to the variable {_clip(variable)}; did you mean {nearest}?")
        found[setting.key] = Given(raw, f"variable {variable}")
    return found


def read_arguments(pairs: Iterable[str], options: Mapping[str, tuple[str, str]]) -> dict[str, Given]:
    """Read the command line: `--set` pairs, and options of their own as key → (option, value)."""
    found = {key: Given(raw, option) for key, (option, raw) in options.items()}
    for pair in pairs:
        key, equals, raw = pair.partition("=")
        if not equals or not key.strip():
            raise Invalid(f"--set takes key=value, not {_clip(key)!r}")
        _add(found, key.strip(), Given(raw, "--set"))
    return found


def _add(found: dict[str, Given], key: str, given: Given) -> None:
    if key in found:
        raise Invalid(f"{_clip(key)} is given twice: {found[key].source} and {given.source}; keep one")
    found[key] = given


def resolve(tree: type[T], layers: Iterable[Mapping[str, Given]]) -> Configuration[T]:
    """Build the tree from its defaults and the layers, the strongest last. Raises `Invalid`."""
    groups = groups_of(tree)
    settings = {setting.key: setting for group in groups for setting in group.settings.values()}
    given: dict[str, Given] = {}
    for layer in layers:
        for key, value in layer.items():
            if key not in settings:
                raise Invalid(
                    f"no setting is called {_clip(key)} ({value.source}); did you mean {_nearest(key, settings)}?"
                )
            given[key] = value
    origins: dict[str, Origin] = {}
    for key, setting in settings.items():
        origins[key] = _parse(setting, given[key]) if key in given else _default(setting, origins)
    built = {
        group.name: group.shape(**{name: origins[setting.key].value for name, setting in group.settings.items()})
        for group in groups
    }
    return Configuration(tree(**built), list(origins.values()))


def overlaid(tree: T, given: Mapping[str, Given]) -> T:
    """Return a tree with other values for some of its settings. Raises `Invalid`."""
    groups: dict[str, object] = {}
    for group in groups_of(type(tree)):
        values = {
            name: _parse(setting, given[setting.key]).value
            for name, setting in group.settings.items()
            if setting.key in given
        }
        if values:
            groups[group.name] = dataclasses.replace(getattr(tree, group.name), **values)
    return dataclasses.replace(tree, **groups) if groups else tree  # type: ignore[type-var]


def _parse(setting: Setting, given: Given) -> Origin:
    try:
        return Origin(setting, setting.kind.parse(given.raw), given.source)
    except ValueError:
        shown = _clip(setting.kind.show(given.raw))
        # The raw value stays out of the chain of causes: it may be a URL with a password in it.
        raise Invalid(f"{setting.key} is {shown!r} ({given.source}); expected {setting.kind.expected}") from None


def _default(setting: Setting, earlier: Mapping[str, Origin]) -> Origin:
    raw = setting.default
    if isinstance(raw, str):
        raw = _PLACEHOLDER.sub(lambda found: str(earlier[found[1]].value), raw)
    return Origin(setting, setting.kind.parse(raw), "default")


def _nearest(name: str, known: Iterable[str]) -> str:
    # People write `num_partitions` and `Num.Partitions`: compare what is left when case and punctuation are gone.
    plain = {_plain(candidate): candidate for candidate in known}
    return plain[difflib.get_close_matches(_plain(name[:MAX_SHOWN_CHARS]), plain, n=1, cutoff=0.0)[0]]


def _plain(name: str) -> str:
    return name.lower().replace("_", ".").replace("-", ".")


def _clip(text: str) -> str:
    return one_line(text, max_chars=MAX_SHOWN_CHARS)
