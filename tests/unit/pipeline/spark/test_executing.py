import msgspec
import pytest

from headrace.errors import Corrupt, HeadraceError, Invalid, Missing, OutcomeUnknown, Retryable, Throttled
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId, StreamId
from headrace.pipeline.plans import WalPiece, WriteTask
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.pipeline.spark import executing
from headrace.pipeline.spark.address import ObjectsAddress
from headrace.pipeline.spark.executing import ANSWERS, MESSAGES, Failed, Scanned, answer_to, message
from tests.spark.wal_tasks import task_of
from tests.unit.pipeline.planning import NOON_MS

TASK = task_of(0, WalPiece(0, 1, NOON_MS, WalExtent(ObjectId("a" * 32 + "-00000001"), 0, 10)))
TOLD = MESSAGES.decode(message(TASK, ObjectsAddress(url="memory:"), attempts=4))


def failing_with(monkeypatch: pytest.MonkeyPatch, error: HeadraceError) -> None:
    async def perform_task(task: WriteTask, *_: object, **__: object) -> None:
        assert task == TASK
        raise error

    monkeypatch.setattr(executing, "perform_task", perform_task)


@pytest.mark.parametrize("error", [Missing("gone"), Corrupt("damaged"), Invalid("two days")])
def test_what_no_attempt_mends_is_answered_at_once(monkeypatch: pytest.MonkeyPatch, error: HeadraceError) -> None:
    failing_with(monkeypatch, error)
    assert answer_to(TOLD, attempt=0, name="a") == Failed(error=type(error).__name__, reason=str(error))


@pytest.mark.parametrize("error", [Retryable("away"), Throttled("slow down"), OutcomeUnknown("no answer")])
def test_what_another_attempt_may_mend_is_answered_by_the_last_one_only(
    monkeypatch: pytest.MonkeyPatch, error: HeadraceError
) -> None:
    failing_with(monkeypatch, error)
    for attempt in range(3):
        with pytest.raises(type(error)):
            answer_to(TOLD, attempt=attempt, name="a")
    assert answer_to(TOLD, attempt=3, name="a") == Failed(error="Retryable", reason=f"after 4 attempts: {error}")


@pytest.mark.parametrize("other", [{"version": "9.9.9"}, {"decoder": "another"}])
def test_an_executor_of_another_kind_writes_nothing(other: dict[str, str]) -> None:
    answer = answer_to(msgspec.structs.replace(TOLD, **other), attempt=0, name="a")
    assert isinstance(answer, Failed) and answer.error == "Unsupported"


def test_an_answer_comes_back_as_it_was_sent() -> None:
    failed = Failed(error="Missing", reason="gone")
    assert ANSWERS.decode(msgspec.msgpack.encode(failed)) == failed


def test_a_key_scan_is_told_and_answered_like_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ScanTask("saga", 3, "tables/t/data/", 1, StreamId(7), 0, 9, 0, ())
    told = MESSAGES.decode(message(task, ObjectsAddress(url="memory:"), attempts=4))
    assert told.task == task
    scanned = ScannedStream(1, StreamId(7), 9, True, "list", {"file": 2}, 1)

    async def scan_keys(asked: ScanTask, *_: object, **__: object) -> ScannedStream:
        assert asked == task
        return scanned

    monkeypatch.setattr(executing, "scan_keys", scan_keys)
    answer = answer_to(told, attempt=0, name="a")
    assert answer == Scanned(scanned) == ANSWERS.decode(msgspec.msgpack.encode(answer))
