"""The memory picture: bars as long as the bytes, misfits shown as such, parts that everybody can tell apart."""

import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from perfmodel.base.errors import UsageError
from perfmodel.reports import roofline_plot
from perfmodel.reports.memory_plot import BAR, GIB, MOST_BARS, PARTS, ROW, answer, draw, parts, save
from perfmodel.reports.theme import THEMES, contrast
from perfmodel.roofline.engines import memory
from perfmodel.roofline.engines.result import EngineMemory

SVG = "{http://www.w3.org/2000/svg}"

#: Engines with their own terms; what fits, what barely does, what does not; and what misses only a longer request.
ASKED: dict[str, dict[str, Any]] = {
    "vllm": {"tp": 4},
    "vllm-old": {"tp": 4, "version": "0.11.0"},
    "tight": {"tp": 2},
    "misfit": {"tp": 1},
    "long": {"model": "llama3.1-70b", "tp": 2},
    "sglang": {"tp": 4, "engine": "sglang"},
    "trtllm": {"tp": 4, "engine": "trtllm"},
    "llamacpp": {"pp": 4, "engine": "llamacpp"},
    "llamacpp-misfit": {"engine": "llamacpp"},
    "windows": {"model": "gpt-oss-120b", "gpu": "b200"},
    "latent": {"model": "deepseek-v3", "gpu": "h200", "tp": 8},
    "amd": {"gpu": "mi300x", "kv": "fp8"},
}


@cache
def asked(name: str) -> EngineMemory:
    options = {"model": "llama3-70b", "gpu": "h100", **ASKED[name]}
    return memory(options.pop("model"), options.pop("gpu"), **options)


def rectangles(figure: Figure, prefix: str) -> dict[str, Rectangle]:
    found = figure.axes[0].patches
    return {str(p.get_gid()): p for p in found if isinstance(p, Rectangle) and str(p.get_gid()).startswith(prefix)}


def words(figure: Figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]


@pytest.mark.parametrize("name", ASKED)
def test_parts_add_up_to_the_device(name: str) -> None:
    """Parts of every engine add up to the usable memory, or to more where the model passes it; none is negative."""
    m = asked(name)
    found = parts(m)
    assert list(found) == list(PARTS)
    assert min(found.values()) >= 0
    total = sum(found.values())
    if m.fits:
        assert total == pytest.approx(m.usable, rel=1e-9)
    assert total >= m.usable * (1 - 1e-9)
    assert found["weights"] == m.weights
    assert found["kv_pool"] == max(m.kv_pool, 0)


def test_graphs_are_subtracted_or_come_out_of_the_rest() -> None:
    """vLLM 0.33 subtracts its estimate of the graphs from the pool; in 0.11 they take of what is set aside."""
    new, old = asked("vllm"), asked("vllm-old")
    assert parts(new)["cuda_graphs"] == new.bytes_of("cuda_graph_estimate") > 0
    assert parts(new)["left"] == pytest.approx(new.reserved)
    assert old.bytes_of("cuda_graph_estimate") == 0
    assert parts(old)["left"] == pytest.approx(old.reserved - old.cuda_graphs)


def test_bars_are_as_long_as_the_bytes() -> None:
    """Every part is drawn in GiB, one after another from 0, and each box is the usable memory of its GPU."""
    shown = [asked(name) for name in ASKED]
    figure = draw(shown)
    drawn = rectangles(figure, "part:")
    for row, m in enumerate(shown):
        at = 0.0
        for name, value in parts(m).items():
            if value > 0:
                box = drawn.pop(f"part:{row}:{name}")
                assert (box.get_x(), box.get_width()) == (pytest.approx(at), pytest.approx(value / 2**30))
                assert row * ROW < box.get_y() < box.get_y() + box.get_height() < (row + 1) * ROW
            at += value / 2**30
        usable = rectangles(figure, f"usable:{row}")[f"usable:{row}"]
        assert (usable.get_x(), usable.get_width()) == (0, pytest.approx(m.usable / 2**30))
    assert drawn == {}
    low, high = figure.axes[0].get_xlim()
    assert low == 0
    assert high > max(sum(parts(m).values()) for m in shown) / GIB


