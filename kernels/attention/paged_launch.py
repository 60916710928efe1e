"""What `paged_decode` and `tree_attention` share: the paged cache, checks, the launch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from perfmodel.kernels.checks import check_range, check_tensor, require
from perfmodel.kernels.device import interpreted, target
from perfmodel.kernels.table import Config, select

from .merge import merge_attention
from .paged import paged_kernel
from .splits import split_count

HEAD_DIMS = (64, 128, 256)
PAGES = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16)
FP8 = torch.float8_e4m3fn

_LOG2E = math.log2(math.e)


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


@dataclass(frozen=True)
class Scores:
    """What becomes of scores before the softmax, and the sink that joins it."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


def check_pages(name: str, cache: torch.Tensor) -> None:
    """Check the page length of a cache and how far apart its rows lie."""
    require(cache.shape[1] in PAGES, f"{name} has pages of {cache.shape[1]} tokens, {_listed(PAGES)} are supported")
    require(cache.stride(-1) == 1, f"{name} has strides {cache.stride()}; the last must be 1")
    wide = 16 // cache.element_size()
    loose = [n for n in cache.stride()[:-1] if n % wide]
    require(not loose, f"{name} has strides {cache.stride()}; all but the last must be multiples of {wide}")
    near = cache.stride(1) * cache.shape[1] < 2**31
    require(near, f"{name} has its tokens {cache.stride(1)} elements apart; a page must span less than 2^31")


def check_places(name: str, table: torch.Tensor, lengths: torch.Tensor, q: torch.Tensor) -> None:
    """Check where the sequences of q lie in their cache; `name` is what holds table and lengths."""
    require(q.shape[0] < 65536, f"q has {q.shape[0]} sequences, at most 65535 are supported")
    check_tensor(f"{name}.table", table, [q.shape[0], None], [torch.int32], like=q, align=4)
    check_tensor(f"{name}.lengths", lengths, [q.shape[0]], [torch.int32], like=q, align=4)
    require(table.shape[1] > 0, f"{name}.table has no column")


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


def outputs(
    q: torch.Tensor, width: int, out: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tensors for the result: those given, checked, or new ones."""
    shape = (*q.shape[:-1], width)
    if out is None:
        return torch.empty(shape, dtype=q.dtype, device=q.device), torch.empty(shape[:-1], device=q.device)
    check_tensor("out[0]", out[0], shape, [q.dtype], like=q)
    check_tensor("out[1]", out[1], shape[:-1], [torch.float32], like=q, align=4)
    return out


def partials(attended: torch.Tensor, lse: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the kernel writes: the result itself, or FP32 tensors with a dimension of pieces to be merged."""
    check_range("splits", splits, 1, 65535)
    each = lse[0].numel() * splits * attended.shape[-1]
    require(each < 2**31, f"{splits} pieces of {lse[0].numel()} rows are {each} numbers, less than 2^31 are supported")
    if splits == 1:
        return attended, lse
    shape = (*lse.shape, splits)
    return torch.empty((*shape, attended.shape[-1]), device=lse.device), torch.empty(shape, device=lse.device)


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
    attended, lse = outputs(q, q.shape[-1], out)
    if q.numel() == 0:
        return attended, lse
    sequences, q_len, heads, head_dim = q.shape
    kv_heads = cache.k.shape[2]
    group = heads // kv_heads
    longest = cache.table.shape[1] * cache.page if max_length is None else max_length
    check_range("max_length", longest, 0, cache.table.shape[1] * cache.page)
    if config is None:
        config = select(kernel, q, rows=q_len * group, head_dim=head_dim, page=cache.page, fp8=int(cache.fp8))
    meta = dict(config.options())
    resident = int(meta.pop("RESIDENT", 1))
    row_blocks = -(-q_len * group // int(meta["BLOCK_M"]))
    if splits is None:
        seen = longest if scores.window is None else min(longest, scores.window + q_len - 1)
        programs = sequences * kv_heads * row_blocks
        splits = split_count(programs, target(q).sm_count * resident, -(-seen // int(meta["BLOCK_N"])))
    partial, mass = partials(attended, lse, splits)
    k, v = (cache.k.view(torch.int16), cache.v.view(torch.int16)) if cache.fp8 else (cache.k, cache.v)
    per_head = int(cache.k_scale is not None and cache.k_scale.numel() > 1)
    scale, cap = _in_log2(scores)
    paged_kernel[(row_blocks * kv_heads, splits, sequences)](
        q, k, v, cache.table, cache.lengths, ancestors, scores.sinks, cache.k_scale, cache.v_scale, partial, mass,
        scale, cap, scores.window, q_len, row_blocks, splits, cache.table.stride(0), *k.stride()[:3], per_head,
        KV_HEADS=kv_heads, GROUP=group, D=head_dim, PAGE=cache.page, PARTIAL=splits > 1, FP8=cache.fp8,
        BITS=target(q).arch == "sm_80", ASM=not interpreted(), **meta,
    )  # fmt: skip
    return (attended, lse) if splits == 1 else merge_attention(partial, mass, dtype=q.dtype, out=(attended, lse))


def _in_log2(scores: Scores) -> tuple[float, float | None]:
    """Scale and cap as `softmax_blocks.capped` takes them."""
    if scores.softcap is None:
        return scores.scale * _LOG2E, None
    return 2 * scores.scale * _LOG2E / scores.softcap, scores.softcap * _LOG2E


def _check(q: torch.Tensor, cache: Paged, scores: Scores) -> None:
    check_tensor("q", q, [None] * 4, DTYPES)
    heads, head_dim = q.shape[2:]
    require(head_dim in HEAD_DIMS, f"head_dim is {head_dim}, {_listed(HEAD_DIMS)} are supported")
    check_tensor("cache.k", cache.k, [None, None, None, head_dim], [q.dtype, FP8], like=q, contiguous=False)
    check_tensor("cache.v", cache.v, cache.k.shape, [cache.k.dtype], like=q, contiguous=False)
    kv_heads = cache.k.shape[2]
    require(
        kv_heads > 0 and heads % kv_heads == 0, f"q has {heads} heads, a multiple of the cache's {kv_heads} is needed"
    )
    check_pages("cache.k", cache.k)
    alike = cache.k.stride() == cache.v.stride()
    require(alike, f"cache.v has strides {cache.v.stride()}, those of cache.k, {cache.k.stride()}, are needed")
    check_places("cache", cache.table, cache.lengths, q)
    check_fp8_scale("cache.k_scale", cache.k_scale, cache.fp8, q, kv_heads)
    check_fp8_scale("cache.v_scale", cache.v_scale, cache.fp8, q, kv_heads)
    if cache.k_scale is not None and cache.v_scale is not None:
        same = cache.k_scale.shape == cache.v_scale.shape
        require(same, f"cache.k_scale has {cache.k_scale.numel()} values, v_scale {cache.v_scale.numel()}")
    check_scores(q, scores)


def check_scores(q: torch.Tensor, scores: Scores) -> None:
    """Check scale, window, softcap and sinks."""
    require(0 < scores.scale < math.inf, f"scale is {scores.scale}, a number above 0 is needed")
    window, cap = scores.window, scores.softcap
    require(window is None or window >= 1, f"window is {window}, at least 1 is needed (a query sees its own key)")
    require(cap is None or 0 < cap < math.inf, f"softcap is {cap}, a number above 0 or None is needed")
    if scores.sinks is not None:
        check_tensor("sinks", scores.sinks, [q.shape[2]], [torch.float32, *DTYPES], like=q, align=4)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
