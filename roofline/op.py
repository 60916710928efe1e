"""An operator of the graph: a formula with its inputs, and how often it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfmodel.base.num import Num
from perfmodel.base.trace import Traced
from perfmodel.roofline.cost import Cost

Input = Num | str | None

#: Kinds whose time is weights against FLOPs: the linear layers.
LINEAR_KINDS = ("gemm", "grouped_gemm", "gemm_per_head")

#: Kinds that multiply queries with keys.
SCORE_KINDS = ("attention", "mla")


@dataclass(frozen=True, eq=False)
class Op:
    """One operator of a distinct layer class.

    Attributes
    ----------
    name : str
        What it is called in tables, such as ``qkv_proj``.
    kind : str
        ``gemm``, ``grouped_gemm``, ``attention``, ``norm``, ``elementwise``, ``embedding``, ``collective``, ...
    layer : str
        Layer class (``attention/ffn``), or ``""`` outside the layers.
    count : float
        How many times it runs in the step.
    formula : Callable[..., Cost]
        The cost of one run.
    inputs : Mapping[str, Input]
        Its arguments.
    """

    name: str
    kind: str
    layer: str
    count: float
    formula: Callable[..., Cost]
    inputs: Mapping[str, Input]

    @functools.cached_property
    def unit_cost(self) -> Cost:
        """Cost of one run on one rank."""
        return self.formula(**self.inputs)

    def cost(self) -> Cost:
        """Cost of all ``count`` runs on one rank."""
        return self.unit_cost * self.count

    def traced_cost(self) -> Cost:
        """Cost of one run with every number remembering its formula. Scalars only."""
        return self.formula(**{name: _traced(name, value) for name, value in self.inputs.items()})


def _traced(name: str, value: Input) -> Traced | str | None:
    if value is None or isinstance(value, str):
        return value
    return Traced.named(name, float(value))
