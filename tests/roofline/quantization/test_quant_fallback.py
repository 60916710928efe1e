"""Weights that a GPU has no unit for: every command says what engines do instead, and every fidelity times that."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.cli import main
from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.formats import FORMATS
from perfmodel.roofline.analysis import analyze
from perfmodel.roofline.calibrated.model import Calibrated
from perfmodel.roofline.clock import clock
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.graph import graph
from perfmodel.roofline.measured.look import look
from perfmodel.roofline.quantization.units import fallback
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import decode

FP8 = "a100-sxm has no fp8 units: engines fall back to weights only (W8A16), by Marlin in vLLM"
FP4 = "a100-sxm has no fp4 units: engines fall back to weights only (W4A16), by Marlin in vLLM"


def call(*arguments: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("estimate",), ("estimate", "--fidelity", "calibrated"), ("roofline",), ("memory",),
        ("memory", "--engine", "sglang"), ("speculate", "--method", "ngram"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("weights", "words"), [("fp8", FP8), ("nvfp4", FP4), ("mxfp8", FP8)])
def test_every_command_says_so(command, weights, words) -> None:
    """On A100 the fallback is in the text, on the GPU that has the unit it is not."""
    asked = ("--model", "llama3.1-8b", "--weights", weights)
    assert words in call(*command, "--gpu", "a100", *asked)
    assert "fall back" not in call(*command, "--gpu", "b200", *asked)


def test_json_says_so() -> None:
    """Warnings of estimates, remarks of memory; the checkpoint's own format counts as well as one asked for."""
    found = json.loads(
        call("estimate", "--gpu", "a100", "--model", "llama3.1-8b", "--weights", "fp8", "--format", "json")
    )
    assert [text.startswith(FP8) for text in found["warnings"]] == [True]
    found = json.loads(call("memory", "--gpu", "h100", "--model", "gpt-oss-20b", "--format", "json"))
    assert "no fp4 units: engines fall back to weights only (W4A16)" in found["remarks"][0]


def test_a_sweep_says_so() -> None:
    """A column with the number format of the products, and the remarks once each."""
    frame = pm.sweep("llama3.1-8b", ["a100", "h100"], weights=["fp8", "bf16"], batch=[1, 8])
    by_format = frame.groupby(["gpu", "weights"])["computes_in"].first().to_dict()
    assert by_format == {
        ("a100-sxm", "fp8"): "bf16, unpacked", ("a100-sxm", "bf16"): "bf16", ("h100-sxm", "fp8"): "fp8",
        ("h100-sxm", "bf16"): "bf16",
    }  # fmt: skip
    assert len(frame.attrs["remarks"]) == 1
    assert frame.attrs["remarks"][0].startswith(FP8)


@pytest.mark.parametrize("model", ["llama3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("fidelity", ["bound", "calibrated"])
def test_times_are_those_of_weights_alone(model, fidelity) -> None:
    """FP8 on A100 is timed as 8-bit integer weights are: the formats differ in the bits of a row's scale alone. Prefill
    gains nothing over 16 bits, decode reads half the bytes, and no product is in FP8.
    """
    plan = {"tp": 2, "batch": 4, "input": 1000, "output": 50, "fidelity": fidelity}
    fp8, int8, bf16 = (analyze(model, "a100", weights=name, **plan) for name in ("fp8", "w8a16", "bf16"))
    for phase in ("prefill", "decode"):
        assert getattr(fp8, phase).time.predicted == pytest.approx(getattr(int8, phase).time.predicted, rel=2e-3)
    assert fp8.ttft_s > 0.95 * bf16.ttft_s
    assert fp8.tpot_s < 0.8 * bf16.tpot_s
    maths = {op.op.inputs.get("math") for op in fp8.prefill.ops if op.op.kind in ("gemm", "grouped_gemm")}
    assert maths == {"bf16"}
    unpacked = [op.op for op in fp8.decode.ops if "dequant" in op.op.inputs]
    assert {op.kind for op in unpacked} >= ({"gemm", "grouped_gemm"} if model == "mixtral-8x7b" else {"gemm"})


def test_experts_are_unpacked_at_calibrated_times() -> None:
    """More instructions a weight make a mixture's calibrated experts slower, and their interval is wider than of 16-bit
    products, for nothing was measured of them.
    """
    plan = {"tp": 2, "batch": 64, "fidelity": "calibrated", "weights": "fp8"}

    def experts(**more: float) -> list:
        return [op for op in analyze("mixtral-8x7b", "a100", **plan, **more).decode.ops if op.op.kind == "grouped_gemm"]

    for usual, slow in zip(experts(), experts(dequantization=60.0), strict=True):
        assert slow.time.predicted > 1.5 * usual.time.predicted
        assert "weights unpacked to 16 bits, of which nothing was measured" in usual.time.origin
    ready = setup("mixtral-8x7b", "a100", tp=2, weights="fp8")
    timer = Calibrated(ready.gpu, load(ready.gpu, None), ready.topology)
    op = next(
        op for op in graph(ready.model, decode(64, 1000), ready.plan, ready.topology) if op.kind == "grouped_gemm"
    )
    plain = replace(op, inputs={k: v for k, v in op.inputs.items() if k != "dequant"})
    narrow, wide = timer.time(plain), timer.time(op)
    assert wide.high / wide.predicted > narrow.high / narrow.predicted


def test_no_table_answers_for_them() -> None:
    """Rows of a table are of 16-bit or of FP8 products: one that unpacks FP8 is neither, and stays calibrated."""
    ready = setup("llama3.1-8b", "a100", weights="fp8")
    ops = [op for op in graph(ready.model, decode(1, 1000), ready.plan, ready.topology) if "dequant" in op.inputs]
    assert len(ops) == 4
    assert all(look(op) is None for op in ops)
    assert clock(ready, "calibrated").time(ops[0]).predicted > clock(ready, "bound").time(ops[0]).bound


@pytest.mark.parametrize(
    ("fmt", "device", "words"),
    [
        ("fp8", "v100", "W8A16), for which no engine's kernel is known here; fp8 weights are unpacked"),
        ("mxfp6", "h100", "h100-sxm has no fp6 units: engines fall back to weights only (W6A16); mxfp6 weights"),
        ("q4_k", "v100", "v100-sxm has no int8 units: engines fall back to weights only (W4A16); q4_k weights"),
        ("nvfp4", "mi300x", "(W4A16), for which no engine's kernel is known here"),
        ("int4", "a100", ""),
        ("w8a16", "v100", ""),
    ],
)
def test_words(fmt, device, words) -> None:
    """Bits of the weights, whose kernel it is, and nothing where every GPU unpacks."""
    found = fallback(FORMATS[fmt], gpu(device))
    assert words in found if words else not found
