"""The roofline picture: the right lines, every operator, labels that do not collide, the same bytes each time."""

import itertools
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.load import model
from perfmodel.reports.roofline_data import MINOR, Point, names, points
from perfmodel.reports.roofline_draw import AREA, LEAST_AREA, marker_size
from perfmodel.reports.roofline_plot import LAYOUT_DPI, PNG_DPI, draw, png, save, svg_text
from perfmodel.reports.words import clip
from perfmodel.roofline.analysis import Analysis, analyze

SVG = "{http://www.w3.org/2000/svg}"

#: Dense, MoE, latent and windowed attention; many makers; alone and overlaid.
PICTURES: dict[str, list[dict[str, Any]]] = {
    "dense-misfit": [{"model": "llama3-70b", "gpu": "h100"}],
    "dense-tp": [{"model": "llama3-70b", "gpu": "h100", "tp": 4}],
    "dense-fp8": [{"model": "llama3-70b", "gpu": "h200", "tp": 2, "batch": 64, "weights": "fp8", "kv": "fp8"}],
    "amd": [{"model": "llama3-70b", "gpu": "mi300x"}],
    "mla": [{"model": "deepseek-v3", "gpu": "h100", "tp": 8}],
    "mla-batch": [{"model": "deepseek-v3", "gpu": "b200", "tp": 8, "batch": 128}],
    "indexer": [{"model": "deepseek-v3.2", "gpu": "b300", "tp": 8, "batch": 64, "input": 32768}],
    "moe": [{"model": "mixtral-8x7b", "gpu": "a100", "tp": 2, "batch": 8}],
    "windows": [{"model": "gpt-oss-120b", "gpu": "h100", "batch": 16}],
    "windows-gddr": [{"model": "gemma3-27b", "gpu": "rtx-5090", "weights": "fp8"}],
    "phone": [{"model": "qwen3-0.6b", "gpu": "a18-pro", "weights": "fp16", "kv": "fp16", "input": 128}],
    "fp4-bf16": [{"model": "gpt-oss-120b", "gpu": "b200", "batch": 32}],
    "hybrid": [{"model": "qwen3-next-80b-a3b", "gpu": "h200"}],
    "processor": [{"model": "llama3.2-1b", "gpu": "cpu"}],
    "batches": [{"model": "llama3-70b", "gpu": "h100", "tp": 4, "batch": b} for b in (1, 64)],
    "gpus": [{"model": "llama3-8b", "gpu": g} for g in ("h100", "b200")],
    "many": [{"model": "mixtral-8x7b", "gpu": g, "tp": 2} for g in ("a100", "h100", "h200", "b200", "mi300x")],
    "many-formats": [
        {"model": "deepseek-v3", "gpu": g, "tp": 8, "batch": 32} for g in ("h100", "h200", "b200", "b300", "mi300x")
    ],
    "many-misfits": [
        {"model": "deepseek-v3.2", "gpu": g, "tp": 2, "batch": 512, "input": 128}
        for g in ("h100", "h100-pcie", "mi300x", "b200", "h20", "mi355x")
    ],
    "many-batches": [{"model": "llama3-70b", "gpu": "h100", "tp": 4, "batch": 4**i} for i in range(6)],
}
SINGLE = [name for name, found in PICTURES.items() if len(found) == 1]
OVERLAID = [name for name, found in PICTURES.items() if len(found) > 1]


def analyses(name: str) -> list[Analysis]:
    return [analyze(**options) for options in PICTURES[name]]


def texts(figure: Figure) -> list[Text]:
    return [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]


def outline(text: Text, renderer: Any) -> np.ndarray:
    """Corners of a text as drawn; of a slanted one, the slanted rectangle."""
    angle = text.get_rotation()
    if angle % 90 == 0:
        box = text.get_window_extent(renderer)
        return np.array([[box.x0, box.y0], [box.x1, box.y0], [box.x1, box.y1], [box.x0, box.y1]])
    text.set_rotation(0)
    box = text.get_window_extent(renderer)
    text.set_rotation(angle)
    centre = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
    turn = np.array([[math.cos(math.radians(angle)), -math.sin(math.radians(angle))],
                     [math.sin(math.radians(angle)), math.cos(math.radians(angle))]])  # fmt: skip
    half = np.array([box.width, box.height]) / 2
    return centre + (np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half) @ turn.T


