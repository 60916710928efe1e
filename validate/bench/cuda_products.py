"""Matrix products by our Triton kernels, beside the vendor's library: bf16, FP8, int8, block scales, 4-bit weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench import own_calls as calls
from perfmodel.validate.bench.case import Case, Inputs, NotRealised, Tensor, draw, pick
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import GROUP, WIDTH, label, title
from perfmodel.validate.bench.own_calls import Operands

ENGINE = "triton"
#: Share by which stored weights may differ from plain ones: scales and biases.
SLACK = 0.03
#: Name of a kernel's table, tile by which it counts tiles, and the library beside it.
KERNELS: Mapping[str, tuple[str, tuple[int, int], str]] = {
    "bf16": ("gemm_dense", (128, 256), "cuBLAS (torch.mm)"), "fp16": ("gemm_dense", (128, 256), "cuBLAS (torch.mm)"),
    "fp8": ("gemm_fp8", (128, 256), "cuBLASLt (torch._scaled_mm)"),
    "int8": ("gemm_w8a8", (128, 256), "cuBLASLt (torch._int_mm, then scaled)"),
}  # fmt: skip


def gemm(op: Op, device: str) -> Case:
    """The product of an operator by the kernel of its format."""
    fmt = label(op)
    if fmt == "w4a16":
        return narrow(op, device)
    if fmt == "fp8_block":
        return blocked(op, device)
    return plain(op, device)


def _sizes(op: Op) -> dict[str, int]:
    return {name: int(op.inputs[name]) for name in "mnk"}  # type: ignore[arg-type]


def plain(op: Op, device: str) -> Case:
    """bf16, fp16, FP8 with a scale a tensor, int8 with scales a row and column."""
    i: Any = op.inputs
    s, fmt = _sizes(op), str(i["math"])
    if fmt not in KERNELS:
        raise NotRealised(f"there is no kernel of ours in {fmt}")
    if abs(float(i["weight_bytes"]) / (s["n"] * s["k"] * WIDTH[fmt]) - 1) > SLACK:
        raise NotRealised("weights are stored in another format than they are multiplied in")
    kernel, tile, library = KERNELS[fmt]
    ours = calls.product_ours(fmt)

    def explain(inputs: Operands) -> Mapping[str, Any]:
        from perfmodel.kernels.gemm.launch import choose

        a, b = inputs.args[:2]
        out = import_torch().empty((len(a), len(b)), dtype=a.dtype if fmt in ("bf16", "fp16") else None, device="meta")
        more = {"gemm_dense": {"specialized": 0}, "gemm_fp8": {"fast": 1}}.get(kernel, {})
        return tiles(choose(kernel, a, b, out, tile, None, **more).meta, s["m"], s["n"])

    return Case(
        title(op, fmt), op, ENGINE, kernel, fmt, lambda: calls.product_make(s, fmt, device), lambda x: ours(*x.args),
        calls.product_exact, _touched(s, WIDTH[fmt]), beside={library: calls.product_theirs}, explain=explain,
    )  # fmt: skip


def _touched(s: Mapping[str, int], width: float, weight: float | None = None) -> float:
    return s["m"] * s["k"] * width + s["n"] * s["k"] * (weight or width) + 2.0 * s["m"] * s["n"]


def tiles(meta: Mapping[str, Any], m: int, n: int) -> dict[str, float]:
    """Padded over needed work of a configuration's tiles, its blocks, and how many a multiprocessor holds."""
    rows, columns = -(-m // int(meta["BLOCK_M"])), -(-n // int(meta["BLOCK_N"]))
    padding = rows * int(meta["BLOCK_M"]) * columns * int(meta["BLOCK_N"]) / (m * n)
    found = {"padding": padding, "tile_m": float(meta["BLOCK_M"]), "tile_n": float(meta["BLOCK_N"])}
    if "per_sm" not in meta:  # else K is split so that the blocks fill the multiprocessors
        found["programs"] = float(rows * columns)
    return found


def _explained(kernel: str, tile: tuple[int, int], s: Mapping[str, int]) -> Callable[[Operands], Mapping[str, Any]]:
    def explain(inputs: Operands) -> Mapping[str, Any]:
        from perfmodel.kernels.gemm.launch import choose

        a, b = inputs.args[:2]
        out = import_torch().empty((len(a), len(b)), device="meta")
        return tiles(choose(kernel, a, b, out, tile, None).meta, s["m"], s["n"])

    return explain


def blocked(op: Op, device: str) -> Case:
    """FP8 with a scale for 128 activations and one for 128 x 128 weights (DeepSeek-V3)."""
    from perfmodel.kernels.gemm.fp8_block import gemm_fp8_block

    torch, s = import_torch(), _sizes(op)
    blocks = -(-s["k"] // 128)

    def scales(*shape: int) -> Tensor:
        return torch.rand(shape, device=device) * 1e-2 + 1e-3

    def make() -> Inputs:
        a, b = draw((s["m"], s["k"]), "fp8", device), draw((s["n"], s["k"]), "fp8", device)
        return Operands((a, b, scales(s["m"], blocks), scales(-(-s["n"] // 128), blocks)))

    def wide(scale: Tensor) -> Tensor:
        return scale.double().repeat_interleave(128, 1)[:, : s["k"]]

    def reference(inputs: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        a, b, left, right = inputs.args
        rows, columns = pick(len(a), 48).to(a.device), pick(len(b), 48).to(a.device)
        exact = (calls.doubles(a, rows) * wide(left[rows])) @ (
            calls.doubles(b, columns) * wide(right[columns // 128])
        ).t()
        return result[rows][:, columns].double(), exact

    return Case(
        title(op, "fp8_block"), op, ENGINE, "gemm_fp8_block", "fp8", make, lambda x: gemm_fp8_block(*x.args), reference,
        _touched(s, 1.0), explain=_explained("gemm_fp8_block", (128, 128), s),
    )  # fmt: skip


def narrow(op: Op, device: str) -> Case:
    """4-bit weights with a scale and a zero point for 128 inputs."""
    from perfmodel.kernels.gemm.w4_packing import from_integers, to_integers
    from perfmodel.kernels.gemm.w4a16 import gemm_w4a16

    torch, s = import_torch(), _sizes(op)
    if s["k"] % GROUP:
        raise NotRealised(f"inputs that are no multiple of {GROUP}")

    def make() -> Inputs:
        q = torch.randint(0, 16, (s["k"], s["n"]), dtype=torch.uint8, device=device)
        zeros = torch.randint(0, 16, (s["k"] // GROUP, s["n"]), dtype=torch.uint8, device=device)
        scales = (torch.rand((s["k"] // GROUP, s["n"]), device=device) * 1e-2 + 1e-3).to(torch.bfloat16)
        weight = from_integers(q, scales, zeros, group=GROUP)
        return Operands((draw((s["m"], s["k"]), "bf16", device), weight))

    def reference(inputs: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = inputs.args
        rows, columns = pick(len(x), 48).to(x.device), pick(s["n"], 48).to(x.device)
        q, scales, zeros = (one[:, columns].double() for one in to_integers(weight))
        group = torch.arange(s["k"], device=x.device) // GROUP
        return result[rows][:, columns].double(), x[rows].double() @ ((q - zeros[group]) * scales[group])

    return Case(
        title(op, "w4a16"), op, ENGINE, "gemm_w4a16", "bf16", make, lambda x: gemm_w4a16(*x.args), reference,
        _touched(s, 2.0, 0.53),
    )  # fmt: skip
