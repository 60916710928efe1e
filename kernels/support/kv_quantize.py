"""Quantization of keys and values as they are written into the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_apart, check_tensor, require
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .codes import LIMIT, _encode, _scale_of, check_code, encode_reference, scale_reference
from .norm import ACTIVATIONS
from .paging import check_caches, check_heads, check_slots


@triton.jit
def _keep_coded(
    x, scales, cache, slot, head, HEADS, DIM, LIMIT: tl.constexpr, BY_TOKEN: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Code some heads of one row and store them at the slot."""
    column = tl.arange(0, BLOCK_D)
    mask = (head < HEADS)[:, None] & (column < DIM)[None, :]
    at = head[:, None] * DIM + column[None, :]
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if BY_TOKEN:
        scale, factor = _scale_of(tl.max(tl.abs(value), 1), LIMIT)
        tl.store(scales + slot * HEADS + head, scale, mask=head < HEADS)
    else:
        factor = tl.div_rn(1.0, tl.load(scales + head, mask=head < HEADS, other=1.0))
    code = _encode(value, factor[:, None], cache.dtype.element_ty, LIMIT)
    tl.store(cache + slot * HEADS * DIM + at, code, mask=mask)


@triton.jit
def _kv_kernel(
    k, v, k_scales, v_scales, slots, key_cache, value_cache, k_row, v_row, HEADS, DIM, V_DIM, LIMIT: tl.constexpr,
    BY_TOKEN: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Some heads of one row, keys and values."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    if slot >= 0:
        _keep_coded(k + row * k_row, k_scales, key_cache, slot, head, HEADS, DIM, LIMIT, BY_TOKEN, BLOCK_D)
        _keep_coded(v + row * v_row, v_scales, value_cache, slot, head, HEADS, V_DIM, LIMIT, BY_TOKEN, BLOCK_V)


@entry
def quantize_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key_scales: torch.Tensor,
    value_scales: torch.Tensor,
    config: Config | None = None,
) -> None:
    """Code keys and values and write them to their slots of the paged cache; k is about code * scale.

    The shape of the scales says where they come from. [HK]: one a head, given and only read; larger numbers are limited
    to the code's range. [pages, page, HK]: one a token and head, written: max |x| over the head / 127 (int8) or / 448
    (FP8), as in `quantize_rows`.

    k: [T, HK, D], v: [T, HK, DV], bfloat16, float16 or float32, of one type; the heads of a row packed, rows any
    distance apart. slots: int64 [T], page number x page size + place in the page; a row with a negative one is not
    kept. key_cache: [pages, page, HK, D], value_cache: [pages, page, HK, DV], int8 or float8_e4m3fn (from sm_89 on).
    key_scales and value_scales: float32, both of one of the two shapes. Values on the device are not checked: NaN and
    inf in k and v get codes (and scales) that mean nothing. config: instead of the table's. Raises KernelInputError.
    """
    by_token = _check(k, v, slots, key_cache, value_cache, key_scales, value_scales)
    config = configured("support_kv_quantize", k, config, head_dim=k.shape[2])
    tokens, heads, dim = k.shape
    _kv_kernel[(tokens, triton.cdiv(heads, int(config.meta["BLOCK_H"])))](
        k, v, key_scales, value_scales, slots, key_cache, value_cache, k.stride(0), v.stride(0), heads, dim, v.shape[2],
        LIMIT=LIMIT[key_cache.dtype], BY_TOKEN=by_token, BLOCK_D=triton.next_power_of_2(dim),
        BLOCK_V=triton.next_power_of_2(v.shape[2]), **config.options(),
    )  # fmt: skip


def _check(
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key_scales: torch.Tensor,
    value_scales: torch.Tensor,
) -> bool:
    """Check the arguments; whether each token has scales of its own."""
    check_heads("k", k, ACTIVATIONS)
    check_heads("v", v, (k.dtype,), like=k)
    require(
        v.shape[:2] == k.shape[:2], f"v has shape {tuple(v.shape)}, rows and heads of k {tuple(k.shape)} are needed"
    )
    check_slots(slots, k)
    check_code("key_cache", key_cache.dtype, k)
    check_caches(key_cache, value_cache, k, v, key_cache.dtype)
    by_token = bool(key_scales.dim() == 3)
    shape = (*key_cache.shape[:2], k.shape[1]) if by_token else (k.shape[1],)
    for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        check_tensor(name, scales, shape, (torch.float32,), like=k)
        check_apart(name, scales, {"key_cache": key_cache, "value_cache": value_cache})
    if by_token:
        check_apart("key_scales", key_scales, {"value_scales": value_scales, "k": k, "v": v})
        check_apart("value_scales", value_scales, {"k": k, "v": v})
    return by_token


def quantize_kv_reference(
    x: torch.Tensor, dtype: torch.dtype, scales: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of keys or values [T, HK, D] in torch, to the last bit, and the scales: those given a head ([HK]), or one
    a token and head ([T, HK])."""
    if scales is None:
        found, factor = scale_reference(x.float().abs().amax(dim=-1), dtype)
    else:
        found, factor = scales, (1.0 / scales.float()).expand(x.shape[:2])
    return encode_reference(x, factor[..., None], dtype), found
