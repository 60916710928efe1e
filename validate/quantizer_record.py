"""What quantizers lose on a real model, as it was measured: read where PyTorch is not at hand.

``tools/quantizers.py`` measures and writes it; the tests of the quantizers measure anew and compare.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml

FILE = Path(__file__).parent / "quantizers" / "recorded" / "minilm.yaml"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LayerRow(_Frozen):
    """One layer: output errors of GPTQ and AWQ over that of rounding, on calibration inputs and on held-out ones.

    Attributes
    ----------
    layer : str
    bits : int
        Of an asymmetric grid in groups of 128.
    rounding : float
        ``||X (W - Q)^T||^2 / ||X W^T||^2`` of rounding to nearest.
    gptq, awq : tuple[float, float]
        Of that: on calibration inputs, held out.
    salience : float
        Share of the output error that the 1 % of inputs with the most power carry.
    """

    layer: str
    bits: int
    rounding: float
    gptq: tuple[float, float]
    awq: tuple[float, float]
    salience: float


class NoiseRow(_Frozen):
    """One grid over all linear layers: s^2/12 over the measured squared error, and with the spread corrected."""

    grid: str
    plain: float
    corrected: float
    worst_plain: float
    worst_corrected: float


class Record(_Frozen):
    """The measurement."""

    model: str
    source: str
    inputs: str
    layers: tuple[LayerRow, ...]
    noise: tuple[NoiseRow, ...]

    def of(self, bits: int) -> list[LayerRow]:
        """Layers in so many bits."""
        return [row for row in self.layers if row.bits == bits]


@functools.cache
def record() -> Record:
    """The recorded measurement."""
    return build(Record, load_yaml(FILE), FILE)


def gptq_ratio(bits: int, held_out: bool = False, worst: bool = False) -> float:
    """Output error of GPTQ over that of rounding on the same grid: the mean over the layers, or the worst."""
    return _over([row.gptq[held_out] for row in record().of(bits)], worst)


def awq_ratio(bits: int, held_out: bool = False, worst: bool = False) -> float:
    """The same of AWQ."""
    return _over([row.awq[held_out] for row in record().of(bits)], worst)


def mean_salience() -> float:
    """Share of the output error that the top 1 % of inputs carry, over the layers."""
    return _over([row.salience for row in record().of(4)], False)


def noise_ratio(grid: str) -> float:
    """Measured squared error of all weights over s^2/12."""
    return 1 / next(row.plain for row in record().noise if row.grid == grid)


def _over(values: Iterable[float], worst: bool) -> float:
    listed = list(values)
    return max(listed) if worst else sum(listed) / len(listed)
