"""The scoreboard of the calibrated times: figures of every cell, and the page that shows them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.validate.fit import FLOOR
from perfmodel.validate.fit_data import Cell
from perfmodel.validate.fit_kernel import check, scores

Array = NDArray[np.float64]
Row = Mapping[str, Any]
Known = Mapping[tuple[str, str, str, str], tuple[str, str]]
Moved = Mapping[str, Mapping[str, Mapping[str, Any]]]

TITLES = {
    "gemm": "GEMM",
    "prefill": "Prefill attention",
    "decode": "Decode attention",
    "mla_context": "Latent attention, context",
    "mla_generation": "Latent attention, generation",
    "experts": "Routed experts",
    "collective": "Collectives",
}
COLUMNS = (
    "GPU", "engine", "format", "rows", "error", "aim", "physics alone", "all rows", "first forms", "naive roofline",
    "neighbours", "bias", "coverage",
)  # fmt: skip


def neighbours(cell: Cell, ratio: Array, count: int = 3) -> float:
    """Error left when each row's ratio to the physics is interpolated from its nearest other rows. A noise floor.

    The mean over rows above 10 us of ``|exp(r - mean of the neighbours' r) - 1|``, near in standardised log shape and
    weighted by 1/distance. No model of the shape alone can be expected to do much better.

    Parameters
    ----------
    ratio : Array
        log(measured / predicted).
    """
    from scipy.spatial import cKDTree

    numbers = [v for v in cell.shape.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
    x = np.stack([np.log(v) for v in numbers if np.ptp(v) > 0], 1)
    x = (x - x.mean(0)) / x.std(0)
    distance, index = cKDTree(x).query(x, count + 1)
    weight = 1 / (distance[:, 1:] + 0.05)
    guess = (ratio[index[:, 1:]] * weight).sum(1) / weight.sum(1)
    long = cell.measured >= FLOOR
    return float(np.abs(np.exp(guess - ratio) - 1)[long].mean())


def row(cell: Cell) -> dict[str, Any]:
    """Figures of one cell, cross-validated."""
    checked = check(cell)
    used = checked.cell
    own = checked.kernel.time(used.shape, used.chip, used.bound)
    found: dict[str, Any] = {"kind": cell.kind, "gpu": cell.gpu, "engine": cell.engine, "format": cell.fmt}
    found |= scores(checked)
    found["floor"] = neighbours(used, np.log(used.measured / own)) if cell.kind != "collective" else None
    if cell.kind.startswith("mla"):
        by_heads = check(Cell(**{**cell.__dict__, "groups": cell.groups[:, :1]}), folds=4)
        found["by_heads"] = scores(by_heads)["mape_10us"]
    return found


def reference(path: Path) -> dict[tuple[str, str, str, str], tuple[str, str]]:
    """(kind, gpu, engine, format) -> (error of the first forms, aim), in percent as written."""
    with path.open(newline="", encoding="utf-8") as stream:
        return {(r["kind"], r["gpu"], r["engine"], r["format"]): (r["first"], r["aim"]) for r in csv.DictReader(stream)}


def percent(value: float | None, sign: bool = False) -> str:
    """A fraction in percent, one digit.

    >>> percent(0.0734), percent(None), percent(0.001, sign=True)
    ('7.3', '', '+0.1')
    """
    return "" if value is None else f"{100 * value:{'+' if sign else ''}.1f}"


def _key(r: Row) -> tuple[str, str, str, str]:
    return r["kind"], r["gpu"], r["engine"], r["format"]


def _words(r: Row) -> str:
    return f"{r['gpu']} {r['engine']} {r['kind']} {r['format']}"


def table(rows: Iterable[Row], known: Known) -> list[str]:
    """Lines of the table of one kind."""
    rule = ["---"] * 3 + ["--:"] * (len(COLUMNS) - 3)
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join(rule)} |"]
    for r in rows:
        first, aim = known.get(_key(r), ("", ""))
        cells = [
            r["gpu"], r["engine"], r["format"], f"{r['n']}", f"**{percent(r['mape_10us'])}**", aim,
            percent(r["physics_mape_10us"]), percent(r["mape"]), first, percent(r["naive_mape_10us"]),
            percent(r["floor"]), percent(r["bias"], sign=True), f"{100 * r['coverage80']:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(rows: Sequence[Row], known: Known, moved: Moved) -> str:
    """The whole page in Markdown."""
    lines = [INTRODUCTION]
    for kind, title in TITLES.items():
        some = [r for r in rows if r["kind"] == kind]
        if some:
            lines += ["", f"## {title}", "", *table(some, known)]
        if some and kind == "collective":
            lines += ["", *_averages(some)]
    lines += ["", *_heads(rows), "", *_excluded(rows), "", *_missed(rows, known, moved), "", *_moved(moved), ""]
    return "\n".join(lines)


def _averages(rows: Sequence[Row]) -> list[str]:
    means = []
    for gpu in dict.fromkeys(r["gpu"] for r in rows):
        some = [r for r in rows if r["gpu"] == gpu]
        over, every = (float(np.mean([r[name] for r in some])) for name in ("mape_10us", "mape"))
        means.append(f"{gpu} {percent(over)} ({percent(every)} over all rows)")
    return [f"Mean over the four operations: {', '.join(means)}. Folds are by message size."]


def _heads(rows: Sequence[Row]) -> list[str]:
    some = [f"{_words(r)} {percent(r['by_heads'])}" for r in rows if r.get("by_heads")]
    return [
        "## Latent attention, head counts left out", "",
        "A shape group above is a number of heads with a batch. Leaving out whole numbers of heads (four folds) is",
        f"harder, since kernels differ by it: {'; '.join(some)}.",
    ] if some else []  # fmt: skip


def _excluded(rows: Sequence[Row]) -> list[str]:
    some = [f"{_words(r)} {r['excluded']}" for r in rows if r["excluded"]]
    return [
        "## Rows faster than the bound", "",
        "Measured times below the roofline bound (every active expert's weights read once) are left out of fits and",
        f"figures, since no prediction may go below it: {'; '.join(some)}." if some else "figures: none.",
    ]  # fmt: skip


def _missed(rows: Sequence[Row], known: Known, moved: Moved) -> list[str]:
    lines = [line for r in rows for line in _missed_cell(r, known.get(_key(r), ("", ""))[1])]
    lines += [
        line for kind, ways in moved.items() for way, t in ways.items() for line in _missed_transfer(kind, way, t)
    ]
    return ["## Aims that are not reached", "", *(lines or ["None."]), *(["", NOTES] if lines else [])]


def _missed_cell(r: Row, aim: str) -> list[str]:
    """What a cell misses of its aim, of a bias under ``MOST_BIAS`` and of an honest interval."""
    name, found = f"- {TITLES[r['kind']]}, {_words(r)}", []
    if aim and round(100 * r["mape_10us"], 1) > float(aim):
        found.append(f"{name}: {percent(r['mape_10us'])} (aim {aim})")
    if abs(round(100 * r["bias"], 1)) >= MOST_BIAS:
        found.append(f"{name}: bias {percent(r['bias'], sign=True)} (aim under {MOST_BIAS:g})")
    if r["n"] >= JUDGED and not _covers(r["coverage80"]):
        found.append(f"{name}: coverage {100 * r['coverage80']:.0f} ({_COVERAGE})")
    return found


def _missed_transfer(kind: str, way: str, t: Mapping[str, Any]) -> list[str]:
    """The same of an architecture that was not seen: pairs of GPUs by their error, a direction by its coverage."""
    found = []
    for text in t["pairs"]:
        match = PAIR.fullmatch(text)
        aim = TRANSFER_AIMS.get((kind, match["to"])) if match else None
        if match and aim is not None and float(match["error"]) > aim:
            found.append(f"- {TITLES[kind]}, {match['what']}, not seen: {match['error']} (aim {aim})")
    if not math.isnan(t["coverage80"]) and not _covers(t["coverage80"]):
        covered = f"coverage {100 * t['coverage80']:.0f} ({_COVERAGE})"
        found.append(f"- {TITLES[kind]}, to {way} architectures that were not seen: {covered}")
    return found


def _covers(share: float) -> bool:
    return COVERAGE[0] <= round(100 * share) <= COVERAGE[1]


def _moved(moved: Moved) -> list[str]:
    lines = [
        "## Architectures that were not seen", "",
        "Each GPU predicted by parameters of the nearest other architecture alone, with nothing of its own but the",
        "datasheet. `newer` and `older` are the direction. Coverage: of the interval that the transfers to other GPUs",
        "give.", "",
        "| kind | to | form | error | rows | coverage | pairs |", "| --- | --- | --- | --: | --: | --: | --- |",
    ]  # fmt: skip
    for kind, ways in moved.items():
        for way, t in ways.items():
            cover = "" if math.isnan(t["coverage80"]) else f"{100 * t['coverage80']:.0f}"
            cells = [TITLES[kind], way, t["form"], percent(t["mape"]), str(t["rows"]), cover, "; ".join(t["pairs"])]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


#: Aims beside a cell's own error: its bias, and the coverage of an 80 % interval on so many rows or more. [%]
MOST_BIAS, COVERAGE, JUDGED = 2.0, (72, 88), 200
_COVERAGE = f"aim {COVERAGE[0]} to {COVERAGE[1]}"
#: (kind, GPU that was not seen) -> most error of its rows. [%]
TRANSFER_AIMS = {
    ("gemm", "b200"): 10, ("prefill", "b200"): 15, ("mla_context", "b200"): 8, ("decode", "b200"): 22,
    ("gemm", "a100-sxm"): 13, ("prefill", "a100-sxm"): 22, ("decode", "a100-sxm"): 22,
}  # fmt: skip
#: A pair as ``fit_moved`` words it.
PAIR = re.compile(r"(?P<what>\S+ to (?P<to>\S+), .+): (?P<error>[\d.]+) %")

INTRODUCTION = """# Accuracy of the calibrated times

<!-- Written by tools/accuracy.py: run it again rather than edit. -->

Mean absolute percentage errors of operator times on shapes that the fit did not see: five folds by shape group, rows
of 10 us and more unless it says otherwise. `error` is with the small smooth correction where that helps on unseen
groups of the fitted rows, `physics alone` without it. `first forms` is what a first version of these forms reached
under the same folds, `naive roofline` the bound taken as the prediction, `neighbours` the error left when each row is
interpolated from its three nearest rows: a noise floor. `bias` is the median of predicted over measured less 1;
`coverage` the share of rows inside the 80 % interval that the other folds give. All in percent. The tables are
described in `tests/validate/data/measured/README.md`."""

NOTES = """Routed experts, H100 under TensorRT-LLM in 16 bits: 75 of 900 rows are three to five times slower than their
neighbours of other parallel splits, and make 5.4 points of the error; they look like autotuner failures and follow no
rule of the shape. Collectives: 34 rows an operation, of which single ones stand out by half (message sizes at a
protocol switch)."""
