"""Tables of speculative decoding: the contract, figures within stated margins, reasons, slowdowns, what is not read."""

import csv
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from perfmodel.reports.check_text import check_text
from perfmodel.validate.check import Check, Result, check
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Skip
from perfmodel.validate.spec_decode_rows import machine, method_word, named, stated
from perfmodel.validate.spec_decode_series import tau_from_others

TABLE = Path(__file__).parent / "data" / "spec_decode.csv"
Change = Callable[..., Check]


@pytest.fixture(scope="module")
def checked() -> Check:
    """The excerpt, with built-in models alone."""
    return check(TABLE)


@pytest.fixture
def changed(tmp_path: Path) -> Change:
    """The rows of the excerpt that have some id, with other cells."""

    def make(ids: tuple[str, ...], **cells: str) -> Check:
        with TABLE.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        path = tmp_path / "mine.csv"
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0].keys())
            writer.writeheader()
            writer.writerows({**row, **cells} for row in rows if row["id"] in ids)
        return check(path)

    return make


def errors(results: list[Result]) -> tuple[float, float]:
    """Median absolute error and bias."""
    ratios = [r.comparison.ratio - 1 for r in results]
    return statistics.median(map(abs, ratios)), statistics.median(ratios)


def test_json_holds_the_contract(checked: Check) -> None:
    """The measured column is measured_speedup; groups tell source, draft kind, hardware and engine."""
    found = json.loads(check_text(checked, "json"))
    assert found["table"] == "spec_decode"
    assert found["rows"] == found["compared"] + sum(skip["rows"] for skip in found["skipped"]) == 178
    group = found["metrics"]["measured_speedup"]["groups"][0]
    assert {"source_repo", "draft_kind", "hardware", "framework", "length", "acceptance", "n", "bias"} <= group.keys()
    assert sum(g["n"] for g in found["metrics"]["measured_speedup"]["groups"]) == 104


def test_adaptive_rows(checked: Check) -> None:
    """llama.cpp's adaptive rows: median error under 10 % (the aim is 20 %), bias under 6 %, by either plain step."""
    for metric in ("measured_speedup", "measured_speedup_given_baseline"):
        rows = [r for r in checked.of(metric) if r.group["length"] == "adaptive"]
        error, bias = errors(rows)
        assert len(rows) == 64
        assert error < 0.10
        assert abs(bias) < 0.06


def test_fixed_rows_with_known_hardware(checked: Check) -> None:
    """Fixed lengths and trees on a known GPU: median error under 9 % (the aim is 12 %), bias under 6 %."""
    rows = [r for r in checked.of("measured_speedup") if r.group["length"] != "adaptive"]
    error, bias = errors(rows)
    assert len(rows) == 40
    assert error < 0.09
    assert abs(bias) < 0.06


def test_published_expectations(checked: Check) -> None:
    """Leviathan's expected speedups by the formula: within 4 %, for its acceptances are rounded."""
    results = checked.of("expected_speedup_published")
    assert len(results) == 8
    assert max(r.comparison.error for r in results) < 0.04
    assert sum(r.comparison.exact for r in results) >= 5


def test_accepted_lengths_of_other_draft_lengths(checked: Check) -> None:
    """One acceptance a position explains tau at eight draft lengths: median error under 2 %."""
    rows = [r for r in checked.of("tau_mean_accepted_len") if r.group["source_repo"].startswith("SemiAnalysis")]
    assert len(rows) == 32
    assert errors(rows)[0] < 0.02


def test_slowdowns(checked: Check) -> None:
    """Every slowdown by 15 % or more is predicted as one, those of vLLM under high load (acceptance assumed) too."""
    rows = [*checked.of("measured_speedup"), *checked.of("measured_speedup_assumed_acceptance")]
    slow = [r for r in rows if r.comparison.measured < 0.85]
    assert len(slow) >= 4
    assert all(r.comparison.predicted < 1 for r in slow)
    assert sum(r.model == "Llama-3-70B" for r in slow) == 2


def test_no_measured_speedup_is_read(checked: Check, changed: Change) -> None:
    """The prediction of a row is the same whatever speedup was measured."""
    adaptive = next(r for r in checked.of("measured_speedup") if r.group["length"] == "adaptive")
    for row in ("SD0439", "SD0107", "SD0906"):
        ids = (row, "SD0881", "SD0884", "SD0887", "SD0890")
        one, two = (changed(ids, measured_speedup=x).of("measured_speedup")[0].comparison for x in ("1.5", "3"))
        assert one.predicted == two.predicted
        assert one.measured * 2 == two.measured
    assert adaptive.comparison.predicted > 0


def test_the_plain_speed_is_read_for_one_metric_only(changed: Change) -> None:
    """A row's own plain speed moves the metric that is named after it, and that alone, in the right direction."""
    slow, fast = (changed(("SD0439",), baseline_tps=x) for x in ("10", "40"))
    assert slow.of("measured_speedup")[0].comparison.predicted == fast.of("measured_speedup")[0].comparison.predicted
    given = [c.of("measured_speedup_given_baseline")[0].comparison.predicted for c in (slow, fast)]
    assert given[0] > given[1]  # the drafts weigh less beside a slow target


def test_reordering_rows_changes_nothing(checked: Check, tmp_path: Path) -> None:
    """Series and ratios use other rows, whatever their order."""
    with TABLE.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    random.Random(3).shuffle(rows)
    path = tmp_path / TABLE.name
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    assert check(path).to_dict() == checked.to_dict()


