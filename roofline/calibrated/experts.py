"""The expert feed-forward of one MoE layer on one rank: two grouped GEMMs and the kernels between them.

    grouped GEMM = smax(waves of (rows x 128) tiles over active experts, active weights / bandwidth; overlap)
    T = launch + GEMM1 + GEMM2 + activations / bandwidth + expert * local experts + pair * routed pairs / SMs
        + doubling * log2(1 + tokens)

The rows of a tile are the fastest of 16 .. 128; each expert's rows are padded to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Param, Params, Parts, Shape, cdiv, smax
from perfmodel.roofline.dequantize import THREADS_PER_CLOCK

PARAMS = (
    Param("launch", 18e-6, "s", "all launches of the layer"),
    Param("matrix", 0.6, "1", "share of the matrix peak, falling as the root of tile rows / 128"),
    Param("memory", 0.8, "1", "share of the memory bandwidth for weights"),
    Param("pass", 0.6, "1", "share of the memory bandwidth of gather, activation and scatter"),
    Param("overlap", 2.0, "1", "exponent of the overlap of matrix and memory time"),
    Param("tile", 0.8e-6, "s", "prologue and epilogue of one tile"),
    Param("touch", 0.7, "1", "share of all tokens' rows that are written where only some have an expert here"),
    Param("expert", 0.02e-6, "s", "a local expert: group bookkeeping, padding"),
    Param("pair", 0.02e-6, "s", "SM time a routed pair of token and expert (sort, permute, finalize)"),
    Param("doubling", 0.3e-6, "s", "a doubling of the tokens"),
)


def grouped(p: Params, s: Shape, chip: Chip, n: Num, k: Num, active: Num, per: Num) -> Num:
    """One grouped GEMM ``[per, k] x [k, n]`` of each of ``active`` experts. [s]

    Weights that are unpacked first (``dequant`` instructions each) are so in every tile of 128 columns, by one SM.
    """
    unpack = 128 * k * s["dequant"] / (THREADS_PER_CLOCK * chip.clock) if "dequant" in s else 0.0
    best: Any = np.inf
    for rows in (16.0, 32.0, 64.0, 128.0):
        tiles = active * cdiv(per, rows) * cdiv(n, 128.0)
        rate = chip.peak(s["math"]) / chip.sms * p["matrix"] * (rows / 128) ** 0.5
        cta = np.maximum(2 * rows * 128 * k / rate, unpack) + p["tile"]
        x = tiles / chip.sms
        best = np.minimum(best, np.where(x <= 1, 1.0, 0.5 * (np.ceil(x) + x)) * cta)
    return smax(best, active * n * k * s["weight_width"] / (chip.bandwidth * p["memory"]), p["overlap"])


def parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time of one layer's routed experts. [s]

    Shape: tokens (routed over the group), hidden, inter (on this rank), chosen, experts, local, gate (2 gated, 1 not),
    weight_width (bytes a weight), act_width, math.
    """
    T, H, F, local = s["tokens"], s["hidden"], s["inter"], s["local"]
    pairs = T * s["chosen"]
    mine = pairs * local / s["experts"]
    active = np.minimum(local, np.maximum(mine, 1))
    per = mine / active
    wide = np.maximum(s["act_width"], 1)
    moved = 2 * np.minimum(T, mine) * H + p["touch"] * 2 * T * H + mine * (H * (wide + 2) + F * (2 * s["gate"] + wide))
    return {
        "launch": p["launch"],
        "up": grouped(p, s, chip, s["gate"] * F, H, active, per),
        "down": grouped(p, s, chip, H, F, active, per),
        "passes": moved / (chip.bandwidth * p["pass"]),
        "routing": routing(p, s, chip),
    }


def one_gemm(p: Params, s: Shape, chip: Chip) -> Num:
    """One of the layer's grouped GEMMs by itself, with the expected number of distinct experts. [s]

    Shape: n, k (of an expert's matrix here), active, rows (of all of them), weight_width, act_width, math; dequant
    (instructions a weight that is unpacked first), where it is.
    """
    return grouped(p, s, chip, s["n"], s["k"], s["active"], s["rows"] / np.maximum(s["active"], 1e-9))


def routing(p: Params, s: Shape, chip: Chip) -> Num:
    """Group bookkeeping, sorting and permuting of one layer. Shape: tokens, chosen, local. [s]"""
    pairs = s["tokens"] * s["chosen"]
    found: Num = p["expert"] * s["local"] + p["pair"] * pairs / chip.sms + p["doubling"] * np.log2(1 + s["tokens"])
    return found


def features(s: Shape, chip: Chip, facts: Facts) -> dict[str, Num]:
    """Shape of the layer, tokens an expert, active experts and pairs of this rank."""
    mine = s["tokens"] * s["chosen"] * s["local"] / s["experts"]
    shape = {x: s[x] for x in ("tokens", "hidden", "inter", "chosen", "experts", "local")}
    return {**shape, "each": mine / s["local"], "active": np.minimum(s["local"], np.maximum(1, mine)), "pairs": mine}


def family(s: Shape, facts: Facts) -> Any:
    """Kernel family: what the shape says (a name or an array of them), else the engine's usual one."""
    return s.get("family", facts.get("family", ""))


EXPERTS = Form("experts", PARAMS, parts, features, family)
