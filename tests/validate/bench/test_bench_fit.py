"""The device's fit: known numbers are recovered, errors are of rows left out, and the file is a fit like any other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.calibrated.model import Calibrated
from perfmodel.roofline.calibrated.simple import ONE_ROW, SIMPLE
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.efficiency_file import as_fit
from perfmodel.roofline.op import Op
from perfmodel.roofline.times import Rates
from perfmodel.validate.bench import fit as f
from perfmodel.validate.bench import operators as o
from perfmodel.validate.bench.store import Result

TRUE = {"launch": 5e-6, "matrix": 0.7, "memory": 0.5, "overlap": 1.4}


@pytest.fixture(scope="module")
def spec() -> Gpu:
    """A GPU as if it were this machine's."""
    return gpu("h200").model_copy(update={"machine": "a test"})


def result(op: Op, seconds: float) -> Result:
    return Result(o.title(op, "bf16"), op.kind, "triton", "bf16", o.pack(op), seconds, seconds, seconds, 0.0, 9, {})


def rows(spec: Gpu, noise: float = 0.0, params: dict[str, float] = TRUE) -> list[Result]:
    """Times of GEMMs that follow the simple form with known numbers."""
    rng, made = np.random.default_rng(0), []
    for m in (1, 16, 64, 256, 1024, 4096):
        for n, k in ((1024, 1024), (4096, 4096), (8192, 2048)):
            op = o.gemm(m, n, k, "bf16")
            compute, stream = f.seconds_of(op, Rates(spec))
            t: Any = SIMPLE.time(params, {"compute": compute, "stream": stream}, None, {})  # type: ignore[arg-type]
            made.append(result(op, max(t, Rates(spec).bound(op.cost())) * float(np.exp(noise * rng.standard_normal()))))
    return made


def test_known_numbers_are_recovered(spec: Gpu) -> None:
    """Times without noise give back launch, shares and overlap, and rows left out are predicted to a per cent."""
    cell = f.cells(rows(spec), spec)[0]
    found = f.fit_cell(cell, 2e-6).params
    for name, value in TRUE.items():
        assert found[name] == pytest.approx(value, rel=0.05), name
    assert np.median(np.abs(f.left_out(cell, 2e-6) / cell.measured - 1)) < 0.01


def test_products_of_one_row_have_their_own_numbers(spec: Gpu, tmp_path: Path) -> None:
    """A library with another kernel for one row: both are recovered, and times of arrays of m are those of each m."""
    vector = {"launch": 1e-6, "matrix": 0.9, "memory": 0.9, "overlap": 1.0}
    made = rows(spec)
    for n, k in ((1024, 2048), (4096, 2048), (8192, 8192), (2048, 16384)):
        op = o.gemm(1, n, k, "bf16")
        compute, stream = f.seconds_of(op, Rates(spec))
        made.append(result(op, vector["launch"] + compute / 0.9 + stream / 0.9))
    made = [r for r in made if r.shape["m"] > 1 or r.median < 1e-6 + r.shape["n"] * r.shape["k"] * 2 / 4.2e12]
    cells = {c.family: len(c.measured) for c in f.cells(made, spec)}
    assert cells == {"": 15, ONE_ROW: 4}
    fitted = f.fit_device(made, spec, "triton", 2e-6, "3.6", "a test")
    assert [line["kind"] for line in fitted.lines] == ["gemm", "gemm, one row"]
    clock = Calibrated(spec, load(spec, "triton", [as_fit(fitted.content, tmp_path)]))
    for r in made:
        assert float(clock.time(o.unpack(r.operator, r.shape)).predicted) == pytest.approx(r.median, rel=0.06)
    m = np.array([1.0, 2.0, 16.0])
    together = clock.time(
        replace(o.gemm(1, 4096, 4096, "bf16"), inputs={**o.gemm(1, 4096, 4096, "bf16").inputs, "m": m})
    )
    apart = [float(clock.time(o.gemm(int(one), 4096, 4096, "bf16")).predicted) for one in m]
    assert np.asarray(together.predicted) == pytest.approx(apart)
    assert apart[0] < apart[1]


