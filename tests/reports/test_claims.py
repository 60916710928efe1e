"""The claim ledger: complete, computed, and right."""

import ast
import csv
import importlib
import io
import json
import math
import re
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.cli import main
from perfmodel.hwspecs.load import gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.reports import claims as ledger_module
from perfmodel.reports.claims import AGREES, APPROXIMATE, Claim, Line, claim, claims, claims_text, ledger, verdict

ROOT = Path(__file__).resolve().parents[2]
IDS = [
    f"{letter}{n}" for letter, last in (("H", 8), ("F", 11), ("A", 8), ("S", 10), ("Q", 13)) for n in range(1, last + 1)
]


@pytest.fixture(scope="module")
def rows():
    return ledger()


@pytest.fixture
def registry(monkeypatch):
    """A registry that forgets what a test registers."""
    claims()
    monkeypatch.setattr(ledger_module, "_CLAIMS", dict(ledger_module._CLAIMS))
    yield ledger_module._CLAIMS
    claims.cache_clear()


@pytest.mark.parametrize("name", IDS)
def test_every_claim_has_a_line(rows, name):
    """Each claim of the sections on hardware, FLOPs and attention is in the ledger."""
    assert [row for row in rows if row["id"] == name]


def judged(row):
    """The verdict's first word from the printed ratio alone (the module compares quotients, this one logarithms)."""
    if row["ours"] is None:
        return "not modelled"
    if row["chapter_low"] is None:
        return ""
    low, high, ratio = row["chapter_low"], row["chapter_high"], row["ratio"]
    if low <= row["ours"] <= high:
        return "agrees"
    if ratio is None or ratio <= 0:
        return "differs"
    if low == high and abs(math.log(ratio)) <= math.log(1.02):
        return "agrees"
    return "approximate" if not row["strict"] and abs(math.log(ratio)) <= math.log(1.15) else "differs"


def test_verdicts_follow_from_the_ratio(rows):
    """Every verdict is the one that an independent rule finds from the ratio."""
    assert [(row["id"], row["what"]) for row in rows if row["verdict"].partition(":")[0] != judged(row)] == []


def test_ratios_are_ours_over_the_chapters(rows):
    """The ratio is ours over the figure, or over the nearest edge of the band, and 1 inside it."""
    for row in rows:
        if row["ratio"] is None:
            assert row["ours"] is None or not row["chapter_low"], row
            continue
        edge = row["ours"] / row["ratio"] if row["ratio"] else row["chapter_low"]
        inside = row["chapter_low"] <= row["ours"] <= row["chapter_high"]
        assert (
            row["ratio"] == 1
            if inside
            else edge == pytest.approx(row["chapter_low"]) or edge == pytest.approx(row["chapter_high"])
        ), row


def test_every_kind_of_verdict_occurs(rows):
    """The ledger neither agrees with everything nor refuses everything."""
    words = {row["verdict"].partition(":")[0] for row in rows}
    assert words == {"agrees", "approximate", "differs", "not modelled", ""}


def test_no_verdict_without_numbers(rows):
    """All but `not modelled` and lines without a claim have two numbers; what differs or is not modelled says why."""
    for row in rows:
        word, _, reason = row["verdict"].partition(": ")
        if word in ("agrees", "approximate", "differs"):
            assert math.isfinite(row["ours"]), row
            assert row["chapter_low"] is not None, row
        assert bool(reason) == (word in ("differs", "not modelled")), row
        assert "times the chapter's figure" not in reason, row  # the fallback: a reason is missing


