"""Our kernels as cases: each, and each ceiling, as far as the interpreter goes, and on a GPU where there is one."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.roofline.op import Op
from perfmodel.validate.bench import operators as o
from perfmodel.validate.bench.case import NotRealised, WrongResult, check, clone
from perfmodel.validate.bench.timing import Call

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[2] / "kernels"))  # the interpreter's corrections are shared

SMALL = [
    o.gemm(33, 128, 128, "bf16"), o.gemm(5, 128, 128, "fp8"), o.gemm(5, 128, 128, "int8"), o.block_gemm(5, 128, 256),
    o.narrow_gemm(5, 128, 256), o.attention(1, 4, 2, 64, 70, 70, "bf16"), o.attention(2, 4, 2, 64, 1, 70, "bf16"),
    o.attention(2, 4, 2, 64, 7, 77, "bf16"), o.latent(1, 16, 70),
    *(o.passing(name, 8, 256, "bf16") for name in ("norm", "activation", "rope", "quantize")),
    o.rejection(2, 4, 300, 2.0), o.verified("greedy", 10, 300), o.verified("logsumexp", 10, 300),
    o.kv_write(5, 512, "bf16", 1.0),
]  # fmt: skip


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the kernels run: on the GPU where there is one, else interpreted, as they were when they were imported."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # other tests of the process may have taken it away
    import interp_shim

    interp_shim.install()
    return "cpu"


@pytest.mark.parametrize("op", SMALL, ids=lambda op: f"{op.name}-{o.key(op)[1]}-{op.inputs.get('q', '')}")
def test_our_kernels_are_right(op: Op, device: str) -> None:
    """Each kernel of ours, and each library's call beside it, agrees with float64; a copy of its inputs too."""
    from perfmodel.validate.bench.cuda import realise

    case = realise(op, device=device)
    inputs = case.make()
    assert check(case, clone(inputs)) <= case.allowed
    for name, run in case.beside.items():
        assert check(case, inputs, run, name) <= case.allowed
    if case.explain:
        told = case.explain(inputs)
        assert told["padding"] >= 1
        assert told["padding"] == pytest.approx(
            -(-op.inputs["m"] // told["tile_m"]) * told["tile_m"]
            * -(-op.inputs["n"] // told["tile_n"]) * told["tile_n"] / (op.inputs["m"] * op.inputs["n"])
        )  # fmt: skip


def test_a_wrong_triton_kernel_is_refused(device: str) -> None:
    """The check stands before our kernels as well."""
    from perfmodel.validate.bench.cuda import realise

    case = realise(o.gemm(5, 128, 128, "int8"), device=device)
    spoiled = replace(case, run=lambda x: case.run(x) * 1.1)
    with pytest.raises(WrongResult, match=r"gemm_w8a8 gives a wrong result: relative error 0\.(1|09)"):
        check(spoiled, case.make())


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (o.gemm(1, 8, 8, "fp32"), "no kernel of ours in fp32"), (o.grouped(4, 8, 8, 4, 2, "bf16"), "grouped gemm"),
        (o.attention(1, 4, 2, 64, 100, 200, "bf16"), "neither a whole prompt"), (o.latent(1, 16, 70, q=2), "one new"),
        (o.attention(1, 4, 2, 80, 1, 70, "bf16"), "head dimensions of 64, 128 and 256"),
        (o.kv_write(5, 512, "bf16"), "written by the rope kernel"), (o.sampling(1, 300), "sample no plain token"),
        (o.passing("softmax", 4, 8, "bf16"), "not among our kernels"),
    ],
)  # fmt: skip
def test_what_we_have_no_kernel_for(op: Op, why: str) -> None:
    """It is left out with the reason."""
    from perfmodel.validate.bench.cuda import realise

    with pytest.raises(NotRealised, match=why):
        realise(op, device="cpu")


def test_the_suites_of_a_gpu_are_realised() -> None:
    """Every operator of a GPU's suites has a kernel of ours; nothing is made for that."""
    from perfmodel.validate.bench.cuda import realise
    from perfmodel.validate.bench.suites import suite

    names = [realise(w.op, w.columns).name for w in (*suite("cuda", "quick"), *suite("cuda", "quick", fresh=True))]
    assert len(set(names)) == len(names)
    assert len([realise(w.op, w.columns) for w in suite("cuda", "full")]) > 300


class OneCall:
    """A stopwatch that makes a single call: the interpreter is slow, and its times mean nothing."""

    name = "one call"

    def seconds(self, calls: Sequence[Call], repeats: int) -> float:
        start = time.perf_counter()
        calls[0]()
        return (time.perf_counter() - start) + 2e-3  # long enough that no batch is made longer


def test_ceilings_of_a_gpu_interpreted(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ceilings are measured by the loops that a GPU runs, tiny here, and become a spec with their methods."""
    from perfmodel.hwspecs.load import gpu
    from perfmodel.kernels.device import assume
    from perfmodel.validate.bench import ceilings_cuda, keep, timing
    from perfmodel.validate.bench.spec import gpu_spec

    if device != "cpu":
        pytest.skip("on a GPU the ceilings are measured in full")
    monkeypatch.setattr(timing.interleaved, "__kwdefaults__", {**timing.interleaved.__kwdefaults__, "fewest": 1})
    extent = ceilings_cuda.Extent((16,), 4096, 1, 1, 1)
    with assume("sm_90", 1):
        found = ceilings_cuda.measure(OneCall(), 2**15, 2**19, "interpreted", 0.0, 2**16, extent, device)
    wanted = {"memory", "t0", "l2", "exp", "fma", "launch", "launch:graph"}
    assert wanted <= set(found.items)
    assert set(found.formats) == {"bf16", "fp16", "fp8", "int8"}
    spec = keep.as_gpu(gpu_spec(gpu("h200"), found, "triton"))
    assert spec.name == "h200-measured"
    assert spec.bandwidth == pytest.approx(found["memory"], rel=1e-3)
    assert spec.memory.hbm.bandwidth.alternatives[0].value == "4.8 TB/s"
    assert spec.compute.tensor["bf16"].source.startswith("measured here: ")
    assert spec.compute.tensor["fp64"].text == "66.9 TFLOP/s"
