"""Prefill attention, forward: many queries a sequence, dense or packed, with a causal mask, a window and sinks.

A FlashAttention that keeps scores in registers: `prefill_tma` where tiles are loaded by descriptor, `prefill_pointer`
elsewhere. The configuration table says which, so both can be measured on one GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from perfmodel.kernels.checks import check_apart, check_range, check_tensor, require
from perfmodel.kernels.device import has_tma, prepare_descriptors
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .prefill_pointer import prefill_pointer_kernel
from .prefill_tma import prefill_tma_kernel
from .scores import DTYPES, LONGEST, Scores, check_head_dim, check_heads, check_scores

L2_BYTES = 32 * 2**20
"""Keys and values that are worked on at a time, so that L2 (40 MB on A100, 50 MB on H100) keeps them. [bytes]"""

WIDEST = 2**23 - 8
"""Largest distance of two tokens, in elements: offsets within a tile, of up to 256 tokens, are 32-bit."""


@dataclass(frozen=True)
class Packed:
    """Where sequences of different lengths lie in packed tensors.

    starts_q, starts_k: [sequences + 1] int32, cumulative lengths from 0 to the total number of tokens, on the device.
    max_q, max_k: the longest length or more, as plain ints, so that nothing is read back from the device. On the CPU
    all are checked against the tensors. On a GPU they are not: a max_q that is too small leaves rows unwritten, a max_k
    that is too small changes the speed alone, and starts out of range read and write elsewhere.
    """

    starts_q: torch.Tensor
    starts_k: torch.Tensor
    max_q: int
    max_k: int


@dataclass(frozen=True)
class _Sizes:
    sequences: int
    heads: int
    kv_heads: int
    head_dim: int
    queries: int
    keys: int


@dataclass(frozen=True)
class _Options:
    causal: bool
    scores: Scores


@entry
def prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    packed: Packed | None = None,
    warp_specialized: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query over the keys it may see, and the log-sum-exp of its scores.

    Parameters
    ----------
    q : [sequences, queries, heads, head_dim], or [total queries, heads, head_dim] with `packed`; float16 or bfloat16.
    k, v : [sequences, keys, kv_heads, head_dim], or [total keys, kv_heads, head_dim]; the dtype of q. heads must be a
        multiple of kv_heads: query head h reads key head h // (heads / kv_heads). head_dim is 64, 128 or 256. The last
        dimension must be packed, other strides be multiples of 8 elements above 0: slices of a fused projection will
        do, expanded tensors will not. Up to 2^30 tokens, less than 2^23 elements apart.
    causal : query i of a sequence sees keys up to i + keys - queries: the last query sees the last key (aligned to
        the bottom right, as in FlashAttention 2 and later). With more queries than keys the first rows see none.
    scale : factor of the scores, above 0; 1 / sqrt(head_dim) unless given.
    window : a query sees this many keys up to its own position, itself among them (what Hugging Face configurations
        call sliding_window; window_size = (window - 1, ...) of FlashAttention); up to 2^30. Holds without `causal` too.
    softcap : scores x become softcap * tanh(x / softcap), before the mask.
    sinks : [heads], a score per head that joins the denominator and weighs nothing (gpt-oss).
    packed : where the sequences of packed tensors begin.
    warp_specialized : loads and products in warps of their own, where the table has a row for it (sm_90 and
        sm_100, head_dim 64 and 128, not packed; refused elsewhere).
    out : tensors to write instead of new ones; contiguous, as returned, apart from the others.
    config : launch configuration instead of the table's.

    Returns
    -------
    Output, shaped and typed like q, and lse in float32: [sequences, heads, queries], or [heads, total queries]:
    ln(sum over seen keys of exp(score)), with the sink's exp(sink) in the sum where there is one. A row that sees no
    key has output 0 and lse -inf (with a sink: the sink); one that sees a score of NaN or inf has NaN in both.

    Raises
    ------
    KernelInputError
        Naming the argument that does not fit.

    Notes
    -----
    out = sum_j exp(x_j - lse) v_j with x_j = scale * q . k_j, accumulated in FP32; weights are rounded to the dtype of
    v before they multiply it. Tiles of queries times heads are at most 2^31 - 1. No token is read on the host, so it
    can be captured.
    """
    sizes = _sizes(q, k, v, packed)
    check_scores(q, Scores(scale, window, softcap, sinks))
    results = _outputs((q, k, v), sizes, out, packed is not None)
    seen = window if window is not None and window < k.shape[-3] else None
    options = _Options(causal, Scores(scale, seen, softcap, sinks))
    tma, plain = has_tma(q), packed is None
    able = not warp_specialized or config is not None or (tma and sizes.head_dim <= 128 and plain)
    needs = "sm_90 or sm_100, head_dim 64 or 128 and sequences that are not packed"
    require(able, f"warp_specialized is True, which needs {needs}; leave it False")
    config = configured(
        "attention_prefill", q, config, least=16, head_dim=sizes.head_dim, queries=sizes.queries, keys=sizes.keys,
        packed=int(not plain), windowed=int(seen is not None), capped=int(softcap is not None),
        specialized=int(warp_specialized),
    )  # fmt: skip
    require(tma or not config.meta["tma"], "config.meta['tma'] is True, which needs sm_90 or later")
    if q.numel() and sizes.queries:
        _launch((q, k, v), results, sizes, options, packed, config)
    return results


