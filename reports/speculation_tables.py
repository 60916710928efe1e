"""All methods beside each other, crossover maps, and the catalogue of methods, as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.reports.speculation_text import (
    BASES,
    DATA,
    OWN,
    alphas_words,
    draft_memory,
    fidelity_words,
    heading,
    log_words,
    setting_words,
    times,
)
from perfmodel.reports.tables import Column, render, to_json
from perfmodel.roofline.speculative.bench import LARGEST_BATCH
from perfmodel.roofline.speculative.compare import Comparison
from perfmodel.roofline.speculative.crossover import CrossoverMap
from perfmodel.roofline.speculative.evaluate import Speculation
from perfmodel.roofline.speculative.methods import Method, methods


def comparison_text(found: Comparison, fmt: str) -> str:
    """Every method at its best shape: table, JSON, CSV (every point of every method) or Markdown."""
    if fmt == "json":
        return to_json(found.to_dict())
    if fmt == "csv":
        return render(found.rows(), DATA, fmt)
    first = found.found[0]
    batches = [Column(f"b{i}", f"batch {b:,g}", "", times) for i, b in enumerate(first.batch)]
    columns = (
        Column("method", "method"), *([Column("context", "context")] if len(first.context) > 1 else []),
        Column("alpha", "acceptance", last=2), *batches, Column("shape", "best shape", last=3),
        Column("stop", "stops paying at batch", last=1), Column("adds", "adds to a GPU", last=4),
        Column("exact", "exact", last=5),
    )  # fmt: skip
    rows = [_method_row(one, j) for one in found.found for j in range(len(first.context))]
    target = heading(first).split(" for ", 1)[1].split(": ", 1)[0]
    return render(rows, columns, fmt, f"Speculation for {target}: best shape of each method", _comparison_notes(found))


def _method_row(one: Speculation, j: int) -> dict[str, Any]:
    gains, fits, best = one.gains.max(axis=0), one.fits, one.best
    shown: dict[str, Any] = {f"b{i}": float(gains[i, j]) for i in range(len(one.batch))}
    for i in range(len(one.batch)):
        if not fits[i, j]:
            shown[f"b{i}"] = None
    stop = one.break_even_batch
    first, last = (best[i][j] for i in (0, len(one.batch) - 1))
    shapes = dict.fromkeys(c.words if c else "none" for c in (first, last))
    return {
        **shown, "method": one.method.title, "context": float(one.context[j]),
        "alpha": f"{alphas_words(one.acceptance.alphas)} ({one.acceptance.basis})", "shape": " to ".join(shapes),
        "stop": f"above {LARGEST_BATCH:,}" if stop is None else "every one" if stop == 1 else f"{stop:,}",
        "adds": draft_memory(one), "exact": "yes" if one.method.verification == "exact" else "no",
    }  # fmt: skip


def _comparison_notes(found: Comparison) -> list[str]:
    first = found.found[0]
    best = first.gains.max(axis=0)[0, 0]
    said = [
        f"At batch {first.batch[0]:,g} and {first.context[0]:,g} tokens "
        + (f"{first.method.title} is the fastest: {times(float(best))}" if best > 1 else "none pays")
        + "; the break-even batch is for the first context, at each batch with its best shape"
    ]
    if found.draft:
        chosen = " (chosen: of the target's maker and vocabulary; --draft names another)" if found.chosen else ""
        said.append(f"Independent drafts are {found.draft}{chosen}")
    said += [f"{one.method.title} is left out: {one.reason}" for one in found.refused]
    if not all(np.all(one.fits) for one in found.found):
        said.append("empty: does not fit")
    bases = dict.fromkeys(one.acceptance.basis for one in found.found)
    if bases.keys() - {"given", "fitted"}:
        said.append(
            f"acceptance: {'; '.join(f'{b}: {BASES[b]}' for b in bases)}. Each was published for its own models and "
            "task (perfmodel list methods): a difference between methods is also one of settings"
        )
        if first.acceptance.basis not in ("given", "fitted"):
            said.insert(1, f"{first.method.title}'s acceptance rests on: {setting_words(first.acceptance)}; {OWN}")
    return [*said, *(log_words(first.fitted) if first.fitted else []), fidelity_words(first, False)]


def map_text(found: CrossoverMap, fmt: str) -> str:
    """A crossover map: a table of ``y`` by ``x``; JSON and CSV have a row a point."""
    rows = found.rows()
    if fmt in ("json", "csv"):
        return render(rows, [Column(key, key) for key in rows[0]], fmt)
    columns = [Column("y", found.y)] + [Column(f"x{j}", f"{found.x} {x:,g}") for j, x in enumerate(found.xs)]
    table = [
        {"y": f"{y:,g}"} | {
            f"x{j}": f"{found.speedup[i, j]:.2f}{'' if found.fits[i, j] else '?'}" for j in range(len(found.xs))
        }
        for i, y in enumerate(found.ys)
    ]  # fmt: skip
    return render(table, columns, fmt, map_title(found), map_notes(found))


def map_title(found: CrossoverMap) -> str:
    """What the map shows."""
    draft = f", draft {found.of.draft.title}" if found.of.method.draft.kind == "independent" else ""
    return f"{heading(found.of).split(': ', 1)[0]}{draft}: speedup over {found.x} and {found.y}"


def map_notes(found: CrossoverMap) -> list[str]:
    """What is fixed, and where it breaks even."""
    of = found.of
    fixed = []
    if found.x != "batch":
        fixed.append(f"batch {of.batch[0]:,g}")
    if found.y != "context":
        fixed.append(f"{of.context[0]:,g} tokens")
    if found.x != "alpha":
        fixed.append(f"acceptance {alphas_words(of.acceptance.alphas)}")
    one = len({words for row in found.shapes for words in row}) == 1
    shapes = "chains" if found.y == "gamma" else "one shape" if one else "the best shape at each point"
    ends = [
        f"{found.y} {y:,g}: {'nowhere' if x is None else f'to {found.x} {x:,g}'}"
        for y, x in zip(found.ys, found.break_even(), strict=True)
    ]
    pays = f"pays, of the values shown, {'; '.join(ends)}" if found.x == "batch" else ""
    odd = "" if found.fits.all() else "?: does not fit, so the speedup is hypothetical"
    return [note for note in (f"{shapes}; {', '.join(fixed)}", pays, odd, fidelity_words(of, False)) if note]


def method_rows() -> list[dict[str, Any]]:
    """One row a method of the catalogue."""
    return [_catalogue_row(m) for m in methods()]


def _catalogue_row(m: Method) -> dict[str, Any]:
    a, s = m.acceptance, m.strategy
    shape = f"chain of {s.gamma}" if s.kind == "chain" else f"{s.kind}, {s.nodes} nodes, {s.gamma} deep"
    return {
        "name": m.name, "title": m.title, "year": str(m.year), "draft": draft_words(m), "shape": shape,
        "verification": m.verification, "alphas": alphas_words(a.alphas), "basis": a.basis, "tau": a.tau,
        "siblings": alphas_words(a.siblings), "published": "; ".join(r.words for r in m.published[:2]),
        "wins": m.wins, "aliases": ", ".join(m.aliases), "setting": a.setting, "acceptance_source": a.source,
        "results": [r.model_dump() for r in m.published], "notes": m.notes, "source": m.source,
    }  # fmt: skip


def draft_words(m: Method) -> str:
    """What a method drafts with, in words."""
    d = m.draft
    words = {
        "independent": "a smaller model", "eagle": f"EAGLE-{d.version} head", "mtp": "the target's MTP layer",
        "medusa": f"{d.heads} Medusa heads", "lookup": "the text so far", "own_sparse": "the target itself",
    }[d.kind]  # fmt: skip
    more = [f"{d.layers} layers"] if d.layers > 1 else []
    more += [f"{d.window} keys"] if d.window else []
    more += ["all tokens in one pass"] if d.single_pass else []
    more += ["beside the verification"] if d.concurrent else []
    return ", ".join([words, *more])
