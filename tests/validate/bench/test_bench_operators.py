"""The operators that are measured: costs of the graph, written down and read again; suites of disjoint sets."""

import pytest

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.roofline.graph import graph
from perfmodel.validate.bench import operators as o
from perfmodel.validate.bench.cpu import realise
from perfmodel.validate.bench.model_suite import ready, steps, wanted
from perfmodel.validate.bench.suites import BUDGETS, suite


def test_costs_by_hand() -> None:
    """16 x 32 x 64: 65,536 FLOPs, 2 (512 + 1024 + 2048) bytes in bf16; 4-bit weights take 0.515625 bytes each."""
    cost = o.gemm(16, 32, 64, "bf16").cost()
    assert cost.flops == 2 * 16 * 32 * 64
    assert cost.bytes == 2 * (16 * 64 + 32 * 64 + 16 * 32)
    assert o.narrow_gemm(16, 32, 128).cost().hbm["weights"] == 32 * 128 * 0.515625
    # rejection: (2 x 4 + 1) rows of 1000 logits in fp32
    assert o.rejection(1, 4, 1000).cost().bytes == 9 * 1000 * 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["quick", "full"])
def test_suites(device: str, name: str) -> None:
    """Every operator of a suite is read as it was written; a fit's shapes and the fresh ones are all different."""
    seen, fresh = suite(device, name), suite(device, name, fresh=True)
    for one in [*seen, *fresh]:
        again = o.unpack(one.op.kind, o.pack(one.op))
        assert again.cost() == one.op.cost()
        assert (o.key(again), o.family(again)) == (o.key(one.op), o.family(one.op))
    names = [{(o.title(w.op, o.key(w.op)[1]), w.columns) for w in some} for some in (seen, fresh)]
    if name == "quick":
        assert [len(some) for some in names] == [len(seen), len(fresh)]
        assert not names[0] & names[1]
    assert {o.key(w.op) for w in fresh} <= {o.key(w.op) for w in seen}


def test_every_cpu_case_is_realised() -> None:
    """Torch on a processor has all operators of its suites, and no two cases share a name."""
    for name in ("quick", "full"):
        every = [realise(w.op, w.columns).name for w in (*suite("cpu", name), *suite("cpu", name, fresh=True))]
        assert len(set(every)) == len(every) or name == "full"


def test_a_cut_suite_has_some_of_each() -> None:
    """The first operators of a suite are one of every kind and format."""
    every = {o.key(w.op) for w in suite("cpu", "quick")}
    assert {o.key(w.op) for w in suite("cpu", "quick")[: len(every) + 2]} == every


def test_an_unknown_suite() -> None:
    """It is refused by name, and each known one has a budget."""
    with pytest.raises(UsageError, match="quick or full, not 'fast'"):
        suite("cpu", "fast")
    assert {"quick", "full", "model"} <= set(BUDGETS)


def test_what_is_kept_may_be_too_new() -> None:
    """A formula or an input that is not known is an error of the store."""
    with pytest.raises(SpecError, match="formula 'warp', which this version does not know"):
        o.unpack("gemm", {"op": "gemm", "formula": "warp"})
    with pytest.raises(SpecError, match="does not fit its formula"):
        o.unpack("gemm", {"op": "gemm", "formula": "gemm", "m": 1.0})


def test_keys_tell_kernels_apart() -> None:
    """Formats of products have kernels of their own; all norms share one; an expert's activation is an activation."""
    assert o.key(o.narrow_gemm(1, 128, 128)) == ("gemm", "w4a16")
    assert o.key(o.block_gemm(1, 128, 128)) == ("gemm", "fp8_block")
    assert o.key(o.gemm(1, 128, 128, "fp8")) == ("gemm", "fp8")
    assert o.key(o.gemm(1, 128, 128, "fp32")) == ("gemm", "fp32")
    assert o.key(o.attention(1, 8, 2, 64, 1, 100, "fp32")) == ("decode", "fp32")
    assert o.key(o.passing("norm", 4, 8, "bf16")) == ("norm", "")
    assert o.family(o.attention(1, 8, 2, 64, 100, 100, "bf16")) == "prefill"


def test_shapes_of_a_model() -> None:
    """Both steps of a model are its graphs, each operator once with how often it runs."""
    found = ready("qwen3-0.6b", "h100")  # type: ignore[arg-type]
    listed = wanted(found, 1, 128)
    for name, step in steps(1, 128).items():
        ops = graph(found.model, step, found.plan, found.topology)
        mine = [w for w in listed if w.step == name]
        assert [w.times for w in mine] == [op.count for op in ops]
        assert sum(float(w.op.cost().flops) * w.times for w in mine) == pytest.approx(
            sum(float(op.cost().flops) for op in ops)
        )
    assert next(w.columns for w in listed if w.op.name == "norm") == 1024
    assert next(w.columns for w in listed if w.op.name == "rope") == 128
