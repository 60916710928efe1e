"""How long a cost takes at the least: the roofline bound, and which resource sets it.

Each resource (matrix units, vector units, special-function units, schedulers, device memory, links) is taken at its
datasheet rate, and all overlap perfectly: ``bound = max over resources of work / rate``. A prediction below it is a
bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.num import Num
from perfmodel.hwspecs.schema import Gpu, Math
from perfmodel.roofline.cost import EXP, ISSUE, VECTOR, Cost
from perfmodel.roofline.dequantize import issue_rate
from perfmodel.roofline.topology import Topology

HBM = "hbm"


@dataclass(frozen=True)
class OpTime:
    """Time of an operator or a step. [s]

    Attributes
    ----------
    bound : Num
        Never below this.
    predicted, low, high : Num
        The prediction and its 80 % interval. At bound fidelity the prediction is the bound and nothing limits it
        above: high is infinite.
    limiter : str
        The resource that sets the bound (of the first element, for arrays).
    source : str
        Fidelity: ``bound``, ``calibrated`` or ``measured``.
    """

    bound: Num
    predicted: Num
    low: Num
    high: Num
    limiter: str
    source: str = "bound"


class Rates:
    """Rates of one GPU on its links, by resource."""

    def __init__(self, gpu: Gpu, topology: Topology | None = None) -> None:
        self.gpu, self.topology = gpu, topology or Topology()
        self._vector, self._issue = _vector_peak(gpu), issue_rate(gpu)

    def rate(self, resource: str) -> float | None:
        """Work per second of a resource; ``None`` where the spec does not say (it then limits nothing)."""
        if resource.startswith("matrix:"):
            return self.gpu.peak(resource.removeprefix("matrix:"))
        if resource == VECTOR:
            return self._vector
        if resource == EXP:
            return self.gpu.compute.exp.value if self.gpu.compute.exp else None
        if resource == ISSUE:
            return self._issue
        if resource == HBM:
            return self.gpu.bandwidth
        return self.topology.link_bandwidth(resource)

    def terms(self, cost: Cost) -> dict[str, Num]:
        """Seconds that each resource needs for a cost; the formats of the matrix units share them and add up."""
        work: dict[str, Any] = {**cost.ops, HBM: cost.bytes, **cost.comm}
        found: dict[str, Num] = {}
        for resource, amount in work.items():
            rate = self.rate(resource)
            if rate is None:
                continue
            name = "matrix" if resource.startswith("matrix:") else resource
            found[name] = found.get(name, 0.0) + amount / rate
        return found

    def bound(self, cost: Cost) -> Num:
        """The roofline bound: the longest of ``terms``. [s]"""
        longest: Num = 0.0
        for seconds in self.terms(cost).values():
            longest = np.maximum(longest, seconds)
        return longest

    def limiter(self, cost: Cost) -> str:
        """The resource that needs longest (the mean over an array)."""
        terms = {name: float(np.mean(seconds)) for name, seconds in self.terms(cost).items()}
        name = max(terms, key=lambda key: terms[key])
        if name != "matrix":
            return name
        formats = {k: float(np.mean(v)) for k, v in cost.ops.items() if k.startswith("matrix:")}
        return max(formats, key=lambda key: formats[key])

    def time(self, cost: Cost) -> OpTime:
        """The bound as an ``OpTime``."""
        bound = self.bound(cost)
        return OpTime(bound, bound, bound, bound * 0.0 + np.inf, self.limiter(cost))


def _vector_peak(gpu: Gpu) -> float | None:
    vector = gpu.compute.vector
    order: tuple[Math, ...] = ("fp32", "fp16")
    for math in order:
        if math in vector:
            return vector[math].value
    return None
