"""What papers report for attention kernels: use of the peak, training traffic, decode with and without a split.

The figures stand in ``data/attention_published.yaml``, each with its source. They are presets and points of comparison;
no formula of this package is fitted to them.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from perfmodel.base.errors import UnknownName
from perfmodel.base.units import parse
from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml
from perfmodel.hwspecs.schema import Gpu

FILE = Path(__file__).parent / "data" / "attention_published.yaml"

_Bytes = Annotated[float, BeforeValidator(lambda raw: parse(raw, "bytes"))]
_Seconds = Annotated[float, BeforeValidator(lambda raw: parse(raw, "s"))]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Utilisation(_Frozen):
    """Use of the matrix peak that a paper reports. Rate in FLOP/s; share as printed, lowest and highest."""

    kernel: str
    gpu: str
    math: str
    rate: float | None = None
    share: tuple[float, float] | None = None
    scope: str
    source: str

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, raw: dict[str, object]) -> dict[str, object]:
        return {**raw, "rate": parse(raw["rate"], "ops/s")} if "rate" in raw else raw


class TrainingTraffic(_Frozen):
    """HBM traffic of forward and backward of one attention layer that a paper reports. [bytes]"""

    gpu: str
    batch: int
    heads: int
    length: int
    head_dim: int
    standard: _Bytes
    flash: _Bytes
    scope: str
    source: str


class SplitRow(_Frozen):
    """One decode attention call, without and with split keys. [s]"""

    batch: int
    kv: int
    unsplit: _Seconds
    split: _Seconds

    @property
    def speedup(self) -> float:
        """How many times faster the split is. [1]"""
        return self.unsplit / self.split


class DecodeSplit(_Frozen):
    """A published table of decode attention without and with split keys."""

    gpu: str
    heads: int
    kv_heads: int
    head_dim: int
    source: str
    rows: tuple[SplitRow, ...]


class Published(_Frozen):
    """Everything in the file."""

    sources: dict[str, str]
    utilisation: dict[str, Utilisation]
    training_traffic: dict[str, TrainingTraffic]
    decode_split: DecodeSplit


@functools.cache
def published() -> Published:
    """Load the published figures, sources written out.

    >>> published().decode_split.rows[-1].speedup > 43
    True
    """
    data = load_yaml(FILE)
    for entry in [*data["utilisation"].values(), *data["training_traffic"].values(), data["decode_split"]]:
        entry["source"] = data["sources"][entry["source"]]
    return build(Published, data, FILE.name)


def utilisation(name: str) -> Utilisation:
    """Return one preset by name.

    Raises
    ------
    UnknownName
        With near matches.

    >>> utilisation("fa2").share
    (0.5, 0.73)
    """
    presets = published().utilisation
    if name not in presets:
        raise UnknownName("attention preset", name, presets)
    return presets[name]


def share_of_peak(name: str, gpu: Gpu) -> float | None:
    """Share of the dense matrix peak that the reported rate is on a GPU; None where no rate is reported. [1]

    Parameters
    ----------
    name : str
        A preset.
    gpu : Gpu
        The GPU whose peak counts, normally the one that the paper used.
    """
    entry = utilisation(name)
    return None if entry.rate is None else entry.rate / gpu.peak(entry.math)
