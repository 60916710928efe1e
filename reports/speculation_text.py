"""Whether speculation pays, as text: a table of batches and contexts, and the reasons in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfmodel.base.units import gib
from perfmodel.reports.tables import Column, render, to_json
from perfmodel.reports.words import limiter_words, parallelism, percent, seconds
from perfmodel.roofline.quantization.units import remarks
from perfmodel.roofline.speculative.acceptance_fit import Fitted
from perfmodel.roofline.speculative.bench import LARGEST_BATCH
from perfmodel.roofline.speculative.evaluate import Speculation
from perfmodel.roofline.speculative.methods import Acceptance
from perfmodel.roofline.speculative.room import most_fitting


def times(value: float | None) -> str:
    """A speedup: ``2.31x``."""
    return "" if value is None else f"{value:.2f}x"


def _steps(value: float) -> str:
    return f"{value:.2f}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def shape_words(gamma: int, nodes: int) -> str:
    """``gamma 5``, ``50 nodes, 8 deep``, or ``none`` where plain decoding is best."""
    if not gamma:
        return "none"
    return f"gamma {gamma}" if gamma == nodes else f"{nodes} nodes, {gamma} deep"


_TABLE = (
    Column("batch", "batch"), Column("context", "context"), Column("tau", "tokens a round", "", _steps, last=4),
    Column("draft_cost", "draft, in steps", "", _steps, last=2),
    Column("verify_cost", "verification, in steps", "", _steps, last=1), Column("speedup", "speedup", "", times),
    Column("interval", "80 % interval", last=3), Column("best", "best shape"),
    Column("best_speedup", "with it", "", times), Column("plain_tpot_s", "TPOT plain", "s", seconds, last=6),
    Column("tpot_s", "TPOT", "s", seconds, last=5), Column("fits", "fits"),
)  # fmt: skip
_DATA = (
    "method", "batch", "context", "gamma", "nodes", "tau", "draft_pass_cost", "draft_cost", "verify_cost", "round_cost",
    "speedup", "speedup_low", "speedup_high", "best_gamma", "best_nodes", "best_speedup", "best_speedup_low",
    "best_speedup_high", "fits", "plain_tpot_s", "tpot_s", "tokens_per_s", "needed_bytes", "draft_kv_bytes", "fidelity",
)  # fmt: skip
#: Columns of every point of every method, for CSV.
DATA = tuple(Column(key, key) for key in _DATA)


def text(found: Speculation, fmt: str) -> str:
    """One method: table, JSON, CSV or Markdown."""
    if fmt == "json":
        return to_json(to_dict(found))
    if fmt == "csv":
        return render(found.rows(), DATA, fmt)
    rows = [
        {
            **row, "interval": _interval(row["speedup_low"], row["speedup_high"]),
            "best": shape_words(row["best_gamma"], row["best_nodes"]),
            "fits": "yes" if row["fits"] else "no: hypothetical",
        }
        for row in found.rows()
    ]  # fmt: skip
    return render(rows, _TABLE, fmt, heading(found), notes(found))


def to_dict(found: Speculation) -> dict[str, Any]:
    """JSON of one method: its figures, the largest batch that fits, and the words that the table gives."""
    best = found.best[0][0]
    tree = list(best.tree.parents) if best and len(best.tree) > best.tree.depth else None
    fit = {} if found.fitted is None else {"log": _log_dict(found.fitted)}
    return {
        **found.to_dict(), "best_tree_parents": tree, "largest_batch": largest_batch(found), **fit,
        "words": notes(found),
    }  # fmt: skip


def _log_dict(log: Fitted) -> dict[str, Any]:
    low, high = log.interval
    return {
        "source": log.source, "rounds": log.rounds, "tau": log.tau, "alphas": list(log.alphas), "low": list(low),
        "high": list(high), "skipped": log.skipped, "notes": list(log.notes),
    }  # fmt: skip


def largest_batch(found: Speculation) -> int:
    """The most sequences of the first context that fit with the draft beside the target."""
    return most_fitting(found.draft, len(found.asked.tree), float(found.context[0]), found.bench.concurrent)


def heading(found: Speculation) -> str:
    """What was asked, in a line."""
    target = found.draft.target
    how = parallelism(target)
    gpus = f"{target.plan.gpus} x {target.gpu.title}" if target.plan.gpus > 1 else target.gpu.title
    draft = "" if found.draft.title == "lookup" else f", {found.draft.title}"
    return (
        f"{found.method.title} for {target.model.title} on {gpus}{f' ({how})' if how else ''}, weights "
        f"{target.plan.weights.name}, KV cache {target.plan.kv.name}: {found.asked.words}{draft}"
    )


def notes(found: Speculation) -> list[str]:
    """Whether it pays, from which batch it stops, why; memory; and what the figures rest on."""
    said = [verdict(found), *stops(found), rests_on(found), why(found), *_memory(found)]
    said += [] if found.acceptance.basis == "given" else [acceptance_words(found.acceptance)]
    said += log_words(found.fitted) if found.fitted else []
    ready = found.draft.target
    said += remarks(ready.model, ready.plan, ready.gpu)
    said += [found.draft.note, found.method.notes, _exact(found), _costs(found), fidelity_words(found)]
    return [note for note in said if note]


#: That published acceptances are the best case, and how to do without them.
OWN = "engines mostly reach less (public EAGLE-3 heads 0.6 to 0.8): give your own with --alpha or --acceptance-log"


def rests_on(found: Speculation) -> str:
    """Which acceptance the answer rests on, in a line, and how to give another."""
    a = found.acceptance
    if a.basis == "given":
        return acceptance_words(a)
    if a.basis != "fitted":
        return f"It rests on an acceptance of {alphas_words(a.alphas)} ({setting_words(a)}); {OWN}"
    more = found.unseen
    if not more:
        return f"It rests on the log's acceptance; no shape beyond its {plural(len(a.alphas), 'position')} is tried"
    return (
        f"Caution: the log holds {plural(len(a.alphas), 'position')}; {more} more as asked: the acceptance of the last "
        "one is taken for what no round of it tried"
    )


def setting_words(a: Acceptance) -> str:
    """Whose acceptance it is, without how it was worked out."""
    whose, _, more = a.setting.partition(": ")
    return more.strip() if a.basis == "stand-in" and more else whose


def plural(n: float, one: str) -> str:
    """``1 line``, ``2 lines``."""
    return f"{n:,.0f} {one}{'' if n == 1 else 's'}"


def verdict(found: Speculation) -> str:
    """Whether it pays at the first point and the last."""
    rows = found.rows()
    ends = [rows[0]] if len(rows) == 1 else [rows[0], rows[-1]]
    said = "; ".join(_pays(row) for row in ends)
    return said[0].upper() + said[1:]


def _pays(row: dict[str, Any]) -> str:
    where = f"batch {row['batch']:,g}, {row['context']:,g} tokens"
    sides = _interval(row["speedup_low"], row["speedup_high"])
    said = f"{times(row['speedup'])}{f' (80 %: {sides})' if sides else ''}"
    better = row["best_speedup"] > max(row["speedup"], 1.0) * 1.005
    best = f", {times(row['best_speedup'])} with {shape_words(row['best_gamma'], row['best_nodes'])}" if better else ""
    if row["speedup"] > 1:
        return f"it pays at {where}: {said}{best}"
    other = best or ", nor does any other shape"
    return f"it does not pay at {where} as asked: {said}{other}"


def stops(found: Speculation) -> list[str]:
    """From which batch it stops paying, whatever its shape, and how many sequences memory holds."""
    context, held, stop = f"{found.context[0]:,g} tokens", largest_batch(found), found.break_even_batch
    holds = f"memory holds {plural(held, 'sequence')} of them with the draft" if held else "not one sequence fits"
    if stop is None:
        return [f"At {context} no batch up to {LARGEST_BATCH:,} is too large for its best shape; {holds}"]
    if stop == 1:
        return [f"At {context} no shape of it pays at any batch; {holds}"]
    reach = " (beyond what fits)" if held and stop > held else ""
    return [f"At {context} it pays at no batch from {stop:,} on{reach}, whatever its shape; {holds}"]


def why(found: Speculation) -> str:
    """What limits verification at the smallest and the largest batch."""
    said = "; ".join(_cost_at(found, i) for i in dict.fromkeys((0, len(found.batch) - 1)))
    return said[0].upper() + said[1:]


def _cost_at(found: Speculation, i: int) -> str:
    cost = float(np.broadcast_to(np.asarray(found.round.verify_cost), found.tokens.shape)[i, 0])
    (plain, part), (checked, share) = (next(iter(shares.items())) for shares in found.limits(i))
    plain, checked = (limiter_words(name, found.draft.target) for name in (plain, checked))
    free = "all but free" if cost < 1.1 else "no longer free" if cost < 2 else "dear"
    return (
        f"at batch {found.batch[i]:,g} verifying {len(found.asked.tree) + 1} tokens a sequence costs {cost:.2f} plain "
        f"steps, {free}: {plain} limits {percent(part)} of a plain step, {checked} {percent(share)} of the verification"
    )


def _memory(found: Speculation) -> list[str]:
    """What target and draft take: at the first point, and where it does not fit."""
    said = [f"Memory at batch {found.batch[0]:,g} and {found.context[0]:,g} tokens {found.room.words()}"]
    missing = [(float(found.batch[i]), float(found.context[j])) for i, j in np.argwhere(~found.fits)]
    if missing:
        points = ", ".join(f"{b:,g} x {c:,g}" for b, c in missing[:6])
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        said.append(f"Does not fit at batch x tokens {points}{more}: no times there, and the speedup is hypothetical")
    return said


#: Where an acceptance comes from, in words.
BASES = {
    "measured": "as published", "solved": "solved from a published mean length",
    "bound": "the least that a published speedup allows", "stand-in": "a stand-in", "given": "given",
    "fitted": "fitted to a log",
}  # fmt: skip


def alphas_words(alphas: Sequence[float]) -> str:
    """``0.79, 0.74, 0.72``: repeats at the end, which hold for all that follows, once."""
    kept = list(alphas)
    while len(kept) > 1 and kept[-1] == kept[-2]:
        kept.pop()
    return ", ".join(f"{a:.3g}" for a in kept)


def acceptance_words(a: Acceptance) -> str:
    """How much is accepted, and where that comes from."""
    later = f"; later candidates of a position {alphas_words(a.siblings)} of what is left" if a.siblings else ""
    if a.basis == "given":
        return f"Acceptance by position: {alphas_words(a.alphas)}{later} (given)"
    return f"Acceptance by position, {BASES[a.basis]}: {alphas_words(a.alphas)}{later}. {a.setting}. Source: {a.source}"


def log_words(log: Fitted) -> list[str]:
    """The fit by position with its interval, and what of the log was not used."""
    low, high = log.interval
    each = ", ".join(f"{a:.3f} ({x:.3f} to {y:.3f})" for a, x, y in zip(log.alphas, low, high, strict=True))
    said = [
        f"Log: {plural(log.rounds, 'round')}, {log.tau:.2f} tokens a round; acceptance by position with 80 % interval "
        + each
    ]
    said += [f"{plural(n, 'line')} not used: {reason}" for reason, n in log.skipped.items()]
    return said + list(log.notes)


def _exact(found: Speculation) -> str:
    if found.method.verification == "exact":
        return "The output follows the target's distribution exactly"
    return "The output is plausible to the target but does not follow its distribution: another quality, not only speed"


def _costs(found: Speculation) -> str:
    together = " All sequences advance by what the slowest of the batch accepted." if found.bench.padded else ""
    apart = " The draft runs beside the verification, on devices of its own." if found.bench.concurrent else ""
    own = ", the engine's own time included in those" if found.host[0] else ""
    return f"Draft and verification in plain decode steps at the same batch and context{own}.{together}{apart}"


def fidelity_words(found: Speculation, interval: bool = True) -> str:
    """What kind of times, and what the interval holds where there is one."""
    host = host_words(found)
    if not interval:
        own = host or "without the engine's own time"
        return f"fidelity {found.fidelity}, {own}"
    if found.fidelity == "bound":
        more = f"; {host}" if host else ""
        return f"Times are roofline bounds: no launches, so a small draft looks cheaper than it is; no interval{more}"
    holds = "errors of the times" + (" and of the fitted acceptance" if found.fitted else ", the acceptance as given")
    if host:
        return f"Fidelity {found.fidelity}, {host}; the interval holds {holds}"
    return f"Fidelity {found.fidelity}; the interval holds {holds}, not the engine's own time around the kernels"


def host_words(found: Speculation) -> str:
    """The engine's own time that is in the figures, and where it is from; empty where none is."""
    step, whole, source = found.host
    if not step and not whole:
        return ""
    first = "" if source == "given" else f" of {plural(float(found.batch[0]), 'sequence')}"
    return f"with the engine's own time: {seconds(step)} a plain step and {seconds(whole)} a round{first} ({source})"


def draft_memory(found: Speculation) -> str:
    """What a draft adds to a GPU at the first point."""
    kv = float(np.broadcast_to(np.asarray(found.room.draft_kv, dtype=np.float64), found.tokens.shape)[0, 0])
    return gib(found.room.draft_weights + kv) if found.room.draft_weights + kv else "0"
