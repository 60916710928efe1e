"""4-bit weights written out as 16-bit floats, for products of so many rows that the copy pays."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_apart, check_tensor, require
from perfmodel.kernels.device import current, interpreted
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .geometry import ceil_div
from .tiles import row_at
from .w4_nibbles import integers_less_zero, scale_of
from .w4_packing import ALIGN_N, SCALE_DTYPES, TILE_K, W4Weight, check_sizes

TILE_LIMIT = {"BLOCK_N": (64, ALIGN_N)}
"""Outputs of a tile that a configuration may ask for; the layout is filled up to a multiple of the largest."""

TRITON_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _dequantize_w4_kernel(
    words,
    meta,
    out,
    N,
    EIGHTHS,
    N_FILLED,
    GROUPS: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    USE_ASM: tl.constexpr,
):
    RUN: tl.constexpr = 32
    TYPE: tl.constexpr = out.dtype.element_ty
    EACH: tl.constexpr = 4 // GROUPS if GROUPS else 4
    K = EIGHTHS * 8  # so the compiler knows that 16 bytes of a row can be stored at once
    tile = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    run = tl.arange(0, RUN)
    packed = tl.load(row_at(words, tile, N_FILLED * RUN) + columns[:, None] * RUN + run[None, :])
    for j in tl.static_range(4):
        own = tl.load(row_at(meta, tile * GROUPS + j // EACH, N_FILLED) + columns)
        value = integers_less_zero(packed, own, j, TYPE, USE_ASM).to(tl.float32) * scale_of(own, SCALE)[:, None]
        k = tile * 4 * RUN + j * RUN + run
        kept = columns[:, None] < N
        if not EVEN_K:
            kept = kept & (k[None, :] < K)
        tl.store(row_at(out, columns, K)[:, None] + k[None, :], value.to(TYPE), mask=kept)


@entry
def dequantize_w4(
    weight: W4Weight,
    dtype: torch.dtype = torch.bfloat16,
    *,
    out: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:
    """A 4-bit weight as the right operand of `gemm_dense`.

    out[n, k] = (q[k, n] - zero[group of k, n]) scale[group of k, n], computed in fp32, rounded once

    weight: [K, N] (limits: see W4Weight). dtype: torch.bfloat16 or torch.float16, the type of the result. out: [N, K];
    made if not given. The inputs are in the weight's own order (`weight.order`), as `gemm_w4a16` reads x.
    Raises KernelInputError for what does not fit.
    """
    check_weight(weight)
    require(dtype in SCALE_DTYPES, f"dtype is {dtype}, torch.float16 or torch.bfloat16 is needed")
    if out is None:
        out = torch.empty((weight.n, weight.k), dtype=dtype, device=weight.words.device)
    check_tensor("out", out, (weight.n, weight.k), [dtype], like=weight.words)
    check_apart("out", out, {"weight.words": weight.words, "weight.meta": weight.meta})
    if not out.numel():
        return out
    config = configured("gemm_w4a16_dequantize", weight.words, config, limits=TILE_LIMIT)
    grid = len(weight.words), ceil_div(weight.n, int(config.meta["BLOCK_N"]))
    with current(weight.words):
        _dequantize_w4_kernel[grid](
            weight.words, weight.meta, out, weight.n, weight.k // 8, weight.words.shape[1],
            **weight_constants(weight), **config.options(),
        )  # fmt: skip
    return out


def weight_constants(weight: W4Weight) -> dict[str, object]:
    """What the kernels that read a weight are compiled for."""
    return {
        "GROUPS": weight.groups_a_tile,
        "SCALE": TRITON_TYPES[weight.scale_dtype],
        "EVEN_K": weight.k % TILE_K == 0,
        "USE_ASM": not interpreted(),
    }


def check_weight(weight: W4Weight) -> None:
    """Check that a weight's tensors are what its sizes say, all on one device. Raises KernelInputError.

    That `order` holds each input once is checked on a CPU alone; on a GPU its values are not looked at.
    """
    require(
        isinstance(weight, W4Weight), f"weight is {type(weight).__name__}, a W4Weight is needed; from_gptq makes one"
    )
    check_sizes(weight.k, weight.n, weight.group, weight.scale_dtype)
    for name, x, shape, dtype in weight.parts():
        check_tensor(name, x, shape, [dtype], like=weight.words)
    if weight.order is not None and weight.order.device.type == "cpu":
        inputs = torch.arange(weight.k)
        fits = torch.equal(weight.order.sort().values, inputs)
        require(fits, f"weight.order does not hold each of the inputs 0 to {weight.k - 1} once; from_gptq makes it")


def dequantize_w4_reference(
    q: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group: int, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """The same by torch in `dtype`, from unpacked integers: q [K, N], scales and zeros [groups, N]; returns [N, K]."""
    k = q.shape[0]
    of_input = torch.arange(k, device=q.device) // (k if group == -1 else group)
    return ((q.to(dtype) - zeros.to(dtype)[of_input]) * scales.to(dtype)[of_input]).T
