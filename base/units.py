"""Quantities: one place that parses them and one that prints them.

Inside the library everything is SI: bytes, seconds, FLOP/s, hertz, watts. GB is 10^9 bytes and GiB is 2^30 bytes,
everywhere. A number without a unit is refused where a quantity is asked for: PyYAML reads ``3.35e12`` as a string and
nobody knows what ``80`` means.
"""

from __future__ import annotations

import math
import re
from typing import SupportsFloat

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SMALL = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

#: dimension -> {unit: factor to SI}
UNITS: dict[str, dict[str, float]] = {
    "bytes": {f"{p}B": f for p, f in {**_SI, **_BINARY}.items()},
    "bytes/s": {f"{p}B/s": f for p, f in {**_SI, **_BINARY}.items()},
    "ops/s": {f"{p}{u}": f for p, f in _SI.items() for u in ("FLOP/s", "OP/s", "op/s")},
    "Hz": {f"{p}Hz": f for p, f in _SI.items()},
    "W": {f"{p}W": f for p, f in _SI.items()},
    "s": {f"{p}s": f for p, f in _SMALL.items()},
    "USD": {"USD": 1.0},
    "USD/h": {"USD/h": 1.0},
    "bytes/clk": {"B/clk": 1.0},
    "ops/clk": {"FLOP/clk": 1.0, "OP/clk": 1.0, "op/clk": 1.0},
    "count": {"": 1.0},
}
_QUANTITY = re.compile(
    r"\s*([+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf(?:inity)?))\s*(\S*)\s*\Z", re.IGNORECASE
)

#: No quantity of the field is near this; a larger one is a slip of the pen.
ABSURD = 1e25


def parse(text: object, dimension: str) -> float:
    """Parse a quantity string to SI.

    Parameters
    ----------
    text : str
        Such as ``"3.35 TB/s"``, ``"80 GiB"``, ``"989 TFLOP/s"``. For ``count`` a plain number is a quantity.
    dimension : str
        A key of ``UNITS``.

    Raises
    ------
    ValueError
        When the unit is missing or of another dimension, or the number is not finite, negative, or absurd.

    >>> parse("3.35 TB/s", "bytes/s")
    3350000000000.0
    >>> parse("80 GiB", "bytes") == 80 * 2**30
    True
    >>> parse("80", "bytes")
    Traceback (most recent call last):
    ValueError: '80' has no unit; write one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB
    """
    units = UNITS[dimension]
    shown = repr(str(text)[:80])
    match = _QUANTITY.match(str(text)) if not isinstance(text, bool) else None
    if match is None:
        raise ValueError(f"{shown} is not a quantity; write a number and a unit such as {_examples(dimension)}")
    number, unit = float(match[1].replace("_", "")), match[2]
    if unit not in units:
        what = f"has the unit {unit!r}" if unit else "has no unit"
        raise ValueError(f"{shown} {what}; write one of {_examples(dimension)}")
    value = number * units[unit]
    if not math.isfinite(value) or value < 0 or value > ABSURD:
        raise ValueError(f"{shown} is out of range; it must be finite, at least 0 and at most {ABSURD:g} in SI")
    return value


def _examples(dimension: str) -> str:
    common = {
        "bytes": "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB",
        "bytes/s": "GB/s, TB/s, GiB/s",
        "ops/s": "GFLOP/s, TFLOP/s, TOP/s, PFLOP/s",
        "Hz": "MHz, GHz",
        "s": "ns, us, ms, s",
    }
    return common.get(dimension, ", ".join(u for u in UNITS[dimension] if u) or "a plain number")


def engineering(value: float, unit: str, digits: int = 3) -> str:
    """Format with an SI prefix.

    >>> engineering(3.35e12, "B/s")
    '3.35 TB/s'
    >>> engineering(4.2e-05, "s")
    '42 us'
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    prefixes = ["f", "p", "n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Z"]
    power = math.floor(math.log10(abs(value)) / 3 + 1e-12)
    text = f"{value / 1000.0**power:.{digits}g}"
    if float(text) >= 1000:  # 999.9 rounds to 1000: the next prefix
        power += 1
        text = f"{value / 1000.0**power:.{digits}g}"
    index = power + 5
    if not 0 <= index < len(prefixes):
        return f"{value:.{digits}g} {unit}"
    return f"{float(text):.{digits}g} {prefixes[index]}{unit}"


def gib(value: SupportsFloat) -> str:
    """Format bytes as GiB (2^30).

    >>> gib(80 * 2**30)
    '80.00 GiB'
    """
    return f"{float(value) / 2**30:.2f} GiB"


def gb(value: SupportsFloat) -> str:
    """Format bytes as GB (10^9).

    >>> gb(141.1e9)
    '141.10 GB'
    """
    return f"{float(value) / 1e9:.2f} GB"


def bytes_text(value: SupportsFloat) -> str:
    """Format bytes as GB, and what is small beside one by a smaller prefix.

    >>> bytes_text(24e9), bytes_text(4e5)
    ('24.00 GB', '400 kB')
    """
    return gb(value) if float(value) >= 1e8 else engineering(float(value), "B")
