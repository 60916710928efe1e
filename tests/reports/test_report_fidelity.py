"""Pictures, tables and pages of calibrated times: where points are, what is said, and that the bound is beside them."""

import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.cli import main
from perfmodel.reports.html import page
from perfmodel.reports.roofline_data import points
from perfmodel.reports.roofline_plot import draw, svg_text
from perfmodel.reports.roofline_table import text
from perfmodel.reports.tables import ROOFLINE_COLUMNS, roofline_columns, roofline_rows
from perfmodel.reports.words import fidelity, keys
from perfmodel.roofline.analysis import Analysis, analyze

OPTIONS = ["--gpu", "h100", "--model", "llama3-70b", "--tp", "4", "--fidelity", "calibrated", "--engine", "vllm"]


@pytest.fixture(scope="module")
def calibrated() -> Analysis:
    """Llama 3 70B over four H100, calibrated."""
    return analyze("llama3-70b", "h100", tp=4, fidelity="calibrated", engine="vllm")


def test_points_are_at_the_predicted_time_below_their_bound(calibrated: Analysis, sharded: Analysis) -> None:
    """Intensity is that of the bound; the rate is FLOPs over the predicted time, the top FLOPs over the bound."""
    mine, plain = ({(p.phase, p.op): p for p in points(a)} for a in (calibrated, sharded))
    assert mine.keys() == plain.keys()
    for key, p in mine.items():
        assert p.x == pytest.approx(plain[key].x)
        assert p.top == pytest.approx(plain[key].y)
        assert p.y <= p.top * (1 + 1e-12)
        assert p.low <= p.seconds <= p.high < math.inf
    assert sum(p.below for p in mine.values()) > 10
    assert not any(p.below for p in plain.values())


def test_a_tooltip_has_time_interval_and_the_share_of_the_bound(calibrated: Analysis, sharded: Analysis) -> None:
    """At the bound it has neither, since there nothing limits the time above."""
    one = next(p for p in points(calibrated) if (p.phase, p.op) == ("decode", "gate_up_proj"))
    assert re.search(r"FLOP/s in [\d.]+ ms \(80 %: [\d.]+ ms to [\d.]+ ms\), [\d.]+ % of its bound, ", one.sentence)
    plain = next(p for p in points(sharded) if (p.phase, p.op) == ("decode", "gate_up_proj"))
    assert "80 %" not in plain.sentence


def test_the_picture_joins_each_point_with_its_bound(calibrated: Analysis, sharded: Analysis) -> None:
    """A line an operator that is slower than its bound, from the point up; at bound fidelity there is none."""
    lines = {str(line.get_gid()): line for line in draw([calibrated]).axes[0].lines}
    drops = [line for gid, line in lines.items() if gid.startswith("drop:")]
    assert len(drops) == sum(p.below for p in points(calibrated))
    tops = {(p.x, p.top) for p in points(calibrated)}
    for line in drops:
        (x0, x1), (y0, y1) = line.get_xdata(), line.get_ydata()
        assert x0 == x1
        assert y0 < y1
        assert (x1, y1) in tops
    assert not any(str(line.get_gid()).startswith("drop:") for line in draw([sharded]).axes[0].lines)


def test_the_picture_says_its_fidelity(calibrated: Analysis, sharded: Analysis) -> None:
    """In the line under the title, with the intervals in the legend and what the lines mean in the notes."""
    found, plain = svg_text([calibrated]), svg_text([sharded])
    assert "Fidelity: calibrated (fitted to measured kernels)." in found
    assert "the line above it ends at its bound" in found
    assert found.count("(80\u00a0%: ") + found.count("(80 %: ") >= 2
    assert "Fidelity: bound (roofline)." in plain
    assert "no kernel that reads its inputs from device memory is higher" in plain


def test_tables_have_bound_and_interval_beside_the_time(calibrated: Analysis, sharded: Analysis) -> None:
    """Bound <= low <= time <= high in each row, with what each time is; tables of bounds are as they were."""
    assert roofline_columns([sharded]) == ROOFLINE_COLUMNS
    names = [column.header for column in roofline_columns([calibrated])]
    assert names[names.index("bound") :] == ["bound", "low", "time", "high", "share", "fidelity"]
    for row in roofline_rows([calibrated]):
        assert row["bound_s"] * (1 - 1e-12) <= row["low_s"] <= row["time_s"] <= row["high_s"]
        assert row["source"] == "calibrated"


