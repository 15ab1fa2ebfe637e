"""The dynamic configs of brokers: what was set while they run, for one of them or for all, and who hears of it.

What counts for a broker is, from strong to weak: what was set for it, what was set for all brokers, its settings.
`ConfigRules` knows names and values: they follow from the settings, which are known only where a broker is put
together. A change through one broker reaches the others by watch, and a restart finds it again.

Must stay true: what is stored was checked by the broker that stored it, in one transaction with all else that was set
for that broker and for all. Another broker, or a later release, may understand less of it: `ConfigRules` answers for
whatever is stored.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from headrace.errors import HeadraceError, Invalid
from headrace.metadata import keys
from headrace.metadata.keys import REGISTRY
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
from headrace.metadata.refreshing import SharedRefresh, follow
from headrace.metadata.values import ValueCodec
from headrace.runtime.clock import Clock
from headrace.topics.configs import ConfigValue

MAX_VALUE_CHARS = 32_767
"""The longest string that every version of Kafka's protocol can carry back."""


class InvalidBrokerConfig(Invalid):
    """A config that brokers do not have or cannot change while they run, or a value that it cannot take."""


class NoList(InvalidBrokerConfig):
    """Something was to be added to, or taken away from, a config that is no list."""


class BrokerConfigRecord(msgspec.Struct, frozen=True, array_like=True):
    """What lies at `broker-configs/<node id>`, and without a node id at `broker-configs/all`."""

    node_id: int | None
    overrides: dict[str, str]


BROKER_CONFIG = ValueCodec(BrokerConfigRecord)


class ConfigRules(Protocol):
    """What can be set, and what it means together with the settings of this broker."""

    def check(self, changed: Mapping[str, str], *, for_all: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Raise `InvalidBrokerConfig` unless the changed ones may be set, and all together hold after it."""
        ...

    def describe(self, *, for_all: Mapping[str, str], own: Mapping[str, str]) -> Sequence[ConfigValue]:
        """Return all configs of this broker, each with where its value comes from."""
        ...

    def describe_for_all(self, for_all: Mapping[str, str]) -> Sequence[ConfigValue]:
        """Return the configs that were set for all brokers."""
        ...

    def edited(self, name: str, now: str | None, elements: str, *, is_append: bool) -> str:
        """Return a list with elements added or taken away; raise `NoList` for a config that is none."""
        ...


class BrokerConfigs:
    """What was set for one broker and for all of them, as it is known here."""

    def __init__(self, store: MetadataStore, *, node_id: int, rules: ConfigRules, clock: Clock) -> None:
        self._store = store
        self._node_id = node_id
        self._rules = rules
        self._clock = clock
        self._refresh = SharedRefresh(self._catch_up)
        self._listeners: list[Callable[[], None]] = []
        self.for_all: Mapping[str, str] = {}
        self.own: Mapping[str, str] = {}

    def describe(self) -> Sequence[ConfigValue]:
        """Return all configs of this broker."""
        return self._rules.describe(for_all=self.for_all, own=self.own)

    def describe_for_all(self) -> Sequence[ConfigValue]:
        """Return what was set for all brokers."""
        return self._rules.describe_for_all(self.for_all)

    def edited(self, name: str, elements: str, *, for_all: bool, is_append: bool) -> str:
        """Return a list config as it is known here, with elements added to it or taken away."""
        now = self.for_all.get(name) if for_all else self.own.get(name, self.for_all.get(name))
        return self._rules.edited(name, now, elements, is_append=is_append)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a listener whenever something else is set here, from now on."""
        self._listeners.append(listener)

    async def refresh(self) -> None:
        """Catch up with everything that was set before this call; concurrent calls share one read."""
        await self._refresh.run()

    async def follow(self) -> None:
        """Stay fresh for ever; while the store cannot be reached, what was known last goes on counting."""
        await follow(self._store, keys.BROKER_CONFIGS, self.refresh, clock=self._clock)

    async def set(
        self,
        changes: Mapping[str, str | None],
        *,
        for_all: bool,
        replace: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set configs of this broker or of all, or unset those that are `None`; with `replace`, all not named.

        Raises `InvalidBrokerConfig`. Unsetting what was not set is no error.
        """
        all_key, own_key = keys.broker_config(None), keys.broker_config(self._node_id)
        key, node_id = (all_key, None) if for_all else (own_key, self._node_id)
        changed = {name: value for name, value in changes.items() if value is not None}

        def decide(seen: Seen) -> Decision[None]:
            found = {one: _overrides(seen, one) for one in (all_key, own_key)}
            merged = {} if replace else dict(found[key])
            for name in changes:
                merged.pop(name, None)
            merged.update(changed)
            after = {**found, key: merged}
            self._rules.check(changed, for_all=after[all_key], own=after[own_key])
            if validate_only or merged == found[key]:
                return Decision(result=None)
            if not merged:
                return Decision(result=None, deletes=[key])
            return Decision(result=None, puts={key: BROKER_CONFIG.encode(BrokerConfigRecord(node_id, merged))})

        await self._store.transact([REGISTRY], Reads(keys=[all_key, own_key]), decide)
        # The next request on this broker should see it; that this can fail does not undo what was committed.
        with contextlib.suppress(HeadraceError):
            await self.refresh()

    async def _catch_up(self) -> None:
        for_all, own = await read_for_all(self._store), await _read(self._store, self._node_id)
        if (for_all, own) == (self.for_all, self.own):
            return
        self.for_all, self.own = for_all, own
        for listener in self._listeners:
            listener()


async def read_for_all(store: MetadataStore) -> dict[str, str]:
    """Return what is set for all brokers now."""
    return await _read(store, None)


async def _read(store: MetadataStore, node_id: int | None) -> dict[str, str]:
    found = await store.get(keys.broker_config(node_id))
    return {} if found is None else BROKER_CONFIG.decode(found.value, found.key).overrides


def _overrides(seen: Seen, key: Key) -> dict[str, str]:
    record = BROKER_CONFIG.seen(seen, key)
    return {} if record is None else record.overrides
