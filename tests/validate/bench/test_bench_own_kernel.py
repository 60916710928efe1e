"""`perfmodel validate --kernel`: what it is called with, what is refused, and what stands beside it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs import detect, kept, processor
from perfmodel.reports.own_text import text
from perfmodel.validate.bench import own_check, own_expect, own_kernel, own_run
from perfmodel.validate.bench.case import WrongResult, check
from perfmodel.validate.bench.own_ops import OPS, OwnOp
from perfmodel.validate.bench.store import Store

FILE = Path(__file__).parent / "own_kernels.py"
SMALL = {
    "gemm": "m=16,n=64,k=128", "prefill": "batch=2,tokens=33,heads=4,kv_heads=2,dim=32",
    "decode": "batch=3,context=100,heads=4,kv_heads=2,dim=32", "mla": "batch=2,context=70,heads=4",
    "norm": "rows=8,columns=64", "swiglu": "rows=8,columns=64", "softmax": "rows=8,columns=64",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to a folder of the test."""
    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path / "data"))


def kernel(name: str) -> Callable[..., object]:
    return own_kernel.load(f"{FILE}:{name}")


def run(name: str, op: str, **options: object) -> own_run.Report:
    own = OPS[op]
    sizes = own_kernel.shapes(own, [SMALL[op]])
    return own_run.run(kernel(name), name, own, sizes, **{"device": "cpu", "threads": 1, "budget": 0.02, **options})  # type: ignore[arg-type]


# ---- the operations


@pytest.mark.parametrize(("op", "fmt"), [(own, fmt) for own in OPS.values() for fmt in own.formats if fmt != "fp8"])
def test_the_library_is_right_by_float64(op: OwnOp, fmt: str) -> None:
    """What stands beside a kernel agrees with a float64 computation of its own, in every format that a CPU has."""
    sizes = own_kernel.shapes(op, [SMALL[op.name]])[0]
    case = own_kernel.kernel_case(lambda *args: None, "theirs", op, sizes, fmt, "cpu")
    theirs = replace(case, run=op.theirs)
    assert 0 <= check(theirs, theirs.make()) <= theirs.allowed
    own_check.inspect(theirs, op, sizes)


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_operands_are_those_of_the_operator(op: OwnOp) -> None:
    """Bytes of a kernel's tensors are the operator's, but for tables of pages and 16-bit gains."""
    sizes = dict(op.defaults[0])
    case = own_kernel.kernel_case(lambda *args: None, "k", op, sizes, "bf16", "cpu")
    assert case.touched == pytest.approx(float(case.op.unit_cost.bytes), rel=0.02)


def test_fp8_products_are_drawn_and_checked() -> None:
    """Scales of fp8 products reach the reference, without a device that multiplies them."""
    own, sizes = OPS["gemm"], {"m": 8, "n": 16, "k": 32}
    case = own_kernel.kernel_case(lambda *args: None, "k", own, sizes, "fp8", "cpu")
    x = case.make()
    a, b, left, right = x.args
    product = (a.float() @ b.float().t() * left * right).to(torch.bfloat16)
    actual, expected = case.reference(x, product)
    assert float((actual - expected).norm() / expected.norm()) < 5e-3


# ---- right kernels


@pytest.mark.parametrize(("name", "op"), [("matmul", "gemm"), ("attention", "prefill"), ("decode", "decode")])
def test_a_right_kernel_stands_beside_the_library(name: str, op: str) -> None:
    """Kernel, library, prediction and roofline have a row each; times are kept in the store."""
    report = run(name, op)
    rows = json.loads(text(report, "json"))["rows"]
    assert [row["who"] for row in rows] == [name, OPS[op].library_name("bf16"), "predicted", "roofline"]
    assert all(row["seconds"] > 0 for row in rows)
    assert rows[1]["speed"] == pytest.approx(rows[1]["seconds"] / rows[0]["seconds"])
    with Store() as store:
        kept = store.runs()[0]
        assert (kept.suite, kept.finished is not None) == ("kernel", True)
        assert [r.engine for r in store.results(kept)] == ["own", OPS[op].library_name("bf16")]
    assert "checked first: largest relative error" in text(report, "table")


def test_shapes_and_formats_are_those_asked_for() -> None:
    """Every shape is measured, what a shape leaves out comes from the defaults."""
    own = OPS["norm"]
    sizes = own_kernel.shapes(own, ["rows=1,columns=32 rows=2,columns=32", "rows=3,columns=32"])
    report = own_run.run(kernel("norm"), "norm", own, sizes, fmt="fp32", device="cpu", threads=1, budget=0.01)
    assert [o.sizes["rows"] for o in report.outcomes] == [1, 2, 3]
    assert report.fmt == "fp32"
    assert own_kernel.shapes(own, ["ROWS=5,Columns=7"]) == [{"rows": 5, "columns": 7}]
    assert own_kernel.shapes(own, ["rows=5"]) == [{"rows": 5, "columns": own.defaults[0]["columns"]}]


