"""The memory picture: a bar a configuration, the memory of one GPU stacked by what takes it, in GiB.

The outlined box is the memory that the driver gives; what passes its end does not fit, and is hatched. Parts differ in
hue, in lightness and in their place, which is the same in every bar, so that they can be told apart under the common
colour-vision deficiencies. Text in the picture is never interpreted, and the picture is the same each time.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import UsageError
from perfmodel.base.units import gib
from perfmodel.reports import roofline_plot
from perfmodel.reports.roofline_plot import _settings
from perfmodel.reports.theme import Theme, contrast
from perfmodel.reports.theme import theme as named_theme
from perfmodel.reports.words import clip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfmodel.roofline.engines.result import EngineMemory

GIB = 2.0**30

#: Inches: of the picture, of a row and of the bar in it, of the axis below, of the edge.
WIDE, ROW, BAR, BELOW, EDGE = 11.0, 0.62, 0.27, 0.62, 0.2
#: Inches of a line of the title, of a note and of the legend; of an average character of title, note and value.
TITLE, NOTE, LEGEND, BOLD, CHARACTER, VALUE = 0.21, 0.17, 0.3, 0.104, 0.073, 0.07
#: More bars than this nobody compares; characters of a row's label and of its answer.
MOST_BARS, LABEL, ANSWER = 24, 54, 76

#: Parts from the left to the right: name in the legend, colour on light and on dark.
PARTS = {
    "weights": ("weights", "#0072b2", "#2e7fc2"),
    "activations": ("activations, peak", "#e69f00", "#e69f00"),
    "non_torch": ("context and communicators", "#a8558a", "#c9a0c9"),
    "cuda_graphs": ("CUDA graphs", "#16191d", "#eceef0"),
    "kv_pool": ("KV-cache pool", "#2fb890", "#22b48a"),
    "left": ("set aside or free", "#e4e7ea", "#2c3138"),
}


def parts(m: EngineMemory) -> dict[str, float]:
    """What the memory of a GPU goes to, by the names of ``PARTS``. [bytes]

    ``left`` is what remains of the usable memory: what the engine sets aside by its memory fraction, or what is free.
    Where the engine subtracts an estimate of its CUDA graphs, this estimate is shown; where it does not, the graphs
    come out of what is set aside. A pool of less than nothing is none, and the other parts then show what is missing.
    The parts add up to the usable memory, unless they pass it.
    """
    found = {name: m.bytes_of(name) for name in ("weights", "activations", "non_torch")}
    found["cuda_graphs"] = m.bytes_of("cuda_graph_estimate") or m.cuda_graphs
    found["kv_pool"] = max(m.kv_pool, 0.0)
    found["left"] = max(m.usable - sum(found.values()), 0.0)
    return found


def answer(m: EngineMemory) -> str:
    """What it holds, or what is missing, in a line."""
    if m.fits:
        if not math.isfinite(m.max_concurrency):
            return "fits; requests take no KV cache"
        spread = f" ({m.kv_tokens_low:,} to {m.kv_tokens_high:,})" if _interval(m) else ""
        return (
            f"{m.kv_tokens:,} KV tokens{spread}, {m.max_concurrency:,.1f} requests of {m.settings['max_model_len']:,}"
        )
    if m.kv_pool < 0:
        return f"does not fit: {gib(-m.kv_pool)} above what {clip(m.engine, 12)} may use, before any KV cache"
    if (over := sum(parts(m).values()) - m.usable) > 0:
        return f"does not fit: {gib(over)} more than the GPU has"
    if m.max_concurrency < 1:
        return f"does not fit: a request takes {gib(m.request_bytes)}, the pool has {gib(m.kv_pool)}"
    return f"does not fit: {m.notice}"


def _interval(m: EngineMemory) -> bool:
    """Whether the answer has an interval: some of its terms were fitted."""
    return m.fits and m.kv_tokens_low < m.kv_tokens_high


def draw(memories: Sequence[EngineMemory], theme: str = "light") -> Figure:
    """Draw the memory of one GPU for each configuration.

    Parameters
    ----------
    memories : sequence of EngineMemory
        One to 24, drawn from the top.
    theme : str
        ``light`` or ``dark``.

    Returns
    -------
    matplotlib.figure.Figure
        Not registered with pyplot: nothing to close. ``save`` writes it.

    Raises
    ------
    UsageError
        For no configuration, too many, or an unknown theme.

    Examples
    --------
    >>> from perfmodel.roofline.engines import memory
    >>> figure = draw([memory("llama3-70b", "h100", tp=tp) for tp in (2, 4, 8)])
    """
    colours, listed = named_theme(theme), list(memories)
    if not 1 <= len(listed) <= MOST_BARS:
        raise UsageError(f"a memory picture shows 1 to {MOST_BARS} configurations, not {len(listed)}; give fewer")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    common, labels = _words(listed)
    title = textwrap.wrap(_title(common), int((WIDE - 2 * EDGE) / BOLD))
    notes = textwrap.wrap(_notes(listed, common), int((WIDE - 2 * EDGE) / CHARACTER))
    head = EDGE + len(title) * TITLE + len(notes) * NOTE + LEGEND
    high = head + len(listed) * ROW + BELOW
    with _settings(colours):
        figure = Figure(figsize=(WIDE, high), dpi=roofline_plot.LAYOUT_DPI, facecolor=colours.background)
        FigureCanvasAgg(figure)
        figure.set_label(_description(listed, common, labels))
        box = (EDGE / WIDE, BELOW / high, 1 - 2 * EDGE / WIDE, len(listed) * ROW / high)
        axes = figure.add_axes(box)
        _frame(axes, listed, colours)
        for row, (m, label) in enumerate(zip(listed, labels, strict=True)):
            _bar(axes, row, m, label, theme)
        _head(figure, title, notes, _shown(listed), theme)
    return figure


def save(picture: Figure, path: str | Path) -> None:
    """Write a picture whole or not at all, as ``.png`` or ``.svg``.

    Raises
    ------
    UsageError
        For another ending.
    OutputError
        When the file cannot be written.
    """
    roofline_plot.save(picture, path)


def _shown(memories: Sequence[EngineMemory]) -> list[str]:
    """Parts that any bar has, in their order."""
    found = [parts(m) for m in memories]
    return [name for name in PARTS if any(one[name] > 0 for one in found)]


def _settings_of(m: EngineMemory) -> dict[str, str]:
    """What defines a configuration, each in words and in the order of reading."""
    s = m.settings
    degrees = ", ".join(f"{name.upper()} {s[name]}" for name in ("tp", "pp", "ep", "dp") if s.get(name, 1) > 1)
    fraction = s.get("memory_fraction")
    return {
        "model": clip(m.model, 60), "engine": clip(f"{m.engine} {m.version}", 40),
        "gpu": f"{s.get('gpus', 1)} × {clip(m.gpu, 30)}", "degrees": degrees, "weights": f"weights {s['weights']}",
        "kv": f"KV cache {s['kv']}", "length": f"{s['max_model_len']:,} tokens",
        "draft": f"draft {clip(str(s['draft']), 30)}" if s.get("draft") else "",
        "fraction": f"memory fraction {fraction:g}" if fraction else "",
    }  # fmt: skip


def _words(memories: Sequence[EngineMemory]) -> tuple[dict[str, str], list[str]]:
    """What all configurations have in common, and what names each: GPUs, what differs, or a number."""
    listed = [_settings_of(m) for m in memories]
    common = {key: words for key, words in listed[0].items() if all(one[key] == words for one in listed)}
    if "engine" not in common:  # each engine has a fraction of its own meaning
        listed = [{**one, "fraction": ""} for one in listed]
    differing = [{key: words for key, words in one.items() if key not in common} for one in listed]
    keys = [
        {**one, "gpu": full["gpu"], "degrees": full["degrees"]} for one, full in zip(differing, listed, strict=True)
    ]
    order = ("gpu", "degrees", "model", "engine", "weights", "kv", "fraction", "draft", "length")
    labels = [", ".join(one[key] for key in order if one.get(key)) for one in keys]
    named = [label if labels.count(label) == 1 else f"{i}: {label}" for i, label in enumerate(labels, 1)]
    return common, [clip(name, LABEL) for name in named]


def _title(common: Mapping[str, str]) -> str:
    names = [common[key] for key in ("model", "engine") if common.get(key)]
    return "Memory of one GPU" + (f": {' in '.join(names)}" if names else "")


def _notes(memories: Sequence[EngineMemory], common: Mapping[str, str]) -> str:
    said = [common[key] for key in ("weights", "kv", "draft", "fraction") if common.get(key)]
    if "length" in common:
        said.append(f"{common['length']} a request")
    said.append("the rank with the least room; outlined: device memory as the driver gives it")
    if any(sum(parts(m).values()) > m.usable * (1 + 1e-9) for m in memories):
        said.append("hatched: what passes it")
    if any(_interval(m) for m in memories):
        said.append("in brackets: 80 % interval from the overheads that were fitted")
    if together := {clip(m.engine, 40) for m in memories if not m.activations and m.reserved > 0}:
        said.append(f"activations and graphs of {', '.join(sorted(together))} are in what it sets aside")
    return "; ".join(said)


def _description(memories: Sequence[EngineMemory], common: Mapping[str, str], labels: Sequence[str]) -> str:
    """Title and description of the picture for those who do not see it."""
    lines = [_title(common), _notes(memories, common)]
    for m, label in zip(memories, labels, strict=True):
        listed = ", ".join(f"{PARTS[name][0]} {gib(value)}" for name, value in parts(m).items() if value > 0)
        lines.append(f"{label}: {listed}, of {gib(m.usable)}. {clip(answer(m), 300)}")
    return "\n".join(lines)


def _colour(name: str, theme: str) -> str:
    return PARTS[name][2 if theme == "dark" else 1]


def _frame(axes: Axes, memories: Sequence[EngineMemory], theme: Theme) -> None:
    """Axis in GiB, rows from the top."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    widest = max(max(m.usable, sum(parts(m).values())) for m in memories) / GIB
    axes.set_facecolor(theme.background)
    axes.set_xlim(0, widest * 1.01)
    axes.set_ylim(len(memories) * ROW, 0)
    ticks = [value for value in MaxNLocator(10, steps=[1, 2, 5, 10]).tick_values(0, widest) if 0 <= value <= widest]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_locator(NullLocator())
    axes.grid(True, axis="x", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("GiB of one GPU (1 GiB = 2³⁰ bytes)", fontsize=8.5, labelpad=3, color=theme.text)
    axes.xaxis.set_tick_params(length=0, labelsize=8, labelcolor=theme.muted, pad=4)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _bar(axes: Axes, row: int, m: EngineMemory, label: str, theme: str) -> None:
    """One bar with its label and its answer above it."""
    from matplotlib.patches import Rectangle

    colours, found = named_theme(theme), parts(m)
    top, left = row * ROW + 0.26, 0.0
    inch = (WIDE - 2 * EDGE) / axes.get_xlim()[1]
    for name, value in found.items():
        wide = value / GIB
        if wide > 0:
            axes.add_patch(Rectangle(
                (left, top), wide, BAR, facecolor=_colour(name, theme), edgecolor=colours.background, linewidth=0.6,
                gid=f"part:{row}:{name}", zorder=3,
            ))  # fmt: skip
            _value(axes, left, wide, min(wide, m.usable / GIB - left) * inch, top + BAR / 2, _colour(name, theme))
        left += wide
    usable = m.usable / GIB
    if left > usable * (1 + 1e-9):
        axes.add_patch(Rectangle(
            (usable, top), left - usable, BAR, fill=False, edgecolor=colours.notice, hatch="////", linewidth=0.8,
            gid=f"over:{row}", zorder=4,
        ))  # fmt: skip
    axes.add_patch(Rectangle(
        (0, top), usable, BAR, fill=False, edgecolor=colours.line, linewidth=1.1, gid=f"usable:{row}", zorder=5,
        clip_on=False,
    ))  # fmt: skip
    behind = {"facecolor": colours.background, "edgecolor": "none", "pad": 0.5}
    above: dict[str, Any] = {"va": "bottom", "parse_math": False, "zorder": 6, "bbox": behind}
    axes.text(0, top - 0.04, label, fontsize=9, fontweight="bold", color=colours.text, **above)
    said: dict[str, Any] = {"color": colours.muted if m.fits else colours.notice, "ha": "right"}
    axes.text(axes.get_xlim()[1], top - 0.04, clip(answer(m), ANSWER), fontsize=8.5, **said, **above)


def _value(axes: Axes, left: float, wide: float, room: float, y: float, behind: str) -> None:
    """The size of a part in it, centred in the ``room`` [inches] that it has within the GPU, where that is enough."""
    text = f"{wide:,.1f}"
    if room < len(text) * VALUE + 0.1:
        return
    ink = max(("#ffffff", "#16191d"), key=lambda colour: contrast(colour, behind))
    x = left + room / 2 * axes.get_xlim()[1] / (WIDE - 2 * EDGE)
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=8, color=ink, zorder=6)


def _head(figure: Figure, title: Sequence[str], notes: Sequence[str], shown: Sequence[str], theme: str) -> None:
    """Title, notes and legend, laid out from the top."""
    from matplotlib.patches import Patch

    colours, high = named_theme(theme), figure.get_size_inches()[1]
    top = high - EDGE
    bold: dict[str, Any] = {"fontsize": 11.5, "fontweight": "bold", "color": colours.text}
    small: dict[str, Any] = {"fontsize": 8.5, "color": colours.muted}
    for lines, step, style in ((title, TITLE, bold), (notes, NOTE, small)):
        for line in lines:
            figure.text(EDGE / WIDE, top / high, line, va="top", parse_math=False, **style)
            top -= step
    handles = [
        Patch(facecolor=_colour(name, theme), edgecolor=colours.line, linewidth=0.5, label=PARTS[name][0])
        for name in shown
    ]
    legend = figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(EDGE / WIDE, (top - 0.05) / high), ncols=len(handles),
        frameon=False, fontsize=8.5, labelcolor=colours.text, borderaxespad=0, borderpad=0, handlelength=1.2,
        handleheight=0.9, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip
    legend.set_zorder(6)