def apart(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two convex outlines do not overlap (separating axis; a pixel of touching is allowed)."""
    for shape in (a, b):
        for p, q in itertools.pairwise([*shape, shape[0]]):
            normal = np.array([q[1] - p[1], p[0] - q[0]])
            normal = normal / max(float(np.hypot(*normal)), 1e-9)
            if min((b @ normal).max() - (a @ normal).min(), (a @ normal).max() - (b @ normal).min()) <= 1.0:
                return True
    return False


def crossed(leader: Line2D, corners: np.ndarray) -> bool:
    """Whether a leader runs through a text; its last bit, where it meets its own, is left out."""
    start, end = ends(leader)
    steps = start + np.linspace(0, 0.97, 200)[:, None] * (end - start)
    low, high = corners.min(axis=0) + 1.5, corners.max(axis=0) - 1.5
    return bool(((steps > low) & (steps < high)).all(axis=1).any())


def lines(figure: Figure, kind: str) -> list[Line2D]:
    return [line for line in figure.axes[0].lines if str(line.get_gid()).startswith(kind)]


@pytest.mark.parametrize("name", PICTURES)
def test_no_text_collides(name: str) -> None:
    """No text overlaps another or a point, no leader runs through one, all are inside: as drawn and as saved."""
    figure = draw(analyses(name))
    for dpi in (LAYOUT_DPI, PNG_DPI):
        figure.set_dpi(dpi)
        figure.canvas.draw()
        check_texts(figure)


def check_texts(figure: Figure) -> None:
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    found = [(t.get_text(), outline(t, renderer)) for t in texts(figure)]
    assert len(found) > 15
    edge = figure.get_size_inches() * figure.dpi
    for text, corners in found:
        assert corners.min() >= -1, text
        assert (corners <= edge + 1).all(), text
    for (ta, a), (tb, b) in itertools.combinations(found, 2):
        assert apart(a, b), (ta, tb)
    for line in lines(figure, "point:"):
        x, y = figure.axes[0].transData.transform((line.get_xdata()[0], line.get_ydata()[0]))  # type: ignore[index]
        r = line.get_markersize() / 2 * figure.dpi / 72 * 0.9
        disc = np.array([[x - r, y - r], [x + r, y - r], [x + r, y + r], [x - r, y + r]])
        assert all(apart(corners, disc) for _, corners in found), line.get_gid()
    level = [corners for _, corners in found if corners[0][1] == corners[1][1]]
    for leader in lines(figure, "leader"):
        assert not any(crossed(leader, corners) for corners in level)


def named(figure: Figure, found: list[Analysis]) -> list[tuple[Text, list[tuple[Point, np.ndarray]]]]:
    """Every label with the points that it names and where these are, in pixels."""
    result = []
    for label in texts(figure):
        kind, *rest = str(label.get_gid()).split(":")
        if kind != "label":
            continue
        index, phase = int(rest[0]), rest[1]
        words, here = " ".join(label.get_text().split()), points(found[index])
        mine = [
            (p, figure.axes[0].transData.transform((p.x, p.y)))
            for p, called in names(here).items()
            if p.phase == phase and re.search(rf"(?<![\w]){re.escape(clip(called, 60))}(?![\w]| \()", words)
        ]
        result.append((label, mine))
    return result


def check_label(figure: Figure, label: Text, mine: list[tuple[Point, np.ndarray]]) -> None:
    """A label's operators are limited by the same, in one place, and its leader, or itself, is there."""
    (anchor, centre) = max(mine, key=lambda item: item[0].share)
    radius = marker_size(anchor.share) / 2 * figure.dpi / 72
    for point, place in mine:
        assert point.limiter == anchor.limiter, label.get_text()
        assert np.hypot(*(place - centre)) <= max(8.0, 0.75 * radius), label.get_text()
    box = label.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    edge = np.clip(centre, [box.x0, box.y0], [box.x1, box.y1])
    leaders = [line for line in lines(figure, "leader:") if str(line.get_gid()).endswith(str(label.get_gid()))]
    for start, end in map(ends, leaders):
        assert np.hypot(*(start - centre)) <= 1.2 * radius + 1, label.get_text()
        assert np.hypot(*(end - edge)) <= 3, label.get_text()
    assert leaders or np.hypot(*(edge - centre)) <= 1.2 * radius + 8, label.get_text()


def ends(line: Line2D) -> np.ndarray:
    """Where a line starts and ends, in pixels."""
    data = np.array([line.get_xdata(), line.get_ydata()], dtype=float).T
    return np.asarray(line.get_transform().transform(data))


@pytest.mark.parametrize("name", PICTURES)
def test_a_label_is_at_what_it_names(name: str) -> None:
    """All operators of a label are on one roof and in one place to the eye; its leader ends there."""
    found = analyses(name)
    figure = draw(found)
    labels = named(figure, found)
    assert len(labels) >= (5 if len(found) == 1 else 3)
    for label, mine in labels:
        assert mine, label.get_text()
        check_label(figure, label, mine)


@pytest.mark.parametrize("name", SINGLE)
def test_a_label_each_from_half_a_percent_on(name: str) -> None:
    """In a picture of one analysis, every operator with 0.5 % of its phase or more is in exactly one label."""
    found = analyses(name)
    labelled = [p for _, mine in named(draw(found), found) for p, _ in mine]
    assert sorted(p.sentence for p in labelled) == sorted(p.sentence for p in points(found[0]) if p.share >= MINOR)


@pytest.mark.parametrize("name", OVERLAID)
def test_overlays_have_short_leaders(name: str) -> None:
    """Of several analyses, no leader is long and none crosses a label's or another leader: labels are fewer instead."""
    found = analyses(name)
    figure = draw(found)
    most = 130 if len(found) == 2 else 70  # pixels of a picture that is 1100 wide
    found_ends = [ends(line) for line in lines(figure, "leader:") if "label:" in str(line.get_gid())]
    assert all(np.hypot(*(b - a)) <= most for a, b in found_ends)
    assert not any(cross(first, second) for first, second in itertools.combinations(found_ends, 2))


def cross(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two line segments cross."""

    def side(line: np.ndarray, point: np.ndarray) -> float:
        (ax, ay), (bx, by) = line
        return float((bx - ax) * (point[1] - ay) - (by - ay) * (point[0] - ax))

    return side(first, second[0]) * side(first, second[1]) < 0 > side(second, first[0]) * side(second, first[1])


@pytest.mark.parametrize("name", ["dense-misfit", "phone", "processor", "fp4-bf16", "many"])
def test_axes_fit_the_data(name: str) -> None:
    """Points and roofs take up the height: above the lowest and below the highest there is about a decade."""
    figure = draw(analyses(name))
    low, high = figure.axes[0].get_ylim()
    heights = [float(np.array(line.get_ydata())[0]) for kind in ("point:", "roof:") for line in lines(figure, kind)]
    assert low < min(heights) < 10 * low
    assert high / 11 < max(heights) < high


@pytest.mark.parametrize(("name", "noun"), [("dense-tp", "GPU"), ("processor", "CPU"), ("phone", "device")])
def test_axis_names_the_device(name: str, noun: str) -> None:
    """The rate is that of one GPU, of one CPU, or of a phone's device."""
    assert draw(analyses(name)).axes[0].get_ylabel() == f"FLOP/s of one {noun}"


def test_a_processor_is_no_datasheet() -> None:
    """The picture of this machine's processor says that its peaks are derived and its bandwidth was measured here."""
    words = " ".join(" ".join(t.get_text().split()) for t in texts(draw(analyses("processor"))))
    assert "derived from cores, SIMD width and clock" in words
    assert "measured here" in words
    assert "no kernel" not in words


@pytest.mark.parametrize("name", ["dense-misfit", "mla", "windows", "indexer"])
def test_every_operator_is_drawn_and_named(name: str) -> None:
    """Each operator with FLOPs is a point at its intensity and rate, and its name is in the picture."""
    (analysis,) = analyses(name)
    figure = draw([analysis])
    drawn = {(float(p.get_xdata()[0]), float(p.get_ydata()[0])) for p in lines(figure, "point:")}  # type: ignore[index]
    words = " ".join(t.get_text() for t in texts(figure))
    for point in points(analysis):
        assert (point.x, point.y) in drawn
        assert point.op in words
    for phase in (analysis.prefill, analysis.decode):
        assert all(r.op.name in words for r in phase.ops)


def test_area_is_share_of_time(sharded: Analysis) -> None:
    """The area of a point is in proportion to its share, above a least size that can be seen."""
    figure = draw([sharded])
    marked = zip(points(sharded), lines(figure, "point:"), strict=True)
    for point, line in marked:
        assert line.get_markersize() ** 2 == pytest.approx(max(AREA * point.share, LEAST_AREA))


@pytest.mark.parametrize("name", ["h100", "mi300x", "rtx-4090", "b200"])
def test_lines_are_the_gpu(name: str) -> None:
    """Slopes rise by the bandwidth of their level, roofs are flat at their peak, ridges are where gpu.ridge says."""
    analysis = analyze("llama3-8b", name)
    device, figure = analysis.setup.gpu, draw([analysis])
    bandwidths = {device.bandwidth} | {
        level.bandwidth.value
        for level in (device.memory.l2, device.memory.l3, device.memory.shared)
        if level is not None and level.bandwidth is not None
    }
    drawn = [(np.array(s.get_xdata()), np.array(s.get_ydata())) for s in lines(figure, "slope:")]
    assert {float(f"{(y / x)[0]:.9g}") for x, y in drawn} == {float(f"{b:.9g}") for b in bandwidths}
    assert all(np.allclose(y / x, (y / x)[0]) for x, y in drawn)
    peaks = {float(np.array(r.get_ydata())[0]) for r in lines(figure, "roof:")}
    assert peaks >= {rate.value for rate in device.compute.tensor.values()}
    (ridge,) = lines(figure, "ridge:")
    assert float(np.array(ridge.get_xdata())[0]) == pytest.approx(device.ridge("bf16"))
    assert f"ridge {device.ridge('bf16'):,.0f} FLOP/B" in " ".join(t.get_text() for t in texts(figure))


def test_used_formats_are_strong(deepseek: Analysis) -> None:
    """Formats that the operators use have strong roofs with ridges; the others are thin."""
    figure = draw([deepseek])
    width = {str(r.get_gid()).split(":")[1]: r.get_linewidth() for r in lines(figure, "roof:")}
    assert {name for name, w in width.items() if w > 1} == {"FP8, INT8 tensor", "BF16, FP16 tensor"}
    assert len(lines(figure, "ridge:")) == 2


def test_misfit_is_said_and_still_drawn(llama: Analysis, sharded: Analysis) -> None:
    """What does not fit is drawn with a notice that names what would; what fits has none."""
    words = " ".join(" ".join(t.get_text().split()) for t in texts(draw([llama])))
    assert "does not fit" in words
    assert "--tp 2" in words
    assert len(lines(draw([llama]), "point:")) > 10
    assert "does not fit" not in " ".join(t.get_text() for t in texts(draw([sharded])))


def test_title_and_settings(sharded: Analysis) -> None:
    """Title, settings, fidelity and both phases are in the picture."""
    words = " ".join(t.get_text() for t in texts(draw([sharded])))
    for part in ("Llama 3 70B on 4 × NVIDIA H100 SXM5 80 GB", "batch 1", "TP 4", "bound (roofline)", "prefill 93.5 ms"):
        assert part in words


def test_overlays_differ_in_line_and_shape() -> None:
    """Two GPUs have different line styles, two batches the same; their points differ in shape or fill."""
    gpus, batches = draw(analyses("gpus")), draw(analyses("batches"))
    styles = [line._unscaled_dash_pattern for line in lines(gpus, "slope:")]  # type: ignore[attr-defined]
    assert styles[0] != styles[1]
    assert len({str(s.get_gid()) for s in lines(batches, "slope:") if "HBM" in str(s.get_gid())}) == 1
    for figure in (gpus, batches):
        assert len({(p.get_marker(), str(p.get_markerfacecolor())) for p in lines(figure, "point:")}) == 4


def test_number_of_analyses_is_bounded(llama: Analysis) -> None:
    """No analysis, or more than can be told apart, is refused."""
    with pytest.raises(UsageError, match="1 to 6 analyses, not 0"):
        draw([])
    with pytest.raises(UsageError, match="1 to 6 analyses, not 7"):
        draw([llama] * 7)


def test_six_analyses_are_drawn(llama: Analysis) -> None:
    """Six are accepted, equal ones too: they are numbered."""
    assert "6:" in " ".join(t.get_text() for t in texts(draw([llama] * 6)))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_svg_is_text_and_the_same_each_time(theme: str, sharded: Analysis) -> None:
    """The SVG holds its words as text, has a title and a description, and is the same byte for byte."""
    text = svg_text([sharded], theme)
    assert text == svg_text([sharded], theme)
    root = ET.fromstring(text)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Llama 3 70B on 4 × NVIDIA H100 SXM5 80 GB"
    assert "Roofline" in str(root.findtext(f"{SVG}desc"))
    words = " ".join("".join(t.itertext()) for t in root.iter(f"{SVG}text"))
    assert "gate_up_proj" in words
    assert not re.search(r"20\d\d-\d\d-\d\d", text)


def test_svg_points_explain_themselves(sharded: Analysis) -> None:
    """Every point has a tooltip with its numbers."""
    root = ET.fromstring(svg_text([sharded]))
    tips = [str(g.findtext(f"{SVG}title")) for g in root.iter(f"{SVG}g") if str(g.get("id")).startswith("point:")]
    assert sorted(tips) == sorted(p.sentence for p in points(sharded))


def test_inline_svg_follows_the_page(sharded: Analysis) -> None:
    """Inline, colours are variables of the page with the light theme behind them, and there is no prolog."""
    text = svg_text([sharded], inline=True)
    assert text.startswith("<svg ")
    assert "var(--prefill, #0072b2)" in text
    assert not re.search(r"(?<!, )#[0-9a-f]{6}(?=[;\"])", text)


def test_png_is_the_same_each_time(sharded: Analysis) -> None:
    """The PNG is one, and the same byte for byte."""
    assert png([sharded]).startswith(b"\x89PNG\r\n")
    assert png([sharded]) == png([sharded])


def test_hostile_names_are_inert(hostile: Analysis, no_traces: Callable[[str], None]) -> None:
    """Markup, formulas and escapes in names appear as text in SVG and PNG and do nothing."""
    text = svg_text([hostile])
    no_traces(text)
    root = ET.fromstring(text)
    harmless = {"svg", "title", "desc", "defs", "style", "g", "path", "use", "text", "tspan", "clipPath", "rect"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= harmless
    words = " ".join("".join(t.itertext()) for t in root.iter(f"{SVG}text"))
    assert "<script>alert(1)</script>" in words
    assert "\\frac{" in words
    assert png([hostile]).startswith(b"\x89PNG")
    ET.fromstring(svg_text([hostile, hostile]))


@pytest.mark.filterwarnings("error")
def test_names_in_any_script_are_drawn_quietly() -> None:
    """A long name in scripts that the font lacks is drawn and shortened, without a warning, and whole as SVG text."""
    spec = model("llama3-8b").model_copy(update={"title": "模型 модель 🚀 " + "x" * 3000})
    assert png([analyze(spec, "h100")]).startswith(b"\x89PNG")
    assert "模型 модель 🚀 xxx" in svg_text([analyze(spec, "h100")])


@pytest.mark.parametrize("size", [{"input": 1, "output": 1}, {"batch": 10**7, "input": 10**8, "output": 10**8}])
def test_extremes_are_drawn(size: dict[str, int]) -> None:
    """The smallest and the largest request are drawn, with every operator inside the axes."""
    figure = draw([analyze("llama3-8b", "h100", **size)])
    (x0, x1), (y0, y1) = figure.axes[0].get_xlim(), figure.axes[0].get_ylim()
    found = lines(figure, "point:")
    assert len(found) > 15
    assert all(x0 < p.get_xdata()[0] < x1 and y0 < p.get_ydata()[0] < y1 for p in found)  # type: ignore[index]


def test_users_matplotlib_settings_do_not_matter(sharded: Analysis) -> None:
    """A user's style, LaTeX included, changes nothing, and is left as it was."""
    import matplotlib

    before = svg_text([sharded])
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert svg_text([sharded]) == before
        assert matplotlib.rcParams["font.size"] == 30


def test_save_by_ending(tmp_path: Path, sharded: Analysis) -> None:
    """`save` writes PNG and SVG by the ending, in any case, and refuses others before it writes."""
    save([sharded], tmp_path / "a.PNG")
    save(draw([sharded]), tmp_path / "b.svg")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    ET.parse(tmp_path / "b.svg")
    with pytest.raises(UsageError, match=r"ends in \.png or \.svg, not '\.bmp'"):
        save([sharded], tmp_path / "c.bmp")
    assert not (tmp_path / "c.bmp").exists()


def test_pyplot_is_not_needed() -> None:
    """Drawing imports neither pyplot nor pandas: the command stays quick, and no window system is asked for."""
    code = (
        "import sys; from perfmodel.roofline.analysis import analyze; from perfmodel.reports.roofline_plot import png; "
        "png([analyze('llama3-8b', 'h100')]); "
        "print([m for m in ('matplotlib.pyplot', 'pandas', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
