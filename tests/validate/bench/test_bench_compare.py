"""Measured beside predicted: terms add up, errors by family, tolerances, and what counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.hwspecs.load import gpu
from perfmodel.validate.bench import operators as o
from perfmodel.validate.bench.ceilings import Ceiling, Ceilings
from perfmodel.validate.bench.compare import CEILINGS, FITTED, TOLERANCES, compare, families, gap_terms
from perfmodel.validate.bench.predict import by_ceilings, by_fit, shipped
from perfmodel.validate.bench.store import Result

FOUND = Ceilings({
    "memory": Ceiling(4.3e12, "B/s", "a test"), "peak:bf16": Ceiling(8e14, "FLOP/s", "a test"),
    "launch:graph": Ceiling(2e-6, "s", "a test"), "t0": Ceiling(3e-6, "s", "a test"),
})  # fmt: skip
SPEC = gpu("h200")


def result(op, seconds: float, engine: str = "triton", **more) -> Result:  # type: ignore[no-untyped-def]
    return Result(
        o.title(op, "bf16"), op.kind, engine, "bf16", o.pack(op), seconds, seconds * 0.99, seconds * 1.02, 0.01, 9, more
    )  # fmt: skip


@given(
    st.floats(1e-7, 1.0), st.floats(0, 1e-2), st.floats(1e-9, 1e-2), st.floats(0.01, 1), st.floats(0.01, 1),
    st.floats(1, 8), st.floats(1, 20), st.integers(0, 5000),
)  # fmt: skip
def test_terms_add_up(
    measured: float, compute: float, stream: float, matrix: float, memory: float, overlap: float, padding: float,
    programs: int,
) -> None:  # fmt: skip
    """The parts of a time are the time; none but the rest, and the credit for what the bound allows, is negative."""
    p = {"launch": 2e-6, "matrix": matrix, "memory": memory, "overlap": overlap}
    detail = {"padding": padding, "programs": programs}
    terms = gap_terms(measured, max(compute, stream), {"matrix": compute, "hbm": stream}, 3e-6, p, detail, SPEC)
    assert math.fsum(terms.values()) == pytest.approx(measured, rel=1e-9, abs=1e-12)
    assert all(value >= -1e-12 for name, value in terms.items() if name != "rest")


def test_the_tail_by_hand() -> None:
    """133 equal blocks on 132 multiprocessors take two waves: 264 / 133 - 1 of the work is added."""
    p = {"launch": 0.0, "matrix": 1.0, "memory": 1.0, "overlap": 8.0}
    terms = gap_terms(2.0, 1.0, {"matrix": 1.0, "hbm": 0.0}, 0.0, p, {"programs": 133}, SPEC)
    assert terms["tail"] == pytest.approx(264 / 133 - 1)
    assert gap_terms(1.5, 1.0, {"matrix": 1.0, "hbm": 0.0}, 0.0, p, {"padding": 1.5}, SPEC)["tiles"] == 0.5


def test_a_case_beside_its_prediction() -> None:
    """The default column: launch + smax(compute / 0.8, traffic / 0.85; 2) at the ceilings; the library stands apart."""
    column = by_ceilings(FOUND, SPEC, "triton", "cuda")
    op = o.gemm(1024, 4096, 4096, "bf16")
    compute, stream = float(op.cost().flops) / 989.4e12, float(op.cost().bytes) / 4.8e12
    expected = 2e-6 + math.hypot(compute / 0.8, stream / 0.85)
    library = result(op, 6e-5, "cuBLAS (torch.mm)")
    (one,) = compare([result(op, 5e-5), library], [column], SPEC, FOUND, "triton")
    assert one.predicted == pytest.approx(expected, rel=1e-6)
    assert one.beside == {"cuBLAS (torch.mm)": 6e-5}
    assert one.limiter == "matrix:bf16"
    assert one.attained == pytest.approx(compute / 5e-5, rel=1e-6)
    assert one.to_dict()["gap"] == one.gap
    assert "slow arithmetic" in one.gap


def test_errors_by_family() -> None:
    """Median and largest error of each family; above what is allowed it is outside; a wider tolerance lets it pass."""
    column = by_ceilings(FOUND, SPEC, "triton", "cuda")
    ops = [o.gemm(m, 4096, 4096, "bf16") for m in (1, 512, 1024)] + [o.passing("norm", 64, 4096, "bf16")]
    plain = compare([result(op, 1.0) for op in ops], [column], SPEC, FOUND, "triton")
    measured = [result(c.op, c.predicted * f) for c, f in zip(plain, (1.1, 1.25, 4.0, 1.0), strict=True)]
    compared = compare(measured, [column], SPEC, FOUND, "triton")
    gemm, norm, total = families(compared)
    assert (gemm.name, gemm.n, norm.name, total.n) == ("gemm", 3, "norm", 4)
    assert gemm.error == pytest.approx(0.2)
    assert gemm.worst == pytest.approx(0.75)
    assert gemm.covered == pytest.approx(2 / 3)
    assert not gemm.outside
    assert families(compared, {"gemm": 0.1})[0].outside
    assert families(compared, {"": 0.1})[0].outside
    assert not families(compared, {"": 0.1, "gemm": 0.5})[0].outside
    assert families([]) == []


def test_tolerances_are_stated() -> None:
    """Each column that can be judged has a default for every family; a fit's are the stricter ones."""
    for column in (CEILINGS, FITTED):
        assert "" in TOLERANCES[column]
    assert all(TOLERANCES[FITTED][name] <= TOLERANCES[CEILINGS].get(name, 1.5) for name in TOLERANCES[FITTED])


def test_shipped_fits_stand_beside_and_are_not_judged() -> None:
    """On a GPU with shipped fits, or one like it, they are columns of their own; a processor has none."""
    names = [c.name for c in shipped(SPEC)]
    assert "vllm" in names
    assert "never judged" in shipped(SPEC)[0].words
    assert shipped(gpu("cpu")) == []
    assert by_fit(SPEC, "triton") is None
