"""Text from outside, made safe for a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢字 🙂", "plain é 漢字 🙂"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("bell\x07", "bell\\x07"),
        ("back\x08\x7f", "back\\x08\\x7f"),
        ("\x9b31m", "\\x9b31m"),  # the one-byte CSI
        ("over\u202eride", "over\\u202eride"),  # right-to-left override
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("lone\ud800", "lone\\ud800"),
        ("two\nlines", "two\nlines"),
        ("\r", "\\r"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    """Escape sequences, bells, direction marks and lone surrogates become visible; letters of any script stay."""
    assert printable(text) == shown


@given(st.text(min_size=1))
def test_the_result_is_always_printable_and_encodable(text: str) -> None:
    """Whatever comes in, what goes out has no control characters but line breaks, and can be written as UTF-8."""
    shown = printable(text)
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert shown.encode("utf-8")  # no lone surrogates


@given(st.text(alphabet=st.characters(whitelist_categories=("L", "N", "P", "S")), max_size=100))
def test_harmless_text_is_unchanged(text: str) -> None:
    """Letters, digits, punctuation and symbols come through as they are."""
    assert printable(text) == text


def test_length_is_bounded_and_said() -> None:
    """What is cut off is counted."""
    assert printable("x" * 30, limit=10) == "xxxxxxxxxx... (30 characters)"
    assert printable("x" * 10, limit=10) == "x" * 10
