"""What passes over activations by our Triton kernels: norm, activation, rope with its cache write, quantization."""

from __future__ import annotations

from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench import own_calls as calls
from perfmodel.validate.bench.case import Case, Inputs, NotRealised, Tensor, clone, draw, pick
from perfmodel.validate.bench.cpu_passes import base_name, columns_of
from perfmodel.validate.bench.cuda_products import ENGINE
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import title
from perfmodel.validate.bench.own_calls import Operands

#: Formats by bytes of an element.
FORMAT = {2.0: "bf16"}
#: Columns of a head that is turned, and heads of a row that are tried.
HEAD, HEADS = 128, (40, 36, 32, 24, 16, 12, 8, 4, 2)
#: Rounding of values that stand for themselves, not for sums.
LOOSE = 2e-2


def passing(op: Op, columns: int | None, device: str) -> Case:
    """The kernel of a pass."""
    i: Any = op.inputs
    fmt, base = FORMAT.get(float(i["act_bytes"]), ""), base_name(op)
    makers = {
        "norm": norm, "plain_norm": norm, "activation": activation, "rope": rope, "quantize": quantize,
    }  # fmt: skip
    if not fmt or base not in makers or float(i["elements"]) % 1 or (base == "activation" and i["reads"] != 2):
        raise NotRealised(f"{op.name} is not among our kernels")
    elements = int(i["elements"])
    wide = columns_of(elements, HEAD if base == "rope" else columns)
    made: Case = makers[base](op, elements // wide, wide, fmt, device)
    return made


def _case(op: Op, columns: int, source: str, fmt: str, *rest: Any, **more: Any) -> Case:
    return Case(f"{title(op, fmt)} columns={columns}", op, ENGINE, source, fmt, *rest, **more)


def norm(op: Op, rows: int, columns: int, fmt: str, device: str) -> Case:
    """RMS norm, with the residual added in the same pass where the operator reads two streams."""
    from perfmodel.kernels.support.norm import rms_norm

    both = op.inputs["reads"] == 2

    def make() -> Inputs:
        count = 2 if both else 1
        return Operands((*(draw((rows, columns), fmt, device) for _ in range(count)), draw((columns,), fmt, device)))

    def run(x: Operands) -> Tensor:
        first, *residual, weight = x.args
        return rms_norm(first, weight, calls.EPS, *residual)[0]

    def reference(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        *streams, weight = x.args
        some = pick(rows, 24).to(weight.device)
        h = sum(one[some].double() for one in streams)
        exact = h / (h.square().mean(-1, keepdim=True) + calls.EPS).sqrt() * weight.double()
        return result[some].double(), exact

    def theirs(x: Operands) -> Tensor:
        *streams, weight = x.args
        h = streams[0] + streams[1] if both else streams[0]
        return import_torch().nn.functional.rms_norm(h, (columns,), weight, calls.EPS)

    touched = (4.0 if both else 2.0) * rows * columns * 2
    return _case(op, columns, "rms_norm", fmt, make, run, reference, touched, LOOSE, {"torch rms_norm": theirs})


def activation(op: Op, rows: int, columns: int, fmt: str, device: str) -> Case:
    """SwiGLU; gate and up lie side by side."""
    ours, sizes = calls.swiglu_ours(fmt), {"rows": rows, "columns": columns}
    return _case(
        op, columns, "swiglu", fmt, lambda: calls.swiglu_make(sizes, fmt, device), lambda x: ours(*x.args),
        calls.swiglu_exact, 6.0 * rows * columns, LOOSE, {"torch silu * up": calls.swiglu_theirs},
    )  # fmt: skip


def rope(op: Op, vectors: int, columns: int, fmt: str, device: str) -> Case:
    """Queries and keys of all rows turned in place; the vectors of a row are shared out over query and key heads."""
    from perfmodel.kernels.support.rope import rope_and_cache, rotary_table, rotate_reference

    if columns != HEAD:
        raise NotRealised(f"heads of {columns} columns are not measured")
    heads = next((h for h in HEADS if vectors % h == 0), 0)
    if not heads:
        raise NotRealised("an odd number of heads")
    tokens, keys = vectors // heads, max(heads // 5, 1)
    torch = import_torch()

    def make() -> Inputs:
        q, k = draw((tokens, heads - keys, HEAD), fmt, device), draw((tokens, keys, HEAD), fmt, device)
        table = rotary_table(max(tokens, 2), HEAD).to(device)
        return Operands((q, k, torch.randperm(tokens).to(device), table))

    def run(x: Operands) -> Tensor:
        q, k, positions, table = x.args
        rope_and_cache(q, k, None, table, positions)
        return q

    def trial(x: Operands) -> Tensor:
        return run(clone(x))

    def reference(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        return result.double(), rotate_reference(x.args[0], x.args[3], x.args[2])

    touched = 2.0 * vectors * HEAD * 2
    return _case(op, columns, "rope_and_cache", fmt, make, run, reference, touched, LOOSE, trial=trial)


def quantize(op: Op, rows: int, columns: int, fmt: str, device: str) -> Case:
    """Activations to int8 with a scale a row, as before a product."""
    from perfmodel.kernels.support.quantize import quantize_rows, quantize_rows_reference

    torch = import_torch()

    def make() -> Inputs:
        return Operands((draw((rows, columns), fmt, device),))

    def run(x: Operands) -> Tensor:
        return quantize_rows(x.args[0], torch.int8)[0]

    def reference(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        some = pick(rows, 64).to(result.device)
        return result[some].double(), quantize_rows_reference(x.args[0][some], torch.int8)[0].double()

    return _case(op, columns, "quantize_rows", fmt, make, run, reference, 3.0 * rows * columns)
