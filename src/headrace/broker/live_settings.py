"""The settings of a running broker: those it was started with, and over them what was set while it runs.

Must stay true: when `update` returns, every part that uses a dynamic setting has heard its new value.
"""

from collections.abc import Awaitable, Callable

from headrace.broker.dynamic_configs import kept, layers_of
from headrace.broker.storage import topic_defaults
from headrace.cluster.broker_configs import BrokerConfigs, read_for_all
from headrace.metadata.port import MetadataStore
from headrace.runtime.logs import Log
from headrace.settings import Settings
from headrace.topics.configs import ConfigSource, DefaultLayer, TopicDefaults


class LiveSettings:
    """Follows what is set for this broker, and passes it on."""

    def __init__(self, settings: Settings, configs: BrokerConfigs, *, log: Log) -> None:
        self._static = settings
        self._configs = configs
        self._log = log
        self._users: list[Callable[[Settings], None]] = []
        self._layers: tuple[DefaultLayer, ...] = ()
        configs.on_change(self.update)

    @property
    def topic_defaults(self) -> TopicDefaults:
        """What a topic is unless its own configuration says otherwise."""
        return topic_defaults(self._static, self._layers)

    @property
    def sources(self) -> dict[str, ConfigSource]:
        """What was set while the broker runs, and for whom, by name."""
        return {name: layer.source for layer in reversed(self._layers) for name in layer.values}

    def used_by(self, use: Callable[[Settings], None]) -> None:
        """Call a part with the settings whenever some of them have changed, from now on."""
        self._users.append(use)

    def update(self) -> None:
        """Let all parts use what is set now."""
        for_all, own = self._configs.for_all, self._configs.own
        settings, counts = kept(self._static, for_all=for_all, own=own)
        self._layers = layers_of(self._static, for_all=for_all, own=own)
        self._log.info("dynamic configs changed", configs=", ".join(f"{k}={counts[k]}" for k in sorted(counts)))
        left_out = sorted({*for_all, *own} - set(counts))
        if left_out:
            self._log.warning(
                "dynamic configs are ignored: this release does not know them, or the broker's settings contradict",
                configs=", ".join(left_out),
            )
        for use in self._users:
            use(settings)


def defaults_reader(settings: Settings, metadata: MetadataStore) -> Callable[[], Awaitable[TopicDefaults]]:
    """Return what reads the defaults of topics where there is no broker: its settings, and what was set for all."""

    async def read() -> TopicDefaults:
        return topic_defaults(settings, layers_of(settings, for_all=await read_for_all(metadata), own={}))

    return read
