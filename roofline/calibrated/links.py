"""Collectives inside one scale-up domain: latency and bandwidth under the fastest of three protocols.

    T = launch + hop * steps + min(V / (ll * B), pack + V / (ll128 * B), simple + simple_hop * steps + V / (bus * B))

V are the bytes that one GPU sends, B the one-way bandwidth of its link; a ring takes ``ranks - 1`` steps. The three
protocols are those of NCCL (LL, LL128, Simple; NVIDIA NCCL documentation, ``NCCL_PROTO``). The shares ``ll128`` and
``bus`` are those of eight ranks; fewer ranks have fewer channels and reach ``(ranks/8)^channels`` of them.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Param, Params, Parts, Shape

PARAMS = (
    Param("launch", 6e-6, "s", "launch and kernel start-up"),
    Param("hop", 1e-6, "s", "latency of one step"),
    Param("ll", 0.05, "1", "share of the link that the low-latency protocol reaches"),
    Param("pack", 1.5e-6, "s", "extra start-up of the 128-byte low-latency protocol"),
    Param("ll128", 0.3, "1", "share of the link that it reaches"),
    Param("simple", 25e-6, "s", "extra start-up of the bulk protocol"),
    Param("simple_hop", 0.7e-6, "s", "its extra latency of one step"),
    Param("bus", 0.7, "1", "share of the link that the bulk protocol reaches"),
    Param("channels", 0.2, "1", "how the two shares grow with the ranks, up to eight"),
)


def parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time of a collective. [s]

    Shape: size (bytes of the whole vector), ranks. Facts: op (all_reduce, all_gather, reduce_scatter, alltoall).
    """
    n, op, link = np.asarray(s["ranks"], np.float64), facts["op"], chip.link
    twice = 2.0 if op == "all_reduce" else 1.0
    v = s["size"] * (n - 1) / n * twice
    steps = (np.ones_like(n) if op == "alltoall" else n - 1) * (1 + twice) / 2
    wide = link * (np.minimum(n, 8.0) / 8) ** p["channels"]
    quick = np.minimum(v / (p["ll"] * link), p["pack"] + v / (p["ll128"] * wide))
    bulk = p["simple"] + p["simple_hop"] * steps + v / (p["bus"] * wide)
    return {"launch": p["launch"], "steps": p["hop"] * steps, "wire": np.minimum(quick, bulk)}


def features(s: Shape, chip: Chip, facts: Facts) -> dict[str, Num]:
    """Size and width of the collective."""
    return {"size": s["size"], "ranks": s["ranks"]}


COLLECTIVE = Form("collective", PARAMS, parts, features)
