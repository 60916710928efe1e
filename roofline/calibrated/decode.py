"""One decode step of grouped-query attention: paged cache, one query token a sequence.

    CTAs = batch * kv_heads * splits;  CTA time = cta + bytes of its (padded) share / (draw * bandwidth / SMs)
    T    = launch + smax(waves * CTA time, cache bytes / cache rate; overlap) + combine + rotary and cache write +
        latency

splits = floor(SMs / (batch * kv_heads)), at least one block each (FlashDecoding; Dao et al., 2023), or by the rules
of FlashAttention-2 (``flash_splits``) and of TensorRT-LLM's XQA kernel: round(sqrt(8 blocks)) of its 128-token blocks,
at most 8 waves in all (NVIDIA/TensorRT-LLM, ``computeMultiBlockCount`` with ``kMinHistoryTokensPerBlock`` 128 and
``kTargetWaveFactor`` 8).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Param, Params, Parts, Shape, cached, cdiv, smax

#: Tokens of a block of keys.
BLOCK = 128.0

PARAMS = (
    Param("launch", 9e-6, "s", "launch gap of the call"),
    Param("launch_64", 9e-6, "s", "launch gap of the kernel for head dimension 64"),
    Param("launch_mha", 9e-6, "s", "launch gap of a separate kernel for groups of one"),
    Param("memory", 0.85, "1", "share of the memory bandwidth for keys and values beyond L2"),
    Param("l2", 0.35, "1", "L2 rate, share of 64 B a clock and SM, for those that fit"),
    Param("overlap", 2.0, "1", "exponent of the overlap of CTA time and stream"),
    Param("cta", 1e-6, "s", "fixed time of one CTA"),
    Param("draw", 1.5, "1", "one SM can draw draw/SMs of the memory bandwidth"),
    Param("combine", 2e-6, "s", "combining splits"),
    Param("each", 0.02e-6, "s", "combining one more split of a sequence"),
    Param("row", 2e-11, "s", "rotary and cache write of a token, an element of q, k, v: one block a token"),
    Param("write", 1e-10, "s", "SM time of rotary and cache write an element of q, k, v"),
    Param("latency", 0.3e-6, "s", "exposed latency a 128-token block, of the first eight that a CTA walks"),
    Param("swap", 5e-6, "s", "kernels that transpose grouped queries and outputs (FlashAttention-2)"),
    Param("cta_mha", 1e-6, "s", "cta of a separate kernel for groups of one"),
    Param("draw_mha", 1.5, "1", "draw of a separate kernel for groups of one"),
)


def flash_splits(heads: Num, blocks: Num, slots: float) -> Num:
    """Splits by FlashAttention-2's ``num_splits_heuristic``: the fewest that reach 85 % of the best wave efficiency.

    Of ``heads`` (batch x KV heads) with ``blocks`` of keys each on ``slots`` places; none when the heads fill 80 % of
    them; a split must lower the blocks of a CTA. Closed form: the best efficiency is taken as 1 where the blocks
    suffice.
    Source: Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp.

    >>> float(flash_splits(8.0, 64.0, 216.0)), float(flash_splits(200.0, 64.0, 216.0))
    (32.0, 1.0)
    """
    most = np.minimum(blocks, 128.0)
    best = np.minimum(1, most * heads / slots)
    s = np.clip(np.ceil(0.85 * best * slots / heads - 1e-9), 1, most)
    walk = np.ceil(blocks / s)
    same, fewer = np.ceil(blocks / walk), np.ceil(blocks / np.maximum(walk - 1, 1))
    found = np.minimum(np.where(same >= s, same, fewer), 128)
    return np.where(heads >= 0.8 * slots, 1.0, found)


def split_count(s: Shape, chip: Chip, facts: Facts) -> Num:
    """Splits of a sequence and KV head.

    Facts: splits (``xqa``, ``fa2`` or FlashDecoding), shortest (tokens of a split), mha.
    """
    b, n, kv, sms = s["batch"], s["kv"], s["kv_heads"], chip.sms
    mha, treat = s["heads"] <= kv, facts.get("mha", "")
    shortest = facts.get("shortest", BLOCK)
    one_wave = np.clip(np.floor(sms / (b * kv)), 1, np.maximum(1, cdiv(n, shortest)))
    if facts.get("splits") == "fa2":
        few = flash_splits(b * kv, cdiv(n, np.where(s["dim"] <= 64, 256.0, 128.0)), 2 * sms)
        found: Num = np.where(mha & (treat == "unsplit"), 1.0, few)
        return found
    if facts.get("splits") != "xqa":
        found = one_wave
        return found
    blocks = np.floor(n / 128)
    xqa = np.maximum(1, np.minimum(blocks, np.round(np.sqrt(8 * blocks))))
    limit = np.maximum(1, np.floor(8 * sms / (b * kv)))
    own = np.clip(cdiv(sms, b * kv), 1, np.maximum(1, cdiv(n, 256.0)))
    return np.where(mha & (treat == "own"), own, np.minimum(xqa, limit))


def parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time of one decode step of attention in one layer, with its rotary and cache-write kernels. [s]

    Shape: batch, kv (context), heads, kv_heads, dim, kv_bytes. Facts: mha (how a group of one is treated: ``own``
    kernel, ``unsplit``, or as any other).
    """
    b, n, h, kv, d, e = (s[x] for x in ("batch", "kv", "heads", "kv_heads", "dim", "kv_bytes"))
    mha, treat = h <= kv, facts.get("mha", "")
    own = mha & (treat == "own")
    size = b * n * 2 * kv * d * e
    hit = cached(size, 0.7 * chip.l2, 4.0)
    l2 = p["l2"] * chip.l2_per_sm * chip.sms
    stream = size * ((1 - hit) / (chip.bandwidth * p["memory"]) + hit / l2)
    splits = split_count(s, chip, facts)
    share = cdiv(n / splits, BLOCK) * BLOCK
    cta = np.where(own, p["cta_mha"], p["cta"])
    cta = cta + share * 2 * d * e / (np.where(own, p["draw_mha"], p["draw"]) * chip.bandwidth / chip.sms)
    launch = np.where(d <= 64, p["launch_64"], p["launch"])
    launch = np.where(mha & (treat != ""), p["launch_mha"], launch)
    core = smax(cdiv(b * kv * splits, chip.sms) * cta, stream, p["overlap"])
    core = core + p["latency"] * (np.minimum(share / BLOCK, 8) - 1)
    combine = np.where(splits > 1, p["combine"] + p["each"] * splits + 8 * b * h * splits * d / l2, 0.0)
    write = (p["row"] + p["write"] * b / chip.sms) * (h + 2 * kv) * d
    found: Parts = {"launch": launch, "attention": core, "combine": combine, "rotary and cache write": write}
    if facts.get("swaps"):
        moved = 8 * b * h * d / (chip.bandwidth * p["memory"])
        found["transpose"] = np.where((h > kv) & (kv > 1) & (b > 1), p["swap"] + moved, 0.0)
    return found


def features(s: Shape, chip: Chip, facts: Facts) -> dict[str, Num]:
    """Shape of the attention, its group, work an SM before and after splitting, tokens of a split, cache size by L2."""
    b, n, h, kv, d = (s[x] for x in ("batch", "kv", "heads", "kv_heads", "dim"))
    splits = np.clip(np.floor(chip.sms / (b * kv)), 1, np.ceil(n / 128))
    return {
        "batch": b, "kv": n, "heads": h, "kv_heads": kv, "dim": d, "rows": b * kv / chip.sms, "group": h / kv,
        "share": n / splits, "cache": b * n * kv * d / chip.l2, "ctas": b * kv * splits / chip.sms,
    }  # fmt: skip


def family(s: Shape, facts: Facts) -> Any:
    """Kernel template by head dimension and grouping (``gqa_64``, ``mha_128``, ...), where the engine has one for
    each."""
    if not facts.get("templates"):
        return ""
    kind = np.where(s["heads"] <= s["kv_heads"], "mha", "gqa")
    names = np.char.add(np.char.add(kind, "_"), np.where(s["dim"] <= 64, "64", "128"))
    return names if names.ndim else str(names)


DECODE = Form("decode", PARAMS, parts, features, family)
