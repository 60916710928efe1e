"""Leave rows of the recorded tables out, interpolate them, and write the table in docs/measured.md.

    python tools/interpolation.py [--tables FOLDER] [-o docs/measured.md]

Takes about a minute. What stands between the two marks of the page is replaced.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.roofline.calibrated.kernel import Kernel
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.measured.record import Page, Rows
from perfmodel.roofline.measured.scatter import BETWEEN
from perfmodel.validate.fit import FLOOR, group_folds
from perfmodel.validate.fit_data import Cell, cells
from perfmodel.validate.fit_predict import formats
from perfmodel.validate.fit_report import TITLES
from perfmodel.validate.measured_tables import cell_rows

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "tests" / "validate" / "data" / "measured"
MARKS = "<!-- interpolation: written by tools/interpolation.py -->", "<!-- end of interpolation -->"
FOLDS = 5


def left_out(cell: Cell, kernel: Kernel, fold: Any) -> Iterator[tuple[Any, ...]]:
    """Of the rows of each fold by the others: log errors interpolated and calibrated, inside, between, long."""
    for j in range(FOLDS):
        kept, new = (cell.take(np.flatnonzero(rows)) for rows in (fold != j, fold == j))
        pages: dict[Any, list[Rows]] = {}
        for rows in cell_rows(kept, "t.csv"):
            pages.setdefault(tuple(rows.same.items()), []).append(rows)
        for rows in cell_rows(new, "t.csv"):
            known = pages.get(tuple(rows.same.items()))
            if known is None:
                continue
            found = Page(known, kernel, cell.chip).at(np.stack([np.log(v) for v in rows.sizes.values()], 1))
            true = np.log(rows.seconds / np.broadcast_to(rows.harness(kernel, cell.chip), rows.seconds.shape))
            inside = (found.low <= true) & (true <= found.high)
            yield found.value - true, -true, inside, found.state == BETWEEN, rows.seconds >= FLOOR


def figures(cell: Cell) -> list[str]:
    """The cells of one line of the table."""
    cell = cell.take(np.flatnonzero(cell.measured >= cell.bound))
    kernel = load(cell.gpu, cell.engine).kernel(cell.kind, formats(cell))
    line = [TITLES[cell.kind], cell.gpu, cell.engine, cell.fmt, str(len(cell.measured))]
    single = np.random.default_rng(0).permutation(len(cell.measured)) % FOLDS
    for fold in (single, group_folds(cell.groups)):
        error, calibrated, inside, between, long = map(np.concatenate, zip(*left_out(cell, kernel, fold), strict=True))
        if not between.any():
            line += ["0", "", "", ""]
            continue
        mine, plain = (100 * np.abs(np.expm1(e[between & long])).mean() for e in (error, calibrated))
        line += [f"{100 * between.mean():.0f}", f"**{mine:.1f}**", f"{plain:.1f}"]
        line.append(f"{100 * inside[between].mean():.0f}")
    return line


def table(folder: Path) -> str:
    """The table in Markdown."""
    head = ["kind", "GPU", "engine", "format", "rows", *2 * ["in range", "interpolated", "calibrated", "coverage"]]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * 4 + ['--:'] * 9)} |"]
    for cell in cells(folder):
        lines.append(f"| {' | '.join(figures(cell))} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "measured.md")
    given = parser.parse_args()
    before, _, rest = given.output.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    text = f"{before}{MARKS[0]}\n\n{table(given.tables)}\n\n{MARKS[1]}{after}"
    given.output.write_text(text, encoding="utf-8")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
