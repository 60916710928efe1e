"""Kernels that fail on a GPU: one that takes the device with it, and a loop without which its ceiling is left out."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfmodel.validate.bench import operators as o
from perfmodel.validate.bench import session as bench
from perfmodel.validate.bench.measure import Room
from perfmodel.validate.bench.store import Store
from perfmodel.validate.bench.suites import Wanted
from perfmodel.validate.bench.timing import Call

LIST = [Wanted(o.gemm(m, 16, 16, "fp32", 4.0)) for m in (1, 2, 4)]


class Fragile:
    """A stopwatch of a device that answers no more once a product of two rows was run."""

    name = "fragile"

    def __init__(self) -> None:
        self.dead = False

    def seconds(self, calls: Sequence[Call], repeats: int) -> float:
        start = time.perf_counter()
        self.dead = self.dead or len(calls[0]()) == 2  # type: ignore[arg-type]
        if self.dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")
        return (time.perf_counter() - start) + 2e-3

    def forget(self) -> None:
        if self.dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def session(store: Store, said: list[str]) -> bench.Session:
    """A session of an unfinished run, the one before if there is one."""
    run = store.runs()[0] if store.runs() else store.start("GPU", "cpu", "full", {})
    return bench.Session("cpu", "torch-cpu", Room("cpu", Fragile(), 1e3, 1e9), store, run, 1, 0.0, said.append)


def test_a_run_goes_on_without_the_kernel_that_took_the_device(tmp_path: Path) -> None:
    """The run ends with exit code 5 and the case's name; resumed, it passes over the case, tells it, and goes on."""
    said: list[str] = []
    with Store(tmp_path / "x.sqlite") as store:
        with pytest.raises(
            bench.DeviceLost, match=r"m=2 .*answers no more \(CUDA error: an illegal.*--resume"
        ) as caught:
            bench.measure_all(session(store, said), LIST, 5.0)
        assert caught.value.exit_code == 5
        again = session(store, said)
        assert [r.shape["m"] for r in again.results] == [1.0]
        bench.measure_all(again, LIST, 5.0)
        assert [r.shape["m"] for r in again.results] == [1.0, 4.0]
        assert len(again.wrong) == 1
        assert "gemm fp32 m=2 n=16 k=16: torch.mm fails: RuntimeError: CUDA error" in again.wrong[0]


def test_a_loop_that_fails_leaves_its_ceiling_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compiler refuses is told with its name, and the other ceilings are measured."""
    from perfmodel.validate.bench import ceilings_cuda
    from perfmodel.validate.bench.ceilings import Ceiling
    from perfmodel.validate.bench.streams import Stream

    def refuse(*_: object) -> Ceiling:
        raise RuntimeError("out of resource:\nshared memory")

    one = Ceiling(1.0, "FLOP/s", "a test")
    monkeypatch.setattr(ceilings_cuda, "sweep", lambda *_: [Stream("copy", 1e9, 1e9, 1e-3, 1e-3)])
    monkeypatch.setattr(ceilings_cuda, "_product", lambda fmt, side, device: (lambda: None) if fmt == "bf16" else None)
    monkeypatch.setattr(ceilings_cuda, "_time", lambda *_: bench.timing.summary([1.0] * 9, 1, "a test"))
    monkeypatch.setattr(ceilings_cuda, "_loop", refuse)
    monkeypatch.setattr(ceilings_cuda, "_l2", refuse)
    monkeypatch.setattr(ceilings_cuda, "_registers", lambda watch, name, *_: {name: one})
    monkeypatch.setattr(ceilings_cuda, "_launches", lambda *_: {"launch": one})
    said: list[str] = []
    found = ceilings_cuda.measure(Fragile(), 1e6, 1e9, "a test", tell=said.append)
    assert set(found.items) == {"memory", "t0", "peak:bf16", "exp", "fma", "launch"}
    assert said[0] == "no ceiling of L2: RuntimeError: out of resource: shared memory"
    assert len(said) == 1 + len(ceilings_cuda.FORMATS)
