"""Matrix products on a processor by torch: dense, int8, and those of routed experts."""

from __future__ import annotations

import itertools
from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench.case import Case, Inputs, NotRealised, Tensor, draw, pick, torch_type
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import WIDTH, title

ENGINE = "torch-cpu"
#: Share by which stored weights may differ from plain ones: scales and biases.
SLACK = 0.03


def gemm(op: Op) -> Case:
    """``torch.mm`` with weights laid out as in ``torch.nn.Linear``; ``torch._int_mm`` in int8."""
    i: Any = op.inputs
    m, n, k, fmt = int(i["m"]), int(i["n"]), int(i["k"]), str(i["math"])
    if fmt not in ("fp32", "bf16", "fp16", "int8"):
        raise NotRealised(f"torch on a processor has no product in {fmt}")
    if abs(float(i["weight_bytes"]) / (n * k * WIDTH[fmt]) - 1) > SLACK:
        raise NotRealised("weights are stored in another format than they are multiplied in")
    torch = import_torch()
    out = torch.int32 if fmt == "int8" else torch_type(fmt)
    product = torch._int_mm if fmt == "int8" else torch.mm

    def make() -> Inputs:
        return draw((m, k), fmt), draw((n, k), fmt), torch.empty((m, n), dtype=out)

    def run(inputs: Inputs) -> Tensor:
        a, w, result = inputs
        return product(a, w.t(), out=result)

    touched = (m * k + n * k) * WIDTH[fmt] + m * n * out.itemsize
    source = "torch._int_mm" if fmt == "int8" else "torch.mm"
    exact = 1e-12 if fmt == "int8" else 0.0  # sums of whole numbers
    return Case(title(op, fmt), op, ENGINE, source, fmt, make, run, product_reference, touched, exact)


def product_reference(inputs: Inputs, result: Tensor) -> tuple[Tensor, Tensor]:
    """Some rows and columns of ``a w^T``."""
    a, w = inputs[:2]
    rows, columns = pick(a.shape[0], 48), pick(w.shape[0], 48)
    return result[rows][:, columns].double(), a[rows].double() @ w[columns].double().t()


def per_head(op: Op) -> Case:
    """One small product a head: ``torch.bmm``."""
    i: Any = op.inputs
    m, heads, n, k, fmt = int(i["m"]), int(i["heads"]), int(i["n"]), int(i["k"]), str(i["math"])
    if fmt not in ("fp32", "bf16", "fp16"):
        raise NotRealised(f"torch on a processor has no batched product in {fmt}")
    torch = import_torch()

    def make() -> Inputs:
        return draw((heads, m, k), fmt), draw((heads, k, n), fmt), torch.empty((heads, m, n), dtype=torch_type(fmt))

    def run(inputs: Inputs) -> Tensor:
        return torch.bmm(inputs[0], inputs[1], out=inputs[2])

    def reference(inputs: Inputs, result: Tensor) -> tuple[Tensor, Tensor]:
        some = pick(heads, 4)
        return result[some].double(), inputs[0][some].double() @ inputs[1][some].double()

    touched = heads * (m * k + k * n + m * n) * WIDTH[fmt]
    return Case(title(op, fmt), op, ENGINE, "torch.bmm", fmt, make, run, reference, touched)


def choices(tokens: int, experts: int, chosen: int) -> Tensor:
    """Experts that each token chooses, without repetition and alike: [tokens, chosen]."""
    torch = import_torch()
    return torch.rand((tokens, experts)).argsort(dim=1)[:, :chosen]


def grouped(op: Op) -> Case:
    """One product of routed experts over rows sorted by expert: ``grouped_mm``, or a product an expert without it."""
    i: Any = op.inputs
    tokens, n, k, fmt = int(i["tokens"]), int(i["n"]), int(i["k"]), str(i["math"])
    experts, chosen = int(i["experts"]), int(i["chosen"])
    if i["local"] != i["experts"]:
        raise NotRealised("experts are spread over several devices")
    if fmt not in ("fp32", "bf16", "fp16"):
        raise NotRealised(f"torch on a processor has no grouped product in {fmt}")
    torch = import_torch()
    grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) if fmt == "bf16" else None

    def make() -> Inputs:
        counts = torch.bincount(choices(tokens, experts, chosen).reshape(-1), minlength=experts)
        return draw((tokens * chosen, k), fmt), draw((experts, n, k), fmt), counts.cumsum(0).to(torch.int32)

    def run(inputs: Inputs) -> Tensor:
        x, w, ends = inputs
        return grouped_mm(x, w.transpose(1, 2), offs=ends) if grouped_mm is not None else _one_by_one(x, w, ends)

    def reference(inputs: Inputs, result: Tensor) -> tuple[Tensor, Tensor]:
        x, w, ends = inputs
        rows = pick(x.shape[0], 32)
        expert = torch.searchsorted(ends.long(), rows, right=True)
        expected = torch.stack([w[e].double() @ x[r].double() for r, e in zip(rows, expert, strict=True)])
        return result[rows].double(), expected

    touched = (tokens * chosen * (k + n) + experts * n * k) * WIDTH[fmt]
    source = "torch.nn.functional.grouped_mm" if grouped_mm is not None else "torch.mm, one an expert"
    return Case(title(op, fmt), op, ENGINE, source, fmt, make, run, reference, touched)


def _one_by_one(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    torch = import_torch()
    bounds = [0, *ends.tolist()]
    parts = [x[a:b] @ w[e].t() for e, (a, b) in enumerate(itertools.pairwise(bounds)) if b > a]
    return torch.cat(parts)
