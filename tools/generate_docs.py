"""Write the reference pages that are generated from the code (`make docs`); a test fails when one is stale."""

from pathlib import Path

from headrace.broker.dynamic_configs import THROTTLES, fixed_facts
from headrace.cli.options import OPTION_OF_KEY
from headrace.handlers.api import Api
from headrace.handlers.table import TABLE
from headrace.runtime.configuration import Group, Setting, groups_of
from headrace.settings import VARIABLES_THAT_ARE_NOT_SETTINGS, Settings, all_settings, load_settings
from headrace.topics.config_table import TOPIC_CONFIGS
from headrace.topics.configs import TOPIC_CONFIG_OF
from tools.limits_page import limits_page

PROJECT = Path(__file__).parents[1]

SETTINGS_HEAD = """\
# Settings

<!-- Generated from src/headrace/settings.py by `make docs`. Change it there. -->

A setting is found, from weak to strong, in its default, in a TOML file (`--config FILE`), in the environment, and on
the command line (`--set key=value`, or an option of its own). `headrace settings` prints what holds now, and why.

In TOML a key may be written as it is (`num.partitions = 3`), as a table (`[num]`, `partitions = 3`) or in quotes
(`"num.partitions" = 3`). Its environment variable is `HEADRACE_` and the key in capitals, with `_` for `.`:
`HEADRACE_NUM_PARTITIONS=3`. A key that does not exist is an error. A default such as `sqlite:{data.dir}/meta.db`
follows the setting in braces.

A *dynamic* setting can also change while brokers run: [broker-configs.md](broker-configs.md) says how.
"""

_BYTES_PER_STEP = 1024
_MS_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def settings_page() -> str:
    """Return the text of docs/reference/settings.md."""
    groups = "\n".join(_section(group) for group in groups_of(Settings))
    return f"{SETTINGS_HEAD}\n{groups}\n{_not_settings()}"


def _section(group: Group) -> str:
    lines = [
        f"## {group.name}",
        "",
        group.sentence,
        "",
        "| key | default | allowed | what for |",
        "|---|---|---|---|",
    ]
    lines += [_row(setting) for setting in group.settings.values()]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    option = f" (`{OPTION_OF_KEY[setting.key]}`)" if setting.key in OPTION_OF_KEY else ""
    dynamic = " *dynamic*" if setting.is_dynamic else ""
    return (
        f"| `{setting.key}`{option}{dynamic} | {_default(setting)} | {setting.kind.expected} | {setting.sentence} |"
    )


def _default(setting: Setting) -> str:
    if not setting.default_text:
        return "nothing"
    readable = _readable(setting.default, setting.unit) if isinstance(setting.default, int) else ""
    return f"`{setting.default_text}`{readable}"


def _readable(value: int, unit: str) -> str:
    """Return a large round number of bytes or milliseconds as people say it."""
    if unit == "bytes":
        for size, name in ((_BYTES_PER_STEP**2, "MiB"), (_BYTES_PER_STEP, "KiB")):
            if value >= size and value % size == 0:
                return f" bytes ({value // size} {name})"
    if unit == "ms":
        for size, name in _MS_STEPS:
            if value >= size and value % size == 0:
                return f" ms ({value // size} {name})"
    return f" {unit}" if unit else ""


def _not_settings() -> str:
    names = ", ".join(f"`{name}`" for name in sorted(VARIABLES_THAT_ARE_NOT_SETTINGS))
    meaning = "read where they act, switches for tests and the bootstrap address of clients"
    return f"## Variables that are not settings\n\n{names}: {meaning}.\n"


KAFKA_APIS_HEAD = """\
# Kafka APIs

<!-- Generated from src/headrace/handlers/table.py by `make docs`. Change it there. -->

What a broker serves, as ApiVersions tells it. Each file's first words say what changed per version and what is left
out on purpose. What is not listed is not served: a client that sends it anyway is disconnected.

| key | API | versions | served by |
|---|---|---|---|
"""


def kafka_apis_page() -> str:
    """Return the text of docs/reference/kafka-apis.md."""
    rows = [
        f"| {api.key} | {api.name} | {_versions(api)} | [`{_file(api)}`](../../src/headrace/handlers/{_file(api)}) |"
        for api in TABLE.values()
    ]
    return KAFKA_APIS_HEAD + "\n".join(rows) + "\n"


