"""Tables: what people read is formatted, what machines read is exact, and a hostile name does nothing."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs import listing as hardware
from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs import listing as models
from perfmodel.reports import listing
from perfmodel.reports.tables import Column, render, roofline_columns, roofline_rows, to_json
from perfmodel.roofline.analysis import Analysis
from perfmodel.roofline.engines import listing as engines

COLUMNS = (Column("name", "name"), Column("time_s", "time", "s"), Column("n", "runs"))
ROWS: list[dict[str, Any]] = [
    {"name": "alpha", "time_s": 4.2e-5, "n": 80},
    {"name": "beta", "time_s": math.inf, "n": None},
]


def test_csv_gives_back_the_numbers() -> None:
    """CSV holds plain SI numbers under headers with units, and what is infinite or missing is empty."""
    rows = list(csv.DictReader(io.StringIO(render(ROWS, COLUMNS, "csv"))))
    assert [row["time (s)"] for row in rows] == ["4.2e-05", ""]
    assert float(rows[0]["time (s)"]) == 4.2e-5
    assert [row["runs"] for row in rows] == ["80", ""]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_csv_and_json_lose_no_digit(values: list[float]) -> None:
    """Any float written as CSV or JSON reads back equal."""
    rows = [{"v": value} for value in values]
    columns = (Column("v", "v", "B"),)
    assert [float(row["v (B)"]) for row in csv.DictReader(io.StringIO(render(rows, columns, "csv")))] == values
    assert [row["v"] for row in json.loads(render(rows, columns, "json"))] == values


def test_json_has_no_infinity() -> None:
    """JSON knows neither infinity nor NaN; both become null, in lists and mappings too."""
    assert json.loads(render(ROWS, COLUMNS, "json"))[1]["time_s"] is None
    assert json.loads(to_json({"a": [math.nan, (1.5, -math.inf)]})) == {"a": [None, [1.5, None]]}


def test_json_takes_numpy() -> None:
    """NumPy's numbers and arrays are written as plain ones."""
    import numpy as np

    assert json.loads(to_json({"n": np.int64(3), "x": np.array([1.0, np.inf])})) == {"n": 3, "x": [1.0, None]}


def test_people_get_prefixes() -> None:
    """The table shows 4.2e-5 s as 42 us, the missing as nothing and the infinite as unlimited."""
    text = render(ROWS, COLUMNS, "table", terminal=False)
    assert "42 us" in text
    assert "unlimited" in text
    assert "None" not in text


def test_markdown_cells_stay_in_their_cells() -> None:
    """Bars, line breaks and markup in a cell are escaped: each line has the same number of unescaped bars."""
    rows = [{"name": "a|b\nc `x` <b> $y$ **z** [l](u) \x1b[0m", "time_s": 1.0, "n": 1}]
    lines = render(rows, COLUMNS, "md").splitlines()
    assert len(lines) == 3
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(COLUMNS) + 1}
    assert r"a\|b" in lines[2]
    assert re.search(r"(?<!\\)[`<*$\[]", lines[2]) is None
    assert "\x1b" not in lines[2]


@given(st.text(max_size=40))
def test_any_text_keeps_a_markdown_row_whole(name: str) -> None:
    """Whatever a name holds, its row stays one line with the right number of cells."""
    lines = render([{"name": name, "time_s": 1.0, "n": 1}], COLUMNS, "md").splitlines()
    assert len(lines) == 3
    plain = lines[2].replace("\\\\", "")
    assert len(re.findall(r"(?<!\\)\|", plain)) == len(COLUMNS) + 1


@given(st.text(max_size=40))
def test_any_text_is_harmless_in_a_table(name: str) -> None:
    """Whatever a name holds, the table has one line for it and no control character."""
    text = render([{"name": name, "time_s": 1.0, "n": 1}], COLUMNS, "table", terminal=False)
    assert len(text.splitlines()) == 3
    assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("fmt", ["table", "csv", "md"])
