"""The GPU measuring script from the inside: its statistics, its correctness gate and its cases."""

import csv
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from on_gpu import attention, bench, cases, environment, gemms, memory, suite, tables, timing

CPU = torch.device("cpu")
SECONDS = st.floats(1e-7, 10.0)


def read(folder, table):
    with (folder / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def a_bench():
    limits = timing.Limits(seconds=0.002, warm_s=1e-4, batch_s=0.001, min_repeats=3, issue_calls=2)
    forever = time.monotonic() + 1e6
    return bench.Bench(CPU, timing.CpuTimer(), limits, "some_cpu", "torch-cpu-dry-run", 2**16, (0, 0), forever)


def plain_gemm(**changes):
    return replace(gemms.gemm("bfloat16", "test", 32, 64, 128), **changes)


# ---- statistics


@given(st.lists(SECONDS, min_size=1, max_size=60), st.floats(0, 1))
def test_percentiles_are_numpys(samples, fraction):
    """Percentiles interpolate as numpy's do, so other tools find the same numbers."""
    assert timing.percentile(sorted(samples), fraction) == pytest.approx(np.quantile(samples, fraction), rel=1e-12)


@given(st.lists(SECONDS, min_size=1, max_size=60))
def test_summary_is_ordered(samples):
    """Minimum, p20, median and p80 are in order, and only six or more samples bound the median."""
    s = timing.summarise(samples)
    assert s.minimum_s <= s.p20_s <= s.median_s <= s.p80_s <= max(samples)
    assert s.repeats == len(samples)
    assert math.isfinite(s.half_width) == (len(samples) >= 6)


def test_interval_of_the_median():
    """For 101 samples the 95 % interval lies between ranks 41 and 61 of 1 to 101 (51 -+ 0.98 sqrt(101), outwards)."""
    s = timing.summarise([float(i) for i in range(1, 102)])
    assert (s.median_s, s.p20_s, s.p80_s) == (51.0, 21.0, 81.0)
    assert s.half_width == pytest.approx((61 - 41) / 2 / 51)


@pytest.mark.parametrize("samples", [[], [1.0, 0.0], [-1.0], [math.nan], [math.inf]])
def test_impossible_samples_are_refused(samples):
    """Nothing but positive finite seconds is a measurement."""
    with pytest.raises(ValueError, match="must be positive finite seconds"):
        timing.summarise(samples)


@given(st.integers(1, 5000), st.floats(1e-7, 1e-4))
def test_graphs_visit_every_buffer_set_equally(sets, estimate):
    """A graph has at least ten calls, is long enough to time, and visits each buffer set equally often."""
    calls = timing.graph_calls(sets, estimate, timing.Limits())
    assert calls >= 10
    assert calls % sets == 0
    assert calls * estimate >= 200e-6 * (1 - 1e-9)


def test_short_calls_are_timed_in_blocks():
    """A call far below 100 us is timed as a block that rotates over the buffers in order."""
    seen = []
    found = timing.measure(timing.CpuTimer(), seen.append, 7, timing.Limits(seconds=0.005, warm_s=0, graph_s=1e-5))
    assert found.method == "perf_counter_loop"
    assert found.calls % 7 == 0
    assert found.calls >= 10
    assert seen[-7:] == list(range(7))


def test_long_calls_are_timed_one_by_one():
    """A call of 2 ms is timed alone, on rotating buffers, and its median is at least its length."""
    seen = []

    def call(index):
        seen.append(index)
        time.sleep(0.002)

    found = timing.measure(timing.CpuTimer(), call, 2, timing.Limits(seconds=0.02, warm_s=0))
    assert (found.method, found.calls) == ("perf_counter", 1)
    assert 0.002 <= found.summary.median_s < 0.02
    assert set(np.diff(seen)) == {-1, 1}


def test_capture_that_fails_is_said():
    """If a call cannot be captured it is still timed, with a note and another method's name."""

    class NoCapture(timing.CpuTimer):
        def capture(self, block):
            raise RuntimeError("operation not permitted when stream is capturing")

    found = timing.measure(NoCapture(), lambda i: None, 1, timing.Limits(seconds=0.002, warm_s=0))
    assert found.method == "perf_counter_loop"
    assert "launch gaps may be included: operation not permitted" in found.note


# ---- the correctness gate


def dropped_term(inputs):
    a, w, out = inputs
    return torch.mm(a[:, 1:], w[:, 1:].t(), out=out)


def half_written(inputs):
    a, w, out = inputs
    torch.mm(a[:16], w.t(), out=out[:16])
    return out


@pytest.mark.parametrize("kernel", [dropped_term, half_written, lambda i: gemms._run_bfloat16(i).mul_(1.02)])
def test_wrong_kernels_are_refused(kernel):
    """One missing term of 128, an output half written, and a scale off by 2 % are each found before any timing."""
    case = plain_gemm(run=kernel)
    with pytest.raises(cases.WrongResultError, match="wrong result"):
        cases.gate(case, case.make(CPU))


def test_one_wrong_element_outside_the_sample_is_found():
    """Elements that were never written are looked for in the whole output, not only in the sample that is compared."""
    case = gemms.gemm("int8", "test", 512, 1024, 64)

    def forgets(inputs):
        a, w, out = inputs
        out[1:, :1000] = torch._int_mm(a, w.t())[1:, :1000]
        return out

    forgetful = replace(
        case,
        run=forgets,
        reference=lambda i, o: (
            o[5:9, :9].double(),
            gemms._rows(i[0][5:9], slice(None)) @ gemms._rows(i[1][:9], slice(None)).t(),
        ),
    )
    with pytest.raises(cases.WrongResultError, match="never written"):
        cases.gate(forgetful, forgetful.make(CPU))


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [([3.0, 4.0], [3.0, 4.0], 0.0), ([3.0, 9.0], [3.0, 4.0], 1.0), ([2.0], [0.0], 2.0), ([math.nan], [1.0], math.inf)],
)
def test_relative_error(actual, expected, error):
    """The error is |a - e| / |e|; a NaN is infinitely wrong, and a zero reference leaves |a|."""
    assert cases.relative_error(torch.tensor(actual), torch.tensor(expected)) == error


