"""Recorded operator times, by kind and format, and what the calibrated times make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.chip import Chip
from perfmodel.roofline.calibrated.kernel import Kernel
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.roofline.measured.look import MODEL_SIZES, TUNED
from perfmodel.roofline.measured.scatter import Scatter

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Measured times of one kind, number format and kernels, on one GPU under one engine.

    Attributes
    ----------
    kind, fmt, gpu, engine, version : str
    table : str
        Name of the file.
    sizes : dict[str, Array]
        As ``look.SIZES`` names them.
    same : dict[str, float]
        As ``look.SAME`` names them.
    shape : dict
        As the form takes it: arrays and words.
    simple : dict[str, Array]
        Arrays of the simple form.
    seconds, bound : Array
        Measured, and the roofline bound. [s]
    """

    kind: str
    fmt: str
    gpu: str
    engine: str
    version: str
    table: str
    sizes: Mapping[str, Array]
    same: Mapping[str, float]
    shape: Mapping[str, Any]
    simple: Mapping[str, Array]
    seconds: Array
    bound: Array

    @property
    def source(self) -> str:
        """Such as ``gemm.csv (h100-sxm under vllm 0.24.0)``."""
        return f"{self.table} ({self.gpu} under {' '.join(filter(None, [self.engine, self.version]))})"

    def harness(self, kernel: Kernel, chip: Chip) -> Num:
        """Calibrated times of the rows as they were measured: each call by itself. [s]

        Of routed experts the physics alone, by the engine's usual kernels, since so it is in a step.
        """
        if kernel.form is SIMPLE:
            return np.maximum(kernel.physics(self.simple, chip), self.bound)
        shape = {name: value for name, value in self.shape.items() if name != "family"}
        if self.kind == "experts":
            return np.maximum(kernel.physics(shape, chip), self.bound)
        return kernel.time(shape, chip, self.bound)


@dataclass(frozen=True)
class Recorded:
    """A table that was read.

    Attributes
    ----------
    name : str
        Of the file.
    rows : tuple[Rows, ...]
        By kind, format, GPU, engine and version.
    skipped : dict[str, int]
        Why rows were not read, and how many.
    notes : tuple[str, ...]
        What to know about the others.
    """

    name: str
    rows: tuple[Rows, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, gpu: str, engine: str) -> tuple[Rows, ...]:
        """The rows of a GPU and an engine (``""``: of the only one).

        Raises
        ------
        UsageError
            When it has none of them, or of several engines and none is named.
        """
        here = [r for r in self.rows if r.gpu == gpu]
        engines = sorted({r.engine for r in here})
        if not here:
            held = ", ".join(sorted({r.gpu for r in self.rows}))
            raise UsageError(f"{self.name} holds times of {held}, none of {gpu}: another GPU's times say nothing")
        if not engine and len(engines) > 1:
            raise UsageError(f"{self.name} holds times of {gpu} under {', '.join(engines)}: choose one by --engine")
        if engine and engine not in engines:
            raise UsageError(f"{self.name} holds times of {gpu} under {', '.join(engines)}, none under {engine}")
        return tuple(r for r in here if r.engine == (engine or engines[0]))


class Page(Scatter):
    """Measured over calibrated times of rows that share their kernels.

    Parameters
    ----------
    rows : sequence of Rows
        Of one kind, format and ``same``.
    kernel : Kernel
        The calibrated one that times are compared with.
    chip : Chip
    """

    def __init__(self, rows: Sequence[Rows], kernel: Kernel, chip: Chip) -> None:
        self.source = ", ".join(dict.fromkeys(r.source for r in rows))
        kind, names = rows[0].kind, tuple(rows[0].sizes)
        points = np.concatenate([np.stack([np.log(r.sizes[n]) for n in names], 1) for r in rows])
        seconds = np.concatenate([r.seconds for r in rows])
        modelled = np.concatenate([np.broadcast_to(r.harness(kernel, chip), r.seconds.shape) for r in rows])
        line = [names.index(n) for n in MODEL_SIZES[kind]]
        super().__init__(points, np.log(seconds / modelled), line, kind in TUNED)