def test_what_does_not_fit_the_memory_is_said() -> None:
    """A shape beyond the memory is left out with the bytes that it needs; the others are measured."""
    own = OPS["norm"]
    sizes = [{"rows": 1 << 24, "columns": 1 << 16}, {"rows": 2, "columns": 32}]
    report = own_run.run(kernel("norm"), "norm", own, sizes, device="cpu", threads=1, budget=0.01)
    assert len(report.outcomes) == 1
    assert "needs 4398.05 GB" in report.left[0]


@pytest.mark.parametrize(("name", "fmt"), [("in_fp8", "fp8"), ("matmul", "fp16")])
def test_a_format_without_a_unit_is_timed_without_a_roofline(name: str, fmt: str) -> None:
    """Where the device's spec has no rate of a format, the kernel is timed, and why nothing is predicted is said."""
    if detect.cpu().supports(fmt):
        pytest.skip(f"this processor has a unit for {fmt}")
    report = run(name, "gemm", fmt=fmt)
    rows = json.loads(text(report, "json"))["rows"]
    assert rows[0]["who"] == name
    assert not {"predicted", "roofline"} & {row["who"] for row in rows}
    assert any(note.endswith("it has fp32, fp64, bf16, int8") or "; it has fp32" in note for note in report.notes)


# ---- whose ceilings


def _keep_processor(threads: int, bandwidth: str) -> None:
    """Keep a spec of this processor as if it had been measured by so many threads."""
    data = kept.raw(detect.detected_cpu())
    data["machine"], data["title"] = processor.machine(), f"this one by {threads}"
    data["compute"] = {**data["compute"], "sms": {"value": threads, "source": "a test"}}
    data["memory"]["hbm"]["bandwidth"] = {"value": bandwidth, "source": "a test"}
    kept.write(f"this-{threads}t", data)


def test_ceilings_are_those_of_the_threads_that_run() -> None:
    """The roofline is the one measured by as many threads; where there is none, it is said whose it is."""
    _keep_processor(1, "10 GB/s")
    one = own_expect.expectation("cpu", "torch-cpu", 1)
    assert one.spec is not None
    assert one.spec.bandwidth == 10e9
    assert "--calibrate` fits this machine" in one.words
    two = own_expect.expectation("cpu", "torch-cpu", 2)
    assert two.spec is not None
    assert two.spec.bandwidth != 10e9
    assert "`perfmodel validate --threads 2` measures 2 threads; what was measured is this one by 1)" in two.words
    _keep_processor(2, "17 GB/s")
    assert own_expect.expectation("cpu", "torch-cpu", 2).spec.bandwidth == 17e9  # type: ignore[union-attr]
    assert own_expect.expectation("cpu", "torch-cpu", 1).spec.bandwidth == 10e9  # type: ignore[union-attr]


# ---- wrong kernels


@pytest.mark.parametrize(
    ("name", "op", "says"),
    [
        ("one_row_off", "gemm", r"wrong result: relative error 0\.0\d+ .*1 of 16 rows are wrong, the worst is row 3"),
        ("drops_a_term", "gemm", "wrong result: relative error 0.[01]"),
        ("half_written", "gemm", "not finite, or does not write all"),
        ("changes_its_input", "gemm", "changes its argument 1"),
        ("other_type", "gemm", r"type torch.float32; it must return .*shape \[16, 64\] and type torch.bfloat16"),
        ("other_shape", "gemm", r"shape \[64, 16\]"),
        ("nothing", "gemm", "returns a NoneType"),
        ("nothing_later", "gemm", "returns a NoneType"),
        ("fails", "gemm", "raises RuntimeError: no kernel image is available"),
        ("fails_at_the_seventh", "gemm", "fails_at_the_seventh raises RuntimeError: an illegal memory access"),
        ("fails_when_timed", "gemm", "fails_when_timed raises RuntimeError: an illegal memory access"),
        ("exits", "gemm", "exits raises SystemExit: 0"),
        ("exits_later", "gemm", "exits_later raises SystemExit: 0"),
        ("wrong_every_fifth", "gemm", "16 of 16 rows are wrong.*a wrong kernel is not timed"),
        ("wrong_at_call_40", "gemm", "16 of 16 rows are wrong.*a wrong kernel is not timed"),
        ("wrong_when_warm", "gemm", "16 of 16 rows are wrong.*seen after timing: its times are not kept"),
        ("zeroes_its_input", "gemm", "changes its argument 1"),
        ("zeroes_once", "gemm", "changes its argument 1.*seen after timing: its times are not kept"),
        ("remembers", "gemm", "16 of 16 rows are wrong.*seen after timing: its times are not kept"),
        ("unpaged", "decode", "wrong result: relative error"),
    ],
)
def test_a_wrong_kernel_is_refused(name: str, op: str, says: str) -> None:
    """No time of a kernel is kept that is wrong at once, later, or after timing: the message has the error measured,
    and the exit code is 1."""
    own_kernels = kernel(name).__globals__
    own_kernels["CALLS"]["n"] = 0
    with pytest.raises(WrongResult, match=says) as caught:
        run(name, op, budget=0.3)
    assert caught.value.exit_code == 1
    with Store() as store:
        assert not store.results(store.runs()[0])