def test_wrong_and_failing_cases_lose_nothing_else(tmp_path, a_bench):
    """A wrong case and one that raises are recorded with their reasons and not timed; the case after them is."""

    def broken(inputs):
        raise RuntimeError("no kernel image\n is available")

    listed = [
        plain_gemm(name="wrong", run=dropped_term),
        plain_gemm(name="broken", run=broken, core=False),
        plain_gemm(name="good"),
    ]
    recorder = tables.Recorder(tmp_path)
    found = suite.Run(a_bench, recorder, environment.Smi(CPU))
    found.over(listed, cases.TINY, lambda: None)
    recorder.close()
    rows = {row["name"]: row for row in read(tmp_path, "details")}
    assert [rows[name]["status"] for name in ("wrong", "broken", "good")] == ["failed", "failed", "ok"]
    assert "relative error" in rows["wrong"]["reason"]
    assert rows["wrong"]["median_us"] == ""
    assert rows["broken"]["reason"] == "RuntimeError: no kernel image is available"
    assert len(read(tmp_path, "gemm")) == 1
    assert found.facts()["correctness"] == {"checked": 2, "passed": 1, "wrong": ["wrong"]}
    assert not found.core_ran(listed)
    assert found.core_ran(listed[1:])


def test_interrupt_loses_nothing(tmp_path, a_bench):
    """An interrupt in the second case leaves the first one's row on disk and says where it came."""

    def interrupted(inputs):
        assert len(read(tmp_path, "gemm")) == 1  # flushed before the next case began
        raise KeyboardInterrupt

    listed = [plain_gemm(), plain_gemm(name="second", run=interrupted), plain_gemm(name="third")]
    found = suite.Run(a_bench, tables.Recorder(tmp_path), environment.Smi(CPU))
    found.over(listed, cases.TINY, lambda: None)
    assert found.status == "interrupted in second"
    assert len(read(tmp_path, "details")) == 1
    assert not found.core_ran(listed)


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8", "int8"])
def test_gemm_reference(dtype):
    """The sampled fp64 reference is the product of what is stored, scales included."""
    case = gemms.gemm(dtype, "test", 96, 160, 64)
    inputs = case.make(CPU)
    a, w = (t.float().double() for t in inputs[:2])
    full = a @ w.t() * (0.125 if dtype == "fp8" else 1.0)
    actual, expected = case.reference(inputs, full)
    assert actual.shape[0] >= 32
    assert actual.shape[1] >= 32
    assert torch.allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("phase", ["context", "generation"])
def test_attention_reference(phase):
    """The sampled fp64 attention is the textbook's: softmax over the keys up to the query, heads in groups."""
    case = attention.attention(phase, "flash", 2, 48, cases.TINY)
    q, k, v = (t.double() for t in case.make(CPU))
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if phase == "context":
        scores = scores.masked_fill(torch.ones(48, 48).triu(1).bool(), -math.inf)
    actual, expected = case.reference((q, k[:, ::2], v[:, ::2]), torch.softmax(scores, -1) @ v)
    assert torch.allclose(actual, expected, rtol=1e-10, atol=1e-12)


# ---- the cases


