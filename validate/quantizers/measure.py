"""Quantizers run on a file of weights: the error of every matrix beside what theory expects, matrix by matrix.

Rounding takes rows in blocks, so that memory stays bounded; GPTQ and AWQ, which need calibration inputs, take a whole
matrix and the square of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, log10
from pathlib import Path
from typing import Any

import torch

from perfmodel.base.errors import SpecError, UsageError
from perfmodel.base.text import printable
from perfmodel.modelspecs.formats import Format, weight_format
from perfmodel.validate.quantizers.awq import awq
from perfmodel.validate.quantizers.files import Matrix, Stored, stored
from perfmodel.validate.quantizers.formats import grid_of, round_to
from perfmodel.validate.quantizers.gptq import DAMPING, gptq, hessian
from perfmodel.validate.quantizers.theory import output_error, salience

#: Inputs that are read of each layer; the last quarter is held out.
MOST_ROWS = 8192
HELD_OUT = 4
#: Largest matrix and number of inputs that GPTQ and AWQ take. [weights, inputs]
MOST_WEIGHTS, MOST_INPUTS = 2**28, 16384
FORMATS = 16

METHODS = ("round to nearest", "GPTQ", "AWQ")


@dataclass(frozen=True)
class MatrixError:
    """One matrix in one format by one method.

    Attributes
    ----------
    name : str
    shape : tuple[int, ...]
    format, method : str
    error : float
        ``||W - Q||^2 / ||W||^2``.
    plain, expected : float or None
        ``s^2 / 12`` over the measured squared error, and the same with its corrections: 1 where theory holds. Of
        rounding alone.
    output, held_out : float or None
        ``||X (W - Q)^T||^2 / ||X W^T||^2`` on calibration inputs and on those that no method saw.
    salience : float or None
        Share of the output error that the 1 % of inputs with the most power carry, where all weights err alike.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    method: str
    error: float
    plain: float | None = None
    expected: float | None = None
    output: float | None = None
    held_out: float | None = None
    salience: float | None = None

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise of the weights. [dB]"""
        return -10 * log10(self.error) if self.error else inf

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "name": self.name, "shape": list(self.shape), "format": self.format, "method": self.method,
            "error": self.error, "sqnr_db": self.sqnr_db if self.error else None, "plain_theory": self.plain,
            "theory": self.expected, "output_error": self.output, "held_out_error": self.held_out,
            "salience": self.salience,
        }  # fmt: skip


@dataclass
class Measured:
    """Errors of a file's matrices, what was left out and why, and matrices with fewer calibration rows than inputs."""

    lines: list[MatrixError] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    short: dict[str, tuple[int, int]] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count something that was left out."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def warnings(self) -> list[str]:
        """What makes errors doubtful: GPTQ on fewer calibration rows than a matrix has inputs.

        >>> Measured(short={"q_proj": (300, 384)}).warnings()[0][:63]
        '1 matrix, such as q_proj, with fewer calibration rows (300) tha'
        """
        if not self.short:
            return []
        name, (rows, inputs) = next(iter(self.short.items()))
        matrices = f"{len(self.short):,} {'matrix' if len(self.short) == 1 else 'matrices'}"
        return [
            f"{matrices}, such as {printable(name, 80)}, with fewer calibration rows ({rows:,}) than inputs "
            f"({inputs:,}): GPTQ's Hessian has no inverse but for its damping of {100 * DAMPING:g} %, its errors on "
            "these rows are too good; go by those held out, or give more rows (a quarter of them is held out)"
        ]

    def mean(self, fmt: str, method: str = METHODS[0]) -> float | None:
        """Mean error of a format over the matrices: of outputs where inputs were given, else of weights."""
        found = [line for line in self.lines if line.format == fmt and line.method == method]
        values = [line.error if line.output is None else line.output for line in found]
        return sum(values) / len(values) if values else None


def measure(
    weights: Path | str | Stored, formats: Sequence[str | Format], activations: Path | str | None = None,
    methods: Sequence[str] = METHODS, progress: Callable[[int, int, str], None] | None = None,
) -> Measured:  # fmt: skip
    """Quantize every matrix of a file by every method.

    Parameters
    ----------
    weights : path or Stored
        A ``.safetensors`` file, or a folder of them.
    formats : sequence
        1 to 16 names of formats.
    activations : path, optional
        A file of calibration inputs ``(rows, in)``, under the name of the weight, with or without ``.weight``: then
        GPTQ and AWQ are run on formats of integers, and errors of outputs are measured.
    progress : callable, optional
        Called with weights done, weights in all, and the name of the matrix that comes next.

    Raises
    ------
    SpecError, UsageError, UnknownName
    """
    wanted = [weight_format(f) for f in formats]
    if not 1 <= len(wanted) <= FORMATS:
        raise UsageError(f"{len(wanted)} formats to measure; name 1 to {FORMATS}")
    for fmt in wanted:
        round_to(torch.ones(1, 4096), fmt)  # a format without a quantizer is refused before anything is read
    source = weights if isinstance(weights, Stored) else stored(weights)
    inputs = stored(activations, tables=True) if activations is not None else None
    found = Measured(skipped=dict(source.skipped))
    if not source.matrices:
        raise UsageError(f"no matrix to quantize was found: {_reasons(found.skipped) or 'the file is empty'}")
    if inputs is not None:
        _check_inputs(source, inputs)
    done, total = 0, sum(m.elements for m in source.matrices)
    for matrix in source.matrices:
        if progress is not None:
            progress(done, total, matrix.name)
        x = _inputs(matrix, inputs, found)
        for fmt in wanted:
            try:
                found.lines += list(_matrix(matrix, fmt, x, methods, found))
            except UsageError as error:
                found.skip(f"{fmt.name}: {error}")
        done += matrix.elements
    if progress is not None:
        progress(done, total, "")
    return found


