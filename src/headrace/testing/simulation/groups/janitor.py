"""Somebody who is no member: commits offsets for a group without members, reads them back, and deletes the group."""

from headrace.groups.protocol import NO_EPOCH, CommitClaim
from headrace.groups.records import OffsetRecord
from headrace.groups.store import Partition
from headrace.model.error_codes import ErrorCode
from headrace.testing.simulation.groups.members import Lost, Member
from headrace.testing.simulation.history import Violation

NOBODY = CommitClaim(member_id="", instance_id=None, epoch=NO_EPOCH, knows_epochs=True)
PARTITIONS = 3


class Janitor(Member):
    """The only one who uses its group, so it knows what has to be there, but for what was not answered."""

    _value = 0
    _expected: dict[Partition, set[int | None]] | None = None
    """What each partition may be found to hold; `None` stands for nothing."""

    def _claim(self) -> CommitClaim:
        return NOBODY

    async def _live(self) -> None:
        chance = self._rng.random()
        if chance < 0.5:
            await self._commit_some()
        elif chance < 0.8:
            await self._read_all()
        else:
            await self._delete()
        await self._world.clock.sleep(self._rng.uniform(0.1, 1.5))

    async def _may_hold(self) -> dict[Partition, set[int | None]]:
        if self._expected is None:
            node = self._coordinator or await self._find()
            topic = node.topics.get(self.topics[0])
            if topic is None:
                raise Lost
            self._expected = {(topic.id, number): {None} for number in range(PARTITIONS)}
        return self._expected

    async def _commit_some(self) -> None:
        expected = await self._may_hold()
        self._value += 1
        record = OffsetRecord(self._value, -1, "", self._world.clock.now_ms())
        # Not all of them at once: what a deleted group has left behind must not be covered up.
        chosen = [partition for partition in sorted(expected) if self._rng.random() < 0.5] or [min(expected)]
        for partition in chosen:
            expected[partition].add(self._value)  # until it is answered, it may have happened
        code = await self._ask(
            lambda node: node.coordinator.commit(self.group_id, NOBODY, dict.fromkeys(chosen, record))
        )
        if code is not ErrorCode.NONE:
            raise Violation(f"a commit to {self.group_id}, which has no members, was refused: {code.name}")
        for partition in chosen:
            expected[partition].clear()
            expected[partition].add(self._value)

    async def _read_all(self) -> None:
        expected = await self._may_hold()
        found = await self._ask(lambda node: node.coordinator.fetch(self.group_id, None, None))
        for partition, held in expected.items():
            record = found.get(partition)
            value = None if record is None else record.offset
            if value not in held:
                raise Violation(f"{self.group_id} holds {value}, and should hold one of {held}")

    async def _delete(self) -> None:
        expected = await self._may_hold()
        for held in expected.values():
            held.add(None)
        code = await self._ask(lambda node: node.coordinator.delete(self.group_id))
        if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise Violation(f"{self.group_id}, which has no members, could not be deleted: {code.name}")
        if code is ErrorCode.GROUP_ID_NOT_FOUND:
            return  # A commit that was never answered may still be on its way, and bring the group into being.
        for held in expected.values():
            held.clear()
            held.add(None)
