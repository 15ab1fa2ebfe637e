"""How long clients take from an answer to their next request."""

from headrace.handlers import greetings
from headrace.handlers.greetings import MAX_TURN_MS, Greetings


def test_the_first_request_after_a_greeting_tells_and_later_ones_change_nothing() -> None:
    seen = Greetings()
    assert seen.turn_ms("a:1", 10.0) is None
    seen.greeted("a:1", 10.0)
    assert seen.turn_ms("a:1", 10.75) == 750
    assert seen.turn_ms("a:1", 99.0) == 750
    assert seen.turn_ms("a:2", 99.0) is None, "another connection"


def test_a_client_that_had_nothing_to_ask_proves_nothing() -> None:
    seen = Greetings()
    seen.greeted("a:1", 10.0)
    assert seen.turn_ms("a:1", 10.0 + MAX_TURN_MS / 1000) is None
    assert seen.turn_ms("a:1", 99.0) is None


def test_connections_that_come_and_go_are_forgotten_beyond_a_bound() -> None:
    seen = Greetings()
    for number in range(greetings.MAX_CONNECTIONS + 1):
        seen.greeted(f"a:{number}", 1.0)
        seen.turn_ms(f"a:{number}", 2.0)
    assert seen.turn_ms("a:0", 3.0) is None
    assert seen.turn_ms("a:1", 3.0) == 1000
    for number in range(greetings.MAX_CONNECTIONS + 1):
        seen.greeted(f"b:{number}", 1.0)
    assert seen.turn_ms("b:0", 2.0) is None, "those who only greet, too"
