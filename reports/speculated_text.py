"""Speculative decoding that was really run, beside the formula, as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfmodel.reports.tables import Column, render, to_json
from perfmodel.reports.words import percent

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
    Column("speedup_low", "from", show=_times, optional=1),
    Column("speedup_high", "to", show=_times, optional=1),
    Column("noise", "noise", show=percent),
    Column("disturbed", "disturbed", show=percent, optional=2),
    Column("speedup_expected", "tau / (gamma c + v)", show=_times),
    Column("plain_seconds", "plain step", "s", optional=4),
    Column("turns", "turns", optional=4),
    Column("chi2", "chi-square", show=lambda value: f"{value:.1f}"),
    Column("degrees", "degrees"),
    Column("chance", "p", show=lambda value: f"{value:.2g}"),
)


def row(found: Outcome) -> dict[str, Any]:
    """All figures of a draft length."""
    return {**asdict(found), "off": found.off, "noise": found.noise}


def notes(found: Speculated) -> list[str]:
    """What was run, and how to read it."""
    from perfmodel.validate.bench.speculation_report import FAMILY, FEWEST

    s = found.sizes
    short = [f"gamma {o.gamma}" for o in found.outcomes if o.rounds < FEWEST]
    few = [f"not judged, since there are fewer than {FEWEST} rounds: {', '.join(short)}"] if short else []
    tests = 2 * len(found.outcomes)
    return [
        *few,
        f"a transformer of {s['layers']} layers of {s['hidden']} (vocabulary {s['vocab']:,}, random weights), drafted "
        f"by its first {found.draft_layers}; accepted and sampled by {found.verifier}",
        "tau: tokens a round; expected from the two distributions of each round before any token is accepted "
        "(1 + sum of products of min(1, p/q)), and from the mean acceptance of the first token alone",
        "c and v: time of a draft step and of a verification over that of a plain step, each measured by itself; "
        "blocks of plain steps and of whole rounds take turns: speedup by their median, from p20 to p80, noise "
        "(p80 - p20) / median; blocks that others disturbed were repeated",
        "chi-square: places of the tokens in the model's own distributions, over even intervals; p the chance of a "
        "larger one",
        f"refuted beyond {found.limit:.2f} standard errors or below p = {found.level:.2g}: the {tests} tests "
        f"together refute 1 right run in {1 / FAMILY:.0f}, as 3 standard errors do for one",
        f"seed {found.seed} (--seed {found.seed} repeats it)",
    ]


def text(found: Speculated, fmt: str) -> str:
    """A table, JSON, CSV or Markdown."""
    if fmt == "json":
        return to_json(found.to_dict())
    return render(
        [row(o) for o in found.outcomes], COLUMNS, fmt, f"Speculative decoding on {found.device}", notes(found)
    )
