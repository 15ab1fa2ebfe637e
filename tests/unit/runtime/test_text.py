"""Text from anywhere, made fit to be shown."""

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.runtime.text import one_line


@given(st.text(alphabet=st.characters(), max_size=300), st.integers(1, 50))
@example("a\r\nb\x1b[31m\u2028\u202e\ud800\x85", 50)
def test_any_text_becomes_one_bounded_printable_line(text: str, max_chars: int) -> None:
    line = one_line(text, max_chars=max_chars)
    assert line.isprintable()
    assert len(line.splitlines()) <= 1
    assert len(line) <= max_chars + len("… (300 characters)")
    line.encode("utf-8")


def test_plain_text_is_left_alone() -> None:
    assert one_line("größe 3 µs — 漢字", max_chars=20) == "größe 3 µs — 漢字"


def test_control_characters_become_visible() -> None:
    assert one_line("a\nb\x1b[0m\u202e", max_chars=40) == "a\\nb\\x1b[0m\\u202e"


def test_what_is_cut_is_counted() -> None:
    assert one_line("x" * 100, max_chars=3) == "xxx… (100 characters)"
