"""Speculation in words and pictures: what a reader is told, and that no picture misleads."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import UsageError
from perfmodel.reports import speculation_map, speculation_plot
from perfmodel.reports.listing import listing_text
from perfmodel.reports.speculation_tables import comparison_text, map_text
from perfmodel.reports.speculation_text import alphas_words, notes, text
from perfmodel.roofline.speculative.acceptance_fit import from_reached
from perfmodel.roofline.speculative.compare import Comparison, compare
from perfmodel.roofline.speculative.crossover import CrossoverMap, crossover
from perfmodel.roofline.speculative.evaluate import Speculation, speculate
from perfmodel.roofline.speculative.methods import methods

TARGET = {"model": "llama3-70b", "gpu": "h100", "tp": 8}


@pytest.fixture(scope="module")
def ngram() -> Speculation:
    """A lookup over batches, some of which do not fit."""
    return speculate(**TARGET, method="ngram", batch=[1, 8, 64, 1024], context=[2048, 16384])


@pytest.fixture(scope="module")
def everything() -> Comparison:
    return compare(**TARGET, batch=[1, 64])


@pytest.fixture(scope="module")
def batches(ngram: Speculation) -> CrossoverMap:
    return crossover(ngram, "batch,context")


def test_the_words_say_whether_until_when_and_why(ngram: Speculation) -> None:
    """The notes say that it pays, from which batch it stops, what limits verification, and what memory holds."""
    said = "\n".join(notes(ngram))
    assert "It pays at batch 1, 2,048 tokens: 1.57x (80 %:" in said
    assert re.search(r"it pays at no batch from \d+ on", said)
    assert "memory holds" in said
    assert re.search(r"At batch 1 verifying 11 tokens a sequence costs 1\.0\d plain steps, all but free: HBM3", said)
    assert re.search(r"at batch 1,024 verifying .* dear: .* BF16 tensor", said)
    assert "Memory at batch 1 and 2,048 tokens fits: target weights" in said
    assert "the speedup is hypothetical" in said
    assert "solved from a published mean length: 0.387" in said
    assert "follows the target's distribution exactly" in said
    assert "Fidelity calibrated" in said


def test_what_does_not_pay_is_said() -> None:
    """A loss is called one, with the shape that would be better."""
    found = speculate(**TARGET, method="eagle-3", batch=128)
    said = notes(found)[0]
    assert said.startswith("It does not pay at batch 128, 2,048 tokens as asked: 0.")
    assert re.search(r"1\.\d\dx with gamma \d", said)
    lost = notes(speculate(**TARGET, method="magicdec-self"))
    assert "nor does any other shape" in lost[0]
    assert "no shape of it pays at any batch" in lost[1]


def test_relaxed_output_is_said() -> None:
    """Methods that change the output say so."""
    assert any("does not follow its distribution" in note for note in notes(speculate(**TARGET, method="medusa-2")))


def test_forms_hold_the_same_figures(ngram: Speculation) -> None:
    """JSON, CSV and the table hold the speedups of every point; times of what does not fit are empty."""
    data = json.loads(text(ngram, "json"))
    rows = list(csv.DictReader(io.StringIO(text(ngram, "csv"))))
    assert len(data["points"]) == len(rows) == 8
    for point, row in zip(data["points"], rows, strict=True):
        assert float(row["speedup"]) == pytest.approx(point["speedup"])
        assert (row["tpot_s"] == "") == (not point["fits"])
    assert {"tau", "speedup", "best_gamma", "break_even_batch", "largest_batch", "words"} <= data.keys()
    table = text(ngram, "table")
    assert f"{data['speedup']:.2f}x" in table
    assert "no: hypothetical" in table
    assert text(ngram, "md").count("|") > 80


def test_a_best_tree_is_given_by_its_parents() -> None:
    """Where a tree is best, JSON holds it: parents come first."""
    data = json.loads(text(speculate(**TARGET, method="medusa-1"), "json"))
    parents = data["best_tree_parents"]
    assert len(parents) == data["best_nodes"]
    assert all(-1 <= parent < node for node, parent in enumerate(parents))


def test_a_log_is_told_with_its_interval() -> None:
    """The fit by position, its interval and the lines left out are in the words and in the JSON."""
    log = from_reached([100, 70, 40], "a log", skipped={"rates that rise": 2}, notes=("a note",))
    found = speculate(**TARGET, method="sps", draft="llama3.2-1b", log=log)
    said = "\n".join(notes(found))
    assert "100 rounds, 2.10 tokens a round" in said
    assert re.search(r"0\.700 \(0\.6\d\d to 0\.7\d\d\)", said)
    assert "2 lines not used: rates that rise" in said
    assert "a note" in said
    assert "and of the fitted acceptance" in said
    data = json.loads(text(found, "json"))["log"]
    assert data["alphas"] == pytest.approx([0.7, 4 / 7])


def test_methods_beside_each_other(everything: Comparison) -> None:
    """The comparison has a row a method, the reason of each that is left out, and the draft that was chosen."""
    table = comparison_text(everything, "table")
    for one in everything.found:
        assert f"\n{one.method.title} " in table
    assert "MTP is left out: Llama 3 70B has no multi-token-prediction layer" in table
    assert "Independent drafts are llama3.2-1b (chosen" in table
    assert "a difference between methods is also one of settings" in table
    data = json.loads(comparison_text(everything, "json"))
    assert {"tau", "speedup", "best_gamma", "break_even_batch", "methods", "refused"} <= data.keys()
    assert data["method"] == everything.found[0].method.name
    rows = list(csv.DictReader(io.StringIO(comparison_text(everything, "csv"))))
    assert len(rows) == 2 * len(everything.found)


def test_a_map_as_a_table(batches: CrossoverMap) -> None:
    """A map's cells are its speedups, marked where hypothetical; CSV has a row a point."""
    table = map_text(batches, "table")
    assert f"{batches.speedup[0, 0]:.2f}" in table
    assert f"{batches.speedup[1, 3]:.2f}?" in table
    assert "pays, of the values shown, context 2,048: to batch 64" in table
    rows = list(csv.DictReader(io.StringIO(map_text(batches, "csv"))))
    assert len(rows) == batches.speedup.size
    assert {"batch", "context", "speedup", "shape", "fits"} <= rows[0].keys()


