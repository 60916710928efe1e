"""What `paged_decode` and `tree_attention` share: the paged cache, checks, the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from perfmodel.kernels.checks import MOST, check_apart, check_range, check_tensor, require
from perfmodel.kernels.device import interpreted, target
from perfmodel.kernels.table import Config, configured

from .merge import merge_attention
from .paged import paged_kernel
from .scores import DTYPES, LONGEST, Scores, check_head_dim, check_heads, check_scores
from .splits import split_count

PAGES = (16, 32, 64, 128)
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Paged:
    """Keys and values of several sequences in pages.

    k, v: [pages, page, kv_heads, head_dim]. table: [sequences, most pages] int32, the pages of each sequence in order.
    lengths: [sequences] int32, tokens of each. k_scale, v_scale: [1] or [kv_heads] float32, what FP8 values are
    multiplied by; None for 16-bit caches.
    """

    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    @property
    def page(self) -> int:
        """Tokens in a page."""
        return int(self.k.shape[1])

    @property
    def fp8(self) -> bool:
        """Whether keys and values are FP8."""
        return bool(self.k.dtype == FP8)


def check_pages(name: str, cache: torch.Tensor) -> None:
    """Check the page length of a cache and how far apart its rows lie."""
    pages = ", ".join(map(str, PAGES))
    require(cache.shape[1] in PAGES, f"{name} has pages of {cache.shape[1]} tokens, {pages} are supported")
    require(cache.stride(-1) == 1, f"{name} has strides {cache.stride()}; the last must be 1")
    wide = 16 // cache.element_size()
    loose = [n for n in cache.stride()[:-1] if n % wide]
    require(not loose, f"{name} has strides {cache.stride()}; all but the last must be multiples of {wide}")
    near = cache.stride(1) * cache.shape[1] < 2**31
    require(near, f"{name} has its tokens {cache.stride(1)} elements apart; a page must span less than 2^31")
    require(cache.shape[0] > 0, f"{name} has 0 pages, at least 1 is needed; one that no sequence uses will do")


def check_places(name: str, table: torch.Tensor, lengths: torch.Tensor, q: torch.Tensor, pages: int, page: int) -> None:
    """Check where the sequences of q lie in their cache; `name` is what holds table and lengths.

    pages, page: how many pages the cache has, and the tokens of each. On the CPU lengths and the page numbers that they
    need are looked at; on a GPU that would wait for it.
    """
    require(q[:1].numel() <= MOST, f"q has {q[:1].numel()} numbers a sequence, up to 2^31 - 1 are supported; split it")
    require(q.shape[0] < 65536, f"q has {q.shape[0]} sequences, at most 65535 are supported")
    check_tensor(f"{name}.table", table, [q.shape[0], None], [torch.int32], like=q, align=4)
    check_tensor(f"{name}.lengths", lengths, [q.shape[0]], [torch.int32], like=q, align=4)
    require(table.shape[1] > 0, f"{name}.table has no column")
    if table.device.type == "cpu":
        _check_pages_of(name, table, lengths, pages, page)


def _check_pages_of(name: str, table: torch.Tensor, lengths: torch.Tensor, pages: int, page: int) -> None:
    """Check that lengths fit the table, and that the pages they need are in the cache."""
    room = table.shape[1] * page
    for (i,) in ((lengths < 0) | (lengths > room)).nonzero()[:1].tolist():
        check_range(f"{name}.lengths[{i}]", int(lengths[i]), 0, room)
    needed = torch.arange(table.shape[1]) * page < lengths[:, None]
    for i, j in (needed & ((table < 0) | (table >= pages))).nonzero()[:1].tolist():
        check_range(f"{name}.table[{i}, {j}]", int(table[i, j]), 0, pages - 1)


def check_fp8_scale(name: str, scale: torch.Tensor | None, fp8: bool, like: torch.Tensor, heads: int = 1) -> None:
    """Check that an FP8 cache has its scale and another none."""
    require((scale is None) or fp8, f"{name} is given for a cache that is not float8_e4m3fn")
    if not fp8:
        return
    require(scale is not None, f"{name} is needed for a float8_e4m3fn cache (ones if it was not scaled)")
    assert scale is not None
    wanted = "(1)" if heads == 1 else f"(1) or ({heads})"
    fits = scale.dim() == 1 and scale.numel() in (1, heads)
    require(fits, f"{name} has shape {tuple(scale.shape)}, {wanted} is needed")
    check_tensor(name, scale, [None], [torch.float32], like=like, align=4)


def longest(max_length: int | None, name: str, table: torch.Tensor, page: int) -> int:
    """The longest length, checked: that given, or the most tokens that the table has room for."""
    room = table.shape[1] * page
    check_range(f"the tokens that {name}.table has room for", room, 1, LONGEST)
    if max_length is not None:
        check_range("max_length", max_length, 0, room)
    return room if max_length is None else max_length


def outputs(
    q: torch.Tensor, width: int, out: tuple[torch.Tensor, torch.Tensor] | None, read: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tensors for the result: those given, checked, or new ones. read: what they may not share memory with, by name."""
    shape = (*q.shape[:-1], width)
    if out is None:
        return torch.empty(shape, dtype=q.dtype, device=q.device), torch.empty(shape[:-1], device=q.device)
    check_tensor("out[0]", out[0], shape, [q.dtype], like=q)
    check_tensor("out[1]", out[1], shape[:-1], [torch.float32], like=q, align=4)
    check_apart("out[0]", out[0], {"out[1]": out[1], "q": q, **read})
    check_apart("out[1]", out[1], {"q": q, **read})
    return out