def test_numbers_stay_physical(spec: Gpu) -> None:
    """Whatever the rows say, a share of a ceiling is at most 1 and times add up at worst."""
    cell = f.cells(rows(spec, 0.8), spec)[0]
    found = f.fit_cell(cell, 2e-6).params
    assert found["matrix"] <= 1
    assert found["memory"] <= 1
    assert 1 <= found["overlap"] <= f.MOST_OVERLAP
    assert (f.predicted(found, cell) >= cell.bound).all()


def test_the_interval_covers_fresh_rows(spec: Gpu) -> None:
    """With 20 % noise the 80 % interval of the fit holds most of rows that it did not see."""
    made = f.fit_device(rows(spec, 0.2), spec, "triton", 2e-6, "3.6", "a test")
    low, high = (made.content["kernels"][0]["intervals"][0][end] for end in ("low", "high"))
    assert 0.6 < low < 0.9
    assert 1.1 < high < 1.6
    assert made.lines[0]["median_error"] == pytest.approx(0.13, abs=0.08)


def test_the_file_is_a_fit_and_is_found(spec: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for a machine is used by calibrated times of that device, and of no other, and it says so."""
    from perfmodel.validate.bench import keep

    monkeypatch.setenv("PERFMODEL_DATA", str(tmp_path))
    made = f.fit_device(rows(spec), spec, "triton", 2e-6, "3.6", "a test")
    path = keep.keep_fit(made)
    assert as_fit(made.content, path).machine == "a test"
    op = o.gemm(64, 4096, 4096, "bf16")
    mine = Calibrated(spec, load(spec)).time(op)
    assert mine.origin.startswith("fitted: h200 under triton 3.6, measured on this machine on ")
    wanted = next(r.median for r in rows(spec) if r.name == o.title(op, "bf16"))
    assert float(mine.predicted) == pytest.approx(wanted, rel=0.02)
    assert "triton" not in Calibrated(spec, load(spec, "vllm")).time(op).origin
    other = gpu("h200")
    assert "triton" not in Calibrated(other, load(other)).time(op).origin
    with pytest.raises(UsageError, match="validate --calibrate"):
        load(other, "triton")


def test_passes_are_fitted_together_too(spec: Gpu) -> None:
    """Norms and activations have numbers of their own, and all passes together answer for those that were not seen."""
    made = []
    for name in ("norm", "activation"):
        for r in (1, 64, 1024, 8192):
            op = o.passing(name, r, 4096, "bf16")
            made.append(result(op, 3e-6 + 1.5 * float(Rates(spec).bound(op.cost()))))
    cells = {(c.kind, c.fmt): len(c.measured) for c in f.cells(made, spec)}
    assert cells == {("norm", ""): 4, ("activation", ""): 4, ("elementwise", ""): 8}
    found = as_fit(f.fit_device(made, spec, "triton", 2e-6, "3.6", "a test").content, Path("x"))
    efficiency = load(spec, "triton", [found])
    assert efficiency.other(o.passing("norm", 4, 8, "bf16")).kind == "norm"
    assert efficiency.other(o.passing("rope", 4, 8, "bf16")).kind == "elementwise"


def test_too_few_rows(spec: Gpu) -> None:
    """Three rows fix nothing: they are named, and alone they are refused."""
    few = rows(spec)[:3]
    with pytest.raises(UsageError, match="nothing could be fitted: gemm bf16: 3 rows, at least 4 are needed"):
        f.fit_device(few, spec, "triton", 2e-6, "3.6", "a test")


def test_few_rows_have_a_wide_interval() -> None:
    """Extremes of four rows hold three fifths of what comes: the interval is stretched twofold; never under 5 %."""
    assert f.interval(np.array([-0.2, 0.0, 0.1, 0.2])) == (pytest.approx(-0.4), pytest.approx(0.4))
    assert f.interval(np.zeros(4)) == (-0.05, 0.05)
    assert f.interval(np.linspace(-1, 1, 99)) == (pytest.approx(-0.8, abs=0.05), pytest.approx(0.8, abs=0.05))
