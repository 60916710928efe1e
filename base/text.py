"""Text that came from outside, made safe for a terminal."""

from __future__ import annotations


def printable(text: str, limit: int = 2000) -> str:
    r"""Return ``text`` with control characters escaped and its length bounded.

    A spec or a name may come from a stranger; escape sequences in it must not reach the terminal.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    if len(text) > limit:
        text = text[:limit] + f"... ({len(text)} characters)"
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
