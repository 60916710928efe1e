"""Exports of Nsight Compute: every layout gives the same launches, counters are counted once, what is missing is named.

The layouts are those on which public repositories test readers of their own, found by searching them: a wide table with
a row of units, a long one with "Command line profiler metrics", an older long one with "Kernel Time" and "usecond", a
summary per kernel with "Invocations", and numbers in a European manner.
"""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.reports import ncu_plot, ncu_text
from perfmodel.validate import ncu, ncu_work

H100 = gpu("h100")
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
BF16 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
TIME, READ, WRITE = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
#: 4096 cubed in bf16: 2 x 4096^3 operations; 3 matrices of 33.55 MB; 200 us. And a copy kernel, launched twice.
GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
COPY = "void at::native::vectorized_elementwise_kernel<4, at::native::add<float>, std::array<char *, 3>>(int, T2, T3)"


def quoted(*cells: object) -> str:
    """A line as the profiler prints it: every cell in quotes."""
    return ",".join('"{}"'.format(str(cell).replace('"', '""')) for cell in cells)


def wide(names: dict[str, str], rows: list[tuple[str, list[str]]], capability: str = "9.0") -> str:
    """`--page raw`: names with their units, and a row of values a launch."""
    head = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
    head = (*head, "Block Size", "Grid Size", "Device", "CC")
    lines = ["==PROF== Connected to process 4711 (/usr/bin/python3.11)", "the program prints this"]
    lines += [quoted(*head, *names), quoted(*[""] * len(head), *names.values())]
    for number, (kernel, values) in enumerate(rows):
        fixed = (number, 4711, "python3.11", "127.0.0.1", kernel, 1, 7, "(384, 1, 1)", "(132, 1, 1)", 0, capability)
        lines.append(quoted(*fixed, *values))
    return "\n".join([*lines, "==PROF== Disconnected from process 4711", ""])


def long(rows: list[tuple[int, str, str, str, str]], old: bool = False) -> str:
    """`ncu --csv --metrics`: id, kernel, metric, unit and value a row, in the newer layout or the older."""
    head = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name")
    tail = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
    middle = ("Kernel Time", "Context", "Stream") if old else ("Context", "Stream", "Block Size", "Grid Size", "CC")
    lines = ["==PROF== Profiling", quoted(*head, *middle, *tail)]
    for number, kernel, metric, unit, value in rows:
        there = ("2023-Mar-01 10:00:00", 1, 7) if old else (1, 7, "(384, 1, 1)", "(132, 1, 1)", "9.0")
        lines.append(
            quoted(number, 1, "app", "host", kernel, *there, "Command line profiler metrics", metric, unit, value)
        )
    return "\n".join(lines)


NAMES = {READ: "Mbyte", WRITE: "Mbyte", TIME: "us", BF16: "", FFMA: "inst"}
ROWS = [
    (GEMM, ["67.11", "33.55", "200.00", "137,438,953,472", "0"]),
    (COPY, ["100.00", "100.00", "80.00", "0", "25,000,000"]),
    (COPY, ["100.00", "100.00", "120.00", "0", "25,000,000"]),
]
WIDE = wide(NAMES, ROWS)


@pytest.fixture
def save(tmp_path: Path):
    def write(text: str, name: str = "x.csv") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


# ---- layouts


def test_a_wide_table_is_read_in_its_units(save) -> None:
    """Each launch has its metrics in bytes, seconds and counts, and what is printed around the table is passed over."""
    launches = ncu.read(save(WIDE))
    assert [launch.kernel for launch in launches] == [GEMM, COPY, COPY]
    assert launches[0].capability == "9.0"
    assert launches[0].metrics == pytest.approx({READ: 67.11e6, WRITE: 33.55e6, TIME: 2e-4, BF16: 2 * 4096**3, FFMA: 0})


