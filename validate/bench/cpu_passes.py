"""What passes over activations on a processor, by torch: norm, activation, rope and softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench.case import Case, Inputs, NotRealised, Tensor, draw, pick
from perfmodel.validate.bench.cpu_products import ENGINE
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import WIDTH, title

FORMAT = {4.0: "fp32", 2.0: "bf16"}
#: Columns of a pass whose operator tells only its elements.
COLUMNS = 4096
EPS = 1e-6


@dataclass(frozen=True)
class Pass:
    """How a pass runs, and what it gives in float64.

    Attributes
    ----------
    run, exact : Callable
        Of the inputs: ``streams`` tensors [rows, columns], then one row of gains.
    streams : int
        Tensors that it works on, those that it only writes included.
    """

    run: Callable[[Inputs], Tensor]
    exact: Callable[[Inputs], Tensor]
    streams: int


def columns_of(elements: int, wanted: int | None = None) -> int:
    """Columns of a row: those wanted, else the largest divisor up to 4096.

    >>> columns_of(64 * 4096), columns_of(1000), columns_of(3 * 5120)
    (4096, 1000, 3840)
    """
    if wanted and elements % wanted == 0:
        return wanted
    return next(c for c in range(min(COLUMNS, elements), 0, -1) if elements % c == 0)


def base_name(op: Op) -> str:
    """The pass that an operator is: every norm is one, and so is every activation with a gate."""
    if op.kind == "norm":
        return "norm" if op.inputs["reads"] == 2 and op.inputs["writes"] == 2 else "plain_norm"
    return op.name.removeprefix("shared_").removeprefix("experts_")


def passing(op: Op, columns: int | None = None) -> Case:
    """A norm, activation, rope or softmax over rows of ``columns``."""
    i: Any = op.inputs
    elements, fmt, base = i["elements"], FORMAT.get(float(i["act_bytes"]), ""), base_name(op)
    if not fmt or elements != int(elements) or elements < 1:
        raise NotRealised("a part of an element, or a format that torch does not pass over")
    if base not in PASSES or (base == "activation" and i["reads"] != 2):
        raise NotRealised(f"{op.name} is not among the kernels that are measured")
    wide = columns_of(int(elements), columns)
    rows, chosen = int(elements) // wide, PASSES[base]
    if base == "rope" and wide % 2:
        raise NotRealised("an odd number of columns")

    def make() -> Inputs:
        return (*(draw((rows, wide), fmt) for _ in range(chosen.streams)), draw((wide,), fmt))

    def reference(inputs: Inputs, result: Tensor) -> tuple[Tensor, Tensor]:
        some = pick(rows, 24)
        return result[some].double(), chosen.exact((*(x[some].double() for x in inputs[:-1]), inputs[-1].double()))

    touched = (float(i["reads"]) + float(i["writes"])) * float(elements) * WIDTH[fmt]
    least = 2e-2 if fmt == "bf16" else 2e-5
    name = f"{title(op, fmt)} columns={wide}"
    return Case(name, op, ENGINE, f"torch {base}", fmt, make, chosen.run, reference, touched, least)


def _norm(inputs: Inputs) -> Tensor:
    """Add the residual, keep the sum, normalise it."""
    torch = import_torch()
    x, residual, kept, gain = inputs
    torch.add(x, residual, out=kept)
    return torch.nn.functional.rms_norm(kept, (x.shape[-1],), gain, EPS)


def _norm_exact(inputs: Inputs) -> Tensor:
    x, residual, _, gain = inputs
    return _plain_norm_exact((x + residual, gain))


def _plain_norm(inputs: Inputs) -> Tensor:
    x, gain = inputs
    return import_torch().nn.functional.rms_norm(x, (x.shape[-1],), gain, EPS)


def _plain_norm_exact(inputs: Inputs) -> Tensor:
    x, gain = inputs
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * gain


def _activation(inputs: Inputs) -> Tensor:
    """SwiGLU of a gate and what it gates."""
    gate, up, _ = inputs
    return import_torch().nn.functional.silu(gate).mul_(up)


def _activation_exact(inputs: Inputs) -> Tensor:
    gate, up, _ = inputs
    return gate / (1 + (-gate).exp()) * up


def _rope(inputs: Inputs) -> Tensor:
    """Halves of a row turned by angles whose cosines and sines are the halves of the gains."""
    torch = import_torch()
    x, result, angles = inputs
    half = x.shape[-1] // 2
    cosine, sine, first, second = angles[:half], angles[half:], x[:, :half], x[:, half:]
    torch.mul(first, cosine, out=result[:, :half]).addcmul_(second, sine, value=-1)
    torch.mul(second, cosine, out=result[:, half:]).addcmul_(first, sine)
    return result


def _rope_exact(inputs: Inputs) -> Tensor:
    torch = import_torch()
    x, _, angles = inputs
    half = x.shape[-1] // 2
    first, second, cosine, sine = x[:, :half], x[:, half:], angles[:half], angles[half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _softmax(inputs: Inputs) -> Tensor:
    x, result, _ = inputs
    return import_torch().softmax(x, -1, out=result)


def _softmax_exact(inputs: Inputs) -> Tensor:
    return inputs[0].softmax(-1)


PASSES = {
    "norm": Pass(_norm, _norm_exact, 3), "plain_norm": Pass(_plain_norm, _plain_norm_exact, 1),
    "activation": Pass(_activation, _activation_exact, 2), "rope": Pass(_rope, _rope_exact, 2),
    "softmax": Pass(_softmax, _softmax_exact, 2),
}  # fmt: skip