def test_full_size_cases_are_llama_3_8b():
    """The shapes are those of Llama 3 8B: hidden 4096, FFN 14336, 32 and 8 heads of 128, vocabulary 128256."""
    assert gemms.layers(cases.Sizes()) == {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
    }
    assert ("lm_head", 1, 128256, 4096) in list(gemms.shapes(cases.Sizes()))
    decode = [c.columns for c in attention.attention_cases(cases.Sizes(), "flash") if c.table == "generation_attention"]
    assert {(c["batch_size"], c["context_len"]) for c in decode} == {
        (b, n) for b in (1, 16, 64) for n in (512, 4096, 32768)
    }
    assert {(c["num_heads"], c["num_key_value_heads"], c["head_dim"]) for c in decode} == {(32, 8, 128)}
    sizes = [c.columns["buffer_bytes"] for c in memory.stream_cases(cases.Sizes(), "copy")]
    assert (min(sizes), max(sizes)) == (64 * 2**10, 2**30)


def test_full_size_cases_fit_and_are_legal():
    """Every case has its own name and its table's columns, fits a 40 GB card, and keeps the libraries' alignment."""
    listed = suite.all_cases(cases.Sizes())
    assert len({case.name for case in listed}) == len(listed)
    for case in listed:
        assert case.set_bytes < 0.6 * 39e9
        assert {*tables.KEYS, *case.columns, "latency_us"} == set(tables.HEADERS[case.table])
        if case.table == "gemm":
            assert case.columns["n"] % 16 == 0
            assert case.columns["k"] % 16 == 0


def test_core_comes_first():
    """A run cut short has the core cases: none of them stands behind one that is not."""
    order = [case.core for case in suite.all_cases(cases.Sizes())]
    assert order == sorted(order, reverse=True)
    assert sum(order) == 8 + 4 + 42 + 19  # copies, launches, bf16 GEMMs (9 x 4 + 4 + 2), prefill 10 and decode 9


def test_work_of_a_case():
    """FLOPs and bytes by hand: decode of 16 sequences over 4096 tokens, and half the square in causal prefill."""
    case = attention.attention("generation", "flash", 16, 4096, cases.Sizes())
    assert case.flops == 4 * 16 * 32 * 128 * 4096
    assert case.moved_bytes == 2 * 16 * 128 * (2 * 4096 * 8 + 2 * 32)  # K and V, then q and the output, 2 bytes each
    assert attention.attention("context", "flash", 1, 3, cases.Sizes()).flops == 4 * 32 * 128 * 6  # 1 + 2 + 3 pairs
    assert gemms.gemm("int8", "x", 32, 64, 128).moved_bytes == 32 * 128 + 64 * 128 + 4 * 32 * 64


def test_buffer_sets():
    """Buffers rotate over five L2 caches and one set more, within the memory; launches keep to one set."""
    case = plain_gemm(set_bytes=10**6)
    assert bench.buffer_sets(case, 50 * 10**6, 1e12) == 251
    assert bench.buffer_sets(case, 50 * 10**6, 5.5e6) == 5
    assert bench.buffer_sets(replace(case, set_bytes=10**10), 50 * 10**6, 1e9) == 1
    assert bench.buffer_sets(memory.launch("issue"), 50 * 10**6, 1e12) == 1


def test_reasons_to_skip(a_bench):
    """What a GPU lacks is said: fp8 before 8.9, few rows in int8, too little memory."""

    class Gpu:
        type = "cuda"

    class Small(bench.Bench):
        def memory_limit(self):
            return 1e9

    on_a100 = Small(Gpu(), a_bench.timer, a_bench.limits, "a100_sxm", "torch", 4 * 10**7, (8, 0), a_bench.deadline)
    reason = bench.why_skipped(gemms.gemm("fp8", "x", 8, 64, 64), on_a100)
    assert reason == "needs compute capability 8.9, this GPU has 8.0"
    assert "more than 16 rows" in bench.why_skipped(gemms.gemm("int8", "x", 16, 64, 64), on_a100)
    assert bench.why_skipped(gemms.gemm("int8", "x", 17, 64, 64), on_a100) == ""
    large = attention.attention("generation", "flash", 64, 32768, cases.Sizes())
    assert bench.why_skipped(large, on_a100) == "too large for the memory: 8.6 GB, and 1.0 GB may be used"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100_sxm_40gb"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie"),
        ("NVIDIA B200", "b200_sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "a100_sxm4_80gb_mig_1g_10gb"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("AMD Instinct MI300X", "amd_instinct_mi300x"),
        ("???", "unknown"),
    ],
)
def test_gpu_names(name, slug):
    """Known parts get the names of the recorded tables, a slice of one does not, and the rest their own name."""
    assert environment.gpu_slug(name) == slug


def test_rows_must_be_whole(tmp_path):
    """A row with a column too many or too few is refused before anything is written."""
    recorder = tables.Recorder(tmp_path)
    with pytest.raises(ValueError, match="columns of launch: \\['latency_us'\\] missing or unknown"):
        recorder.row("launch", dict.fromkeys(("gpu", "framework", "version", "kernel_source", "mode"), "x"))
    assert read(tmp_path, "launch") == []