#: (id, words of the line, our figure, relative tolerance of its rounding)
RIGHT = [
    ("H1", "A100: ridge", 153, 1e-3),  # 312 / 2.039
    ("H1", "H100: ridge", 295, 2e-3),  # 989.4 / 3.35
    ("H1", "B200: ridge", 293, 2e-3),  # 2250 / 7.672
    ("H1", "B200: memory bandwidth", 7.67, 1e-3),
    ("H2", "growth of the FP16 peak", 7.2, 2e-3),  # 2250 / 312
    ("H2", "growth of memory bandwidth", 3.8, 1.1e-2),  # 7.672 / 2.039
    ("H2", "H100 to B200: growth of the ridge", 0.993, 1e-3),  # 293.3 / 295.3
    ("H2", "from the chapter's own figures", 0.846, 1e-3),  # 250 / (990 / 3.35)
    ("H3", "of one SM", 0.18, 5e-3),  # 128 B/clk x 1.41 GHz
    ("H3", "of all SMs", 19.49, 1e-3),  # x 108
    ("H4", "A100: shared memory that a thread block", 163, 0),
    ("H4", "H100: shared memory that a thread block", 227, 0),
    ("H4", "B200: shared memory that a thread block", 227, 0),
    ("H4", "A100: largest", 164, 0),
    ("H4", "H100: largest", 228, 0),
    ("H4", "B200: L2", 126.5, 5e-3),
    ("H5", "A100, FP16", 153, 1e-3),
    ("H5", "H100, FP16", 295, 2e-3),
    ("H5", "B200, FP16", 293, 2e-3),
    ("H5", "8-bit weights, FP16 math", 147.7, 1e-3),  # half of 295.3
    ("H5", "8-bit weights, FP8 math", 295, 2e-3),
    ("H5", "no batch is compute-bound", 1475, 1e-2),
    ("H6", "A100, as the chapter sums: reading", 70, 0),  # 140 GB / 2.0 TB/s
    ("H6", "A100, as the chapter sums: 140", 0.45, 5e-3),
    ("H6", "H100, as the chapter sums: reading", 42, 1e-2),
    ("H6", "exact: weights", 137.95, 1e-4),  # 68,976,648,192 x 2
    ("H6", "cards that hold it", 2, 0),
    ("H7", "QK^T, decode at 4,096 tokens, multi-head", 1, 1e-3),
    ("H7", "QK^T, decode at 4,096 tokens, 4 query heads", 4, 2e-3),
    ("H7", "fused, multi-head (s/2)", 2048, 0),
    ("F1", "24 s d^2", 24 * 8192 * 6144**2 / 1e12, 1e-12),
    ("F1", "all pairs, 4 s^2 d", 4 * 8192**2 * 6144 / 1e12, 1e-12),
    ("F1", "causal, 4 s^2 d", 2 * 8192 * 8193 * 6144 / 1e12, 1e-12),  # s (s + 1) / 2 pairs
    ("F2", "textbook", 100 * 16 / (24 + 4 * 512 / 6144), 1e-12),
    ("F3", "textbook layer, all pairs: attention passes the FFN", 4, 1e-9),
    ("F3", "textbook layer, all pairs: attention passes all linear", 6, 1e-9),
    ("F3", "textbook layer, all pairs: attention with its", 2, 1e-9),
    ("F3", "textbook layer, causal: attention passes the FFN", 8, 1e-4),
    ("F3", "LLaMA-3 8B, all pairs: attention passes the FFN", 5.25, 1e-9),  # 6 x 14336 / (4 x 4096)
    ("F4", "LLaMA-3 8B: LM head in the weights", 6.5, 1e-2),
    ("F4", "LLaMA-3 8B: LM head in the FLOPs of a decode", 7.0, 1e-3),
    ("F4", "LLaMA-3.1 405B: LM head in the FLOPs of a decode", 0.5, 5e-2),
    ("F4", "LLaMA-3 8B: input embedding", 0, 0),
    ("F5", "LLaMA-3 8B: context of 1", 15.01, 1e-3),  # 2 x (8.030 B - 525 M of the embedding)
    ("F5", "Qwen2.5 72B: context of 1", 142.9, 1e-3),
    ("F6", "the chapter's formula redone", 1.26, 5e-3),  # 8 x 8192^2 + 3 x 8192 x 29568
    ("F6", "exact: attention projections", 151, 1e-3),  # 2.25 x 8192^2
    ("F6", "exact: FFN", 727, 1e-3),
    ("F6", "exact: matrices of a layer", 878, 1e-3),
    ("F6", "exact: total", 72.7, 1e-3),
    ("F6", "exact: parameters shared", 0, 0),
    ("F7", "LLaMA-3 8B (32 / 8), 'GQA-8' read as heads", 4, 0),
    ("F7", "Gemma 3 27B (32 / 16), 'GQA-2' read as KV heads", 16, 0),
    ("F8", "KV cache of a token", 70272, 0),  # (512 + 64) x 2 x 61
    ("F8", "parameters", 671, 1e-3),
    ("F8", "active parameters", 37, 2e-2),
    ("F9", "Maverick over Scout", 1, 2e-3),
    ("F10", "context of 1", 0.51, 1e-2),
    ("F10", "chapter's own table", 74 / 144, 1e-12),
    ("F11", "Gemma 3 27B", 16, 0),
    ("A1", "S in GB", 34.36, 1e-4),  # 131072^2 x 2
    ("A1", "S in GiB", 32, 0),
    ("A2", "with M = 192 KiB", 2 * 131072**2 * 128**2 / 196608 / 1e6, 1e-12),
    ("A2", "reported traffic", 9.16, 1e-3),  # 40.3 / 4.4
    ("A2", "from the algorithms", 5.43, 1e-3),
    ("A3", "six tiles", 193, 0),
    ("A3", "shared memory that a block can use", 163, 0),
    ("A4", "225 TFLOP/s", 72.1, 1e-3),  # of 312
    ("A4", "840 TFLOP/s", 85, 2e-3),  # of 989.4
    ("A4", "740 TFLOP/s", 75, 3e-3),
    ("A4", "1.3 PFLOP/s", 66, 5e-3),  # of 1979
    ("A6", "one sequence: attention alone, bound", 54, 0),  # 108 SMs over 2 KV heads
    ("A8", "longest N", 768, 0),  # 192 KiB / (128 x 2)
]