def _launch(
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    results: tuple[torch.Tensor, torch.Tensor],
    sizes: _Sizes,
    options: _Options,
    packed: Packed | None,
    config: Config,
) -> None:
    q, k, v = given
    meta = dict(config.options())
    kernel = prefill_pointer_kernel
    if meta.pop("tma"):
        prepare_descriptors()
        kernel = prefill_tma_kernel
    tiles, pairs = -(-sizes.queries // int(meta["BLOCK_M"])), sizes.sequences * sizes.heads
    require(tiles * pairs < 2**31, f"{tiles} query tiles of {pairs} heads are more than 2^31 - 1 programs; split q")
    # An empty tensor has no address to describe, and nothing of it is read: let the kernel hold q's instead.
    keys, values = (k, v) if k.numel() else (q, q)
    starts = (None, None) if packed is None else (packed.starts_q, packed.starts_k)
    scores = options.scores
    kernel[(tiles * pairs,)](
        q, keys, values, *results, scores.sinks, *starts, *scores.in_log2(sizes.head_dim), scores.window,
        sizes.queries, sizes.keys, tiles, pairs, _section(sizes, q.element_size()), sizes.heads,
        sizes.heads // sizes.kv_heads,
        *_strides(q), *_strides(k), *_strides(v), *_strides(results[0]), *_row_strides(results[1]),
        D=sizes.head_dim, CAUSAL=options.causal, **meta,
    )  # fmt: skip


def _section(sizes: _Sizes, element: int) -> int:
    """Heads whose keys and values fit in L2 together, at least those of one key head."""
    one = max(2 * sizes.keys * sizes.head_dim * element, 1)
    most = sizes.sequences * sizes.kv_heads
    return min(max(L2_BYTES // one, 1), most) * (sizes.heads // sizes.kv_heads)


def _strides(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Elements from one sequence, token and head to the next; packed sequences are found by their first token."""
    if tensor.dim() == 4:
        return tensor.stride(0), tensor.stride(1), tensor.stride(2)
    return 0, tensor.stride(0), tensor.stride(1)


def _row_strides(lse: torch.Tensor) -> tuple[int, int]:
    return (lse.stride(0), lse.stride(1)) if lse.dim() == 3 else (0, lse.stride(0))


def _sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: Packed | None) -> _Sizes:
    dims: list[int | None] = [None] * (4 if packed is None else 3)
    check_tensor("q", q, dims, DTYPES, contiguous=False)
    check_tensor("k", k, [*dims[:-1], q.shape[-1]], [q.dtype], like=q, contiguous=False)
    check_tensor("v", v, k.shape, [q.dtype], like=q, contiguous=False)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_layout(name, tensor)
    heads, head_dim, kv_heads = q.shape[-2], q.shape[-1], k.shape[-2]
    check_head_dim(head_dim)
    check_heads(heads, kv_heads, "k")
    if packed is None:
        require(k.shape[0] == q.shape[0], f"k has {k.shape[0]} sequences, q has {q.shape[0]}")
        return _Sizes(q.shape[0], heads, kv_heads, head_dim, q.shape[1], k.shape[1])
    check_tensor("starts_q", packed.starts_q, [None], [torch.int32], like=q, align=4)
    require(packed.starts_q.numel() > 0, "starts_q is empty; it holds one number more than there are sequences")
    check_tensor("starts_k", packed.starts_k, packed.starts_q.shape, [torch.int32], like=q, align=4)
    check_range("max_q", packed.max_q, 0, q.shape[0])
    check_range("max_k", packed.max_k, 0, k.shape[0])
    if q.device.type == "cpu":
        _check_starts("q", packed.starts_q, packed.max_q, q.shape[0])
        _check_starts("k", packed.starts_k, packed.max_k, k.shape[0])
    return _Sizes(packed.starts_q.numel() - 1, heads, kv_heads, head_dim, packed.max_q, packed.max_k)


def _check_starts(of: str, starts: torch.Tensor, most: int, tokens: int) -> None:
    """Check the starts of packed sequences, and that none is longer than the longest."""
    rising = starts[0] == 0 and bool((starts.diff() >= 0).all()) and starts[-1] <= tokens
    require(
        bool(rising), f"starts_{of} is {starts.tolist()}, from 0 up to at most the {tokens} tokens of {of} is needed"
    )
    longest = int(starts.diff().max()) if starts.numel() > 1 else 0
    require(most >= longest, f"max_{of} is {most}, the longest sequence of {of} has {longest} tokens")


def _check_layout(name: str, tensor: torch.Tensor) -> None:
    strides, tokens = tensor.stride(), tensor.shape[-3]
    require(tensor.numel() < 2 or strides[-1] == 1, f"{name} has strides {strides}; the last must be 1")
    require(
        not any(n % 8 for n in strides[:-1]), f"{name} has strides {strides}; all but the last must be multiples of 8"
    )
    expanded = any(stride == 0 and n > 1 for stride, n in zip(strides, tensor.shape, strict=True))
    require(not expanded, f"{name} has strides {strides}; an expanded tensor is not supported, call .contiguous()")
    check_range(f"the number of tokens of {name}", tokens, 0, LONGEST)
    if tokens > 1:
        check_range(f"the distance of two tokens of {name}", strides[-3], 0, WIDEST)


def _outputs(
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    sizes: _Sizes,
    out: tuple[torch.Tensor, torch.Tensor] | None,
    is_packed: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = given
    check_range("the numbers of all heads (heads x head_dim)", sizes.heads * sizes.head_dim, 0, WIDEST)
    shape = (sizes.heads, q.shape[0]) if is_packed else (sizes.sequences, sizes.heads, sizes.queries)
    if out is None:
        return torch.empty(q.shape, dtype=q.dtype, device=q.device), torch.empty(shape, device=q.device)
    check_tensor("out[0]", out[0], q.shape, [q.dtype], like=q)
    check_tensor("out[1]", out[1], shape, [torch.float32], like=q)
    check_apart("out[0]", out[0], {"out[1]": out[1], "q": q, "k": k, "v": v})
    check_apart("out[1]", out[1], {"q": q, "k": k, "v": v})
    return out


def prefill_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    packed: Packed | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `prefill_attention` returns, computed by plain torch in `dtype` from the whole score matrix."""
    options = (causal, Scores(scale, window, softcap, sinks))
    if packed is None:
        pairs = [_reference_one(*each, *options) for each in zip(q.to(dtype), k.to(dtype), v.to(dtype), strict=True)]
        return torch.stack([out for out, _ in pairs]), torch.stack([lse for _, lse in pairs])
    rows, columns = packed.starts_q.tolist(), packed.starts_k.tolist()
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    lse = torch.zeros(q.shape[1], q.shape[0], dtype=dtype, device=q.device)
    for i in range(len(rows) - 1):
        at, of = slice(rows[i], rows[i + 1]), slice(columns[i], columns[i + 1])
        out[at], lse[:, at] = _reference_one(q[at].to(dtype), k[of].to(dtype), v[of].to(dtype), *options)
    return out, lse


def _reference_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, of: Scores
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence: q [queries, heads, head_dim], k and v [keys, kv_heads, head_dim]."""
    group, (window, softcap, sinks) = q.shape[1] // k.shape[1], (of.window, of.softcap, of.sinks)
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * of.factor(q.shape[-1])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(q.shape[0], device=q.device)[:, None] + k.shape[0] - q.shape[0]
    column = torch.arange(k.shape[0], device=q.device)[None, :]
    hidden = torch.zeros(q.shape[0], k.shape[0], dtype=torch.bool, device=q.device)
    if causal:
        hidden |= column > at
    if window is not None:
        hidden |= column <= at - window
    scores = scores.masked_fill(hidden, -math.inf)
    counted = scores
    if sinks is not None:
        sink = sinks.to(scores.dtype)[:, None, None].expand(-1, q.shape[0], 1)
        counted = torch.cat([scores, sink], 2)
    lse = torch.logsumexp(counted, 2)
    lse = torch.where(torch.isposinf(lse), math.nan, lse)
    weights = torch.where(torch.isneginf(lse)[:, :, None], 0.0, torch.exp(scores - lse[:, :, None]))
    return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1)), lse
