"""Rotary position embedding of queries and keys, with the write of keys and values into the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import (
    MOST,
    KernelInputError,
    check_apart,
    check_multiple,
    check_number,
    check_range,
    check_tensor,
    check_written,
    require,
)
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .norm import ACTIVATIONS
from .paging import check_caches, check_heads, check_slots


@triton.jit
def _turn(first, second, cosine, sine):
    """A pair turned by its angle."""
    return first * cosine - second * sine, second * cosine + first * sine


@triton.jit
def _rotate(
    x, goal, head, angles, HEADS, DIM, HALF, keep, INTERLEAVED: tl.constexpr, KEEP: tl.constexpr, BLOCK_P: tl.constexpr
):
    """Rotate some heads of one row in place; with KEEP, where `keep`, write them to `goal` as well."""
    pair = tl.arange(0, BLOCK_P)
    there = pair < HALF
    cosine = tl.load(angles + pair, mask=there, other=0.0)[None, :]
    sine = tl.load(angles + HALF + pair, mask=there, other=0.0)[None, :]
    mask = (head < HEADS)[:, None] & there[None, :]
    if INTERLEAVED:
        column = 2 * pair[:, None] + tl.arange(0, 2)[None, :]
        at = head[:, None, None] * DIM + column[None, :, :]
        both = mask[:, :, None] & (column < 2 * HALF)[None, :, :]
        first, second = tl.split(tl.load(x + at, mask=both, other=0.0).to(tl.float32))
        first, second = _turn(first, second, cosine, sine)
        turned = tl.join(first, second).to(x.dtype.element_ty)
        tl.store(x + at, turned, mask=both)
        if KEEP:
            tl.store(goal + at, turned, mask=both & keep)
    else:
        at = head[:, None] * DIM + pair[None, :]
        first = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(x + at + HALF, mask=mask, other=0.0).to(tl.float32)
        first, second = _turn(first, second, cosine, sine)
        tl.store(x + at, first.to(x.dtype.element_ty), mask=mask)
        tl.store(x + at + HALF, second.to(x.dtype.element_ty), mask=mask)
        if KEEP:
            tl.store(goal + at, first.to(x.dtype.element_ty), mask=mask & keep)
            tl.store(goal + at + HALF, second.to(x.dtype.element_ty), mask=mask & keep)


@triton.jit
def _copy_heads(x, goal, head, HEADS, DIM, FIRST, keep, BLOCK_D: tl.constexpr):
    """Copy columns FIRST to DIM of some heads of one row."""
    column = tl.arange(0, BLOCK_D)
    mask = (head < HEADS)[:, None] & ((column >= FIRST) & (column < DIM))[None, :] & keep
    at = head[:, None] * DIM + column[None, :]
    tl.store(goal + at, tl.load(x + at, mask=mask), mask=mask)


@triton.jit
def _rope_kernel(
    q, k, v, table, positions, slots, key_cache, value_cache, q_row, k_row, v_row, Q_HEADS, KV_HEADS, DIM, V_DIM, HALF,
    INTERLEAVED: tl.constexpr, KEEP: tl.constexpr, PARTIAL: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Some heads of one row: of the queries, or, in the last programs, of the keys and values."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    query_parts = tl.cdiv(Q_HEADS, BLOCK_H)
    angles = table + tl.load(positions + row).to(tl.int64) * 2 * HALF
    if part < query_parts:
        head = part * BLOCK_H + tl.arange(0, BLOCK_H)
        _rotate(q + row * q_row, q, head, angles, Q_HEADS, DIM, HALF, False, INTERLEAVED, False, BLOCK_P)
    else:
        head = (part - query_parts) * BLOCK_H + tl.arange(0, BLOCK_H)
        x = k + row * k_row
        if KEEP:
            slot = tl.load(slots + row)
            keep = slot >= 0
            goal = key_cache + tl.maximum(slot, 0) * KV_HEADS * DIM
            if PARTIAL:
                _copy_heads(x, goal, head, KV_HEADS, DIM, 2 * HALF, keep, BLOCK_D)
            _rotate(x, goal, head, angles, KV_HEADS, DIM, HALF, keep, INTERLEAVED, True, BLOCK_P)
            values = value_cache + tl.maximum(slot, 0) * KV_HEADS * V_DIM
            _copy_heads(v + row * v_row, values, head, KV_HEADS, V_DIM, 0, keep, BLOCK_V)
        else:
            _rotate(x, k, head, angles, KV_HEADS, DIM, HALF, False, INTERLEAVED, False, BLOCK_P)


@entry
def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    table: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor | None = None,
    key_cache: torch.Tensor | None = None,
    value_cache: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
    config: Config | None = None,
) -> None:
    """Rotate queries and keys in place and copy keys and values to their slots of the paged cache.

    Pair i of a head, (x, y), becomes (x cos - y sin, y cos + x sin), with cos and sin of the row's position. The pair
    is columns i and i + R/2 (NeoX, Llama), or 2i and 2i + 1 if interleaved (GPT-J, DeepSeek). Columns R and on of a
    head are left as they are.

    q: [T, H, D], k: [T, HK, D], v: [T, HK, DV], bfloat16, float16 or float32, of one type; the heads of a row packed,
    rows any distance apart (slices of one QKV tensor), but none in another's place: q and k are written. table: float32
    [positions, R], cosines in the first R/2 columns, sines in the others; R even, up to D. positions: int32 or int64
    [T], within the table. slots: int64 [T], page number x page size + place in the page; a row with a negative one is
    not kept. key_cache: [pages, page, HK, D], value_cache: [pages, page, HK, DV], of the type of k, of at least one
    page. Without slots, caches and v nothing is kept. Values on the device are not checked. D, DV up to 1024, heads up
    to 1024. config: instead of the table's.

    Computed in float32. Bytes moved: each of q, k twice, v once, and the kept rows. Raises KernelInputError.
    """
    half = _check(q, k, v, table, positions, slots, key_cache, value_cache)
    dim, v_dim = k.shape[2], k.shape[2] if v is None else v.shape[2]
    config = configured("support_rope", q, config, head_dim=dim)
    block = int(config.meta["BLOCK_H"])
    parts = triton.cdiv(q.shape[1], block) + triton.cdiv(k.shape[1], block)
    values = k if v is None else v
    _rope_kernel[(q.shape[0], parts)](
        q, k, values, table, positions, positions if slots is None else slots, k if key_cache is None else key_cache,
        k if value_cache is None else value_cache, q.stride(0), k.stride(0), values.stride(0), q.shape[1], k.shape[1],
        dim, v_dim, half, INTERLEAVED=interleaved, KEEP=slots is not None, PARTIAL=2 * half < dim,
        BLOCK_P=triton.next_power_of_2(half), BLOCK_D=triton.next_power_of_2(dim),
        BLOCK_V=triton.next_power_of_2(v_dim), **config.options(),
    )  # fmt: skip


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    table: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor | None,
    key_cache: torch.Tensor | None,
    value_cache: torch.Tensor | None,
) -> int:
    """Check the arguments; half the number of columns that turn."""
    check_heads("q", q, ACTIVATIONS)
    check_heads("k", k, (q.dtype,), like=q)
    require(k.shape[0] == q.shape[0], f"q has {q.shape[0]} rows and k {k.shape[0]}; they must agree")
    require(k.shape[2] == q.shape[2], f"a head of q has {q.shape[2]} columns and one of k {k.shape[2]}")
    check_tensor("table", table, (None, None), (torch.float32,), like=q)
    turned = table.shape[1]
    fits = turned % 2 == 0 and 2 <= turned <= q.shape[2]
    require(fits, f"table has {turned} columns, an even number from 2 to the head's {q.shape[2]} is needed")
    check_range("the positions in table (rows)", table.shape[0], 1, MOST)
    check_tensor("positions", positions, (q.shape[0],), (torch.int32, torch.int64), like=q, align=4)
    check_written("q", q)
    check_written("k", k)
    check_apart("q", q, {"k": k, "v": v, "table": table, "positions": positions})
    check_apart("k", k, {"v": v, "table": table, "positions": positions})
    kept = (v, slots, key_cache, value_cache)
    if v is None or slots is None or key_cache is None or value_cache is None:
        require(all(x is None for x in kept), "v, slots, key_cache and value_cache are given together or not at all")
        return int(turned // 2)
    check_heads("v", v, (q.dtype,), like=q)
    require(
        v.shape[:2] == k.shape[:2], f"v has shape {tuple(v.shape)}, rows and heads of k {tuple(k.shape)} are needed"
    )
    check_slots(slots, k)
    check_caches(key_cache, value_cache, k, v, k.dtype)
    check_apart("q", q, {"key_cache": key_cache, "value_cache": value_cache})
    return int(turned // 2)


@entry
def rotary_table(
    positions: int, turned: int, base: float = 10000.0, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Cosines and sines of position x base^(-2i / R): float32 [positions, R], R = `turned` even (Su et al. 2021).

    positions: 1 and up. turned: 2 to 1024; the table has up to 2^30 numbers, for each of which 28 bytes of memory are
    needed while it is made. base: from 2^-120 to 2^120. Raises KernelInputError.
    """
    check_range("positions", positions, 1, MOST)
    check_range("turned", turned, 2, 1024)
    check_multiple("turned", turned, 2)
    check_range("the numbers of the table (positions x turned)", positions * turned, 2, 2**30)
    check_number("base", base)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch was built without it, or has no such device
        raise KernelInputError(f"device is {str(device)!r}, which cannot be used: {error}") from error
    steps = torch.arange(0, turned, 2, dtype=torch.float64) / turned
    angles = torch.arange(positions, dtype=torch.float64)[:, None] / base**steps
    return torch.cat([angles.cos(), angles.sin()], dim=1).float().to(device)


def rotate_reference(
    x: torch.Tensor, table: torch.Tensor, positions: torch.Tensor, interleaved: bool = False
) -> torch.Tensor:
    """What becomes of [T, H, D], in float64 torch."""
    half = table.shape[1] // 2
    cosine, sine = table.double()[positions.long()][:, None].split(half, dim=-1)
    y = x.double().clone()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    )
    y[..., first] = x.double()[..., first] * cosine - x.double()[..., second] * sine
    y[..., second] = x.double()[..., second] * cosine + x.double()[..., first] * sine
    return y