@pytest.mark.parametrize(("name", "words", "right", "rounding"), RIGHT, ids=[f"{r[0]} {r[1]}" for r in RIGHT])
def test_right_values(rows, name, words, right, rounding):
    """Our figure is the one that hand arithmetic or the documents give."""
    found = [row for row in rows if row["id"] == name and (row["what"].startswith(words) or words in row["what"])]
    found.sort(key=lambda row: not row["what"].startswith(words))
    assert found, words
    assert found[0]["ours"] == pytest.approx(right, rel=rounding, abs=0)


#: Lines whose verdict is known without the ledger: what the chapter has right, and what it has wrong.
KNOWN = [
    ("H1", "H100: memory bandwidth", "agrees"),
    ("H1", "B200: memory bandwidth", "differs"),
    ("H2", "from the chapter's own figures", "differs"),
    ("H3", "of one SM", "differs"),
    ("H5", "A100, FP16", "differs"),
    ("H6", "A100, as the chapter sums: reading", "agrees"),
    ("H6", "cards that hold it", "differs"),
    ("H8", "L2 hit rate", "not modelled"),
    ("F1", "24 s d^2", "agrees"),
    ("F3", "textbook layer, all pairs: attention passes the FFN", "differs"),
    ("F4", "LLaMA-3 8B: LM head in the weights", "differs"),
    ("F4", "LLaMA-3 8B: LM head in a prefill", "agrees"),
    ("F6", "exact: matrices of a layer", "differs"),
    ("F6", "exact: total", "agrees"),
    ("F8", "parameters", "agrees"),
    ("F9", "Maverick over Scout", "agrees"),
    ("F10", "context of 1", "differs"),
    ("F11", "Gemma 3 27B", "differs"),
    ("A1", "S in GiB", "agrees"),
    ("A2", "Path-X", "not modelled"),
    ("A3", "against the chapter's 192 KiB", "differs"),
    ("A4", "1.3 PFLOP/s", "differs"),
    ("A7", "merged", "agrees"),
    ("A8", "N = 128K", "differs"),
    ("S1", "a = 0.8: bound", "agrees"),
    ("S2", "1 - TVD", "agrees"),
    ("S3", "a = 0.3, c = 0.05, g = 1", "differs"),
    ("S3", "a = 0.8, c = 0.5, g = 1", "differs"),
    ("S3", "a = 0.8, c = 0.6, g = 8", "agrees"),
    ("S4", "a 1B draft, 8 x H100, a = 0.8, g = 5, 2,048 tokens, batch 4", "agrees"),
    ("S4", "a 1B draft, 8 x H100, a = 0.8, g = 5, 2,048 tokens, batch 32", "differs"),
    ("S7", "8 times the data", "differs"),
    ("S8", "entries that differ", "agrees"),
    ("S9", "published", "agrees"),
    ("S10", "4 accepted", "differs"),
]


@pytest.mark.parametrize(("name", "words", "word"), KNOWN, ids=[f"{r[0]} {r[1]}" for r in KNOWN])
def test_known_verdicts(rows, name, words, word):
    """Where the chapter is known to be right or wrong, the ledger says so."""
    found = [row for row in rows if row["id"] == name and words in row["what"]]
    assert found[0]["verdict"].partition(":")[0] == word


def test_attention_is_compute_bound_never_beyond_a_context(rows):
    """H5: the whole step's critical batch lies above the linear layers' and grows with the context."""
    steps = [row["ours"] for row in rows if row["id"] == "H5" and "whole step" in row["what"]]
    assert len(steps) == 3
    assert 295 < steps[0] < steps[1] < steps[2]