@pytest.mark.parametrize("old", [False, True])
def test_a_long_table_gives_the_same_launches(save, old: bool) -> None:
    """A row a metric says the same as a column a metric, with the units' older names too."""
    units = {"us": "usecond"} if old else {}
    rows = [
        (number, kernel, metric, units.get(unit, unit), value)
        for number, (kernel, values) in enumerate(ROWS)
        for (metric, unit), value in zip(NAMES.items(), values, strict=True)
    ]
    found = ncu.read(save(long(rows, old)))
    assert [launch.metrics for launch in found] == [launch.metrics for launch in ncu.read(save(WIDE, "wide.csv"))]


def test_a_summary_stands_for_its_launches(save) -> None:
    """`--print-summary per-kernel` gives means; two launches of the mean are the sum of two launches."""
    head = ("Process ID", "Process Name", "Kernel Name", "Invocations", "Section Name", "Metric Name", "Metric Unit")
    means = {READ: "100.00", WRITE: "100.00", TIME: "100.00", BF16: "0", FFMA: "25,000,000"}
    lines = [quoted(*head, "Minimum", "Maximum", "Average")]
    lines += [quoted(1, "app", COPY, 2, "", name, NAMES[name], 0, 0, value) for name, value in means.items()]
    found = ncu_work.profile(save("\n".join(lines)), H100).kernels[0]
    whole = next(k for k in ncu_work.profile(save(WIDE, "wide.csv"), H100).kernels if k.kernel == COPY)
    assert (found.launches, found.bytes, found.flops) == (2, whole.bytes, whole.flops)
    assert found.seconds == pytest.approx(whole.seconds)


def test_another_language_writes_numbers_in_another_way(save) -> None:
    """27.595.520 and 65,77 tell that a point groups thousands; 117.344 is then not 117."""
    rows = [(0, GEMM, READ, "byte", "27.595.520"), (0, GEMM, WRITE, "Mbyte", "65,77"), (0, GEMM, TIME, "ns", "117.344")]
    assert ncu.read(save(long(rows)))[0].metrics == pytest.approx({READ: 27595520, WRITE: 65.77e6, TIME: 117.344e-6})
    english = [(0, GEMM, READ, "byte", "27,595,520"), (0, GEMM, TIME, "ns", "117.344")]
    assert ncu.read(save(long(english)))[0].metrics == pytest.approx({READ: 27595520, TIME: 117.344e-9})
    with pytest.raises(SpecError, match="mixes two ways to write numbers"):
        ncu.read(save(long([rows[0], english[0]])))


@given(st.floats(1e-3, 1e15), st.sampled_from(["", "K", "M", "G", "T"]))
def test_prefixes_are_powers_of_a_thousand(value: float, prefix: str) -> None:
    """A byte count means the same with each prefix."""
    factor = ncu.scale(f"{prefix}byte")
    assert factor is not None
    assert value / factor * factor == pytest.approx(value)
    assert factor == 1000.0 ** " KMGT".index(prefix or " ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello\nworld\n", "no header with 'Kernel Name'.*ncu --import FILE.ncu-rep --csv --page raw"),
        (WIDE.splitlines()[2], "a header and no launch"),
        ("\n".join(WIDE.splitlines()[:5])[:-40], "has 1[0-9] cells, the header 16: is it cut off"),
        (long([(0, GEMM, "Duration", "us", "3")]), "names no metric such as dram__bytes.sum.*--page raw"),
        (quoted("ID", "Kernel Name", "Grid Size") + "\n" + quoted(0, GEMM, 1), "no metric beside 'Kernel Name'"),
        (quoted("Kernel Name", "Metric Name") + "\n" + quoted(GEMM, TIME), "no 'Metric Value' or 'Average' column"),
        (long([(0, GEMM, TIME, "us", "3"), (0, GEMM, TIME, "us", "4")]), "two values for one launch"),
    ],
)
def test_what_is_no_export_is_refused(save, text: str, says: str) -> None:
    """Every other file is refused with what is wrong with it."""
    with pytest.raises(SpecError, match=says):
        ncu.read(save(text))


# ---- what kernels did


