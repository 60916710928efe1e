"""Choose the two numbers of the confidence model on a table of adaptive rows, pairs of sizes left out in turn.

    python tools/speculative_fit.py TABLE.csv

prints the grid's best (concentration, spread) on all rows, what each left-out pair gets from the others, and the errors
of plain decode steps. Rows: llama.cpp with adaptive draft length on an Apple GPU (``perfmodel validate`` reads the same
table). The shipped numbers are a coarse choice near the best: ``roofline/speculative/adaptive.py``.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from perfmodel.roofline.speculative.adaptive import FITTED, LLAMACPP_2025, Confidence, drafting
from perfmodel.roofline.speculative.llamacpp_metal import METAL, step_seconds
from perfmodel.validate import csvfile
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Skip, measured
from perfmodel.validate.spec_decode_rows import Stated, machine, named, stated

GRID = [Confidence(k, s) for k in (1, 2, 3, 4, 6, 8) for s in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)]


class Rows:
    """The adaptive rows of a table, and their times, each computed once."""

    def __init__(self, path: Path) -> None:
        self.models, self._times = Models(), {}  # type: ignore[var-annotated]
        self.rows: list[tuple[Stated, float]] = []
        for line in csvfile.read(path).lines:
            try:
                one, speedup = stated(line.cells), measured(line.cells, "measured_speedup")
                if one.adaptive and one.alpha is not None and speedup and named(one.target, self.models).mix:
                    self.rows.append((one, speedup.value))
            except Skip:
                continue

    def seconds(self, row: Stated, name: str, tokens: int) -> float:
        """A step of a model, sampling left out."""
        key = (row.hardware, name, tokens)
        if key not in self._times:
            found = named(name, self.models)
            self._times[key] = step_seconds(found.model, found.mix, machine(row.hardware).gpu, tokens, 600, 0.0)
        return float(self._times[key])

    def ratio(self, row: Stated, speedup: float, confidence: Confidence) -> float:
        """Predicted over measured speedup."""
        sample = named(row.target, self.models).model.vocab_size * METAL.entry
        d = drafting(row.alpha or 0.0, LLAMACPP_2025, confidence)
        plain = self.seconds(row, row.target, 1) + sample
        verify = d.mean(lambda n: self.seconds(row, row.target, n + 1)) + d.tokens * sample
        drafts = d.drafted * (self.seconds(row, row.method, 1) + sample)
        return d.tokens * plain / (drafts + verify) / speedup


def size_of(name: str) -> str:
    """The size in a model's name."""
    found = re.search(r"(?i)\b([\d.]+)b\b", name)
    return found[1] if found else name


def median_error(ratios: Iterable[float]) -> float:
    """Median absolute error."""
    return float(np.median(np.abs(np.array(list(ratios)) - 1)))


def main(path: str) -> None:
    """Print the choice and the errors."""
    table = Rows(Path(path))
    ratios = {c: np.array([table.ratio(row, s, c) for row, s in table.rows]) for c in GRID}
    pairs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, (row, _) in enumerate(table.rows):
        pairs[(size_of(row.target), size_of(row.method))].append(i)
    best = min(GRID, key=lambda c: median_error(ratios[c]))
    left_out = np.ones(len(table.rows))
    for pair, mine in sorted(pairs.items()):
        others = np.setdiff1d(np.arange(len(table.rows)), mine)
        chosen = min(GRID, key=lambda c: median_error(ratios[c][others]))
        left_out[mine] = ratios[chosen][mine]
        print(
            f"{pair[0]:>4}B with {pair[1]:>4}B: {len(mine):3d} rows, chosen without them {chosen.concentration:g}, "
            f"{chosen.spread:g}: median error {median_error(left_out[mine]):.1%}"
        )
    plain = {row.target: (table.seconds(row, row.target, 1), row.baseline) for row, _ in table.rows if row.baseline}
    vocabulary = named(table.rows[0][0].target, table.models).model.vocab_size
    errors = [abs((t + vocabulary * METAL.entry) * tps - 1) for t, tps in plain.values()]
    print(f"plain steps: {len(errors)} targets, mean error {np.mean(errors):.1%}, largest {max(errors):.1%}")
    for words, c in (("best on all", best), ("shipped", FITTED)):
        r = np.array([table.ratio(row, s, c) for row, s in table.rows])
        print(
            f"{words}: {c.concentration:g}, {c.spread:g}: median error {median_error(r):.1%}, "
            f"bias {np.median(r) - 1:+.1%}"
        )
    print(
        f"left out in turn: {len(left_out)} rows, median error {median_error(left_out):.1%}, "
        f"bias {np.median(left_out) - 1:+.1%}, mean {np.mean(np.abs(left_out - 1)):.1%}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