def _check_inputs(source: Stored, inputs: Stored) -> None:
    """Refuse calibration inputs of which none is a matrix's."""
    if not any(_inputs_of(matrix, inputs) for matrix in source.matrices):
        some = f"; it has {printable(inputs.matrices[0].name, 80)} and others" if inputs.matrices else ""
        raise UsageError(
            f"the activations hold inputs of none of the matrices, under names such as "
            f"{printable(source.matrices[0].name, 80)}{some}"
        )


def _inputs_of(matrix: Matrix, inputs: Stored) -> Matrix | None:
    names = (matrix.name, matrix.name.removesuffix(".weight"))
    return next((m for name in names if (m := inputs.find(name)) is not None), None)


def _reasons(skipped: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in skipped.items())


def _inputs(matrix: Matrix, inputs: Stored | None, found: Measured) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Calibration inputs of a matrix, and those held out."""
    if inputs is None:
        return None
    x = _inputs_of(matrix, inputs)
    if x is None:
        found.skip("matrices without calibration inputs: rounded only")
        return None
    if x.columns != matrix.columns:
        raise SpecError(x.path, x.name, f"has rows of {x.columns:,}; {matrix.name} takes {matrix.columns:,} inputs")
    rows = min(x.rows, MOST_ROWS)
    if rows < HELD_OUT:
        raise SpecError(x.path, x.name, f"has {rows} rows; at least {HELD_OUT} are needed, the last quarter held out")
    kept = rows - rows // HELD_OUT
    return x.read(0, kept), x.read(kept, rows)


def _matrix(
    matrix: Matrix, fmt: Format, x: tuple[torch.Tensor, torch.Tensor] | None, methods: Sequence[str], found: Measured
) -> Iterator[MatrixError]:
    grid = grid_of(fmt)
    if grid is not None:
        grid.columns(matrix.columns)
    if METHODS[0] in methods:
        yield _rounded(matrix, fmt, x)
    others = [m for m in methods if m != METHODS[0]]
    if x is None or not others:
        return
    if grid is None:
        return
    if matrix.elements > MOST_WEIGHTS or matrix.columns > MOST_INPUTS:
        found.skip(f"matrices too large for GPTQ and AWQ (over {MOST_WEIGHTS:,} weights or {MOST_INPUTS:,} inputs)")
        return
    if "GPTQ" in others and x[0].shape[0] < matrix.columns:
        found.short[matrix.name] = (x[0].shape[0], matrix.columns)
    w = matrix.read(0, matrix.rows)
    power = float((w**2).sum())
    for method in others:
        q = gptq(w, hessian(x[0]), grid).values() if method == "GPTQ" else awq(w, x[0], grid).values()
        error = float(((w - q) ** 2).sum()) / power if power else 0.0
        yield MatrixError(
            matrix.name, matrix.shape, fmt.name, method, error,
            output=output_error(w, q, x[0]), held_out=output_error(w, q, x[1]), salience=salience(x[0]),
        )  # fmt: skip


def _rounded(matrix: Matrix, fmt: Format, x: tuple[torch.Tensor, torch.Tensor] | None) -> MatrixError:
    """Rounding to nearest, in blocks of rows."""
    top = None
    if fmt.name in ("fp8_tensor", "nvfp4"):  # one scale for all
        top = max(float(w.abs().max()) for w in matrix.blocks())
    noise = power = plain = expected = 0.0
    outputs = [[0.0, 0.0] for _ in x or ()]
    for w in matrix.blocks():
        r = round_to(w, fmt, top)
        off = w - r.values
        noise, power = noise + float((off.double() ** 2).sum()), power + float((w.double() ** 2).sum())
        plain += float(r.variance.double().expand_as(w).sum())
        expected += float(r.expected.double().expand_as(w).sum())
        for sums, inputs in zip(outputs, x or (), strict=True):
            sums[0] += float(((inputs @ off.T) ** 2).sum())
            sums[1] += float(((inputs @ w.T) ** 2).sum())
    seen, held_out = [a / b if b else 0.0 for a, b in outputs] or (None, None)
    return MatrixError(
        matrix.name, matrix.shape, fmt.name, METHODS[0], noise / power if power else 0.0,
        plain / noise if noise and plain else None, expected / noise if noise and plain else None, seen, held_out,
        salience(x[0]) if x else None,
    )  # fmt: skip