def test_methods_are_listed() -> None:
    """The listing has a row a method with its source; JSON has every published result."""
    data = json.loads(listing_text("methods", "json"))
    assert {row["name"] for row in data} == {m.name for m in methods()}
    assert all(row["source"] and row["acceptance_source"] and row["results"] for row in data)
    assert "EAGLE-3 head" in listing_text("methods", "table")


def test_repeated_acceptances_are_said_once() -> None:
    """What holds for all that follows is written once."""
    assert alphas_words([0.8, 0.7, 0.7, 0.7]) == "0.8, 0.7"


def test_lines_of_one_method_and_of_several(ngram: Speculation, everything: Comparison) -> None:
    """One method has a line a context with its interval, several have a line each at their best shape."""
    one, many = speculation_plot.lines([ngram]), speculation_plot.lines(everything.found)
    assert [line.name for line in one] == ["2,048 tokens", "16,384 tokens"]
    assert one[0].low is not None
    assert (one[0].low < one[0].speedup).all()
    assert len(many) == len(everything.found)
    assert many[0].speedup == pytest.approx(everything.found[0].gains.max(axis=0)[:, 0])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_pictures_are_written_and_the_same_each_time(
    tmp_path: Path, ngram: Speculation, batches: CrossoverMap, theme: str, ending: str
) -> None:
    """Both pictures can be written in both themes, and twice drawn they are byte for byte the same."""
    for name, make in (
        ("lines", lambda: speculation_plot.draw([ngram], theme)), ("map", lambda: speculation_map.draw(batches, theme)),
    ):  # fmt: skip
        paths = [tmp_path / f"{name}{i}{ending}" for i in (0, 1)]
        for path in paths:
            speculation_plot.save(make(), path)
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert paths[0].stat().st_size > 5000


def test_every_cell_and_edge_is_drawn(batches: CrossoverMap) -> None:
    """The map has a cell a point, hatched where it does not fit, and edges just where the gain ends."""
    figure = speculation_map.draw(batches)
    cells = {p.get_gid(): p for p in figure.axes[0].patches}
    assert len(cells) == batches.speedup.size
    for (i, j), fits in np.ndenumerate(batches.fits):
        assert (cells[f"cell:{i}:{j}"].get_hatch() is None) == fits
    edges = {line.get_gid() for line in figure.axes[0].lines}
    pays = batches.speedup > 1
    expected = {f"edge:{i}:{j}:x" for i, j in np.argwhere(pays[:, 1:] != pays[:, :-1])}
    expected |= {f"edge:{i}:{j}:y" for i, j in np.argwhere(pays[1:] != pays[:-1])}
    assert edges == expected
    assert expected


def test_texts_stay_on_the_picture(ngram: Speculation, everything: Comparison, batches: CrossoverMap) -> None:
    """No text of any picture leaves it."""
    pictures = (
        speculation_plot.draw([ngram]), speculation_plot.draw(everything.found), speculation_map.draw(batches),
    )  # fmt: skip
    for figure in pictures:
        figure.canvas.draw()
        width, height = figure.canvas.get_width_height()
        legends = [t for axes in figure.axes if axes.get_legend() for t in axes.get_legend().get_texts()]
        inside = [t for axes in figure.axes for t in axes.texts]
        for item in [*figure.texts, *legends, *inside]:
            box = item.get_window_extent()
            assert 0 <= box.x0 < box.x1 <= width or not item.get_text(), item.get_text()
            assert 0 <= box.y0 < box.y1 <= height or not item.get_text(), item.get_text()


def test_too_many_lines_are_refused(ngram: Speculation) -> None:
    """A picture of nothing, or of more lines than can be told apart, is refused."""
    with pytest.raises(UsageError, match="not 42"):
        speculation_plot.draw([ngram] * 42)
