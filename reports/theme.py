"""Colours of pictures and pages: light and dark, safe for the colour-blind, with enough contrast.

The two phases use hues of the Okabe-Ito palette (blue and vermillion; sky blue and orange on dark), which stay apart
under the common colour-vision deficiencies; phases differ in marker shape as well. Text is darkened (or lightened) to
reach the 4.5:1 contrast of WCAG 2.1 (success criterion 1.4.3).

Okabe and Ito, "Color Universal Design", 2008: https://jfly.uni-koeln.de/color/
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from perfmodel.base.errors import UsageError


@dataclass(frozen=True)
class Theme:
    """Colours as ``#rrggbb``; within a theme no two are equal, so that a colour names its use.

    Attributes
    ----------
    background, surface : str
        Of the page and picture; of boxes on it.
    text, muted, line, faint : str
        Text; secondary text; strong lines; thin lines.
    grid : str
        Grid and borders.
    prefill, decode, prefill_text, decode_text : str
        Of the points, and of text about them.
    notice, notice_surface : str
        Text and edge of a warning, and its box.
    """

    background: str
    surface: str
    text: str
    muted: str
    line: str
    faint: str
    grid: str
    prefill: str
    decode: str
    prefill_text: str
    decode_text: str
    notice: str
    notice_surface: str

    def css(self) -> str:
        """Custom properties for a style sheet: ``--background: #ffffff; ...``."""
        return " ".join(f"--{f.name.replace('_', '-')}: {getattr(self, f.name)};" for f in fields(self))


LIGHT = Theme(
    background="#ffffff", surface="#f5f6f8", text="#16191d", muted="#565c64", line="#2b3036", faint="#9aa1a9",
    grid="#e4e7ea", prefill="#0072b2", decode="#d55e00", prefill_text="#005f95", decode_text="#a64900",
    notice="#8a1c1c", notice_surface="#fdeeee",
)  # fmt: skip
DARK = Theme(
    background="#14171b", surface="#1d2126", text="#eceef0", muted="#a9b0b8", line="#d5d9dd", faint="#6d757e",
    grid="#2c3138", prefill="#56b4e9", decode="#e69f00", prefill_text="#7cc6f0", decode_text="#f0b432",
    notice="#ffb4ab", notice_surface="#3a2020",
)  # fmt: skip
THEMES = {"light": LIGHT, "dark": DARK}


def theme(name: str) -> Theme:
    """The theme of a name.

    Raises
    ------
    UsageError
        When there is none of that name.
    """
    if name not in THEMES:
        raise UsageError(f"unknown theme {name[:40]!r}; choose light or dark")
    return THEMES[name]


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours, 1 to 21, by WCAG 2.1's relative luminance.

    >>> round(contrast("#000000", "#ffffff"))
    21
    """
    bright, dim = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
