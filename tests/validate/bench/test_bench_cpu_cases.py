"""Cases on a processor: right ones pass their check at small shapes, and a wrong kernel is never timed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from perfmodel.roofline.op import Op
from perfmodel.validate.bench import operators as o
from perfmodel.validate.bench.case import Case, NotRealised, WrongResult, check, clone, relative_error
from perfmodel.validate.bench.cpu import realise
from perfmodel.validate.bench.cpu_rows import verify
from perfmodel.validate.bench.measure import Room, TooLarge, measure
from perfmodel.validate.bench.watch import CpuWatch

SMALL = [
    *(o.gemm(33, 40, 64, fmt, 4.0 if fmt != "bf16" else 2.0) for fmt in ("fp32", "bf16", "fp16", "int8")),
    *(o.attention(2, 4, 2, 64, q, 50, fmt) for q in (1, 50) for fmt in ("fp32", "bf16")),
    o.latent(2, 4, 40), o.grouped(9, 24, 40, 4, 2, "bf16"), o.grouped(9, 24, 40, 4, 2, "fp32"),
    *(o.passing(name, 6, 128, fmt) for name in ("norm", "activation", "rope", "softmax") for fmt in ("bf16", "fp32")),
    o.rejection(3, 4, 200), o.sampling(3, 200, 2.0), o.embedding(5, 64, "bf16"), o.kv_write(5, 64, "bf16"),
    Op("q_absorb", "gemm_per_head", "", 1.0, o.FORMULAS["batched_per_head"], {
        "m": 5.0, "heads": 3.0, "n": 16.0, "k": 8.0, "weight_bytes": 768.0, "act_bytes": 4.0, "math": "fp32"}),
    Op("experts_combine", "elementwise", "", 1.0, o.FORMULAS["combine"], {
        "tokens": 5.0, "chosen": 2.0, "d": 16.0, "act_bytes": 4.0}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("op", SMALL, ids=lambda op: f"{op.name}-{op.inputs.get('math', op.inputs.get('act_bytes'))}")
def test_right_kernels_pass(op: Op) -> None:
    """The result of each operator agrees with float64 within its rounding."""
    case = realise(op, 128 if op.kind in ("norm", "elementwise") else None)
    inputs = case.make()
    assert check(case, inputs) <= case.allowed
    assert check(case, clone(inputs)) <= case.allowed


def wrong(case: Case, how: Callable[[Any], Any]) -> Case:
    """The case with a kernel whose result is spoiled."""
    return replace(case, run=lambda inputs: how(case.run(inputs)))


def one_off(result: Any) -> Any:
    """One element of the result that is wrong, in every row."""
    result[..., 0] += 1
    return result


def unwritten(result: Any) -> Any:
    """A result of which a part was never written."""
    fresh = torch.full_like(result, float("nan"))
    fresh[..., 1:] = result[..., 1:]
    return fresh


@pytest.mark.parametrize("how", [one_off, unwritten], ids=["off by one", "not written"])
@pytest.mark.parametrize("op", [SMALL[0], SMALL[1], SMALL[4], SMALL[11]], ids=["fp32", "bf16", "attention", "norm"])
def test_a_wrong_kernel_is_refused(op: Op, how: Callable[[Any], Any]) -> None:
    """A kernel whose result is wrong in one column is refused before a single batch is timed."""
    case, watch = wrong(realise(op), how), CpuWatch(1)
    with pytest.raises(WrongResult, match=r"gives a wrong result.*a wrong kernel is not timed") as caught:
        measure(case, Room("cpu", watch, 1e6, 1e9), 0.01)
    assert caught.value.exit_code == 1
    assert watch.batches == 0


def test_a_wrong_sampler_is_refused() -> None:
    """Rejection sampling that accepts one draft more than it may, or takes the next token instead, is wrong."""
    case = realise(o.rejection(8, 4, 500))
    inputs = case.make()

    def shifted(result: Any) -> Any:
        result[:, 1] = (result[:, 1] + 1) % 500
        return result

    def greedy(result: Any) -> Any:
        result[:, 0] = 4
        return result

    assert check(case, inputs) == 0
    for how in (shifted, greedy):
        with pytest.raises(WrongResult):
            check(wrong(case, how), inputs)
    assert verify(inputs).shape == (8, 2)


def test_a_library_that_is_wrong_or_missing() -> None:
    """What stands beside a kernel is checked too: one that is wrong, or raises, is left out with what it said."""

    def broken(inputs: Any) -> Any:
        raise RuntimeError("needs more than 16 rows\nand more")

    case = realise(SMALL[0])
    beside = {"same": case.run, "off": lambda x: case.run(x) + 1, "broken": broken}
    got = measure(replace(case, beside=beside), Room("cpu", CpuWatch(1), 1e5, 1e9), 0.02)
    assert set(got.timings) == {"", "same"}
    assert got.notes["off"].startswith("not timed: ")
    assert got.notes["broken"] == "does not run it: RuntimeError: needs more than 16 rows"
    assert [r.engine for r in got.results()] == ["torch-cpu", "same"]


def test_what_is_measured_is_kept() -> None:
    """A result says what was timed, how often, how wrong, on how many copies, and under which clocks."""
    got = measure(realise(SMALL[0]), Room("cpu", CpuWatch(1), 1e5, 1e9), 0.02).results()[0]
    assert got.samples >= 9
    assert got.p20 <= got.median <= got.p80
    assert got.more["copies"] > 1
    assert got.more["error"] < 1e-6
    assert "load" in got.more["before"]
    assert o.unpack(got.operator, got.shape).cost() == SMALL[0].cost()


def test_a_case_without_room() -> None:
    """What does not fit is not made, and the message says how much it needs."""
    with pytest.raises(TooLarge, match=r"needs 0\.01 GB, and 0\.00 GB may be used"):
        measure(realise(o.gemm(1024, 1024, 1024, "bf16")), Room("cpu", CpuWatch(1), 1e5, 1e5), 0.01)


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (o.gemm(1, 8, 8, "fp8"), "no product in fp8"),
        (o.narrow_gemm(1, 128, 128), "another format than they are multiplied in"),
        (o.attention(1, 4, 2, 64, 5, 50, "bf16"), "neither a whole prompt nor one new token"),
        (o.attention(1, 4, 2, 64, 1, 50, "bf16", kv_bytes=1.0), "a cache in another format"),
        (o.passing("quantize", 4, 8, "bf16"), "not among the kernels that are measured"),
    ],
)
def test_what_torch_has_not(op: Op, why: str) -> None:
    """Operators that nothing here does are left out with the reason."""
    with pytest.raises(NotRealised, match=why):
        realise(op)


def test_errors_are_relative() -> None:
    """Twice the right result is off by one; what is not finite by infinity; another shape is refused."""
    x = torch.ones(4)
    assert relative_error(2 * x, x) == 1
    assert relative_error(x * float("nan"), x) == float("inf")
    with pytest.raises(WrongResult, match=r"shape \(2,\), and \(4,\) is right"):
        relative_error(x[:2], x)


def test_copies_write_each_row_once() -> None:
    """Further buffers of a cache write go to other rows, none of them twice: what is written there is what is read."""
    from perfmodel.validate.bench.case import clone
    from perfmodel.validate.bench.cpu import realise

    case = realise(o.kv_write(64, 16384, "bf16"))
    first = case.make()
    for _ in range(5):
        other = clone(first)
        assert len(set(other.rows.tolist())) == 64
        result, wanted = case.reference(other, case.run(other))
        assert (result == wanted).all()
