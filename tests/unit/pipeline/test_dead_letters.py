"""Dead letters of many runs by many pipelines: each once, whoever dies, is paused, or hears nothing back."""

import json

import pytest

from headrace.errors import OutcomeUnknown
from headrace.metadata.keys import prefix_range
from headrace.model.topics import Topic
from headrace.pipeline.records import CONDEMNED_FILES, TableStatus
from headrace.runtime.crash_points import CrashPoint
from headrace.tables.iceberg.locations import topic_uuid
from tests.typed_kit import SCHEMA
from tests.unit.pipeline.pipeline_kit import KillAt, Killed, PipelineKit

SCHEMA_TEXT = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
SAGA_POINTS = [point for point in CrashPoint if point.startswith(("saga.", "swap."))]


async def _topic(kit: PipelineKit, *, goes_with_it: str = "false") -> Topic:
    return await kit.topic(schema=SCHEMA_TEXT, delete_with_topic=goes_with_it)


def _letters(kit: PipelineKit, name: str = "orders") -> list[int]:
    """Return how many letters each file of the dead-letter table has."""
    return [file.row_count for file in kit.catalog.tables[name].letters]


@pytest.mark.parametrize("point", SAGA_POINTS)
async def test_whoever_goes_on_lists_the_letters_of_a_run_once(point: CrashPoint) -> None:
    kit = PipelineKit(max_entries=2)
    topic = await _topic(kit)
    for number in range(3):
        await kit.append(topic.streams[0], b'{"id": 1}', b"bad", b"worse")
        doomed = await kit.pipeline(crash_points=KillAt(point))
        with pytest.raises(Killed):
            await doomed.run()
        await doomed.bury()
        _, problems = await (await kit.pipeline()).run()
        assert problems == {}
        assert sum(_letters(kit)) == 2 * (number + 1)
    state = await kit.state(topic)
    assert (state.dead_letters, state.rows) == (6, 9)


async def test_a_commit_whose_answer_was_lost_is_not_made_again() -> None:
    kit = PipelineKit()
    topic = await _topic(kit)
    await kit.append(topic.streams[0], b"bad")
    lost: list[str] = []

    async def lose_answers(moment: str) -> None:
        if moment == "after commit" and len(lost) < 3:
            lost.append(moment)
            raise OutcomeUnknown("the connection was reset")

    _, problems = await (await kit.pipeline(trouble=lose_answers)).run()
    assert problems == {} and len(lost) == 2  # one for the rows, one for the letters
    assert _letters(kit) == [1]


async def test_a_pipeline_that_was_paused_lists_nothing_that_others_have_listed() -> None:
    """It wakes up when two further runs have listed theirs: the last one's id would not tell it."""
    kit = PipelineKit()
    topic = await _topic(kit)
    await kit.append(topic.streams[0], b"bad")
    commits: list[str] = []

    async def meanwhile(moment: str) -> None:
        if moment != "before load":
            return
        commits.append(moment)
        if len(commits) == 2:  # The rows are in the table, the letters come next.
            await sleeper.bury()
            for value in (b"worse", b"worst"):
                await (await kit.pipeline()).run()
                await kit.append(topic.streams[0], value)
            await (await kit.pipeline()).run()

    sleeper = await kit.pipeline(trouble=meanwhile)
    _, problems = await sleeper.run()
    assert "Fenced" in problems["orders"] or problems == {}
    assert _letters(kit) == [1, 1, 1]
    assert (await kit.state(topic)).dead_letters == 3


async def test_a_schema_that_the_table_cannot_follow_fails_and_says_why_and_the_log_waits() -> None:
    kit = PipelineKit()
    topic = await _topic(kit)
    await kit.append(topic.streams[0], b'{"id": 1}')
    process = await kit.pipeline()
    await process.run()
    # Unset and set: what the table has is not known to whoever changes the config.
    await kit.admin.set_configs("orders", {SCHEMA: None})
    changed = json.dumps({"type": "object", "properties": {"id": {"type": "string"}}})
    await kit.admin.set_configs("orders", {SCHEMA: changed})
    await kit.append(topic.streams[0], b'{"id": "one"}')
    rows, problems = await process.run()
    assert rows == 0 and "data.id is long and would become string" in problems["orders"]
    state = await kit.state(topic)
    assert state.status is TableStatus.FAILING and "data.id" in state.problem and state.rows == 1
    await kit.admin.set_configs("orders", {SCHEMA: None})
    await kit.admin.set_configs("orders", {SCHEMA: SCHEMA_TEXT})
    assert await process.run() == (1, {})
    assert (await kit.state(topic)).status is TableStatus.OK and _letters(kit) == [1]


@pytest.mark.parametrize("goes", ["true", "false"])
async def test_dead_letters_go_with_the_topic_only_if_told_so(goes: str) -> None:
    kit = PipelineKit()
    topic = await _topic(kit, goes_with_it=goes)
    await kit.append(topic.streams[0], b"bad")
    process = await kit.pipeline()
    await process.run()
    await kit.admin.delete(topic.id)
    await process.run()
    found = await kit.metadata.range(prefix_range(kit.keys.condemned_prefix, limit=10))
    prefixes = {CONDEMNED_FILES.decode(item.value, item.key).prefix for item in found}
    root = f"tables/{topic_uuid(topic.id)}"
    assert prefixes == ({f"{root}/", f"{root}-dead-letters/"} if goes == "true" else set())
