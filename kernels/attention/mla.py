"""MLA decode: absorbed queries against the latent cache of multi-head latent attention (DeepSeek-V2 and later)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from perfmodel.kernels.checks import check_number, check_tensor
from perfmodel.kernels.device import interpreted, target
from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config, configured

from .mla_kernel import mla_kernel
from .paged_launch import (
    FP8,
    check_fp8_scale,
    check_pages,
    check_places,
    launch_plan,
    longest,
    merged,
    outputs,
    partials,
)
from .paged_reference import causal, gathered, softmax_attention
from .scores import DTYPES, Scores

LATENT, ROPE = 512, 64
"""Columns of a cached token: the compressed key and value, and the rotary key that all heads share."""


@dataclass(frozen=True)
class Latents:
    """Latent vectors of several sequences in pages.

    cache: [pages, page, 576], 512 latent columns and then 64 rotary ones. table: [sequences, most pages] int32, the
    pages of each sequence in order. lengths: [sequences] int32, tokens of each. scale: [1] float32, what FP8 values are
    multiplied by; None for a 16-bit cache.
    """

    cache: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    scale: torch.Tensor | None = None


@entry
def mla_decode(
    q: torch.Tensor,
    latents: Latents,
    scale: float,
    *,
    max_length: int | None = None,
    splits: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each sequence's last tokens over its latent vectors, and the log-sum-exp of its scores.

    Parameters
    ----------
    q : [sequences, q_len, heads, 576], float16 or bfloat16, contiguous: 512 columns already multiplied with the key
        up-projection (absorbed), then the 64 rotary ones, of the last q_len tokens of each sequence. At most 65535
        sequences.
    latents : vectors in pages of 16, 32, 64 or 128 tokens (at least one page), in the dtype of q, or float8_e4m3fn
        with one scale. The last dimension must be packed and the others a multiple of 16 bytes apart. Lengths count the
        q_len new tokens. The table has room for 2^30 tokens at most. FP8 is handled as in `paged_decode`.
    scale : factor of the scores, above 0. It goes with the head before absorption: 1 / sqrt(128 + 64) for DeepSeek-V3,
        times what its YaRN asks for.
    max_length : the longest length as a plain int, for the number of pieces alone; the table's capacity unless given.
    splits : pieces to cut the tokens into; chosen from the number of multiprocessors unless given (`split_count`).
    out : tensors to write instead of new ones; contiguous, as returned, apart from the others.
    config : launch configuration instead of the table's.

    Returns
    -------
    Output [sequences, q_len, heads, 512], typed like q, still to be multiplied with the value up-projection, and lse
    [sequences, q_len, heads] in float32. A row that sees no token has output 0 and lse -inf, one that
    sees a score of NaN or inf has NaN in both.

    Raises
    ------
    KernelInputError
        Naming the argument that does not fit.

    Notes
    -----
    out = sum_j exp(x_j - lse) c_j with x_j = scale * q . [c_j, r_j], c the latent and r the rotary columns, accumulated
    in FP32; weights are rounded to the dtype of the cache (FP8: to fp16) before they multiply it. Query i of a sequence
    sees tokens up to length - q_len + i. All heads and q_len tokens share each vector that is read. On the CPU,
    lengths and page numbers out of range are refused; on a GPU they are not looked at, and what lies elsewhere is read.
    Method: DeepSeek-V2, https://arxiv.org/abs/2405.04434 (section 2.1).
    """
    fp8 = latents.cache.dtype == FP8
    _check(q, latents, scale, fp8)
    results = outputs(q, LATENT, out, {"latents.cache": latents.cache})
    page = latents.cache.shape[1]
    seen = longest(max_length, "latents", latents.table, page)
    if q.numel() == 0:
        return results
    sequences, q_len, heads, _ = q.shape
    config = configured("attention_mla", q, config, least=16, rows=q_len * heads, page=page, fp8=int(fp8))
    meta, row_blocks, splits = launch_plan(q, config, q_len * heads, sequences, seen, splits)
    parts = partials(*results, splits)
    cache = latents.cache.view(torch.int16) if fp8 else latents.cache
    mla_kernel[(row_blocks, splits, sequences)](
        q, cache, latents.table, latents.lengths, latents.scale, *parts, scale * math.log2(math.e), q_len,
        splits, latents.table.stride(0), cache.stride(0), cache.stride(1), HEADS=heads, LATENT=LATENT, ROPE=ROPE,
        PAGE=page, PARTIAL=splits > 1, FP8=fp8, BITS=not target(q).fp8, ASM=not interpreted(), **meta,
    )  # fmt: skip
    return merged(parts, results)


def _check(q: torch.Tensor, latents: Latents, scale: float, fp8: bool) -> None:
    check_tensor("q", q, [None, None, None, LATENT + ROPE], DTYPES)
    shape = [None, None, LATENT + ROPE]
    check_tensor("latents.cache", latents.cache, shape, [q.dtype, FP8], like=q, contiguous=False)
    check_pages("latents.cache", latents.cache)
    check_places("latents", latents.table, latents.lengths, q, *latents.cache.shape[:2])
    check_fp8_scale("latents.scale", latents.scale, fp8, q)
    check_number("scale", scale)


def mla_reference(
    q: torch.Tensor, latents: Latents, scale: float, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `mla_decode` returns, computed by plain torch in `dtype` from the whole score matrix."""
    out = torch.zeros((*q.shape[:-1], LATENT), dtype=dtype, device=q.device)
    lse = torch.zeros(q.shape[:-1], dtype=dtype, device=q.device)
    seen = causal(q.shape[1], latents.lengths)
    for i, length in enumerate(latents.lengths.tolist()):
        key = gathered(latents.cache, latents.table[i], length, dtype)[:, None, :]
        if latents.scale is not None:
            key = key * latents.scale.to(dtype)
        mask = seen(i, torch.arange(length, device=q.device))
        out[i], lse[i] = softmax_attention(q[i].to(dtype), key, key[:, :, :LATENT], mask, Scores(scale))
    return out, lse
