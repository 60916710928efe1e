"""Collectives inside one scale-up domain: latency and bandwidth with a protocol switch.

    T = launch + hop * steps + min(V / (ll * B), simple + V / (bus * B))

V are the bytes that one GPU sends, B the one-way bandwidth of its link.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Param, Params, Parts, Shape

PARAMS = (
    Param("launch", 4e-6, "s", "launch and kernel start-up"),
    Param("hop", 1e-6, "s", "latency of one ring step"),
    Param("ll", 0.35, "1", "share of the link that the low-latency protocols reach"),
    Param("simple", 6e-6, "s", "extra start-up of the bulk protocol"),
    Param("bus", 0.75, "1", "share of the link that the bulk protocol reaches"),
)


def parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time of a collective. Shape: size [bytes], ranks. Facts: op. [s]"""
    n, op = s["ranks"], facts["op"]
    v = s["size"] * (n - 1) / n * (2 if op == "all_reduce" else 1)
    steps = (np.ones_like(n) if op == "alltoall" else n - 1) * (1.5 if op == "all_reduce" else 1)
    wire = np.minimum(v / (p["ll"] * chip.link), p["simple"] + v / (p["bus"] * chip.link))
    return {"launch": p["launch"], "steps": p["hop"] * steps, "wire": wire}


def features(s: Shape, chip: Chip, facts: Facts) -> dict[str, Num]:
    """Size and width of the collective."""
    return {"size": s["size"], "ranks": s["ranks"]}


COLLECTIVE = Form("collective", PARAMS, parts, features)
