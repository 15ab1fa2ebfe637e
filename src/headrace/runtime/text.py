"""Make text from anywhere fit to be shown: one line, bounded, and nothing that a terminal would obey."""


def one_line(text: str, *, max_chars: int) -> str:
    """Return `text` with everything unprintable escaped and everything beyond `max_chars` cut off.

    Line breaks, escape sequences, surrogates, bidirectional overrides and other format characters all become
    visible escapes; what was cut is counted at the end.
    """
    if len(text) <= max_chars and text.isprintable():
        return text
    escaped = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:max_chars])
    if len(text) <= max_chars and len(escaped) <= max_chars:
        return escaped
    return f"{escaped[:max_chars]}… ({len(text)} characters)"