def _versions(api: Api) -> str:
    only_one = api.first_version == api.last_version
    return str(api.first_version) if only_one else f"{api.first_version}–{api.last_version}"


def _file(api: Api) -> str:
    return f"{api.handle.__module__.rpartition('.')[2]}.py"


TOPIC_CONFIGS_HEAD = """\
# Topic configs

<!-- Generated from src/headrace/topics/config_table.py by `make docs`. Change it there. -->

What can be set for a topic, with `headrace topic alter`, `kafka-configs`, or any Kafka client. Names, defaults and
limits are Kafka's; ours begin with `headrace.`. What a topic does not set comes from its broker, where that has
such a setting.

| config | default | allowed | what for |
|---|---|---|---|
"""


def topic_configs_page() -> str:
    """Return the text of docs/reference/topic-configs.md."""
    ours_first = sorted(
        TOPIC_CONFIGS.values(), key=lambda config: (not config.name.startswith("headrace."), config.name)
    )
    rows = [
        f"| `{config.name}` | {f'`{config.default}`' if config.default else 'nothing'} | {config.kind.expected} "
        f"| {config.sentence} |"
        for config in ours_first
    ]
    return TOPIC_CONFIGS_HEAD + "\n".join(rows) + "\n"


BROKER_CONFIGS_HEAD = """\
# Broker configs that change while brokers run

<!-- Generated from src/headrace/broker/dynamic_configs.py and src/headrace/settings/ by `make docs`. -->

`kafka-configs`, or any Kafka client, sets them for one broker (by its node id) or for all of them
(`--entity-default`, the empty name). They are kept in the metadata store: every broker follows them, and a restart
finds them again. What counts is, from strong to weak: what was set for the broker, what was set for all, its
settings, the default.

    kafka-configs --bootstrap-server HOST:PORT --entity-type brokers --entity-default \\
        --alter --add-config num.partitions=3

DescribeConfigs shows all configs of a broker, each with its source; those that are not listed here are read-only. A
name that does not exist, or that cannot change, is refused, and so is a value that contradicts another setting. A
value that was stored and contradicts the settings of a later start is ignored by that broker, with a warning.

## Settings

They count at once. Limits of groups count for members who come; those who are there stay.

| config | allowed | what for |
|---|---|---|
"""

TOPIC_DEFAULTS_HEAD = """
## Defaults of topics

What a topic does not set for itself comes from here. The pipeline and `headrace` commands go by what is set for all.

| config | topic's config | allowed | default |
|---|---|---|---|
"""

BROKER_CONFIGS_TAIL = """
## Without effect

{throttles}: tools set these while replicas move. They are stored and shown.

## To be read only

Kafka's names for what is fixed here: {facts}.
"""


def broker_configs_page() -> str:
    """Return the text of docs/reference/broker-configs.md."""
    settings = [f"| `{one.key}` | {one.kind.expected} | {one.sentence} |" for one in all_settings() if one.is_dynamic]
    defaults = [
        f"| `{name}` | `{one.name}` | {one.kind.expected} | {f'`{one.default}`' if one.default else 'nothing'} |"
        for name, one in sorted(TOPIC_CONFIG_OF.items())
    ]
    facts = fixed_facts(load_settings().tree)
    tail = BROKER_CONFIGS_TAIL.format(
        throttles=", ".join(f"`{name}`" for name in THROTTLES), facts=", ".join(f"`{name}`" for name in facts)
    )
    return BROKER_CONFIGS_HEAD + "\n".join(settings) + "\n" + TOPIC_DEFAULTS_HEAD + "\n".join(defaults) + "\n" + tail


PAGES = {
    PROJECT / "docs" / "reference" / "broker-configs.md": broker_configs_page,
    PROJECT / "docs" / "reference" / "topic-configs.md": topic_configs_page,
    PROJECT / "docs" / "reference" / "settings.md": settings_page,
    PROJECT / "docs" / "reference" / "kafka-apis.md": kafka_apis_page,
    PROJECT / "docs" / "reference" / "limits.md": limits_page,
}


def main() -> None:
    """Write all generated pages."""
    for path, page in PAGES.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(), encoding="utf-8")
        print(f"wrote {path.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
