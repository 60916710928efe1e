"""GEMM: the fastest of a few tile shapes and split-K counts, each a smooth maximum of matrix waves and memory traffic.

    T = launch + min over (tile, split) [ smax(waves * (mainloop + tile), bytes / bandwidth; overlap) + K latency
        + split ] + output / bandwidth + clock droop + activation quantization

The library's heuristic is taken to choose well: the minimum stands for it. For block-scaled FP8 the tile follows the
published rule of DeepGEMM instead (see ``gemm_blocked``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Param, Params, Parts, Shape, cdiv, smax, waves
from perfmodel.roofline.dequantize import THREADS_PER_CLOCK

Array = NDArray[np.float64]

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))

PARAMS = (
    Param("launch", 2.0e-6, "s", "launch and fixed cost of the kernel"),
    Param("matrix", 0.8, "1", "share of the matrix peak inside a full tile"),
    Param("memory", 0.85, "1", "share of the memory bandwidth"),
    Param("overlap", 2.5, "1", "exponent of the overlap of matrix and memory time (1 none)"),
    Param("tile", 0.8e-6, "s", "prologue and epilogue of one tile"),
    Param("l2", 0.4, "1", "L2-to-SM rate as a share of 64 B a clock"),
    Param("draw", 1.8, "1", "one SM can draw draw/SMs of the memory bandwidth"),
    Param("split", 2.0e-6, "s", "fixed cost of a split-K reduction"),
    Param("wave", 1.0, "1", "odds that a partial last wave costs a whole one"),
    Param("kstep", 0.2e-6, "s", "latency per 1024 of K that a tile walks through"),
    Param(
        "output",
        2.0,
        "1",
        "share of the memory bandwidth for the output written after the products (above 1: mostly hidden)",
    ),
    Param("droop", 0.1, "1", "slow-down of long GEMMs by the power limit"),
    Param("droop_time", 3.0e-3, "s", "time at which half of the droop is reached"),
)
QUANT = (
    Param("quant", 2.0e-6, "s", "start-up of the kernel that quantizes the activations"),
    Param("quant_memory", 0.6, "1", "its share of the memory bandwidth"),
)


def droop(p: Params, t: Num) -> Num:
    """Extra time of a long GEMM whose clock falls to the power limit: ``t droop x/(1+x)``, ``x = t/droop_time``. [s]"""
    x = t / p["droop_time"]
    return t * p["droop"] * x / (1 + x)


def quantization(p: Params, s: Shape, chip: Chip) -> Num:
    """The kernel before an FP8 or FP4 GEMM: reads 16-bit activations, writes narrow ones with their scales. [s]"""
    moved = s["m"] * s["k"] * (2 + s["act_bytes"])
    found: Num = p["quant"] + moved / (chip.bandwidth * p["quant_memory"])
    return found


def candidates(facts: Facts) -> tuple[Array, Array, Array, Array]:
    """Rows, columns and SMs of a tile, and splits of K: all combinations.

    Facts: tiles ``[[rows, columns, SMs = 1], ..]``.
    """
    listed = [(*t, 1)[:3] for t in facts.get("tiles", TILES)]
    table = np.array([(*t, x) for t in listed for x in SPLITS], np.float64)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time of ``[m, k] x [k, n]``. [s]

    Shape: m, n, k; weight_bytes (of the whole matrix), act_bytes, out_bytes an element; math; dequant (instructions a
    weight that unpack it, in every tile of rows anew). Facts: tiles. Valid for 16-bit and narrower GEMMs of 1 to 10^6
    rows; products that unpack their weights were not measured.
    """
    m, n, k = (np.asarray(s[name], np.float64)[..., None] for name in "mnk")
    weights, act = np.asarray(s["weight_bytes"], np.float64)[..., None], s["act_bytes"]
    tm, tn, pair, split = candidates(facts)
    sms, l2 = chip.sms, p["l2"] * chip.l2_per_sm
    tiles = cdiv(m, tm) * cdiv(n, tn) * split * pair
    walk = cdiv(k / split, 64.0) * 64
    rate = chip.peak(s["math"]) / sms * p["matrix"]
    per_k = np.maximum(2 * tm * tn / pair / rate, (tm * act + tn * weights / (n * k)) / pair / l2)
    if "dequant" in s:
        per_k = np.maximum(per_k, tn / pair * s["dequant"] / (THREADS_PER_CLOCK * chip.clock))
    busy = waves(tiles, sms, p["wave"]) * (walk * per_k + p["tile"])
    traffic = weights + m * k * act + m * n * s["out_bytes"]
    stream = traffic / (chip.bandwidth * p["memory"]) / np.minimum(1, tiles / sms * p["draw"])
    reduce = np.where(split > 1, p["split"] + 8 * split * m * n / (l2 * sms), 0.0)
    reduce = np.where((split > 1) & (k / split < 128), np.inf, reduce)
    t = (smax(busy, stream, p["overlap"]) + p["kstep"] * walk / 1024 + reduce).min(-1) + p["launch"]
    t = t + s["m"] * s["n"] * s["out_bytes"] / (chip.bandwidth * p["output"])
    found: Parts = {"launch": p["launch"], "tiles and output": t - p["launch"], "clock droop": droop(p, t)}
    if "quant" in p:
        found["quantization"] = quantization(p, s, chip)
    return found


def features(s: Shape, chip: Chip, facts: Facts) -> dict[str, Num]:
    """Shape of the product, its 128 x 128 tiles an SM, and its intensity in elements."""
    m, n, k = s["m"], s["n"], s["k"]
    tiles = np.ceil(m / 128) * np.ceil(n / 128) / chip.sms
    return {"m": m, "n": n, "k": k, "tiles": tiles, "intensity": 2 * m * n * k / (m * k + n * k + m * n)}


GEMM = Form("gemm", PARAMS, parts, features)
QUANTIZED_GEMM = Form("quantized_gemm", PARAMS + QUANT, parts, features)