def test_bytes_operations_and_roofline_of_a_product(save) -> None:
    """4096 cubed in bf16 on an H100: 2 x 4096^3 / 989.4 TFLOP/s = 138.9 us of the 200 us that it took."""
    found = ncu_work.profile(save(WIDE), H100)
    gemm = next(k for k in found.kernels if k.kernel == GEMM)
    assert gemm.flops == 2 * 4096**3
    assert gemm.bytes == pytest.approx(100.66e6)
    assert gemm.bound == pytest.approx(2 * 4096**3 / 989.4e12)
    assert (gemm.limiter, round(gemm.attained, 3)) == ("matrix:bf16", 0.695)
    assert found.notes == ()


def test_launches_of_a_kernel_are_one_point(save) -> None:
    """400 MB in 200 us are 2 TB/s of 3.35: 59.7 % of the memory roof; an fma of a thread is two operations."""
    copy = next(k for k in ncu_work.profile(save(WIDE), H100).kernels if k.kernel == COPY)
    assert (copy.kernel, copy.launches, copy.limiter) == (COPY, 2, "hbm")
    assert copy.flops == 2 * 25e6 * 2
    assert copy.attained == pytest.approx(400e6 / 3.35e12 / 200e-6)


def test_the_roofline_set_counts_by_the_cycle(save) -> None:
    """`--set roofline` gives instructions a cycle, a clock and bytes a second: the same operations and bytes."""
    op = "smsp__sass_thread_inst_executed_op_{}_pred_on"
    names = {
        TIME: "us", "dram__bytes.sum.per_second": "Gbyte/s", "smsp__cycles_elapsed.avg.per_second": "Ghz",
        op.format("fadd") + ".sum.per_cycle_elapsed": "inst/cycle",
        "derived__" + op.format("ffma") + "_x2": "inst/cycle",
        "derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2": "inst",  # the peak: no work
    }  # fmt: skip
    found = ncu_work.profile(save(wide(names, [("saxpy", ["100.00", "1,500.00", "1.50", "20", "200", "33792"])])), H100)
    # 150,000 cycles: 3e6 additions, and 3e7 operations of multiply-adds; 1.5 TB/s for 100 us
    assert found.kernels[0].flops == pytest.approx(3e6 + 3e7)
    assert found.kernels[0].bytes == pytest.approx(150e6)
    assert any("tensor cores were not counted" in note for note in found.notes)


TENSOR = "sm__ops_path_tensor_{}.sum"


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ({"src_bf16_dst_fp32": 10, "src_bf16_dst_fp32_sparsity_on": 3, "src_bf16_dst_fp32_sparsity_off": 7}, 10),
        ({"src_bf16_dst_fp32_sparsity_on": 3, "src_bf16_dst_fp32_sparsity_off": 7}, 10),
        ({"src_fp16": 8, "src_fp16_dst_fp16": 2, "src_fp16_dst_fp32": 6}, 8),
        ({"src_fp16_dst_fp16": 2, "src_fp16_dst_fp32": 6}, 8),
        ({"op_hgmma_src_fp16_sparsity_off": 5, "op_hmma_src_fp16_dst_fp32_sparsity_off": 3}, 8),
        ({"src_fp16": 8, "op_hgmma_src_fp16_sparsity_off": 5, "op_hmma_src_fp16_dst_fp32": 3}, 8),
        ({"op_utcqmma_src_fp8_dst_fp32": 9, "src_fp8_realtime": 9}, 9),
        ({"src_fp4_dst_fp32": 4, "src_fp4_fp6_fp8_dst_fp32": 4}, 4),
        ({"src_fp4_dst_fp32": 0, "src_fp4_fp6_dst_fp32": 0, "src_fp4_fp6_fp8_dst_fp32": 4}, 4),
        ({"src_bf16_dst_fp32": 3, "src_int8": 4}, 7),
    ],
)
def test_overlapping_counters_are_counted_once(counters: dict[str, float], expected: float) -> None:
    """Sparse and dense, destinations, instructions and joint formats are parts of one whole."""
    launch = ncu.Launch("k", "9.0", {TENSOR.format(name): float(value) for name, value in counters.items()})
    assert sum(ncu_work.tensor_ops(launch).values()) == expected


