"""Multi-head latent attention (latent 512 and rotary 64; query and key 192, value 128 when expanded).

Context: as ``prefill`` with ``2 (192 + 128)`` FLOPs a score and no grouping. Generation: all heads of a sequence share
the latent; CTAs = batch * head blocks of 64 * splits, heads padded to 16, 32 or 64 rows.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Param, Params, Parts, Shape, cached, cdiv, smax
from perfmodel.roofline.calibrated.prefill import COLUMNS, EXP_PER_CLOCK

#: Pull of the parameters by which the kernels for more heads differ.
GAIN_PULL = 40.0

CONTEXT = (
    Param("launch", 11e-6, "s", "launch gap of the whole call"),
    Param("matrix", 0.8, "1", "share of the matrix peak"),
    Param("softmax", 0.6, "1", "softmax time a score not hidden by the products, in units of one exponential"),
    Param("cta", 2e-6, "s", "prologue and epilogue of one CTA of 128 rows"),
    Param("cta_rows", 0.3, "1", "cta scales with (rows/128)^cta_rows"),
    Param("tail", 1.5, "1", "exponent by which the longest CTA adds to the mean load"),
    Param("pass", 0.8, "1", "share of the memory bandwidth of the elementwise kernels"),
    Param("l2", 0.25, "1", "their L2 rate as a share of 64 B a clock and SM, when they fit"),
    Param("write", 20e-9, "s", "SM time of the cache-write kernel a token"),
)
GENERATION = (
    Param("launch", 9e-6, "s", "launch gap of the call"),
    Param("matrix", 0.6, "1", "share of the matrix peak with up to 16 heads"),
    Param("heads_32", 1.0, "1", "matrix share of the kernel for 17 to 32 heads, relative to matrix", GAIN_PULL),
    Param("heads_64", 1.0, "1", "the same for 33 to 64 heads", GAIN_PULL),
    Param("heads_128", 1.0, "1", "the same for more, whose head blocks share their loads", GAIN_PULL),
    Param("memory", 0.8, "1", "share of the memory bandwidth for latents beyond L2"),
    Param("l2", 0.3, "1", "L2 rate, share of 64 B a clock and SM, for those that fit"),
    Param("overlap", 2.5, "1", "exponent of the overlap of CTA time and stream"),
    Param("cta", 2e-6, "s", "fixed time of one CTA"),
    Param("draw", 1.5, "1", "one SM can draw draw/SMs of the memory bandwidth"),
    Param("pass", 0.6, "1", "share of the memory bandwidth for queries and outputs"),
    Param("combine", 2e-6, "s", "combining splits"),
    Param("each", 0.05e-6, "s", "combining one more split of a sequence"),
    Param("row", 0.5e-6, "s", "SM time a sequence outside the main kernel (rotary, latent write, scheduling)"),
    Param("latency", 0.3e-6, "s", "exposed latency a block, of the first 1024 tokens that a CTA walks"),
)


def context_parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time of causal latent attention with expanded heads, rotary and cache write in it. [s]

    Shape: batch, q, kv, heads, qk_dim, v_dim, cache (elements a token), kv_bytes, math.
    """
    b, q, h = s["batch"], s["q"], s["heads"]
    flops = 2 * (s["qk_dim"] + s["v_dim"])
    tile = np.where(q <= 64, 64.0, 128.0)
    blocks, full = cdiv(q, tile), cdiv(s["kv"], COLUMNS) * COLUMNS
    columns = np.where(blocks <= 1, full, np.minimum(full, s["kv"] - q + q / 2 * (1 + 1 / blocks)))
    score = flops / (chip.peak(s["math"]) / chip.sms * p["matrix"]) + p["softmax"] / (EXP_PER_CLOCK * chip.clock)
    cta = p["cta"] * (tile / 128) ** p["cta_rows"]
    core = smax(blocks * h * b * (columns * tile * score + cta) / chip.sms, full * tile * score + cta, p["tail"])
    traffic = 2 * b * h * (q + s["kv"]) * (s["qk_dim"] + s["v_dim"])
    core = smax(core, traffic / (chip.bandwidth * 0.85), 4.0)
    moved = b * q * (h * 2 * s["qk_dim"] * 2 + s["cache"] * (2 + s["kv_bytes"]))
    hit = cached(moved / 2, 0.6 * chip.l2, 2.0)
    passes = moved * ((1 - hit) / (chip.bandwidth * p["pass"]) + hit / (p["l2"] * chip.l2_per_sm * chip.sms))
    return {
        "launch": p["launch"],
        "attention": core,
        "rotary and cache": passes,
        "cache write": p["write"] * b * q / chip.sms,
    }


