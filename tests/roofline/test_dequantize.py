"""Weights that no unit multiplies as they are stored: instructions that unpack them, and the limit that they are."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.formats import FORMATS, weight_format
from perfmodel.roofline import ops
from perfmodel.roofline.calibrated.chip import chip
from perfmodel.roofline.calibrated.gemm import GEMM
from perfmodel.roofline.calibrated.weight_only import MMA_SYNC, weight_only
from perfmodel.roofline.dequantize import LEAST, check_instructions, instructions, issue_rate, needs_dequantization
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.times import Rates

ROOT = Path(__file__).parents[2]


def counted() -> dict[tuple[str, int], float]:
    """(architecture, group) -> instructions a weight of this project's 4-bit product for 16 rows of bfloat16."""
    data = json.loads((ROOT / "tests/kernels/data/aot/gemm_w4a16.json").read_text())
    found = {}
    for name, case in data["cases"].items():
        match = re.fullmatch(r"gemm_w4a16/(sm_80|sm_90)/m<=16, (?:group (\d+)|one scale), bfloat16, .*", name)
        if match:
            found[match[1], int(match[2] or 0)] = case["launches"][0]["instructions_per_weight"]
    return found


def test_instructions_are_those_of_the_compiled_kernels() -> None:
    """2.2 + 42 / group is within 8 % of the SASS of sm_80 and sm_90, for a scale a channel and groups of 32 to 128."""
    kernels = counted()
    assert len(kernels) == 8
    names = {0: "int4_channel", 32: "int4_g32", 64: "int4_g64", 128: "int4_g128"}
    for (arch, group), measured in kernels.items():
        assert instructions(weight_format(names[group]), "bf16") == pytest.approx(measured, rel=0.08), (arch, group)


@pytest.mark.parametrize(
    ("name", "math", "needed"),
    [
        ("int4", "bf16", True), ("w8a16", "fp16", True), ("fp8", "bf16", True), ("fp8", "fp8", False),
        ("int8", "int8", False), ("mxfp4", "fp4", False), ("mxfp4", "bf16", True), ("bf16", "bf16", False),
        ("fp32", "fp32", False), ("q4_k", "int8", False),
    ],
)  # fmt: skip
def test_who_unpacks(name, math, needed) -> None:
    """Narrow weights are unpacked for 16-bit products; what a unit multiplies as it is stored is not."""
    assert needs_dequantization(FORMATS[name], math) == needed
    assert (instructions(FORMATS[name], math) > 0) == needed
    assert instructions(FORMATS[name], math, 7.0) == (7.0 if needed else 0.0)


def test_issue_rate_by_hand() -> None:
    """SMs x 128 threads a clock x clock; a CPU or a GPU without these numbers has none."""
    assert issue_rate(gpu("h100")) == pytest.approx(132 * 128 * gpu("h100").compute.clock_tensor.value)
    bare = gpu("a100").model_copy(update={"compute": gpu("a100").compute.model_copy(update={"sms": None})})
    assert issue_rate(bare) is None
    assert Rates(bare).terms(ops.gemm(1.0, 8.0, 8.0, 32.0, 2.0, 2.0, "bf16", 2.5)).keys() == {"matrix", "hbm"}


def test_the_roofline_counts_what_no_kernel_does_without() -> None:
    """n x k instructions, however many more a kernel issues; the product's FLOPs and bytes stay as they are."""
    plain = ops.gemm(16.0, 100.0, 200.0, 1e4, 2.0, 2.0, "bf16")
    for dequant in (2.5, 1.0, 40.0):
        cost = ops.gemm(16.0, 100.0, 200.0, 1e4, 2.0, 2.0, "bf16", dequant)
        assert cost.ops["issue"] == LEAST * 100 * 200
        assert (cost.flops, cost.matrix_flops, cost.bytes) == (plain.flops, plain.matrix_flops, plain.bytes)
    assert ops.gemm(16.0, 100.0, 200.0, 1e4, 2.0, 2.0, "bf16", 0.5).ops["issue"] == 0.5 * 100 * 200
    assert "issue" not in plain.ops


def test_experts_are_unpacked_once_each() -> None:
    """Instructions of the expected distinct experts, as their bytes."""
    cost = ops.grouped_gemm(4.0, 64.0, 128.0, 8.0, 2.0, 8.0, 4096.0, 2.0, 2.0, "bf16", 2.5)
    assert float(cost.ops["issue"]) == pytest.approx(float(cost.hbm["weights"]) / 4096 * 64 * 128)


def test_issue_can_limit_a_product() -> None:
    """Where a GPU reads faster than it issues, unpacking sets the bound, and `limiter` says so."""
    device = gpu("b200")
    rates = Rates(device)
    n = k = 16384.0
    cost = ops.gemm(1.0, n, k, n * k * 0.1, 2.0, 2.0, "bf16", 2.5)  # a tenth of a byte a weight
    assert rates.limiter(cost) == "issue"
    assert float(rates.bound(cost)) == pytest.approx(n * k / issue_rate(device))
    usual = ops.gemm(1.0, n, k, n * k * 0.52, 2.0, 2.0, "bf16", 2.5)
    assert rates.limiter(usual) == "hbm"