def test_verdicts_flip_with_the_figures():
    """One line, four values of ours: the verdict is computed, and the reason shows with `differs` alone."""
    line = {value: Line("x", 100.0, value, by=gpu, reason="because").verdict for value in (100.0, 102.0, 110.0, 120.0)}
    assert list(line.values()) == ["agrees", "agrees", "approximate", "differs: because"]
    assert Line("x", 120.0, 120.0, by=gpu, reason="because").verdict == "agrees"
    assert Line("x", 100.0, 110.0, by=gpu, reason="because", strict=True).verdict == "differs: because"
    assert Line("x", None, 110.0, by=gpu).verdict == ""


def test_verdicts_flip_with_a_spec(monkeypatch):
    """Were B200 to have the chapter's 9.0 TB/s, H1 would agree on bandwidth and ridge: ours come from the spec."""
    from perfmodel.reports import claims_hardware

    bandwidth = gpu("b200").memory.hbm.bandwidth.model_copy(update={"value": 9.0e12, "text": "9.0 TB/s"})
    memory = gpu("b200").memory
    memory = memory.model_copy(update={"hbm": memory.hbm.model_copy(update={"bandwidth": bandwidth})})
    faster = gpu("b200").model_copy(update={"memory": memory})
    monkeypatch.setattr(claims_hardware, "gpu", lambda name: faster if name == "b200" else gpu(name))
    verdicts = {line.what: line.verdict for line in claims_hardware.h1() if line.what.startswith("B200")}
    assert verdicts["B200: memory bandwidth"] == verdicts["B200: ridge at FP16"] == "agrees"


def test_a_fake_claim_flips(registry):
    """A registered claim whose figure is changed changes its ledger row."""
    figure = {"ours": 1.0}
    claim("Z1", where="0", says="one")(lambda: [Line("one", 1.0, figure["ours"], by=gpu, reason="it is not one")])
    claims.cache_clear()
    assert [row["verdict"] for row in ledger("z1")] == ["agrees"]
    figure["ours"] = 2.0
    assert [row["verdict"] for row in ledger("z1")] == ["differs: it is not one"]


@given(
    chapter=st.floats(1e-6, 1e6), near=st.floats(-1, 1), far=st.floats(0, 1), strict=st.booleans(), wide=st.booleans()
)
def test_nearer_is_never_worse(chapter, near, far, strict, wide):
    """Moving our figure away from the chapter's never betters the verdict."""
    order = ["agrees", "approximate", "differs"]
    band = (chapter, chapter * 1.5) if wide else (chapter, chapter)
    edge = band[0] if near < 0 else band[1]
    first, second = edge * math.exp(near), edge * math.exp(near * (1 + far))
    assert order.index(verdict(first, band, strict)) <= order.index(verdict(second, band, strict))


@pytest.mark.parametrize("side", [1, -1])
def test_limits_of_the_rule(side):
    """The limits hold on both sides alike: a factor, not a difference."""
    assert verdict(1.0 * (AGREES - 1e-9) ** side, (1.0, 1.0)) == "agrees"
    assert verdict(1.0 * (AGREES + 1e-9) ** side, (1.0, 1.0)) == "approximate"
    assert verdict(1.0 * (APPROXIMATE - 1e-9) ** side, (1.0, 1.0)) == "approximate"
    assert verdict(1.0 * (APPROXIMATE + 1e-9) ** side, (1.0, 1.0)) == "differs"


def test_a_band_agrees_inside_only():
    """The 2 % of a single figure are not added to a band."""
    assert verdict(8.01, (0.0, 8.0)) == "approximate"
    assert verdict(8.0, (0.0, 8.0)) == "agrees"
    assert verdict(-1.0, (0.0, 8.0)) == "differs"
    assert verdict(1e300, (1.0, math.inf)) == "agrees"


def test_lines_name_a_function_or_a_reason():
    """A figure without its function, and a missing figure without a reason, are refused."""
    with pytest.raises(ValueError, match="does not name the function"):
        Line("x", 1.0, 1.0)
    with pytest.raises(ValueError, match="gives no reason"):
        Line("x", 1.0, None)


def test_functions_exist(rows):
    """Each dotted path leads to a function or property of this package."""
    for path in {row["function"] for row in rows if row["ours"] is not None}:
        assert path.startswith("perfmodel."), path
        parts = path.split(".")
        depth = max(i for i in range(1, len(parts)) if ".".join(parts[:i]) in sys.modules)
        found = importlib.import_module(".".join(parts[:depth]))
        for part in parts[depth:]:
            found = getattr(found, part)
        assert callable(found) or isinstance(found, property) or hasattr(found, "func"), path