def generation_parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time of one decode step of absorbed latent attention, rotary and latent write in it. [s]

    Shape: batch, kv, heads, latent, rope, kv_bytes, math (of the products). Facts: block (tokens a CTA walks at a
    time),
    shortest (tokens of the shortest split).
    """
    b, n, h, e = s["batch"], s["kv"], s["heads"], s["kv_bytes"]
    wide, block = s["latent"] + s["rope"], facts.get("block", 128.0)
    padded = np.where(h <= 16, 16.0, np.where(h <= 32, 32.0, 64.0))
    ctas = b * cdiv(h, 64.0)
    splits = np.clip(np.floor(chip.sms / ctas), 1, np.maximum(1, np.floor(n / facts.get("shortest", 128.0))))
    share = cdiv(n / splits, block) * block
    flops = 2 * padded * (s["latent"] + wide) * share
    gain = np.where(h <= 32, p["heads_32"], np.where(h <= 64, p["heads_64"], p["heads_128"]))
    reach = p["matrix"] * np.where(h <= 16, 1.0, gain)
    load = share * wide * e / (p["draw"] * chip.bandwidth / chip.sms)
    walk = np.maximum(flops / (chip.peak(s["math"]) / chip.sms * reach), load)
    size = b * n * wide * e
    hit = cached(size, 0.7 * chip.l2, 4.0)
    l2 = p["l2"] * chip.l2_per_sm * chip.sms
    stream = size * ((1 - hit) / (chip.bandwidth * p["memory"]) + hit / l2)
    core = smax(cdiv(ctas * splits, chip.sms) * (p["cta"] + walk), stream, p["overlap"])
    core = core + p["latency"] * (np.minimum(share / block, 1024 / block) - 1)
    ends = b * h * (s["latent"] + wide) * 2 / (chip.bandwidth * p["pass"])
    combine = np.where(splits > 1, p["combine"] + p["each"] * splits + 8 * b * h * splits * s["latent"] / l2, 0.0)
    return {
        "launch": p["launch"],
        "attention": core + ends,
        "combine": combine,
        "rotary and cache write": p["row"] * b / chip.sms,
    }


def context_features(s: Shape, chip: Chip, facts: Facts) -> dict[str, Num]:
    """Shape of the attention, its CTAs an SM and its tokens."""
    b, q, h = s["batch"], s["q"], s["heads"]
    return {"batch": b, "q": q, "heads": h, "ctas": b * h * np.ceil(q / 128) / chip.sms, "tokens": b * q}


def generation_features(s: Shape, chip: Chip, facts: Facts) -> dict[str, Num]:
    """Shape of the attention, its latent cache, the tokens of a split and its CTAs an SM."""
    b, n, h = s["batch"], s["kv"], s["heads"]
    splits = np.clip(np.floor(chip.sms / b), 1, np.ceil(n / 256))
    return {
        "batch": b, "kv": n, "heads": h, "tokens": b * n, "work": b * h * np.ceil(n / 128) / chip.sms,
        "share": n / splits, "ctas": b * splits / chip.sms,
    }  # fmt: skip


MLA_CONTEXT = Form("mla_context", CONTEXT, context_parts, context_features)
MLA_GENERATION = Form("mla_generation", GENERATION, generation_parts, generation_features)
