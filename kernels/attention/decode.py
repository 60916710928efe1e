"""Decode attention: one or a few new tokens a sequence against its paged keys and values."""

from __future__ import annotations

import torch

from perfmodel.kernels.entry import entry
from perfmodel.kernels.table import Config

from .paged_launch import Paged, attend_paged
from .paged_reference import causal, paged_reference
from .scores import Scores


@entry
def paged_decode(
    q: torch.Tensor,
    cache: Paged,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    max_length: int | None = None,
    splits: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each sequence's last tokens over all its tokens, and the log-sum-exp of its scores.

    Parameters
    ----------
    q : [sequences, q_len, heads, head_dim], float16 or bfloat16, contiguous: the last q_len tokens of each sequence,
        whose keys and values are in the cache already. heads must be a multiple of kv_heads: query head h reads key
        head h // (heads / kv_heads). head_dim is 64, 128 or 256. At most 65535 sequences.
    cache : keys and values in pages of 16, 32, 64 or 128 tokens, in the dtype of q, or float8_e4m3fn with its scales.
        The last dimension must be packed, the others be multiples of 16 bytes apart, and k and v have equal strides:
        halves of one tensor will do, and so will [pages, kv_heads, page, head_dim] with two dimensions transposed.
        At least one page, and a table with room for 2^30 tokens at most. Lengths count the q_len new tokens; of the
        table only the pages that a length needs are read. What lies in unused slots and pages does not matter. FP8 is
        dequantised to fp16, so a query must not hold infinities; without FP8 instructions (before sm_89) NaN in the
        cache reads as 480.
    scale : factor of the scores, above 0; 1 / sqrt(head_dim) unless given.
    window : a query sees this many keys up to its own position, itself among them; up to 2^30.
    softcap : scores x become softcap * tanh(x / softcap), before the mask.
    sinks : [heads], a score per head that joins the denominator and weighs nothing (gpt-oss).
    max_length : the longest length as a plain int, for the number of pieces alone (results are right without it); the
        table's capacity unless given.
    splits : pieces to cut the keys into; chosen from the number of multiprocessors unless given (`split_count`).
    out : tensors to write instead of new ones; contiguous, as returned, apart from the others.
    config : launch configuration instead of the table's.

    Returns
    -------
    Output, shaped and typed like q, and lse [sequences, q_len, heads] in float32: ln(sum over seen keys of exp(score)),
    with the sink's exp(sink) in the sum where there is one. A row that sees no key (lengths below q_len) has output 0
    and lse -inf (with a sink: the sink); one that sees a score of NaN or inf has NaN in both, however many pieces.

    Raises
    ------
    KernelInputError
        Naming the argument that does not fit.

    Notes
    -----
    out = sum_j exp(x_j - lse) v_j with x_j = scale * q . k_j, accumulated in FP32; weights are rounded to the dtype of
    v (FP8: to fp16) before they multiply it. Query i of a sequence sees keys up to length - q_len + i. The heads of a
    key head and the q_len tokens share each key that is read. On a GPU nothing is read on the host, so that it can
    be captured: a length below 0 or beyond the table's capacity, or the number of a page that the cache does not have
    among those a length needs (a window makes no difference), is not noticed there, and the result undefined: memory of
    others is read. On the CPU these are refused. Method: split keys and merge, as in
    https://pytorch.org/blog/flash-decoding.
    """
    scores = Scores(scale, window, softcap, sinks)
    return attend_paged(
        "attention_decode", q, cache, scores, max_length=max_length, splits=splits, out=out, config=config
    )


def decode_reference(
    q: torch.Tensor,
    cache: Paged,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `paged_decode` returns, computed by plain torch in `dtype` from the whole score matrix."""
    scores = Scores(scale, window, softcap, sinks)
    return paged_reference(q, cache, scores, causal(q.shape[1], cache.lengths, window), dtype)
