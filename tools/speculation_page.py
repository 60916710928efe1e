"""The tables and pictures of docs/speculative.md, from the model itself.

    python tools/speculation_page.py

writes the tables between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` and the pictures beside the page; a test
compares the page with what is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from perfmodel.reports.speculation_tables import method_rows
from perfmodel.reports.tables import Column, render
from perfmodel.roofline.speculative.evaluate import Speculation, speculate

PAGE = Path(__file__).resolve().parents[1] / "docs" / "speculative.md"

#: The drafts of Llama 3 70B, with the acceptances of LaMDA 137B with its 2B and 8B drafts (arXiv:2211.17192, table 3).
DRAFTS = {"1B": ("llama3.2-1b", 0.71), "8B": ("llama3-8b", 0.75)}
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
#: The chapter's bands over the batch.
BANDS = {1: "2 to 3x", 2: "2 to 3x", 4: "2 to 3x", 8: "1.3 to 1.6x"}

#: Llama 3.1 8B on 8 x H100, PG-19, 32,000 tokens: batch, plain step, verification of three tokens, three draft passes
#: (ms), speedup; Llama 3.2 1B on a StreamingLLM cache. MagicDec (arXiv:2408.11049v5), table 6.
MAGICDEC = [
    (16, 6.18, 6.71, 4.43, 1.27), (32, 9.10, 9.70, 4.71, 1.46), (64, 14.84, 15.86, 5.05, 1.67),
    (128, 26.07, 28.51, 5.79, 1.81),
]  # fmt: skip
#: Vicuna 13B, MT-bench, temperature 0, batch 1: EAGLE-3 (arXiv:2503.01840v3), table 1; Medusa-2: arXiv:2401.10774.
MEASURED = {"ngram": 1.58, "medusa-1": 2.07, "medusa-2": 2.83, "eagle-1": 3.07, "eagle-2": 4.26, "eagle-3": 5.58}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = [Column(str(i), name) for i, name in enumerate(header)]
    return render([{str(i): cell for i, cell in enumerate(row)} for row in rows], columns, "md").rstrip()


def methods_table() -> str:
    """The catalogue."""
    header = ("method", "drafts with", "shape", "acceptance", "tokens a round", "published", "wins at")
    rows = [
        (
            f"{row['title']} ({row['year']})", row["draft"], row["shape"], f"{row['alphas']} ({row['basis']})",
            "" if row["tau"] is None else f"{row['tau']:g}", row["published"], row["wins"],
        )
        for row in method_rows()
    ]  # fmt: skip
    return _table(header, rows)


def with_draft(name: str, alpha: float | None = None, gamma: int | None = None, context: int = 2048) -> Speculation:
    """Llama 3 70B on eight H100 with one of the drafts, over the batches."""
    model, published = DRAFTS[name]
    return speculate(
        "llama3-70b", "h100", tp=8, method="speculative-sampling", draft=model, alpha=alpha or published, gamma=gamma,
        batch=BATCHES, context=context,
    )  # fmt: skip


def gamma_table() -> str:
    """Best draft length of Llama 3 70B over the batch, at two contexts."""
    found = [with_draft(name, context=context) for name in DRAFTS for context in (2048, 32768)]
    header = ["batch", *(f"{name}, {context}" for name in DRAFTS for context in ("2K", "32K"))]
    rows = []
    for i, batch in enumerate(BATCHES):
        cells = []
        for one in found:
            best, fits = one.best[i][0], bool(one.fits[i, 0])
            said = f"{len(best.tree)}: {one.best_speedup[i, 0]:.2f}x" if best else "none"
            cells.append(said if fits else f"{said}?")
        rows.append([str(batch), *cells])
    return _table(header, rows)


def trend_table() -> str:
    """The chapter's trend over the batch beside what is computed for a = 0.8 and g = 5."""
    header = ("batch", "the chapter", "1B, g = 5", "1B, best g", "8B, g = 5", "8B, best g", "verification, in steps")
    found = {name: with_draft(name, 0.8, 5) for name in DRAFTS}
    rows = []
    for i, batch in enumerate(BATCHES):
        cells = [f"{x:.2f}x" for one in found.values() for x in (one.speedup[i, 0], one.best_speedup[i, 0])]
        cost = found["1B"].rows()[i]["verify_cost"]
        rows.append((str(batch), BANDS.get(batch, "none" if batch >= 32 else ""), *cells, f"{cost:.2f}"))
    return _table(header, rows)


