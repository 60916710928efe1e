"""Prefill attention with grouped queries: tile work per CTA, and the rotary and cache-write kernels around it.

    CTA  = rows * columns(causal) * (4 d / (matrix * peak/SM) + softmax / (16 clock)) + cta      one query tile of one
        head
    T    = launch + smax(sum of CTAs / SMs, longest CTA; tail) + rotary and cache traffic + cache-write kernel

Softmax is counted beside the matrix products, not under them: the exponentials that FlashAttention overlaps lower the
fitted ``softmax`` below 1.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Param, Params, Parts, Shape, cached, cdiv, smax

#: Key columns of a tile. Source: FlashAttention-2 and -3 (128 at head dimension 128).
COLUMNS = 128.0
#: Exponentials a clock and SM. Source: NVIDIA CUDA C++ Programming Guide 12: 16 special-function units in each SM.
EXP_PER_CLOCK = 16.0

PARAMS = (
    Param("launch", 10e-6, "s", "launch gap of the whole call"),
    Param("matrix", 0.8, "1", "share of the matrix peak"),
    Param("softmax", 0.6, "1", "softmax time a score not hidden by the products, in units of one exponential"),
    Param("cta", 1.5e-6, "s", "prologue and epilogue of one CTA of 128 rows"),
    Param("cta_rows", 0.5, "1", "cta scales with (rows/128)^cta_rows: short tiles reside together"),
    Param("tail", 1.5, "1", "exponent by which the longest CTA adds to the mean load (1 fully exposed)"),
    Param("pass", 0.8, "1", "share of the memory bandwidth of the elementwise kernels"),
    Param("l2", 0.2, "1", "their L2 rate as a share of 64 B a clock and SM, when they fit"),
    Param("write", 10e-9, "s", "SM time of the cache-write kernel a token (a full 512-thread block)"),
    Param("one_launch", 9e-6, "s", "launch gap with one-token prompts where they take the decode kernel"),
    Param("one_cta", 1.5e-6, "s", "cta with one-token prompts"),
)


def geometry(s: Shape, facts: Facts) -> tuple[Num, Num, Num, Num, Num]:
    """Whether a prompt is one token on the decode kernel; heads packed into a tile; tile rows; blocks; mean columns."""
    q, past = s["q"], s["kv"] - s["q"]
    group = s["heads"] / s["kv_heads"]
    policy = facts.get("packs", "never")
    one = (q <= 1) & (policy != "never")
    pack = group if policy == "always" else np.where(one, group, 1.0)
    rows = q * pack
    tile = np.where(rows <= 64, 64.0, facts.get("rows", 128.0))
    blocks = cdiv(rows, tile)
    full = cdiv(s["kv"], COLUMNS) * COLUMNS
    causal = past + q / 2 * (1 + 1 / blocks) + np.maximum(0, COLUMNS - tile / pack) / 2
    columns = np.where(blocks <= 1, full, np.minimum(full, causal))
    return one, pack, tile, blocks, columns


def parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time of causal attention of one layer, with its rotary and cache-write kernels. [s]

    Shape: batch, q (new tokens), kv (tokens after the step), heads, kv_heads, dim, kv_bytes, math. Facts: packs (which
    queries of a group share a tile: always, one token, never), rows (of a query tile).
    """
    b, q, h, kv, d = (s[x] for x in ("batch", "q", "heads", "kv_heads", "dim"))
    one, pack, tile, blocks, columns = geometry(s, facts)
    full = cdiv(s["kv"], COLUMNS) * COLUMNS
    score = 4 * d / (chip.peak(s["math"]) / chip.sms * p["matrix"]) + p["softmax"] / (EXP_PER_CLOCK * chip.clock)
    cta = np.where(one, p["one_cta"], p["cta"] * (tile / 128) ** p["cta_rows"])
    load = blocks * (h / pack) * b * (columns * tile * score + cta) / chip.sms
    traffic = b * d * (2 * q * h * 2 + 2 * s["kv"] * kv * s["kv_bytes"])
    core = smax(load, full * tile * score + cta, p["tail"])
    core = smax(core, traffic / (chip.bandwidth * 0.85), 4.0)
    keys = b * q * kv * d
    moved = 4 * b * q * (h + kv) * d + 2 * keys * (2 + s["kv_bytes"])
    hit = cached(moved / 2, 0.6 * chip.l2, 2.0)
    passes = moved * ((1 - hit) / (chip.bandwidth * p["pass"]) + hit / (p["l2"] * chip.l2_per_sm * chip.sms))
    write = p["write"] * b * q * np.minimum(kv * d, 512) / 512 / chip.sms
    launch = np.where(one, p["one_launch"], p["launch"])
    return {"launch": launch, "attention": core, "rotary and cache": passes, "cache write": write}


def features(s: Shape, chip: Chip, facts: Facts) -> dict[str, Num]:
    """Shape of the attention, its CTAs an SM, its group and its tokens."""
    b, q, h, kv = s["batch"], s["q"], s["heads"], s["kv_heads"]
    return {
        "batch": b, "q": q, "heads": h, "kv_heads": kv, "dim": s["dim"],
        "ctas": b * h * np.ceil(q / 128) / chip.sms, "group": h / kv, "tokens": b * q,
    }  # fmt: skip


PREFILL = Form("prefill", PARAMS, parts, features)
