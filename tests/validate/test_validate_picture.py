"""Predicted against measured as a picture: every comparison is a point, nothing in it is interpreted."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from perfmodel.base.errors import UsageError
from perfmodel.reports.roofline_plot import png, svg_text
from perfmodel.reports.scatter_plot import COLOURS, draw, nice_ticks, save
from perfmodel.reports.theme import THEMES, contrast
from perfmodel.validate.check import Check, check

HOSTILE = "<script>alert(1)</script> $\\frac{ & \x1b[31m \u202e"
TABLES = ("param_counts", "param_counts_bulk", "vllm_capacity", "memory_logs")


def points(figure: Figure) -> list[tuple[float, float]]:
    lines = (line for axes in figure.axes for line in axes.lines if str(line.get_gid()).startswith("point:"))
    return sorted((float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines)


@pytest.mark.parametrize("name", TABLES)
def test_every_comparison_is_a_point(checked: dict[str, Check], name: str) -> None:
    """A point a comparison, at what was measured and what was predicted, in a panel of its column."""
    figure = checked[name].plot()
    compared = sorted((r.comparison.measured, r.comparison.predicted) for r in checked[name].results)
    assert points(figure) == compared
    assert len(figure.axes) == sum(m["overall"]["n"] > 0 for m in checked[name].metrics.values())


@pytest.mark.parametrize("name", TABLES)
def test_text_stays_on_the_picture(checked: dict[str, Check], name: str) -> None:
    """Title, notes, legend and labels lie inside the picture, and the head lies above the panels."""
    figure = draw(checked[name])
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    width, height = figure.get_size_inches() * figure.dpi
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible():
            box = text.get_window_extent(renderer)
            assert box.x0 >= 0
            assert box.x1 <= width
            assert box.y0 >= 0
            assert box.y1 <= height
    top = max(axes.get_window_extent(renderer).y1 for axes in figure.axes)
    if figure.legends:
        assert figure.legends[0].get_window_extent(renderer).y0 > top


def test_axes_are_alike_and_hold_all_points(checked: dict[str, Check]) -> None:
    """Both axes have the same limits, so that the diagonal is the line of equality."""
    for axes in draw(checked["vllm_capacity"]).axes:
        assert axes.get_xlim() == axes.get_ylim()
        low, high = axes.get_xlim()
        assert all(low < value < high for line in axes.lines if line.get_gid() for value in line.get_xdata())


def test_same_picture_each_time(checked: dict[str, Check]) -> None:
    """PNG and SVG are the same to the byte."""
    found = checked["param_counts_bulk"]
    assert png(draw(found)) == png(draw(found))
    assert svg_text(draw(found)) == svg_text(draw(found))


def test_names_are_never_interpreted(table: Callable[..., Path]) -> None:
    """A hostile group and model end up as text in valid XML, without control characters."""
    path = table("param_counts_bulk", architecture=HOSTILE)
    text = path.read_text().splitlines()
    path.write_text("\n".join([text[0], *text[1:], text[2].replace(HOSTILE, "other $x^2$ <b>")]))
    svg = svg_text(draw(check(path)))
    root = ET.fromstring(svg.partition("?>")[2])
    assert root.tag.endswith("svg")
    assert not any(element.tag.endswith("script") for element in root.iter())
    assert re.search("[\x00-\x08\x0b-\x1f\u202e]", svg) is None
    assert "other $x^2$" in svg


def test_nothing_to_draw_is_said(table: Callable[..., Path]) -> None:
    """A check without a comparison has no picture."""
    with pytest.raises(UsageError, match="nothing to draw"):
        draw(check(table("param_counts_bulk", model="nobody/knows")))


def test_other_endings_are_refused(checked: dict[str, Check], tmp_path: Path) -> None:
    """A picture is PNG or SVG."""
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        save(draw(checked["param_counts_bulk"]), tmp_path / "x.pdf")


@pytest.mark.parametrize("theme", list(COLOURS))
def test_groups_have_enough_contrast(theme: str) -> None:
    """Points have a contrast of 3:1 with the background (WCAG 2.1, 1.4.11), and no two groups share a colour."""
    assert len(set(COLOURS[theme])) == len(COLOURS[theme])
    assert min(contrast(colour, THEMES[theme].background) for colour in COLOURS[theme]) >= 3


@pytest.mark.parametrize(
    ("low", "high"), [(1e-3, 1e12), (0.9, 1.1), (1, 1.001), (3, 7), (5, 95), (1e6, 4e6), (99, 101)]
)
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    """Two to nine round numbers between the limits, at any scale."""
    found = nice_ticks(low, high)
    assert 2 <= len(found) <= 9
    assert all(low <= value <= high for value in found)
    assert found == sorted(set(found))