def test_what_passes_the_device_is_hatched() -> None:
    """The part of a bar past the usable memory is hatched, and only there."""
    shown = [asked(name) for name in ("misfit", "tight", "long", "llamacpp-misfit")]
    over = rectangles(draw(shown), "over:")
    assert list(over) == ["over:0", "over:3"]
    for key, m in (("over:0", shown[0]), ("over:3", shown[3])):
        assert over[key].get_hatch()
        assert over[key].get_x() == pytest.approx(m.usable / GIB)
        assert over[key].get_width() == pytest.approx((sum(parts(m).values()) - m.usable) / GIB)


def test_answers_say_what_is_missing() -> None:
    """An answer gives tokens, interval and requests where it fits, and else what is missing and of what."""
    fits = asked("vllm")
    assert answer(fits) == (
        f"{fits.kv_tokens:,} KV tokens ({fits.kv_tokens_low:,} to {fits.kv_tokens_high:,}), "
        f"{fits.max_concurrency:.1f} requests of 8,192"
    )
    missing = -asked("misfit").kv_pool / GIB
    assert answer(asked("misfit")) == f"does not fit: {missing:.2f} GiB above what vLLM may use, before any KV cache"
    # 131,072 tokens x 2 x 80 layers x 4 KV heads x 128 x 2 bytes = 20 GiB on each of two GPUs
    assert answer(asked("long")).startswith("does not fit: a request takes 20.00 GiB, the pool has 1.")
    assert re.fullmatch(r"does not fit: \d+\.\d\d GiB more than the GPU has", answer(asked("llamacpp-misfit")))
    assert "(" not in answer(asked("sglang")), "no term of SGLang is fitted, so that there is no interval"
    refused = memory("llama3-70b", "h100", tp=4, memory_fraction=1.0)
    assert answer(refused).startswith("does not fit: 1 of 79.19 GiB is")
    free = replace(fits, max_concurrency=float("inf"))
    assert answer(free) == "fits; requests take no KV cache"


def test_labels_name_what_differs() -> None:
    """What all share is said once above; a row says its GPUs and what differs; equal rows are numbered."""
    same = words(draw([asked("tight"), asked("vllm")]))
    assert "Memory of one GPU: Llama 3 70B in vLLM 0.33.0" in same
    assert {"2 × h100-sxm, TP 2", "4 × h100-sxm, TP 4"} <= set(same)
    assert any(
        text.startswith("weights bf16; KV cache bf16; memory fraction 0.92; 8,192 tokens a req") for text in same
    )
    mixed = words(draw([asked("vllm"), asked("sglang"), asked("vllm")]))
    assert "4 × h100-sxm, TP 4, SGLang 0.5.23" in mixed
    assert {"1: 4 × h100-sxm, TP 4, vLLM 0.33.0", "3: 4 × h100-sxm, TP 4, vLLM 0.33.0"} <= set(mixed)
    assert any(
        "activations and graphs of SGLang are in what it sets aside" in text.replace("\n", " ") for text in mixed
    )
    assert any("FP8" in text.upper() for text in words(draw([asked("amd"), asked("vllm")])))


@pytest.mark.parametrize("theme", THEMES)
def test_texts_do_not_collide(theme: str) -> None:
    """No text runs through another one or out of the picture, and values lie within their parts."""
    figure = draw([asked(name) for name in ASKED], theme)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    found = [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in found]
    assert len(boxes) > 30
    wide, high = figure.get_size_inches() * figure.dpi
    for text, box in boxes:
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= wide + 1, text
        assert box.y1 <= high + 1, text
    for (ta, a), (tb, b) in itertools.combinations(boxes, 2):
        assert min(a.x1, b.x1) - max(a.x0, b.x0) < 1 or min(a.y1, b.y1) - max(a.y0, b.y0) < 1, (ta, tb)
    drawn = [p.get_window_extent(renderer) for p in rectangles(figure, "part:").values()]
    values = [box for text, box in boxes if re.fullmatch(r"[\d,]+\.\d", text)]
    assert len(values) > 20
    for value in values:
        assert any(part.x0 <= value.x0 and value.x1 <= part.x1 and part.y0 <= value.y0 for part in drawn)


