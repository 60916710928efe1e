"""The shares of its ceilings that torch reached on one processor: the file, and what becomes of them on another."""

import math
import sys
from pathlib import Path

import pytest
import yaml

from perfmodel.base.errors import SpecError
from perfmodel.roofline import efficiency_cpu as shares
from perfmodel.roofline.times import Rates
from perfmodel.validate.bench import operators as o
from perfmodel.validate.bench import predict
from perfmodel.validate.bench.ceilings import Ceiling, Ceilings
from perfmodel.validate.bench.compare import FRESH
from perfmodel.validate.bench.fit import seconds_of
from perfmodel.validate.replay import replay

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import cpu_shares  # noqa: E402

FOLDER = cpu_shares.newest()
SPEC = cpu_shares.load_gpu(str(FOLDER / "device.yaml"))


def test_the_file_is_that_of_the_recorded_run() -> None:
    """The tool makes the committed file from the recorded run again, to four digits and but for the day."""
    pytest.importorskip("scipy")
    again = cpu_shares.content(FOLDER)
    kept = yaml.safe_load((shares.DATA / "torch-cpu.yaml").read_text())
    assert kept["call"] == again["call"]
    assert kept["recorded_on"] == again["recorded_on"]
    for one, other in zip(kept["fit"]["kernels"], again["fit"]["kernels"], strict=True):
        assert {**one, "parameters": 0, "sigma": 0, "intervals": 0, "spread": 0, "scores": 0} == {
            **other, "parameters": 0, "sigma": 0, "intervals": 0, "spread": 0, "scores": 0
        }  # fmt: skip
        for name in ("matrix", "memory"):
            assert one["parameters"][name] == pytest.approx(other["parameters"][name], rel=0.02)


def test_shares_are_shares() -> None:
    """Every kernel that the suites measure on a processor has shares above 0 and at most 1; other engines have none."""
    known = shares.recorded("torch-cpu")
    assert known is not None
    assert {("gemm", "bf16"), ("prefill", "bf16"), ("decode", "fp32"), ("norm", "")} <= set(known[0].kernels)
    for kernel in known[0].kernels.values():
        assert 0 < kernel.params["matrix"] <= 1
        assert 0 < kernel.params["memory"] <= 1
    assert shares.recorded("triton") is None


def test_on_another_processor_by_hand() -> None:
    """A call half as fast doubles the launch; the interval is twice as wide in logarithms, at least 1.3 either way."""
    known = shares.recorded("torch-cpu")
    assert known is not None
    own = known[0].kernels["decode", "bf16"]
    other = shares.elsewhere(own, 2.0)
    assert other.params == {**own.params, "launch": 2 * own.params["launch"]}
    for a, b in zip(own.regimes, other.regimes, strict=True):
        assert b.low == min(a.low**2, 1 / 1.3)
        assert b.high == max(a.high**2, 1.3)


def test_the_default_column_uses_them() -> None:
    """launch + compute / share + traffic / share at this run's ceilings, with the launch in this run's calls."""
    known = shares.recorded("torch-cpu")
    assert known is not None
    call = 3 * known[1]
    found = Ceilings({"launch": Ceiling(call, "s", "a test")})
    column = predict.by_ceilings(found, SPEC, "torch-cpu", "cpu")
    assert "torch-cpu 2.13.0+cpu reached on AMD EPYC" in column.words
    op = o.gemm(64, 1024, 1024, "bf16")
    p = known[0].kernels["gemm", "bf16"].params
    compute, stream = seconds_of(op, Rates(SPEC))
    n = p["overlap"]
    expected = 3 * p["launch"] + ((compute / p["matrix"]) ** n + (stream / p["memory"]) ** n) ** (1 / n)
    assert predict.predict(column, op).predicted == pytest.approx(expected, rel=1e-3)


def test_shapes_that_were_not_fitted() -> None:
    """On the recorded machine itself the shares predict shapes that they have not seen within 8 %, by median."""
    assert _middle([c.error for c in replay(FOLDER).compared if c.set == FRESH]) < 0.08


def test_threads_that_were_not_fitted() -> None:
    """Two threads, of which no row was fitted: within 25 % by median, and two thirds inside the interval."""
    found = replay(cpu_shares.newest(2))
    assert _middle([c.error for c in found.compared]) < 0.25
    assert found.coverage > 2 / 3


def _middle(errors: list[float]) -> float:
    assert len(errors) > 50
    assert math.isfinite(max(errors))
    return sorted(errors)[len(errors) // 2]


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that lacks its call says so with its name."""
    monkeypatch.setattr(shares, "DATA", tmp_path)
    (tmp_path / "mine.yaml").write_text("recorded_on: here\n")
    with pytest.raises(SpecError, match=r"mine\.yaml: 'call': is missing"):
        shares.recorded("mine")