def test_our_figures_are_never_literals():
    """No line of the ledger has a number typed in as ours."""
    calls = 0
    for path in (ROOT / "reports").glob("claims_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Line":
                ours = node.args[2]
                calls += 1
                assert not isinstance(ours, ast.Constant) or ours.value is None, (path.name, node.lineno)
    assert calls > 80


def test_ids_are_unique_and_well_formed(registry):
    """An id is a capital letter and a number, and is taken once."""
    with pytest.raises(ValueError, match=r"H1 is taken by perfmodel\.reports\.claims_hardware\.h1"):
        claim("H1", where="", says="")(lambda: [])
    for name in ("h1", "H", "HH1", "H1234", ""):
        with pytest.raises(ValueError, match="must be a capital letter and a number"):
            claim(name, where="", says="")


def test_a_new_part_is_one_new_file(registry, tmp_path, monkeypatch):
    """A module `claims_<part>` in the package is found by its name alone."""
    import perfmodel.reports as package

    (tmp_path / "claims_probe.py").write_text(
        "from perfmodel.hwspecs.load import gpu\n"
        "from perfmodel.reports.claims import Line, claim\n\n\n"
        "@claim('T9', where='5', says='one GPU')\n"
        "def t9():\n    yield Line('SMs of H100', 132, gpu('h100').compute.sms.value, '', gpu)\n"
    )
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    claims.cache_clear()
    try:
        assert [(row["section"], row["ours"], row["verdict"]) for row in ledger("T")] == [("T", 132.0, "agrees")]
        assert ledger()[-1]["id"] == "T9"
    finally:
        sys.modules.pop("perfmodel.reports.claims_probe", None)


def test_the_example_of_the_page_runs(registry):
    """The claim that docs/claims.md registers gives an agreeing line."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/claims.md").read_text(), re.DOTALL)
    assert code
    exec(code[1], {"__name__": "perfmodel.reports.claims_page"})
    claims.cache_clear()
    assert [row["verdict"] for row in ledger("H99")] == ["agrees"]


def test_order_and_sections(rows):
    """Sections come as the chapter has them, claims by number (F10 follows F9); a section is a part of the whole."""
    assert list(dict.fromkeys(row["id"] for row in rows if row["section"] in "HFASQ")) == IDS
    assert [row for row in rows if row["section"] == "F"] == ledger("f")
    assert {row["id"] for row in ledger("F1")} == {"F1"}
    assert Claim("X12", "", "", list).key > Claim("X9", "", "", list).key > Claim("T9", "", "", list).key


@pytest.mark.parametrize("section", ["Z", "", "H99", "HF", "1"])
def test_unknown_section_is_refused(section):
    """Another section is refused with those that there are, by the library and the command."""
    with pytest.raises(UsageError, match=r"is not in the ledger; it has H, F, A"):
        ledger(section)
    done = CliRunner().invoke(main, ["claims", "--section", section])
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_json(rows):
    """JSON holds every line with plain numbers; an open band has a null edge."""
    data = json.loads(claims_text("json"))
    assert len(data) == len(rows)
    assert data[0].keys() == rows[0].keys()
    climb = next(row for row in data if row["what"] == "H100 to B200: growth of the ridge")
    assert (climb["chapter"], climb["chapter_low"], climb["chapter_high"]) == ("at least 1", 1, None)
    assert next(row for row in data if row["id"] == "F8" and "KV cache" in row["what"])["ours"] == 70272


def test_csv(rows):
    """CSV has a row for each line, numbers in full."""
    data = list(csv.DictReader(io.StringIO(claims_text("csv", "H"))))
    assert len(data) == sum(row["section"] == "H" for row in rows)
    assert float(data[2]["ours"]) == gpu("a100").ridge("fp16")
    assert data[2]["function"] == f"{Gpu.__module__}.Gpu.ridge"


@pytest.mark.parametrize("fmt", ["table", "md"])
def test_for_people(rows, fmt):
    """Table and Markdown name every claim, the counts of the verdicts, and the functions."""
    text = claims_text(fmt)
    assert all(re.search(rf"^(\| )?{name}\b", text, re.MULTILINE) for name in IDS)
    counts = f"{len(rows)} lines: {sum(row['verdict'] == 'agrees' for row in rows)} agrees"
    assert counts in text
    assert "roofline.critical.linear" in text
    assert "hwspecs.schema.Gpu.ridge" in text


def test_command(rows):
    """`perfmodel claims` prints the ledger, `--section` a part of it."""
    done = CliRunner().invoke(main, ["claims", "--section", "A8", "--format", "json"])
    assert done.exit_code == 0
    assert [row["what"] for row in json.loads(done.output)] == [row["what"] for row in rows if row["id"] == "A8"]


def test_the_ledger_is_quick():
    """The whole ledger takes under 2 s of processor time."""
    start = time.process_time()
    ledger()
    assert time.process_time() - start < 2