#: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009,
#: severity 1.0, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lab(colour: str, vision: Any) -> np.ndarray:
    """CIE L*a*b* of a colour as seen."""
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    xyz = np.array(to_xyz) @ np.clip(np.array(vision) @ linear, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(("theme", "place"), [("light", 1), ("dark", 2)])
def test_parts_can_be_told_apart(vision: str, theme: str, place: int) -> None:
    """Any two parts differ by far more than a just noticeable difference (2.3) under each colour-vision deficiency."""
    seen = {name: lab(part[place], VISION[vision]) for name, part in PARTS.items()}
    differences = [float(np.linalg.norm(seen[a] - seen[b])) for a, b in itertools.combinations(seen, 2)]
    assert min(differences) > 15
    assert contrast(THEMES[theme].line, THEMES[theme].background) > 4.5


def test_description_has_all_numbers() -> None:
    """Who does not see the picture is read every part of every bar."""
    shown = [asked("vllm"), asked("misfit")]
    text = str(draw(shown).get_label())
    for m in shown:
        assert f"weights {m.weights / GIB:.2f} GiB" in text
        assert f"of {m.usable / GIB:.2f} GiB. {answer(m)}" in text


@pytest.mark.parametrize("theme", THEMES)
def test_svg_and_png_are_the_same_each_time(theme: str, tmp_path: Path) -> None:
    """Drawn twice it is the same byte for byte, with text as text; the ending chooses the kind."""
    shown = [asked("vllm"), asked("misfit")]
    for name in ("a.svg", "b.svg", "a.png", "b.PNG"):
        save(draw(shown, theme), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.PNG").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
    root = ET.parse(tmp_path / "a.svg").getroot()
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Memory of one GPU: Llama 3 70B in vLLM 0.33.0"
    assert "KV-cache pool" in " ".join("".join(t.itertext()) for t in root.iter(f"{SVG}text"))
    with pytest.raises(UsageError, match=r"ends in \.png or \.svg"):
        save(draw(shown), tmp_path / "c.gif")


def test_hostile_names_are_inert(no_traces: Callable[[str], None]) -> None:
    """Markup, formulas and escapes in names appear as text and do nothing; long names are shortened."""
    name = "<script>alert(1)</script> $\\frac{ \x1b[31m ]]> \u202e &" + "x" * 500
    odd = [replace(asked("vllm"), model=name, gpu=name, engine=name), replace(asked("misfit"), engine=name)]
    text = roofline_plot.svg_text(draw(odd))
    no_traces(text)
    assert "<script>" not in text
    assert "x" * 100 not in text
    ET.fromstring(text)
    assert roofline_plot.png(draw(odd)).startswith(b"\x89PNG")


def test_number_of_bars_is_bounded() -> None:
    """No configuration, too many, or a theme that there is not, is refused."""
    with pytest.raises(UsageError, match="1 to 24 configurations, not 0"):
        draw([])
    with pytest.raises(UsageError, match="1 to 24 configurations, not 25"):
        draw([asked("vllm")] * (MOST_BARS + 1))
    with pytest.raises(UsageError, match="choose light or dark"):
        draw([asked("vllm")], "pink")
    assert len(rectangles(draw([asked("vllm")] * MOST_BARS), "usable:")) == MOST_BARS


def test_result_draws_itself() -> None:
    """`plot` of a result is the picture of its one bar."""
    m = asked("vllm")
    assert roofline_plot.svg_text(m.plot()) == roofline_plot.svg_text(draw([m]))
    assert rectangles(m.plot(theme="dark"), "usable:")["usable:0"].get_height() == BAR


def test_users_matplotlib_settings_do_not_matter() -> None:
    """A user's style changes nothing, and is left as it was."""
    import matplotlib

    before = roofline_plot.svg_text(draw([asked("misfit")]))
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "hatch.linewidth": 9, "axes.facecolor": "red"}):
        assert roofline_plot.svg_text(draw([asked("misfit")])) == before
        assert matplotlib.rcParams["font.size"] == 30


def test_pyplot_is_not_needed() -> None:
    """Drawing imports neither pyplot nor pandas."""
    code = (
        "import sys; import perfmodel as pm; pm.memory('llama3-8b', 'h100').plot(); "
        "print([m for m in ('matplotlib.pyplot', 'pandas', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