def magicdec_table() -> str:
    """Published times of MagicDec beside ours."""
    found = speculate(
        "llama3.1-8b", "h100", tp=8, method="magicdec", draft="llama3.2-1b", batch=[row[0] for row in MAGICDEC],
        context=32000,
    )  # fmt: skip
    header = ("batch", "plain step", "ours", "verification", "ours", "draft passes", "ours", "speedup", "ours")
    rows = []
    for i, (batch, plain, checked, drafted, gain) in enumerate(MAGICDEC):
        ours = [float(t.seconds[i, 0]) * 1e3 for t in (found.round.plain, found.round.verify, found.round.draft)]  # type: ignore[index]
        cells = [
            f"{x:.2f}{unit}" for pair in zip((plain, checked, drafted), ours, strict=True) for x, unit in
            zip(pair, (" ms", " ms"), strict=True)
        ]  # fmt: skip
        rows.append((str(batch), *cells, f"{gain:.2f}x", f"{found.speedup[i, 0]:.2f}x"))
    return _table(header, rows)


def context_table() -> str:
    """Where long contexts keep the gain: Llama 3.1 8B over batch and context."""
    batches, contexts = [1, 16, 64, 256], [512, 4096, 32768]
    found = {
        name: speculate("llama3.1-8b", "h100", tp=8, method=name, batch=batches, context=contexts, **more)  # type: ignore[arg-type]
        for name, more in (("magicdec", {"draft": "llama3.2-1b"}), ("magicdec-self", {}))
    }
    header = ["batch", *(f"{one.method.title}, {c // 1024 or 0.5:g}K" for one in found.values() for c in contexts)]
    rows = [
        [str(b), *(f"{one.speedup[i, j]:.2f}x" for one in found.values() for j in range(len(contexts)))]
        for i, b in enumerate(batches)
    ]
    return _table(header, rows)


def papers_table() -> str:
    """Speedups of papers beside ours, with the lengths that the papers report."""
    rows = []
    for name, measured in MEASURED.items():
        one = speculate("llama2-13b", "a100", method=name, batch=1, context=512)
        ours = float(one.speedup[0, 0])
        rows.append(
            (
                one.method.title,
                f"{one.tokens[0, 0]:.2f}",
                f"{measured:.2f}x",
                f"{ours:.2f}x",
                f"{ours / measured - 1:+.0%}",
            )
        )
    return _table(("method", "tokens a round", "published", "ours", "off by"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods_table, "gamma": gamma_table, "trend": trend_table, "magicdec": magicdec_table,
    "contexts": context_table, "papers": papers_table,
}  # fmt: skip


def filled(text: str) -> str:
    """The page with every table as computed now."""
    for name, table in TABLES.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"the page has no place for the table {name}")
        body = table()
        text = pattern.sub(lambda found, body=body: f"{found[1]}\n{body}\n\n{found[2]}", text)  # type: ignore[misc]
    return text


def pictures() -> None:
    """Speedup over batch and draft length for both drafts, and over batch and context."""
    from perfmodel.reports import speculation_map
    from perfmodel.roofline.speculative.crossover import crossover

    for name in DRAFTS:
        found = crossover(with_draft(name), "batch,gamma")
        speculation_map.save(speculation_map.draw(found), PAGE.with_name(f"speculative-gamma-{name.lower()}.png"))
    one = speculate("llama3.1-8b", "h100", tp=8, method="magicdec", draft="llama3.2-1b")
    figure = speculation_map.draw(crossover(one, "batch,context"))
    speculation_map.save(figure, PAGE.with_name("speculative-contexts.png"))


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    pictures()