def test_the_terminal_s_table_says_what_its_times_are(calibrated: Analysis) -> None:
    """The notes name the fidelity, the origins with their shares, and the interval of the whole."""
    shown = text([calibrated], "table")
    assert "calibrated: physics with few parameters, fitted to measured kernels" in shown
    assert "% of the time: parameters fitted: h100-sxm under vllm" in shown
    assert re.search(r"TTFT [\d.]+ ms \(80 %: [\d.]+ ms to [\d.]+ ms\), TPOT", shown)
    assert "roofline bound of each operator, one after another" not in shown


def test_the_page_says_its_fidelity_and_where_the_times_come_from(calibrated: Analysis, sharded: Analysis) -> None:
    """Title, subtitle, headline, operators, settings and origins; a page of bounds has nothing of it."""
    found, plain = page([calibrated]), page([sharded])
    assert "Fidelity: calibrated (fitted to measured kernels)." in found
    assert "performance times</title>" in found
    interval = r'<dd class="value">1\d\d ms</dd><dd>[^<]*80\u00a0%: 1\d\d ms to 1\d\d ms; bound 93.5 ms</dd>'
    assert re.search(interval, found)
    assert "Origin of the times" in found
    assert "fitted: h100-sxm under vllm" in found
    for words in ("Origin of the times", "Fidelity: calibrated", "80 %"):
        assert words not in plain
    assert "performance bounds</title>" in plain
    assert "≥ " in plain
    assert '<dd class="value">≥' not in found


def test_bounds_and_calibrated_times_in_one_picture_are_told_apart(calibrated: Analysis, sharded: Analysis) -> None:
    """The same question at two fidelities: the keys name them, and both are named under the title."""
    both = [sharded, calibrated]
    assert keys(both) == ["bound", "calibrated"]
    assert fidelity(both) == "bound (roofline), calibrated (fitted to measured kernels)"
    assert "bound: prefill" in svg_text(both)
    assert "calibrated: prefill" in svg_text(both)
    assert "Times are roofline bounds at datasheet peaks" in page(both)


@pytest.mark.parametrize("name", ["x.png", "x.svg", "x.html"])
def test_the_command_draws_calibrated_times(tmp_path: Path, name: str) -> None:
    """roofline --fidelity calibrated writes the picture or the page, and the table says which times it has."""
    result = CliRunner().invoke(main, ["roofline", *OPTIONS, "-o", str(tmp_path / name)])
    assert result.exit_code == 0, result.stderr
    assert "calibrated" in result.stdout
    assert (tmp_path / name).stat().st_size > 10_000


def test_the_report_takes_a_fidelity(tmp_path: Path) -> None:
    """report --fidelity calibrated is a page of calibrated times."""
    path = tmp_path / "x.html"
    result = CliRunner().invoke(main, ["report", *OPTIONS, "-o", str(path)])
    assert result.exit_code == 0, result.stderr
    assert "Fidelity: calibrated (fitted to measured kernels)." in path.read_text()


def test_an_engine_at_the_bound_is_refused() -> None:
    """As in every other command."""
    result = CliRunner().invoke(main, ["roofline", "--gpu", "h100", "--model", "llama3-8b", "--engine", "vllm"])
    assert result.exit_code == 2
    assert "add --fidelity calibrated" in result.stderr


def test_totals_of_several_gpus_name_them() -> None:
    """Two GPUs at two batches: four lines of totals, each with its GPU; of one GPU the name stands in the title."""
    both = [analyze("llama3-8b", gpu, batch=b) for gpu in ("h100", "b200") for b in (1, 64)]
    said = re.findall(r"^(.*)batch (1|64): TTFT", text(both, "table"), re.MULTILINE)
    assert said == [(f"{a.setup.gpu.title}, ", str(a.batch)) for a in both]
    assert re.search(r"^batch 64: TTFT", text(both[:2], "table"), re.MULTILINE)
