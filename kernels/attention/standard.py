"""Standard attention: scores, softmax and output as three launches that pass the score matrix through device memory.

It is here to be compared with: it moves 2 (queries + keys) head_dim + 4 queries keys elements a head, whatever the mask
hides. The rows of the score matrix are padded to a multiple of 16 elements, and the padding is written and read with
them (zeros), so that rows go in whole vectors.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from perfmodel.kernels.checks import check_number, check_range, check_tensor, require
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .prefill import WIDEST, prefill_reference
from .scores import DTYPES, LONGEST, Scores, check_head_dim, check_heads

SCORE_DTYPES = (*DTYPES, torch.float32)
ROW_MULTIPLE = 16
"""Elements that the rows of the score matrix are padded to a multiple of."""

PAD = tl.constexpr(ROW_MULTIPLE)

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["queries", "keys", "heads", "group"])
def _scores_kernel(
    q_ptr, k_ptr, s_ptr, scale, queries, keys, heads, group,
    q_batch, q_row, q_head, k_batch, k_row, k_head, s_row,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of scale * Q K^T; neighbouring programs share a query tile."""
    columns = tl.cdiv(keys, BLOCK_N)
    tiles = tl.cdiv(queries, BLOCK_M) * columns
    pair, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    batch, head = (pair // heads).to(tl.int64), pair % heads
    row, column = tile // columns * BLOCK_M, tile % columns * BLOCK_N
    m, n, across = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, D)
    q_base = q_ptr + batch * q_batch + head * q_head + tl.cast(row, tl.int64) * q_row
    k_base = k_ptr + batch * k_batch + head // group * k_head + tl.cast(column, tl.int64) * k_row
    q = tl.load(q_base + m[:, None] * q_row + across[None, :], mask=(row + m < queries)[:, None], other=0.0)
    k = tl.load(k_base + n[None, :] * k_row + across[:, None], mask=(column + n < keys)[None, :], other=0.0)
    s = tl.dot(q, k) * scale
    s_base = s_ptr + (pair.to(tl.int64) * queries + row) * s_row + column
    inside = (row + m < queries)[:, None] & (column + n < s_row)[None, :]
    tl.store(s_base + m[:, None].to(tl.int64) * s_row + n[None, :], s.to(s_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _hidden_behind(row, queries, keys, CAUSAL: tl.constexpr):
    """The first key that the query at `row` (counted over all heads) does not see."""
    if CAUSAL:
        return keys - queries + (row % queries).to(tl.int32) + 1
    else:
        return row.to(tl.int32) * 0 + keys


@triton.jit
def _scores_at(base, columns, inside, seen):
    """A block of scores in FP32, -inf from the first hidden one of each row on."""
    x = tl.load(base + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    return tl.where(columns[None, :] < seen[:, None], x, -float("inf"))


@triton.jit(do_not_specialize=["rows", "queries", "keys"])
def _softmax_kernel(
    s_ptr, rows, queries, keys, s_row,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """The softmax of a few rows, in place. ONCE: a row fits a block and is read once; otherwise twice."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    seen = _hidden_behind(row, queries, keys, CAUSAL)
    here = (row < rows)[:, None]
    base = s_ptr + row[:, None] * s_row
    local = tl.arange(0, BLOCK)
    if ONCE:
        inside = here & (local < s_row)[None, :]
        x = _scores_at(base, local, inside, seen)
        peak = tl.maximum(tl.max(x, 1), -1.0e38)
        weights = tl.exp2((x - peak[:, None]) * LOG2E)
        total = tl.sum(weights, 1)
        weights = weights / tl.where(total != 0.0, total, 1.0)[:, None]
        tl.store(base + local[None, :], weights.to(s_ptr.dtype.element_ty), mask=inside)
    else:
        peaks = tl.full((ROWS, BLOCK), -1.0e38, tl.float32)
        totals = tl.zeros((ROWS, BLOCK), tl.float32)
        for n in range(0, s_row, BLOCK):
            x = _scores_at(base, n + local, here & (n + local < s_row)[None, :], seen)
            higher = tl.maximum(peaks, x)
            totals = totals * tl.exp2((peaks - higher) * LOG2E) + tl.exp2((x - higher) * LOG2E)
            peaks = higher
        peak = tl.max(peaks, 1)
        total = tl.sum(totals * tl.exp2((peaks - peak[:, None]) * LOG2E), 1)
        share = 1.0 / tl.where(total != 0.0, total, 1.0)
        for n in range(0, s_row, BLOCK):
            inside = here & (n + local < s_row)[None, :]
            x = _scores_at(base, n + local, inside, seen)
            weights = tl.exp2((x - peak[:, None]) * LOG2E) * share[:, None]
            tl.store(base + (n + local)[None, :], weights.to(s_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["queries", "keys", "heads", "group"])
def _values_kernel(
    p_ptr, v_ptr, out_ptr, queries, keys, heads, group,
    p_row, v_batch, v_row, v_head, o_batch, o_row, o_head,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of P V."""
    tiles = tl.cdiv(queries, BLOCK_M)
    pair, row = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_M
    batch, head = (pair // heads).to(tl.int64), pair % heads
    m, n, across = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, D)
    here = (row + m < queries)[:, None]
    p_base = p_ptr + (pair.to(tl.int64) * queries + row) * p_row
    v_base = v_ptr + batch * v_batch + head // group * v_head
    p_tile = p_base + (m[:, None].to(tl.int64) * p_row + n[None, :])
    v_tile = v_base + (n[:, None] * v_row + across[None, :])
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    whole = keys // PAD * PAD
    for i in range(0, tl.cdiv(whole, BLOCK_N)):
        held = i * BLOCK_N + n < whole
        p = tl.load(p_tile, mask=here & held[None, :], other=0.0)
        v = tl.load(v_tile, mask=held[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        p_tile += BLOCK_N
        v_tile += tl.cast(BLOCK_N, tl.int64) * v_row
    if whole < keys:  # the row's last keys; the padding after them may hold anything
        last = tl.arange(0, PAD)
        held = whole + last < keys
        p_tail = p_base + whole + (m[:, None].to(tl.int64) * p_row + last[None, :])
        v_tail = v_base + tl.cast(whole, tl.int64) * v_row + (last[:, None] * v_row + across[None, :])
        p = tl.load(p_tail, mask=here & held[None, :], other=0.0)
        v = tl.load(v_tail, mask=held[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
    o_base = out_ptr + batch * o_batch + head * o_head + tl.cast(row, tl.int64) * o_row
    tl.store(o_base + m[:, None] * o_row + across[None, :], acc.to(out_ptr.dtype.element_ty), mask=here)


@entry
def attention_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
    config: Config | None = None,
) -> torch.Tensor:
    """scale * Q K^T of every head, written to memory: [sequences, heads, queries, keys], nothing masked.

    q [sequences, queries, heads, head_dim], k [sequences, keys, kv_heads, head_dim]: float16 or bfloat16, contiguous;
    heads a multiple of kv_heads; head_dim 64, 128 or 256; up to 2^30 queries and keys. scale: above 0, and 1 /
    sqrt(head_dim) unless given. dtype: of the scores, that of q unless given, or float32. The result is a view whose
    rows lie a multiple of 16 elements apart.
    Raises KernelInputError for arguments that do not fit.
    """
    _check_pair(q, k, "k")
    kind = q.dtype if dtype is None else dtype
    require(kind in SCORE_DTYPES, f"dtype is {kind}; scores are float16, bfloat16 or float32")
    factor = Scores(scale).factor(q.shape[3])
    check_number("scale", factor)
    sequences, queries, heads, head_dim = q.shape
    keys, row = k.shape[1], -(-k.shape[1] // ROW_MULTIPLE) * ROW_MULTIPLE
    scores = torch.empty((sequences, heads, queries, row), dtype=kind, device=q.device)[..., :keys]
    config = configured("attention_standard_scores", q, config, least=16, head_dim=head_dim, queries=queries, keys=keys)
    across, down = int(config.meta["BLOCK_N"]), int(config.meta["BLOCK_M"])
    programs = sequences * heads * -(-queries // down) * -(-keys // across)
    require(programs < 2**31, f"{programs} tiles of scores are more than 2^31 - 1 programs; split q")
    if programs:
        _scores_kernel[(programs,)](
            q, k, scores, factor, queries, keys, heads, heads // k.shape[2], *q.stride()[:3], *k.stride()[:3], row,
            D=head_dim, **config.options(),
        )  # fmt: skip
    return scores


@entry
def attention_softmax(scores: torch.Tensor, *, causal: bool = True, config: Config | None = None) -> torch.Tensor:
    """Replace each row of the scores by its softmax, and return them: [sequences, heads, queries, keys].

    scores: as `attention_scores` returns them; float16, bfloat16 or float32; computed in FP32. causal: query i sees
    keys up to i + keys - queries; hidden keys become 0, and so does a row that sees none; a row that sees
    NaN or inf becomes NaN, its padding too.
    A row of up to 16384 elements is read once and written once, a longer one read twice.
    Raises KernelInputError for arguments that do not fit.
    """
    _check_scores(scores)
    queries, keys, row = scores.shape[2], scores.shape[3], scores.stride(2)
    count = scores.shape[0] * scores.shape[1] * queries
    config = configured("attention_standard_softmax", scores, config, keys=keys)
    tile = int(config.meta["ROWS"]) * int(config.meta["BLOCK"])
    require(tile <= 2**20, f"the configuration's ROWS x BLOCK are {tile}, up to 2^20 are supported")
    programs = -(-count // int(config.meta["ROWS"]))
    require(programs < 2**31, f"{count} rows of scores need more than 2^31 - 1 programs; split q")
    if programs and keys:
        once = row <= int(config.meta["BLOCK"])
        _softmax_kernel[(programs,)](scores, count, queries, keys, row, CAUSAL=causal, ONCE=once, **config.options())
    return scores


@entry
def attention_values(p: torch.Tensor, v: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """P V: the output [sequences, queries, heads, head_dim], typed like v.

    p: [sequences, heads, queries, keys] as `attention_softmax` returns it; float32 weights are rounded to the dtype of
    v, products accumulate in FP32. v: [sequences, keys, kv_heads, head_dim], contiguous.
    Raises KernelInputError for arguments that do not fit.
    """
    _check_scores(p)
    sequences, heads, queries, keys = p.shape
    check_tensor("v", v, [sequences, keys, None, None], DTYPES, like=p)
    kv_heads, head_dim = v.shape[2:]
    check_head_dim(head_dim)
    check_heads(heads, kv_heads, "v", "p")
    check_range("the numbers of all heads (heads x head_dim)", heads * head_dim, 0, WIDEST)
    out = torch.empty((sequences, queries, heads, head_dim), dtype=v.dtype, device=v.device)
    config = configured("attention_standard_values", v, config, least=16, head_dim=head_dim, queries=queries, keys=keys)
    programs = sequences * heads * -(-queries // int(config.meta["BLOCK_M"]))
    require(programs < 2**31, f"{programs} tiles of queries are more than 2^31 - 1 programs; split q")
    if programs and not keys:
        return out.zero_()
    if programs:
        _values_kernel[(programs,)](
            p, v, out, queries, keys, heads, heads // kv_heads, p.stride(2), *v.stride()[:3], *out.stride()[:3],
            D=head_dim, **config.options(),
        )  # fmt: skip
    return out


@entry
def standard_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Attention with its score matrix in memory: `attention_scores`, `attention_softmax`, `attention_values`.

    Arguments as there; dtype is that of the stored scores and weights. Returns the output, shaped and typed like q.
    out = softmax(scale Q K^T) V. Needs sequences * heads * queries * keys scores of memory: 4 GiB at one sequence of
    8192 tokens, 32 heads and 16 bits.
    Raises KernelInputError for arguments that do not fit.
    """
    _check_pair(q, v, "v")
    require(v.shape == k.shape, f"v has shape {tuple(v.shape)}, k has {tuple(k.shape)}; they must agree")
    scores = attention_scores(q, k, scale=scale, dtype=dtype)
    return attention_values(attention_softmax(scores, causal=causal), v)


def _check_pair(q: torch.Tensor, other: torch.Tensor, name: str) -> None:
    check_tensor("q", q, [None] * 4, DTYPES)
    check_tensor(name, other, [q.shape[0], None, None, q.shape[3]], [q.dtype], like=q)
    check_head_dim(q.shape[3])
    check_heads(q.shape[2], other.shape[2], name)
    check_range("the number of queries", q.shape[1], 0, LONGEST)
    check_range("the number of keys", other.shape[1], 0, LONGEST)
    check_range("the numbers of all heads (heads x head_dim)", q.shape[2] * q.shape[3], 0, WIDEST)


def _check_scores(scores: torch.Tensor) -> None:
    check_tensor("scores", scores, [None] * 4, SCORE_DTYPES, contiguous=False)
    _, heads, queries, _ = scores.shape
    row = scores.stride(2)
    wanted = (heads * queries * row, queries * row, row, 1)
    held = all(a == b or n < 2 for a, b, n in zip(scores.stride(), wanted, scores.shape, strict=True))
    past = scores.storage_offset() + math.prod(scores.shape[:3]) * row  # the padding of the last row is written too
    require(
        scores.numel() == 0 or (held and row >= scores.shape[3] and row % ROW_MULTIPLE == 0),
        f"scores have strides {scores.stride()}; rows one after the other, a multiple of {ROW_MULTIPLE} long, are "
        "needed: pass what attention_scores returns",
    )
    room = scores.untyped_storage().nbytes() // scores.element_size()
    require(
        scores.numel() == 0 or past <= room,
        f"scores have rows of {row} elements, {scores.shape[3]} of them keys, but the last row's padding is not theirs "
        f"(the storage ends {past - room} elements before it does): pass what attention_scores returns",
    )


def standard_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """What `standard_attention` returns, computed by plain torch in `dtype`."""
    return prefill_reference(q, k, v, causal=causal, scale=scale, dtype=dtype)[0]
