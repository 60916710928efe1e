"""The few numbers of the memory model that no source states: fitted on start-up logs, with what is known about them."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import BaseModel, ConfigDict

from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml
from perfmodel.roofline.engines.rules import DATA

FILE = DATA / "overheads.yaml"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NonTorch(_Frozen):
    """Memory outside PyTorch: at TP 1, at TP 2, and by how much it grows with each doubling beyond. [bytes]"""

    tp1: float
    tp2: float
    doubling: float

    def at(self, tp: int) -> float:
        """The value at a tensor parallelism. [bytes]"""
        return self.tp1 if tp == 1 else self.tp2 + self.doubling * (tp.bit_length() - 2)


class Graphs(_Frozen):
    """Memory of the CUDA graphs of one rank at the default sizes: ``base + per_layer x layers + ...``. [bytes]"""

    base: float
    per_layer: float
    per_moe_layer: float

    def at(self, layers: int, moe_layers: int) -> float:
        """The value for so many layers on the rank, of which so many are mixtures of experts. [bytes]"""
        return self.base + self.per_layer * layers + self.per_moe_layer * moe_layers


class Overheads(_Frozen):
    """What was fitted, on what, and how well it predicts a model that it has not seen.

    Attributes
    ----------
    hidden_copies : float
        Tensors of the hidden size that live beside a layer's widest ones at the peak of the forward pass.
    moe_buffers : float
        What loading a mixture of experts leaves on a rank beyond its tensors. [bytes]
    non_torch, context : NonTorch
        Inside and before the engine's own accounting.
    graphs, graph_estimate : Graphs
        What capture takes, and what the engine estimates it to take.
    intervals : dict
        Half-width of the 80 % interval of each fitted term, from models left out of the fit. [bytes]
    cross_validation : dict
        Errors of the left-out models, as fractions.
    """

    date: str
    version: str
    provenance: str
    rows: int
    hidden_copies: float
    moe_buffers: float
    non_torch: NonTorch
    context: NonTorch
    graphs: Graphs
    graph_estimate: Graphs
    intervals: dict[str, float]
    cross_validation: dict[str, Any]
    residuals: tuple[dict[str, Any], ...] = ()

    def half_width(self, term: str) -> float:
        """Half-width of the 80 % interval of a term. [bytes]"""
        return self.intervals.get(term, 0.0)


@functools.cache
def overheads() -> Overheads:
    """The overheads that ship with the package."""
    return build(Overheads, load_yaml(FILE), FILE.name)