def test_hostile_names_are_escaped(fmt: str, hostile: Analysis, no_traces: Callable[[str], None]) -> None:
    """A hostile layer name leaves no control character, and markup of rich is shown, not obeyed."""
    text = render(roofline_rows([hostile]), roofline_columns([hostile]), fmt, title="[red]x[/red]", terminal=False)
    no_traces(text)
    if fmt == "table":
        assert text.startswith("[red]x[/red]\n")


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Escape sequences go to a terminal alone, and not where NO_COLOR or a dumb terminal asks for none."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in render(ROWS, COLUMNS, terminal=True)
    assert "\x1b[" not in render(ROWS, COLUMNS, terminal=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in render(ROWS, COLUMNS, terminal=True)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[" not in render(ROWS, COLUMNS, terminal=True)


def narrow(width: int, monkeypatch: pytest.MonkeyPatch, rows: Any, columns: Any) -> tuple[str, list[Column]]:
    """A table on a terminal of some width, and the columns that it shows: the others it must name."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    text = render(rows, columns, terminal=True)
    words = " ".join(text.split()).partition("Left out for want of width: ")[2].partition(";")[0].split(", ")
    return text, [c for c in columns if c.header not in words]


@pytest.mark.parametrize("width", [80, 60, 50, 36, 20])
def test_a_narrow_terminal_cuts_no_number(width: int, monkeypatch: pytest.MonkeyPatch, sharded: Analysis) -> None:
    """Nothing is wider than the terminal; what is left out is said, and every number that is shown is whole."""
    rows = roofline_rows([sharded])
    text, shown = narrow(width, monkeypatch, rows, roofline_columns([sharded]))
    assert max(map(len, text.splitlines())) <= width
    assert {"phase", "op", "time_s"} <= {c.key for c in shown}
    for row in rows:
        for column in shown:
            if column.key in ("flops", "intensity", "time_s", "share"):
                assert column.human(row[column.key]) in text


def test_what_goes_first(monkeypatch: pytest.MonkeyPatch, sharded: Analysis) -> None:
    """At 80 columns go layer class, runs and bytes; at 50 the FLOPs, intensity and share; what limits goes later."""
    rows, columns = roofline_rows([sharded]), roofline_columns([sharded])
    gone = {w: {c.key for c in columns} - {c.key for c in narrow(w, monkeypatch, rows, columns)[1]} for w in (80, 50)}
    assert gone[80] == {"layer", "count", "bytes"}
    assert gone[50] == gone[80] | {"flops", "intensity", "share"}


@pytest.mark.parametrize("what", ["gpus", "systems", "models", "formats", "engines"])
@pytest.mark.parametrize("width", [80, 50])
def test_listings_fit_the_terminal(what: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings keep to the width too, and their names whole: they are typed into other commands."""
    rows, columns = LISTINGS[what]
    found = rows()
    text, shown = narrow(width, monkeypatch, found, columns)
    assert max(map(len, text.splitlines())) <= width
    assert shown[0].key == "name"
    assert all(row["name"] in text.split() for row in found)


#: SI unit of every number in a listing or table, by its key; "" for counts, shares and ratios.
UNITS = {
    "peak_flops": "FLOP/s", "bandwidth": "B/s", "capacity": "B", "usable": "B", "ridge": "FLOP/B", "tdp": "W",
    "gpus_per_node": "", "domain": "", "scale_up_bandwidth": "B/s", "scale_out_bandwidth": "B/s", "total_params": "",
    "active_params": "", "layers": "", "max_context": "", "kv_bytes_per_token": "B", "bits": "", "bits_per_weight": "",
    "count": "", "flops": "FLOP", "bytes": "B", "intensity": "FLOP/B", "time_s": "s", "share": "",
}  # fmt: skip
LISTINGS: dict[str, tuple[Callable[[], list[dict[str, Any]]], tuple[Column, ...]]] = {
    "gpus": (hardware.rows, listing._GPUS),
    "systems": (hardware.system_rows, listing._SYSTEMS),
    "models": (models.rows, listing._MODELS),
    "formats": (models.format_rows, listing._FORMATS),
    "engines": (engines.rows, listing._ENGINES),
}


@pytest.mark.parametrize("what", [*LISTINGS, "sources", "roofline", "overlay"])
def test_csv_headers_are_unique_and_name_the_unit_of_the_number(what: str, sharded: Analysis) -> None:
    """In every listing and table, each CSV header is there once and names the unit of the raw number under it."""
    analyses = [sharded, sharded] if what == "overlay" else [sharded]
    if what in LISTINGS:
        rows, columns, text = LISTINGS[what][0](), LISTINGS[what][1], listing.listing_text(what, "csv")
    elif what == "sources":
        rows, columns, text = [], listing._SOURCES, listing.listing_text("gpus", "csv", sources=True)
    else:
        rows, columns = roofline_rows(analyses), roofline_columns(analyses)
        text = render(rows, columns, "csv")
    header, *lines = csv.reader(io.StringIO(text))
    assert len(set(header)) == len(header) == len(columns)
    assert all(len(line) == len(header) for line in lines)
    for i, column in enumerate(columns):
        numbers = [row[column.key] for row in rows if isinstance(row[column.key], int | float)]
        if any(not isinstance(number, bool) for number in numbers):
            unit = UNITS[column.key]
            assert header[i] == unit or header[i].endswith(f" ({unit})") or (not unit and "(" not in header[i])
            raw = [None if line[i] == "" else float(line[i]) for line in lines]
            assert raw == [None if row[column.key] is None else float(row[column.key]) for row in rows]


def test_memory_in_a_listing_says_its_unit() -> None:
    """People read GB and GiB in the cell; the CSV has bytes under a header that says so."""
    table, found = listing.listing_text("gpus", "table"), listing.listing_text("gpus", "csv")
    (line,) = [line for line in table.splitlines() if line.startswith("h100-sxm ")]
    assert "80.00 GB" in line
    assert "79.19 GiB" in line
    (row,) = [row for row in csv.DictReader(io.StringIO(found)) if row["name"] == "h100-sxm"]
    assert (float(row["memory (B)"]), float(row["usable (B)"])) == (80e9, gpu("h100").usable_memory)


def test_a_pipe_gets_one_line_a_row(sharded: Analysis) -> None:
    """Piped, nothing is folded however long: header, rule, and one line a row."""
    rows = roofline_rows([sharded])
    assert len(render(rows, roofline_columns([sharded]), terminal=False).splitlines()) == len(rows) + 2


def test_unknown_format_is_refused() -> None:
    """The formats are four; another is named in the error."""
    with pytest.raises(UsageError, match="'yaml'; choose one of table, json, csv, md"):
        render(ROWS, COLUMNS, "yaml")


def test_totals_are_sums(sharded: Analysis) -> None:
    """Each phase ends in a total: the sum of FLOPs, bytes and time over its operators, and a share of 1."""
    rows = roofline_rows([sharded])
    for phase in ("prefill", "decode"):
        *ops, total = [row for row in rows if row["phase"] == phase]
        assert total["op"] == "total"
        for key in ("flops", "bytes", "time_s", "share", "count"):
            assert total[key] == pytest.approx(sum(op[key] for op in ops), rel=1e-12)
        assert total["intensity"] == pytest.approx(total["flops"] / total["bytes"])


def test_several_analyses_are_told_apart() -> None:
    """With several analyses a first column names each by what differs."""
    from perfmodel.roofline.analysis import analyze

    pair = [analyze("llama3-8b", "h100", batch=batch) for batch in (1, 64)]
    rows = roofline_rows(pair)
    assert {row["analysis"] for row in rows} == {"batch 1", "batch 64"}
    assert roofline_columns(pair)[0].key == "analysis"
    assert roofline_columns(pair[:1])[0].key == "phase"
