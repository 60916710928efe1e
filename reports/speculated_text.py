"""Speculative decoding that was really run, beside the formula, as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfmodel.reports.tables import Column, render, to_json

if TYPE_CHECKING:
    from perfmodel.validate.bench.speculation_report import Outcome, Speculated


def _times(value: Any) -> str:
    return f"{value:.2f} x"


def _plain(value: Any) -> str:
    return f"{value:.3f}"


COLUMNS = (
    Column("gamma", "gamma"),
    Column("rounds", "rounds", optional=3),
    Column("alpha", "acceptance", show=_plain),
    Column("tau", "tau measured", show=_plain),
    Column("tau_error", "std. error", show=_plain),
    Column("tau_expected", "tau expected", show=_plain),
    Column("off", "off by", show=lambda value: f"{value:+.1f} errors"),
    Column("tau_formula", "tau, one alpha", show=_plain, optional=2),
    Column("draft_cost", "c", show=_plain),
    Column("verify_cost", "v", show=_plain),
    Column("speedup", "speedup measured", show=_times),
    Column("speedup_expected", "tau / (gamma c + v)", show=_times),
    Column("plain_seconds", "plain step", "s", optional=1),
)


def row(found: Outcome) -> dict[str, Any]:
    """All figures of a draft length."""
    return {**asdict(found), "off": found.off}


def notes(found: Speculated) -> list[str]:
    """What was run, and how to read it."""
    s = found.sizes
    return [
        f"a transformer of {s['layers']} layers of {s['hidden']} (vocabulary {s['vocab']:,}, random weights), drafted "
        f"by its first {found.draft_layers}; accepted and sampled by {found.verifier}",
        "tau: tokens a round; expected from the two distributions of each round before any token is accepted "
        "(1 + sum of products of min(1, p/q)), and from the mean acceptance of the first token alone",
        "c and v: time of a draft step and of a verification over that of a plain step, each measured by itself",
    ]


def text(found: Speculated, fmt: str) -> str:
    """A table, JSON, CSV or Markdown."""
    if fmt == "json":
        return to_json(found.to_dict())
    return render(
        [row(o) for o in found.outcomes], COLUMNS, fmt, f"Speculative decoding on {found.device}", notes(found)
    )
