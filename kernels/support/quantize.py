"""Quantization of activations before a low-precision GEMM: a scale a row, or a scale a block of 128 columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_range, check_tensor
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .codes import LIMIT, _encode, _scale_of, check_code, encode_reference, scale_reference
from .norm import ACTIVATIONS

GROUP = 128
"""Columns that share a scale in `quantize_blocks`."""


@triton.jit
def _rows_kernel(x, codes, scales, K, LIMIT: tl.constexpr, WHOLE: tl.constexpr, BLOCK_K: tl.constexpr):
    """One row: held in registers where it fits one block, else read once more."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_K)
    if WHOLE:
        value = tl.load(x + row * K + column, mask=column < K, other=0.0).to(tl.float32)
        scale, factor = _scale_of(tl.max(tl.abs(value), 0), LIMIT)
        code = _encode(value, factor, codes.dtype.element_ty, LIMIT)
        tl.store(codes + row * K + column, code, mask=column < K)
    else:
        largest = tl.zeros((BLOCK_K,), tl.float32)
        for start in range(0, K, BLOCK_K):
            value = tl.load(x + row * K + start + column, mask=start + column < K, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(value))
        scale, factor = _scale_of(tl.max(largest, 0), LIMIT)
        for start in range(0, K, BLOCK_K):
            value = tl.load(x + row * K + start + column, mask=start + column < K, other=0.0).to(tl.float32)
            code = _encode(value, factor, codes.dtype.element_ty, LIMIT)
            tl.store(codes + row * K + start + column, code, mask=start + column < K)
    tl.store(scales + row, scale)


@triton.jit
def _blocks_kernel(x, codes, scales, K, GROUPS, LIMIT: tl.constexpr, BLOCK_G: tl.constexpr, GROUP: tl.constexpr):
    """Some blocks of one row."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = tl.load(x + row * K + column, mask=column < K, other=0.0).to(tl.float32)
    scale, factor = _scale_of(tl.max(tl.abs(value), 1), LIMIT)
    code = _encode(value, factor[:, None], codes.dtype.element_ty, LIMIT)
    tl.store(codes + row * K + column, code, mask=column < K)
    tl.store(scales + row * GROUPS + group, scale, mask=group < GROUPS)


@entry
def quantize_rows(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, config: Config | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and a scale a row (token): x is about codes * scale, scale = max |x| / 127 (int8) or / 448 (FP8).

    x: [T, K], bfloat16, float16 or float32, contiguous, finite: in a row with NaN or inf codes and scale mean
    nothing, and nothing says so. dtype: int8 or float8_e4m3fn (from sm_89 on). The factor limit / max |x| multiplies x
    in float32, then the nearest code is taken (of two, the even one). A row whose largest number is below 1e-10 is
    coded as if that were 1e-10. T up to 2^31 - 1, K 1 to 2^20. config: instead of the table's.

    Returns codes [T, K] and scales, float32 [T]. Bytes moved: T K of each type. Raises KernelInputError.
    """
    tokens, columns = _check(x, dtype)
    config = configured("support_quantize_rows", x, config, columns=columns)
    codes = torch.empty((tokens, columns), dtype=dtype, device=x.device)
    scales = torch.empty(tokens, dtype=torch.float32, device=x.device)
    whole = columns <= int(config.meta["BLOCK_K"])
    _rows_kernel[(tokens,)](x, codes, scales, columns, LIMIT=LIMIT[dtype], WHOLE=whole, **config.options())
    return codes, scales


@entry
def quantize_blocks(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, config: Config | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and a scale a block of 128 columns of a row; otherwise as `quantize_rows`.

    Returns codes [T, K] and scales, float32 [T, cdiv(K, 128)]; the last block of a row may be shorter. Raises
    KernelInputError.
    """
    tokens, columns = _check(x, dtype)
    groups = triton.cdiv(columns, GROUP)
    config = configured("support_quantize_blocks", x, config, columns=columns)
    codes = torch.empty((tokens, columns), dtype=dtype, device=x.device)
    scales = torch.empty((tokens, groups), dtype=torch.float32, device=x.device)
    grid = (tokens, triton.cdiv(groups, int(config.meta["BLOCK_G"])))
    _blocks_kernel[grid](x, codes, scales, columns, groups, LIMIT=LIMIT[dtype], GROUP=GROUP, **config.options())
    return codes, scales


def _check(x: torch.Tensor, dtype: torch.dtype) -> tuple[int, int]:
    check_tensor("x", x, (None, None), ACTIVATIONS)
    check_code("dtype", dtype, x)
    check_range("the number of rows", x.shape[0], 1, 2**31 - 1)
    check_range("the number of columns", x.shape[1], 1, 2**20)
    return x.shape[0], x.shape[1]


def quantize_rows_reference(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch, to the last bit."""
    scale, factor = scale_reference(x.float().abs().amax(dim=1), dtype)
    return encode_reference(x, factor[:, None], dtype), scale


def quantize_blocks_reference(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch, to the last bit."""
    tokens, columns = x.shape
    groups = triton.cdiv(columns, GROUP)
    padded = torch.nn.functional.pad(x.float(), (0, groups * GROUP - columns)).view(tokens, groups, GROUP)
    scale, factor = scale_reference(padded.abs().amax(dim=2), dtype)
    codes = encode_reference(padded, factor[..., None], dtype)
    return codes.view(tokens, groups * GROUP)[:, :columns].contiguous(), scale