# ---- what cannot be imported or asked for


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("matmul", "MODULE:FUNCTION or FILE.py:FUNCTION"),
        (f"{FILE}:matmull", "has no 'matmull'; functions in it: .*matmul"),
        (f"{FILE}:NOT_A_FUNCTION", "is a int, not a function"),
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("no_such_module_anywhere:f", "neither installed nor in .*set PYTHONPATH, or give FILE.py:FUNCTION"),
    ],
)
def test_names_that_lead_nowhere_say_what_to_do(spec: str, says: str) -> None:
    """A name that leads to no function is a usage error with a remedy."""
    with pytest.raises(UsageError, match=says) as caught:
        own_kernel.load(spec)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import surely_not_installed", "it imports 'surely_not_installed', which is not installed here"),
        ("raise SystemExit('usage: mine N')", "fails: SystemExit: usage: mine N; it must import by itself"),
        ("1 / 0", "fails: ZeroDivisionError: division by zero"),
        ("def f(:", "fails: SyntaxError"),
    ],
)
def test_modules_that_do_not_import_say_why(tmp_path: Path, code: str, says: str) -> None:
    """Whatever goes wrong in the user's module is told in one line."""
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(UsageError, match=says):
        own_kernel.load(f"{tmp_path}/mine.py:f")


def test_a_module_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """module:function looks in the current folder, and leaves the search path as it was."""
    import sys

    (tmp_path / "kernels_of_mine.py").write_text("class K:\n    @staticmethod\n    def run(x, weight): return x\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert own_kernel.load("kernels_of_mine:K.run")(1, 2) == 1
    assert sys.path == before


@pytest.mark.parametrize(
    ("op", "shape", "says"),
    [
        ("gemm", "m=0", "'m=0'; the sizes of gemm are m, n, k, each from 1 to"),
        ("gemm", "rows=4", "'rows=4'; the sizes of gemm are m, n, k, .* such as m=1,n=4096,k=4096"),
        ("gemm", "m=1,M=2", "'m=1,M=2' has m twice"),
        ("gemm", "m=1e3", "each from 1"),
        ("prefill", "heads=6,kv_heads=4", "heads=6 is no multiple of kv_heads=4"),
        ("gemm", " ".join(["m=1"] * 65), "65 shapes; at most 64"),
    ],
)
def test_impossible_shapes_are_refused(op: str, shape: str, says: str) -> None:
    """A shape that the operation cannot have is named with what it can."""
    with pytest.raises(UsageError, match=says):
        own_kernel.shapes(OPS[op], [shape])


def test_operations_and_formats_are_listed() -> None:
    """--op and --dtype name the choices."""
    with pytest.raises(UsageError, match="--op is needed: one of gemm, prefill, decode, mla, norm"):
        own_kernel.operation(None)
    with pytest.raises(UsageError, match="--op is not 'conv': one of gemm"):
        own_kernel.operation("conv")
    with pytest.raises(UsageError, match="--dtype: norm has bf16, fp16, fp32, not 'int8'"):
        own_kernel.kernel_case(lambda: None, "k", OPS["norm"], {"rows": 1, "columns": 8}, "int8", "cpu")


def test_the_page_lists_every_operation() -> None:
    """docs/own-kernels.md has a row for each operation, with its formats and its arguments."""
    page = (Path(__file__).parents[3] / "docs/own-kernels.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 5}
    assert list(rows)[1:] == list(OPS)  # after the header
    for name, own in OPS.items():
        assert rows[name].endswith(f"| {', '.join(own.formats)} |")
        for argument in own.signature.replace(":", ",").split(", ")[:1]:
            assert argument.split(" ")[0] in rows[name]
