"""The form that transfers: a floor, a share of the arithmetic peak, a share of the bandwidth, a smooth maximum.

    T = launch + smax(flops / (matrix * peak), bytes / (memory * bandwidth); overlap)

For norms and elementwise kernels, and for GPUs and engines without data. A device's own fit may have other numbers for
products of one row: those are matrix-vector products, of which libraries have kernels of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.form import Facts, Form, Param, Params, Parts, Shape, smax

#: Family of the products of one row.
ONE_ROW = "one row"
PARAMS = (
    Param("launch", 8e-6, "s", "launch and fixed cost"),
    Param("matrix", 0.6, "1", "share of the arithmetic peak"),
    Param("memory", 0.7, "1", "share of the memory bandwidth"),
    Param("overlap", 2.0, "1", "exponent of the overlap"),
)


def parts(p: Params, s: Shape, chip: Chip, facts: Facts) -> Parts:
    """Parts of the time. Shape: compute [s] and stream [s] at the datasheet's rates (from an operator's cost). [s]"""
    t = smax(s["compute"] / p["matrix"], s["stream"] / p["memory"], p["overlap"])
    return {"launch": p["launch"], "work": t}


def features(s: Shape, chip: Chip, facts: Facts) -> dict[str, Num]:
    """The two times at the datasheet's rates."""
    return {"compute": s["compute"], "stream": s["stream"]}


def family(s: Shape, facts: Facts) -> Any:
    """``ONE_ROW`` where the rows ``m`` of a product are one, else ``""``."""
    return np.where(np.asarray(s.get("m", 0.0)) == 1, ONE_ROW, "")


SIMPLE = Form("simple", PARAMS, parts, features, family)
