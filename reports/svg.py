"""Make an SVG of matplotlib's accessible and fit for a page: title, description, tooltips, colours by name."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    from perfmodel.reports.theme import Theme

_HEAD = re.compile(r"<svg [^>]*>")
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_TAG = re.compile(r"<[a-z][^<>]*>")
_COLOUR = re.compile(r"(?<=: )#[0-9a-f]{6}")


def tooltips(figure: Figure) -> dict[str, str]:
    """Group id -> text shown when the pointer rests on it: the labels of the artists that have an id."""
    return {
        str(artist.get_gid()): str(artist.get_label())
        for artist in _artists(figure)
        if artist.get_gid() and not str(artist.get_label()).startswith("_")
    }


def _artists(figure: Figure) -> Iterator[Artist]:
    for axes in figure.axes:
        yield from axes.lines


def finish(text: str, description: str, tips: Mapping[str, str], inline: Theme | None) -> str:
    """Add title, description and tooltips to an SVG; for a page, drop the prolog and name the colours.

    Parameters
    ----------
    description : str
        First line: the title. The rest: the description for those who do not see the picture.
    inline : Theme, optional
        The theme it was drawn in, when it goes into a page.
    """
    title, _, rest = description.partition("\n")
    text = _METADATA.sub("", text, count=1)
    for gid, tip in tips.items():
        mark = f'<g id="{html.escape(gid)}">'
        text = text.replace(mark, f"{mark}\n<title>{html.escape(tip)}</title>", 1)
    head = _HEAD.search(text)
    if head is None:
        raise ValueError("not an SVG")
    names = f"<title>{html.escape(title)}</title>\n<desc>{html.escape(rest)}</desc>"
    opened = head[0][:-1] + ' role="img">'
    if inline is None:
        return text[: head.start()] + opened + names + text[head.end() :]
    body = opened + names + text[head.end() :]
    variables = {getattr(inline, f.name): f.name.replace("_", "-") for f in fields(inline)}

    def name_colour(match: re.Match[str]) -> str:
        known = variables.get(match[0])
        return f"var(--{known}, {match[0]})" if known else match[0]

    return _TAG.sub(lambda tag: _COLOUR.sub(name_colour, tag[0]), body)
