"""Block-scaled FP8 GEMM with the tile that DeepGEMM's published rule picks, and the kernel that quantizes activations.

Source of the rule: deepseek-ai/DeepGEMM, ``get_best_configs``: fewest waves, then the fullest last wave, then the
narrower tile.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Param, Params, Parts, Shape, cdiv, smax, waves
from perfmodel.roofline.calibrated.gemm import QUANT, droop, features, quantization

PARAMS = (
    Param("launch", 2.0e-6, "s", "launch and fixed cost of the kernel"),
    Param("matrix", 0.8, "1", "share of the matrix peak inside a full tile"),
    Param("memory", 0.85, "1", "share of the memory bandwidth"),
    Param("overlap", 2.5, "1", "exponent of the overlap of matrix and memory time (1 none)"),
    Param("tile", 0.8e-6, "s", "prologue and epilogue of one tile"),
    Param("l2", 0.5, "1", "L2-to-SM rate as a share of 64 B a clock"),
    Param("draw", 1.8, "1", "one SM can draw draw/SMs of the memory bandwidth"),
    Param("wave", 1.0, "1", "odds that a partial last wave costs a whole one"),
    Param("kstep", 1.0e-6, "s", "least time per 1024 of K that a tile walks through"),
    Param("small", 0.2, "1", "matrix share falls as (tile area / 32768)^small"),
    Param("droop", 0.1, "1", "slow-down of long GEMMs by the power limit"),
    Param("droop_time", 3.0e-3, "s", "time at which half of the droop is reached"),
    Param("output", 1.5, "1", "share of the memory bandwidth for the output that is written after the products"),
    Param("single", 2.3, "1", "slow-down of single-wave launches of the largest tiles (Hopper)"),
    Param("unaligned", 5e-6, "s", "repacking the scales of 4096 rows when the rows are no multiple of 4"),
    *QUANT,
)


def candidates(rule: str) -> list[tuple[int, int]]:
    """Tiles that the rule considers, by generation: ``sm90`` or ``sm100``."""
    if rule == "sm100":
        return [(128, b) for b in range(16, 257, 16)]
    widths = [*range(16, 129, 16), 144, 160, 192]
    return [(a, b) for a in (64, 128, 256) for b in widths if a <= 128 or b <= 128]


def chosen_tile(m: Num, n: Num, sms: float, rule: str) -> tuple[Num, Num]:
    """Rows and columns of the tile that the rule picks.

    >>> [float(x) for x in chosen_tile(4096.0, 4096.0, 132.0, "sm90")]
    [256.0, 128.0]
    """
    rows = cols = np.zeros(np.broadcast(m, n).shape)
    fewest, fullest = np.full_like(rows, np.inf), np.full_like(rows, -1.0)
    for a, b in candidates(rule):
        blocks = cdiv(m, a) * cdiv(n, b)
        rounds = cdiv(blocks, sms)
        last = blocks - (rounds - 1) * sms
        narrower = (
            ((a == rows) & (b < cols)) | ((b == cols) & (a < rows)) | ((a != rows) & (b > cols) & (b <= n) & (a <= m))
        )
        better = (rounds < fewest) | ((rounds == fewest) & ((last > fullest) | ((last == fullest) & narrower)))
        rows, cols = np.where(better, a, rows), np.where(better, b, cols)
        fewest, fullest = np.where(better, rounds, fewest), np.where(better, last, fullest)
    return rows, cols


def slow_tile(m: Num, tm: Num, tn: Num) -> NDArray[np.bool_]:
    """Tiles that run slow in a single wave on Hopper: 24,576 outputs or more, but for those 112 wide or of at most
    192 rows.

    Seen in the measurements of SGLang 0.5.14 (2.1 to 2.9 times slower); the cause is not known.
    """
    return np.asarray((tm * tn >= 24576) & (tn != 112) & (m > 192))


def parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time of ``[m, k] x [k, n]`` with 8-bit inputs. Shape as ``gemm.parts``; facts: rule (sm90, sm100).
    [s]"""
    m, n, k = s["m"], s["n"], s["k"]
    tm, tn = chosen_tile(m, n, chip.sms, facts["rule"])
    tiles = cdiv(m, tm) * cdiv(n, tn)
    walk = cdiv(k, 128.0) * 128
    rate = chip.peak(s["math"]) / chip.sms * p["matrix"] * np.minimum(1, tm * tn / 32768.0) ** p["small"]
    loop = np.maximum(2 * tm * tn * walk / rate, p["kstep"] * walk / 1024)
    if facts["rule"] == "sm90":
        loop = loop * np.where(np.asarray(tiles <= chip.sms) & slow_tile(m, tm, tn), p["single"], 1.0)
    loop = smax(loop, (tm + tn) * walk / (p["l2"] * chip.l2_per_sm), 4.0)
    busy = waves(tiles, chip.sms, p["wave"]) * (loop + p["tile"])
    traffic = s["weight_bytes"] + m * k * s["act_bytes"] + m * n * s["out_bytes"]
    stream = traffic / (chip.bandwidth * p["memory"]) / np.minimum(1, tiles / chip.sms * p["draw"])
    t = p["launch"] + smax(busy, stream, p["overlap"])
    t = t + m * n * s["out_bytes"] / (chip.bandwidth * p["output"])
    return {
        "launch": p["launch"], "tiles and output": t - p["launch"], "clock droop": droop(p, t),
        "quantization": quantization(p, s, chip) + np.where(m % 4 > 0, p["unaligned"] * m / 4096, 0.0),
    }  # fmt: skip


BLOCKED_GEMM = Form("blocked_gemm", PARAMS, parts, features)