def test_instructions_tell_work_on_volta_alone(save) -> None:
    """An instruction of Volta's tensor cores is 512 operations; of later ones it is refused with what to measure."""
    names = {TIME: "us", "dram__bytes.sum": "Mbyte", "sm__inst_executed_pipe_tensor.sum": "inst"}
    rows = [("volta_h884gemm", ["10", "1", "1,000"])]
    assert ncu_work.profile(save(wide(names, rows, "7.0")), gpu("v100")).kernels[0].tensor == {"fp16": 512_000}
    with pytest.raises(
        SpecError, match=r"operations of tensor cores.*measure with: ncu --csv --page raw --metrics gpu"
    ):
        ncu_work.profile(save(wide(names, rows, "8.0")), gpu("a100"))


@pytest.mark.parametrize(
    ("gone", "says"),
    [(TIME, "the duration"), (READ, "the bytes of device memory"), (f"{BF16},{FFMA}", "any count of operations")],
)
def test_missing_metrics_are_named(save, gone: str, says: str) -> None:
    """What is missing is said with the line that measures it; a metric that is n/a is missing."""
    at = [i for i, name in enumerate(NAMES) if name in gone]
    kept = {name: unit for i, (name, unit) in enumerate(NAMES.items()) if i not in at}
    rows = [(kernel, [v for i, v in enumerate(values) if i not in at]) for kernel, values in ROWS]
    absent = [(kernel, ["n/a" if i in at else v for i, v in enumerate(values)]) for kernel, values in ROWS]
    for text in (wide(kept, rows), wide(NAMES, absent)):
        with pytest.raises(SpecError, match=rf"misses {says}.*measure with: ncu .*{TIME}"):
            ncu_work.profile(save(text), H100)


def test_notes_say_what_the_figures_leave_out(save) -> None:
    """Another GPU, a format without a peak and a kernel above the roof are each said."""
    found = ncu_work.profile(save(wide(NAMES, [(GEMM, ["1", "1", "1.00", "137,438,953,472", "0"])], "8.0")), H100)
    assert any("compute capability 8.0; NVIDIA H100" in note for note in found.notes)
    assert any("above the roofline" in note for note in found.notes)
    no_fp8 = {**NAMES, "sm__ops_path_tensor_src_fp8.sum": ""}
    found = ncu_work.profile(save(wide(no_fp8, [("k", ["1", "1", "9.00", "0", "0", "10"])], "8.0")), gpu("a100"))
    assert any("no peak for fp8" in note for note in found.notes)


# ---- text and picture


def test_text_and_picture(save, tmp_path: Path) -> None:
    """The table has every kernel, the picture a numbered point a kernel that a reader finds by its name."""
    from perfmodel.reports.roofline_plot import save as write

    found = ncu_work.profile(save(WIDE), H100)
    table = ncu_text.text(found, "table")
    assert "3 launches of 2 kernels" in table
    assert "BF16 tensor" in table
    assert "69.5 %" in table
    write(ncu_plot.draw(found), tmp_path / "x.svg")
    drawn = (tmp_path / "x.svg").read_text()
    assert GEMM[:30] in drawn
    assert drawn.count('id="point:') == 2


def test_a_kernel_without_operations_is_in_the_table_alone(save) -> None:
    """A copy that makes no operation has no place on a log scale: the picture says so, the table has its bandwidth."""
    found = ncu_work.profile(save(wide(NAMES, [("memcpy", ["100", "100", "100.00", "0", "0"])])), H100)
    assert math.isclose(found.kernels[0].attained, 200e6 / 3.35e12 / 1e-4)
    assert "memcpy" in ncu_text.text(found, "csv")
    with pytest.raises(UsageError, match="no point to draw"):
        ncu_plot.draw(found)


# ---- values that are wrong, and other languages


