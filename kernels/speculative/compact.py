"""Compaction of the KV cache after a tree was verified: the accepted nodes' entries move up behind the prefix."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import MOST, check_apart, check_range, check_tensor, require
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _rows_of(table, request, position, live, PAGE, MOST_PAGES):
    """Where in the cache of one layer the entries of these positions lie, counted in rows."""
    page = tl.load(table + request.to(tl.int64) * MOST_PAGES + position // PAGE, mask=live, other=0)
    return page.to(tl.int64) * PAGE + position % PAGE


@triton.jit(do_not_specialize=["MOST_PAGES"])
def _compact_kernel(
    keys, values, table, prefixes, path, accepted, LAYER_ROWS, MOST_PAGES, PAGE, DEPTH, WIDTH, VALUES: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Move a piece of each accepted node's row: all are read before any is written, so that rows may overlap."""
    request = tl.program_id(0)
    step = tl.arange(0, BLOCK_D)
    taken = tl.minimum(tl.load(accepted + request), DEPTH)
    live = (step >= 1) & (step <= taken)
    prefix = tl.load(prefixes + request)
    node = tl.load(path + request * (DEPTH + 1) + step, mask=live, other=0)
    live = live & (node > step)  # the others lie right already
    layer = tl.program_id(1).to(tl.int64) * LAYER_ROWS
    source = (layer + _rows_of(table, request, prefix + node, live, PAGE, MOST_PAGES)) * WIDTH
    goal = (layer + _rows_of(table, request, prefix + step, live, PAGE, MOST_PAGES)) * WIDTH
    column = tl.program_id(2) * BLOCK_W + tl.arange(0, BLOCK_W)
    mask = live[:, None] & (column < WIDTH)[None, :]
    key = tl.load(keys + source[:, None] + column[None, :], mask=mask)
    if VALUES:
        value = tl.load(values + source[:, None] + column[None, :], mask=mask)
    tl.debug_barrier()  # no thread writes a row that another has still to read
    tl.store(keys + goal[:, None] + column[None, :], key, mask=mask)
    if VALUES:
        tl.store(values + goal[:, None] + column[None, :], value, mask=mask)


@entry
def compact_kv(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    block_table: torch.Tensor,
    prefix_lengths: torch.Tensor,
    path: torch.Tensor,
    accepted: torch.Tensor,
    config: Config | None = None,
) -> None:
    """Move the accepted nodes of a verified tree to where the next step expects them, in place, in all layers.

    Before verification, node i of a request lies at position prefix + i; afterwards the i-th node of the accepted path
    must lie there: position prefix + path[i] moves to prefix + i for i = 1 to accepted. Rotary positions need no
    change: a node was rotated by its depth, which is i.

    key_cache: [layers, pages, page, ...], the rest of any shape and type of 1, 2, 4 or 8 bytes, contiguous; a single
    layer as cache[None]. value_cache: the same shape and type, or None (the latent cache of MLA; scales of a quantized
    cache). block_table: int32 [B, pages of the longest], the page number of each of a request's pages. prefix_lengths:
    int32 [B], entries before node 0. path: int32 [B, depth + 1] and accepted: int32 [B], as tree verification returns
    them: path[i] >= i, growing along i, which holds where a node's number exceeds its parent's. Values on the device
    are not checked. At least one page and one column of the table; B, layers up to 65535; depth up to 63. config:
    instead of the table's. Raises KernelInputError.
    """
    require(key_cache.dim() >= 4, f"key_cache has shape {tuple(key_cache.shape)}, [layers, pages, page, ...] is needed")
    dtype = key_cache.dtype
    wide = dtype.itemsize
    require(wide in _WORDS, f"key_cache is {dtype}, of {wide} bytes; types of 1, 2, 4 or 8 bytes are supported")
    check_tensor("key_cache", key_cache, [None] * key_cache.dim(), (dtype,))
    if value_cache is not None:
        check_tensor("value_cache", value_cache, key_cache.shape, (dtype,), like=key_cache)
        check_apart("key_cache", key_cache, {"value_cache": value_cache})
    layers, pages, page = key_cache.shape[:3]
    check_range("the number of layers", layers, 1, 65535)
    check_range("the number of pages", pages, 1, MOST)
    check_range("the entries of a page", page, 1, MOST)
    ints = (torch.int32,)
    check_tensor("block_table", block_table, (None, None), ints, like=key_cache, align=4)
    requests, most_pages = block_table.shape
    check_range("the number of requests", requests, 1, 65535)
    check_range("the pages of a request (columns of block_table)", most_pages, 1, MOST)
    check_tensor("prefix_lengths", prefix_lengths, (requests,), ints, like=key_cache, align=4)
    check_tensor("path", path, (requests, None), ints, like=key_cache, align=4)
    check_range("the depth (columns of path less one)", path.shape[1] - 1, 1, 63)
    check_tensor("accepted", accepted, (requests,), ints, like=key_cache, align=4)
    width = math.prod(key_cache.shape[3:])
    check_range("the numbers in one entry", width, 1, 2**20)
    config = configured("spec_compact", key_cache, config, depth=path.shape[1] - 1)
    word = _WORDS[wide]
    keys = key_cache.view(word)
    values = keys if value_cache is None else value_cache.view(word)
    _compact_kernel[(requests, layers, triton.cdiv(width, int(config.meta["BLOCK_W"])))](
        keys, values, block_table, prefix_lengths, path, accepted, pages * page, most_pages, page, path.shape[1] - 1,
        width, VALUES=value_cache is not None, BLOCK_D=triton.next_power_of_2(path.shape[1]), **config.options(),
    )  # fmt: skip


def compact_kv_reference(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    block_table: torch.Tensor,
    prefix_lengths: torch.Tensor,
    path: torch.Tensor,
    accepted: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compacted copies of the caches, in plain torch and Python."""
    page = key_cache.shape[2]
    word = _WORDS[key_cache.dtype.itemsize]
    moved = [None if cache is None else cache.clone() for cache in (key_cache, value_cache)]
    for b in range(len(accepted)):
        for i in range(1, int(accepted[b]) + 1):
            source, goal = int(prefix_lengths[b]) + int(path[b, i]), int(prefix_lengths[b]) + i
            from_page, to_page = int(block_table[b, source // page]), int(block_table[b, goal // page])
            for old, new in zip((key_cache, value_cache), moved, strict=True):
                if old is not None and new is not None:
                    new.view(word)[:, to_page, goal % page] = old.view(word)[:, from_page, source % page]
    assert moved[0] is not None
    return moved[0], moved[1]