def test_graph_unpacks_linear_layers_alone() -> None:
    """4-bit weights on an H100: the layers' products unpack, the LM head in 16 bits and the rest do not."""
    a = pm.analyze("llama3.1-8b", "h100", weights="int4", batch=4)
    unpacked = {r.op.name for r in a.decode.ops if "issue" in r.cost.ops}
    assert unpacked == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert a.decode.ops[0].cost.ops.get("issue", 0.0) == 0.0
    native = pm.analyze("llama3.1-8b", "h100", weights="fp8", batch=4)
    assert not any("issue" in r.cost.ops for r in native.decode.ops)
    emulated = pm.analyze("llama3.1-8b", "a100", weights="fp8", batch=4)
    assert any("issue" in r.cost.ops for r in emulated.decode.ops)
    experts = pm.analyze("gpt-oss-20b", "h100", batch=4)
    assert any("issue" in r.cost.ops for r in experts.decode.ops if r.op.kind == "grouped_gemm")


def test_bounds_of_memory_limited_steps_do_not_change() -> None:
    """One token on A100 and H100 is limited by memory in 4 bits too: the bound is bytes over bandwidth."""
    for name in ("a100", "h100", "l40s"):
        a = pm.analyze("llama3.1-8b", name, weights="int4")
        products = [r for r in a.decode.ops if r.op.kind == "gemm"]
        assert {r.time.limiter for r in products} == {"hbm"}


def test_more_instructions_are_never_faster() -> None:
    """Calibrated times grow with a kernel's instructions a weight, and not at all below what memory needs anyway."""
    times = [
        pm.analyze("llama3.1-8b", "a100", weights="int4", fidelity="calibrated", dequantization=n).tpot_s
        for n in (0.5, 2.5, 10.0, 40.0)
    ]
    assert times == sorted(times)
    assert times[1] == pytest.approx(times[0], rel=0.01)
    assert times[3] > 2 * times[0]


def test_unpacking_is_paid_in_every_tile_of_rows() -> None:
    """With many rows each tile unpacks the weights anew: time grows with rows, and is instructions over issue rate."""
    device = chip(gpu("a100"))
    p = {**GEMM.start, "matrix": 100.0, "memory": 100.0, "l2": 100.0, "tile": 0.0, "kstep": 0.0, "launch": 0.0,
         "output": 1e9, "droop": 0.0, "split": 1.0, "wave": 0.0}  # fmt: skip
    n, k = 108 * 128.0, 8192.0  # a tile an SM
    shape = {"n": n, "k": k, "weight_bytes": n * k / 2, "act_bytes": 2.0, "out_bytes": 2.0, "math": "bf16"}
    facts = {"tiles": [[128, 128]]}
    for m in (128.0, 1024.0):
        t = float(GEMM.time(p, {**shape, "m": m, "dequant": 10.0}, device, facts))
        assert t == pytest.approx(m / 128 * n * k * 10 / issue_rate(gpu("a100")), rel=0.1)


def test_arrays_agree_with_scalars() -> None:
    """A batch of rows at once gives what each gives by itself."""
    device, shape = chip(gpu("h100")), {"n": 4096.0, "k": 4096.0, "weight_bytes": 8.7e6, "act_bytes": 2.0,
                                        "out_bytes": 2.0, "math": "bf16", "dequant": 2.5}  # fmt: skip
    rows = np.array([1.0, 16.0, 300.0, 4096.0])
    whole = GEMM.time(GEMM.start, {**shape, "m": rows}, device, {})
    alone = [float(GEMM.time(GEMM.start, {**shape, "m": m}, device, {})) for m in rows]
    assert np.allclose(whole, alone, rtol=1e-13)


def test_weight_only_parameters() -> None:
    """The interval is wider and says why; on Hopper mma.sync limits the matrix units, but not vLLM's kernels."""
    kernel = load("h100", "trtllm").kernel("gemm", ("bf16",))
    found = weight_only(kernel, "hopper", "trtllm")
    assert found.params["matrix"] == MMA_SYNC["hopper"] < kernel.params["matrix"]
    assert "nothing was measured" in found.origin
    assert "mma.sync" in found.origin
    wide = [
        (np.log(r.high / r.low), np.log(s.high / s.low)) for r, s in zip(found.regimes, kernel.regimes, strict=True)
    ]
    assert all(a == pytest.approx(2 * b) for a, b in wide)
    assert weight_only(kernel, "hopper", "vllm").params == kernel.params
    assert weight_only(kernel, "ampere", "trtllm").params == kernel.params


def test_calibrated_says_that_it_was_not_measured() -> None:
    """Estimates of 4-bit weights name what their times rest on."""
    a = pm.analyze("llama3.1-8b", "h100", weights="int4", fidelity="calibrated", engine="vllm")
    assert any("weights unpacked to 16 bits, of which nothing was measured" in origin for origin in a.origins)
    assert a.tpot_interval[0] < a.tpot_s < a.tpot_interval[1]


def test_explain_shows_the_instructions() -> None:
    """The formula of a product with its instructions filled in."""
    (found,) = pm.explain("llama3.1-8b", "h100", "qkv_proj", ("decode",), weights="int4")
    issued = next(q for q in found["quantities"] if q["name"] == "issue operations")
    assert issued["symbols"] == "min(dequant, 1)·n·k"
    assert issued["value"] == 6144 * 4096  # q, k and v: (32 + 2 x 8) heads of 128
    assert "issue" in {term["resource"] for term in found["terms"]}


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e6])
def test_instructions_that_cannot_be(value) -> None:
    """Refused with the value and the limit."""
    with pytest.raises(UsageError, match="instructions a weight; give more than 0 and at most 1000"):
        check_instructions(value)
    with pytest.raises(UsageError, match="instructions a weight"):
        pm.analyze("llama3.1-8b", "h100", weights="int4", dequantization=value)