def launch_plan(
    q: torch.Tensor, config: Config, rows: int, pairs: int, keys: int, splits: int | None
) -> tuple[dict[str, int | str | bool], int, int]:
    """What a launch passes by keyword, its blocks of rows, and its pieces: `splits`, or as many as fill the GPU.

    rows: of one of the `pairs` of a sequence and a key head. keys: the most that a row sees.
    """
    meta = dict(config.options())
    slots = target(q).sm_count * int(meta.pop("RESIDENT", 1))
    row_blocks = -(-rows // int(meta["BLOCK_M"]))
    if splits is None:
        splits = split_count(pairs * row_blocks, slots, -(-keys // int(meta["BLOCK_N"])))
    return meta, row_blocks, splits


def partials(attended: torch.Tensor, lse: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the kernel writes: the result itself, or FP32 tensors with a dimension of pieces for `merged`."""
    check_range("splits", splits, 1, 65535)
    each = lse[0].numel() * splits * attended.shape[-1]
    require(each < 2**31, f"{splits} pieces of {lse[0].numel()} rows are {each} numbers, less than 2^31 are supported")
    if splits == 1:
        return attended, lse
    shape = (*lse.shape, splits)
    return torch.empty((*shape, attended.shape[-1]), device=lse.device), torch.empty(shape, device=lse.device)


def merged(
    parts: tuple[torch.Tensor, torch.Tensor], results: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results, written by the kernel itself or merged from what it wrote to `partials`."""
    if parts[0] is results[0]:
        return results
    return merge_attention(*parts, dtype=results[0].dtype, out=results)


def attend_paged(
    kernel: str,
    q: torch.Tensor,
    cache: Paged,
    scores: Scores,
    *,
    ancestors: torch.Tensor | None = None,
    max_length: int | None = None,
    splits: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check, choose a configuration and a number of pieces, launch, and merge the pieces."""
    _check(q, cache, scores)
    results = outputs(q, q.shape[-1], out, {"cache.k": cache.k, "cache.v": cache.v})
    seen = longest(max_length, "cache", cache.table, cache.page)
    if q.numel() == 0:
        return results
    sequences, q_len, heads, head_dim = q.shape
    kv_heads = cache.k.shape[2]
    group = heads // kv_heads
    config = configured(
        kernel, q, config, least=16, limits={"maxnreg": (32, 255)}, rows=q_len * group, head_dim=head_dim,
        page=cache.page, fp8=int(cache.fp8),
    )  # fmt: skip
    if scores.window is not None:
        seen = min(seen, scores.window + q_len - 1)
    meta, row_blocks, splits = launch_plan(q, config, q_len * group, sequences * kv_heads, seen, splits)
    parts = partials(*results, splits)
    k, v = (cache.k.view(torch.int16), cache.v.view(torch.int16)) if cache.fp8 else (cache.k, cache.v)
    per_head = int(cache.k_scale is not None and cache.k_scale.numel() > 1)
    scale, cap = scores.in_log2(head_dim)
    paged_kernel[(row_blocks * kv_heads, splits, sequences)](
        q, k, v, cache.table, cache.lengths, ancestors, scores.sinks, cache.k_scale, cache.v_scale, *parts,
        scale, cap, scores.window, q_len, row_blocks, splits, cache.table.stride(0), *k.stride()[:3], per_head,
        KV_HEADS=kv_heads, GROUP=group, D=head_dim, PAGE=cache.page, PARTIAL=splits > 1, FP8=cache.fp8,
        BITS=not target(q).fp8, ASM=not interpreted(), **meta,
    )  # fmt: skip
    return merged(parts, results)


def _check(q: torch.Tensor, cache: Paged, scores: Scores) -> None:
    check_tensor("q", q, [None] * 4, DTYPES)
    heads, head_dim = q.shape[2:]
    check_head_dim(head_dim)
    check_tensor("cache.k", cache.k, [None, None, None, head_dim], [q.dtype, FP8], like=q, contiguous=False)
    check_tensor("cache.v", cache.v, cache.k.shape, [cache.k.dtype], like=q, contiguous=False)
    kv_heads = cache.k.shape[2]
    check_heads(heads, kv_heads, "the cache")
    check_pages("cache.k", cache.k)
    alike = cache.k.stride() == cache.v.stride()
    require(alike, f"cache.v has strides {cache.v.stride()}, those of cache.k, {cache.k.stride()}, are needed")
    check_places("cache", cache.table, cache.lengths, q, cache.k.shape[0], cache.page)
    check_fp8_scale("cache.k_scale", cache.k_scale, cache.fp8, q, kv_heads)
    check_fp8_scale("cache.v_scale", cache.v_scale, cache.fp8, q, kv_heads)
    if cache.k_scale is not None and cache.v_scale is not None:
        same = cache.k_scale.shape == cache.v_scale.shape
        require(same, f"cache.k_scale has {cache.k_scale.numel()} values, v_scale {cache.v_scale.numel()}")
    check_scores(q, scores)
