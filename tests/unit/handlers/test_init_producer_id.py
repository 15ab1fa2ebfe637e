"""InitProducerId in every version: fresh ids, and refusals that clients understand."""

from types import SimpleNamespace
from typing import cast

import pytest

from headrace.errors import Fenced, HeadraceError, OutcomeUnknown, Retryable
from headrace.handlers import init_producer_id
from headrace.handlers.call import Refusal, Refused, refusal_of
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.produce.producer_ids import ProducerIds
from headrace.wire.messages import InitProducerIdRequest
from tests.unit.handlers.topic_node import ask, call, over_the_wire
from tests.unit.topics.registry_kit import UnsureStore

ALL_VERSIONS = range(6)
IDEMPOTENT = InitProducerIdRequest(transactional_id=None)


def node_over(store: UnsureStore) -> Node:
    return cast(Node, SimpleNamespace(producer_ids=ProducerIds(store)))


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_every_producer_gets_a_fresh_id_with_epoch_0(version: int) -> None:
    node = node_over(UnsureStore())
    answers = [await ask(init_producer_id.handle, node, version, IDEMPOTENT) for _ in range(3)]
    assert [answer.error_code for answer in answers] == [0, 0, 0]
    assert len({answer.producer_id for answer in answers}) == 3
    assert [answer.producer_epoch for answer in answers] == [0, 0, 0]


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_producer_without_transactions_that_names_its_old_id_gets_another(version: int) -> None:
    node = node_over(UnsureStore())
    first = await ask(init_producer_id.handle, node, version, IDEMPOTENT)
    again = InitProducerIdRequest(
        transactional_id=None, producer_id=first.producer_id, producer_epoch=first.producer_epoch
    )
    second = await ask(init_producer_id.handle, node, version, again)
    assert second.producer_id != first.producer_id and second.producer_epoch == 0


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [("", ErrorCode.INVALID_REQUEST), ("tx", ErrorCode.UNSUPPORTED_VERSION)],
)
async def test_transactions_are_refused_for_good(transactional_id: str, code: ErrorCode) -> None:
    node = node_over(UnsureStore())
    with pytest.raises(Refused) as caught:
        await ask(init_producer_id.handle, node, 4, InitProducerIdRequest(transactional_id=transactional_id))
    assert caught.value.refusal.code is code


@pytest.mark.parametrize("version", ALL_VERSIONS)
@pytest.mark.parametrize("error", [Retryable("away"), OutcomeUnknown("hm"), Fenced("gone")])
async def test_trouble_with_the_store_is_told_with_the_code_that_all_clients_retry_here(
    version: int, error: HeadraceError
) -> None:
    """Older Java clients take any other code for the end of an idempotent producer; Kafka answers with this one."""
    response = init_producer_id.refused(call(version), IDEMPOTENT, refusal_of(error))
    answer = over_the_wire(response, version)
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_other_refusals_keep_their_code(version: int) -> None:
    refusal = Refusal(ErrorCode.INVALID_REQUEST, "a transactional id is not empty")
    answer = over_the_wire(init_producer_id.refused(call(version), IDEMPOTENT, refusal), version)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