@pytest.mark.parametrize(
    ("column", "text", "says"),
    [
        (2, "-5", r"line 6: gpu__time_duration.sum of 'void at.* is '-5 us': nothing takes less than 0"),
        (2, "abc", "line 6: gpu__time_duration.sum of .* is 'abc us', which is no number"),
        (2, "1e999", "is '1e999 us', which is no number"),
        (2, "0", "gpu__time_duration.sum: is 0 for a launch of 'void at.*: a launch takes time"),
        (0, "-1.5", "line 6: dram__bytes_read.sum of .* is '-1.5 Mbyte': nothing takes less than 0"),
        (3, "many", "line 6: sm__ops_path_tensor_src_bf16_dst_fp32.sum of .* is 'many', which is no number"),
        (4, "-1", "line 6: smsp__sass_thread_inst_executed_op_ffma_pred_on.sum of .* is '-1 inst'"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(save, column: int, text: str, says: str) -> None:
    """A value that cannot be is no missing metric: the message has its line, its kernel and what is wrong."""
    values = list(ROWS[1][1])
    values[column] = text
    with pytest.raises(SpecError, match=says):
        ncu_work.profile(save(wide(NAMES, [ROWS[0], (COPY, values)])), H100)


def test_an_unknown_unit_is_named_with_its_line(save) -> None:
    """A time in fortnights is refused as such, in a wide table and in a long one."""
    with pytest.raises(SpecError, match=r"line 5: gpu__time_duration.sum of .* is '200.00 fortnight', a unit that is"):
        ncu_work.profile(save(wide({**NAMES, TIME: "fortnight"}, ROWS)), H100)
    rows = [(0, GEMM, READ, "byte", "1"), (0, GEMM, WRITE, "byte", "1"), (0, GEMM, TIME, "fortnight", "3")]
    with pytest.raises(SpecError, match=r"line 5: gpu__time_duration\.sum"):
        ncu_work.profile(save(long(rows)), H100)


def test_other_metrics_may_hold_words(save) -> None:
    """Names of devices, percentages and what else is not needed does no harm."""
    names = {**NAMES, "device__attribute_display_name": "", "sm__throughput.avg.pct_of_peak_sustained_elapsed": "%"}
    rows = [(kernel, [*values, "NVIDIA H100", "61.50"]) for kernel, values in ROWS]
    assert len(ncu_work.profile(save(wide(names, rows)), H100).kernels) == 2


@pytest.mark.parametrize("count", ["0", "-2", "two", "1.5"])
def test_a_summary_of_no_launches_is_refused(save, count: str) -> None:
    """A number of launches is a whole number from 1 on."""
    head = ("Process ID", "Kernel Name", "Invocations", "Metric Name", "Metric Unit", "Average")
    text = "\n".join([quoted(*head), quoted(1, COPY, count, TIME, "us", "3")])
    with pytest.raises(SpecError, match=f"line 2: Invocations is '{count}', no number of launches"):
        ncu.read(save(text))


@pytest.mark.parametrize("mark", [" ", "\u00a0", "\u202f", "\u2009", "'", "\u2019"], ids=lambda mark: f"{ord(mark):x}")
@pytest.mark.parametrize("decimal", [",", "."])
def test_spaces_and_apostrophes_group_thousands(save, mark: str, decimal: str) -> None:
    """1 234,5 and 1'234.5 are numbers; in such a file a lone comma or point is the decimal mark."""
    rows = [
        (0, GEMM, READ, "byte", f"27{mark}595{mark}520"), (0, GEMM, WRITE, "Kbyte", f"1{mark}234{decimal}5"),
        (0, GEMM, TIME, "ns", f"117{decimal}344"),
    ]  # fmt: skip
    found = ncu.read(save(long(rows)))[0].metrics
    assert found == pytest.approx({READ: 27595520, WRITE: 1234.5e3, TIME: 117.344e-9})
    both = [*rows, (0, GEMM, FFMA, "inst", f"1{mark}234{'.' if decimal == ',' else ','}5")]
    with pytest.raises(SpecError, match="mixes two ways to write numbers"):
        ncu.read(save(long(both)))