@pytest.mark.parametrize(
    ("row", "cells", "reason"),
    [
        ("SD0439", {"hardware": ""}, "no hardware is named"),
        ("SD0439", {"hardware": "Quantum 9"}, "no GPU 'Quantum 9' is known"),
        ("SD0439", {"hardware": "RTX 4090"}, "llama.cpp is modelled on Apple GPUs only"),
        ("SD0439", {"alpha_acceptance": ""}, "neither acceptance nor accepted length"),
        ("SD0439", {"alpha_acceptance": "1.4"}, "alpha_acceptance is above 1"),
        ("SD0439", {"target": "Nobody 7B FP16"}, "no model 'Nobody 7B FP16' is known"),
        ("SD0439", {"target": "Qwen2.5 14B"}, "the GGUF file type of the target is not named"),
        ("SD0439", {"gamma_or_K": "some", "tau_definition": ""}, "the draft length is not given"),
        ("SD0439", {"measured_speedup": "fast"}, "measured_speedup is no number above zero"),
        ("SD0439", {"measured_speedup": ""}, "no speedup is given"),
        ("SD0107", {"draft_or_method": "Magic"}, "the host work of 'Magic'"),
        ("SD0107", {"tau_mean_accepted_len": "0.5"}, "tau_mean_accepted_len is below 1"),
        ("SD0107", {"engine": "vLLM"}, "the draft length is not given"),
        ("SD0906", {}, "the accepted lengths of the two methods are not in the table"),
    ],
)
def test_reasons(changed: Change, row: str, cells: dict[str, str], reason: str) -> None:
    """A row that lacks something is skipped with what it lacks."""
    found = changed((row,), **cells)
    assert not found.results
    assert reason in found.skipped[0]["reason"]


def test_a_chain_in_an_engine(changed: Change) -> None:
    """A chain of known length and tau in vLLM is timed by the graphs of both, with an interval around it."""
    cells = {
        "target": "Llama-3.1-8B-Instruct", "draft_or_method": "EAGLE-3", "draft_kind": "EAGLE3 head",
        "hardware": "1x H100", "engine": "vLLM", "gamma_or_K": "3", "tau_mean_accepted_len": "2.5",
        "batch_or_concurrency": "1", "measured_speedup": "1.8",
    }  # fmt: skip
    c = changed(("SD0933",), **cells).of("measured_speedup")[0].comparison
    assert 1.4 < c.predicted < 2.4
    assert c.low is not None
    assert c.high is not None
    assert c.low < c.predicted < c.high
    slower = changed(("SD0933",), **{**cells, "batch_or_concurrency": "512"}).of("measured_speedup")[0].comparison
    assert slower.predicted < c.predicted


def test_a_fixed_length_in_llamacpp(changed: Change) -> None:
    """With 4 tokens drafted each time an acceptance of 1 yields 5 a round, and one of 0 a slowdown."""
    cells = {"gamma_or_K": "4", "tau_definition": "accepted/drafted"}
    for alpha, tokens in (("1.0", 5.0), ("0.0", 1.0)):
        c = changed(("SD0439",), alpha_acceptance=alpha, **cells).of("measured_speedup")[0].comparison
        assert f"{tokens:.2f} tokens a round" in c.explanation
        assert (c.predicted > 1) == (tokens > 1)


def test_names() -> None:
    """How tables spell GPUs, models and methods."""
    assert (machine("4x H100").name, machine("4x H100").count) == ("h100-sxm", 4)
    assert (machine("GB200 TP4").name, machine("GB200 TP4").count) == ("gb200", 4)
    assert machine("Apple M4 Max 128GB").gpu.vendor == "apple"
    models = Models()
    assert (named("Qwen2.5 7B Q4_K_M", models).model.name, named("Qwen2.5 7B Q4_K_M", models).mix) == (
        "qwen2.5-7b",
        "Q4_K_M",
    )
    assert named("Kimi-K2.6-NVFP4", models).weights == "nvfp4"
    assert named("Vicuna-33B-v1.3", models).model.num_layers == 60
    assert [method_word(w) for w in ("EAGLE3.1 (amd)", "Eagle3 (AngelSlim)", "P-EAGLE", "PLD")] == [
        "eagle-3", "eagle-3", "p-eagle", "ngram",
    ]  # fmt: skip
    for text in ("", "not stated"):
        with pytest.raises(Skip, match="no hardware"):
            machine(text)


def test_lengths_with_and_without_the_own_token() -> None:
    """2.84 accepted drafts are 3.84 tokens a round; alpha as a share of what is drafted gives 1 + alpha K."""
    row = dict.fromkeys(
        ("source_repo", "target", "draft_or_method", "draft_kind", "hardware", "engine", "dataset_task"), "x"
    )
    bare = stated({**row, "tau_mean_accepted_len": "2.84", "tau_definition": "accepted drafts (excl. bonus)"})
    assert bare.tau == pytest.approx(3.84)
    share = stated({**row, "alpha_acceptance": "0.5", "gamma_or_K": "4", "tau_definition": "accepted/drafted"})
    assert share.tokens == pytest.approx(3.0)
    chance = stated({**row, "alpha_acceptance": "0.5", "gamma_or_K": "2"})
    assert chance.tokens == pytest.approx(1.75)  # 1 + 1/2 + 1/4


def test_series_of_a_known_acceptance() -> None:
    """A geometric series is found exactly, from one other length or from three."""
    tau = {k: sum(0.7**i for i in range(k + 1)) for k in range(1, 9)}
    assert tau_from_others(7, [(3, tau[3])])[0] == pytest.approx(tau[7], rel=1e-6)
    assert tau_from_others(5, [(k, tau[k]) for k in (1, 2, 8)])[0] == pytest.approx(tau[5], rel=1e-3)
