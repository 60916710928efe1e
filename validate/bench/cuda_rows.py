"""Verification of drafts by our Triton kernels (rejection sampling, argmax, log-sum-exp), and 8-bit cache writes."""

from __future__ import annotations

from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench.case import Case, Inputs, NotRealised, Tensor, draw
from perfmodel.validate.bench.cpu_rows import DRAFTS, judged
from perfmodel.validate.bench.cuda_passes import FORMAT, HEAD
from perfmodel.validate.bench.cuda_products import ENGINE
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import WIDTH, title
from perfmodel.validate.bench.own_calls import Operands

#: Tokens of a page of the cache, and pages.
PAGE, PAGES = 16, 2048


def sampling(op: Op, device: str) -> Case:
    """The verification that an operator names."""
    i: Any = op.inputs
    rows, vocab, fmt = int(i["rows"]), int(i["vocab"]), FORMAT.get(float(i["act_bytes"]), "")
    makers = {"rejection": rejection, "greedy": greedy, "logsumexp": logsumexp}
    if op.name not in makers or not fmt:
        raise NotRealised("our kernels verify drafts; they sample no plain token")
    return makers[op.name](op, rows, vocab, fmt, device)


def rejection(op: Op, rows: int, vocab: int, fmt: str, device: str) -> Case:
    """Rejection sampling of a chain of four drafts a request."""
    from perfmodel.kernels.speculative.chain import verify_chain

    if rows % (2 * DRAFTS + 1):
        raise NotRealised(f"rejection sampling is measured with {DRAFTS} drafts a request")
    torch, batch = import_torch(), rows // (2 * DRAFTS + 1)

    def make() -> Inputs:
        target, draft = draw((batch, DRAFTS + 1, vocab), fmt, device), draw((batch, DRAFTS, vocab), fmt, device)
        drafted = torch.softmax(draft.float(), -1).view(-1, vocab).multinomial(1).view(batch, DRAFTS).to(torch.int32)
        lengths = torch.full((batch,), DRAFTS, dtype=torch.int32, device=device)
        chances = torch.rand(batch, DRAFTS, device=device), torch.rand(batch, device=device)
        return Operands((target, draft, drafted, lengths, *chances, torch.ones(batch, device=device)))

    def run(x: Operands) -> Tensor:
        return verify_chain(*x.args)[0]

    def reference(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        target, draft, drafted, _, uniforms, last, _ = x.args
        accepted = (result >= 0).sum(1) - 1
        after = result.gather(1, accepted[:, None])[:, 0]
        return judged((target, draft, drafted.long(), uniforms, last[:, None]), torch.stack([accepted, after], 1))

    return Case(
        title(op, fmt), op, ENGINE, "verify_chain", fmt, make, run, reference, rows * vocab * WIDTH[fmt], 1e-3
    )  # fmt: skip


def greedy(op: Op, rows: int, vocab: int, fmt: str, device: str) -> Case:
    """Argmax verification of a chain of four drafts a request."""
    from perfmodel.kernels.speculative.greedy import verify_greedy, verify_greedy_reference

    if rows % (DRAFTS + 1):
        raise NotRealised(f"greedy verification is measured with {DRAFTS} drafts a request")
    torch, batch = import_torch(), rows // (DRAFTS + 1)

    def make() -> Inputs:
        target = draw((batch, DRAFTS + 1, vocab), fmt, device)
        drafted = target[:, :-1].argmax(-1).to(torch.int32)  # so that the walk goes to the end
        return Operands((target, drafted, torch.full((batch,), DRAFTS, dtype=torch.int32, device=device)))

    def run(x: Operands) -> Tensor:
        return verify_greedy(*x.args)[0]

    def reference(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        return result.double(), verify_greedy_reference(*x.args)[0].double()

    return Case(
        title(op, fmt), op, ENGINE, "verify_greedy", fmt, make, run, reference, rows * vocab * WIDTH[fmt], 1e-9
    )  # fmt: skip


def logsumexp(op: Op, rows: int, vocab: int, fmt: str, device: str) -> Case:
    """The pass over the vocabulary by itself, beside torch's."""
    from perfmodel.kernels.speculative.rows import logsumexp_rows

    torch = import_torch()

    def make() -> Inputs:
        return Operands((draw((rows, vocab), fmt, device), torch.ones(rows, device=device)))

    def run(x: Operands) -> Tensor:
        return logsumexp_rows(*x.args)

    def theirs(x: Operands) -> Tensor:
        return torch.logsumexp(x.args[0].float(), -1)

    def reference(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        return result.double(), torch.logsumexp(x.args[0].double(), -1)

    return Case(
        title(op, fmt), op, ENGINE, "logsumexp_rows", fmt, make, run, reference, rows * vocab * WIDTH[fmt], 1e-4,
        {"torch logsumexp": theirs},
    )  # fmt: skip


def kv_write(op: Op, device: str) -> Case:
    """Keys and values coded to int8 as they are written to their slots; the rope kernel writes 16-bit caches."""
    from perfmodel.kernels.support.kv_quantize import quantize_kv, quantize_kv_reference

    i: Any = op.inputs
    tokens, elements, fmt = int(i["tokens"]), int(i["elements"]), FORMAT.get(float(i["act_bytes"]), "")
    if not fmt or i["kv_bytes"] != 1:
        raise NotRealised("a 16-bit cache is written by the rope kernel")
    heads = elements // (2 * HEAD)
    if heads * 2 * HEAD != elements or tokens > PAGE * PAGES:
        raise NotRealised(f"keys and values of heads of {HEAD} columns are measured")
    torch = import_torch()

    def make() -> Inputs:
        k, v = (draw((tokens, heads, HEAD), fmt, device) for _ in "kv")
        slots = torch.randperm(PAGE * PAGES)[:tokens].to(device)
        caches = [torch.zeros((PAGES, PAGE, heads, HEAD), dtype=torch.int8, device=device) for _ in "kv"]
        scales = [torch.ones((PAGES, PAGE, heads), device=device) for _ in "kv"]
        return Operands((k, v, slots, *caches, *scales))

    def run(x: Operands) -> Tensor:
        quantize_kv(*x.args)
        return x.args[3]

    def reference(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        exact = quantize_kv_reference(x.args[0], torch.int8)[0]
        return result.view(-1, heads, HEAD)[x.args[2]].double(), exact.double()

    touched = 2.0 * PAGES * PAGE * heads * HEAD
    return Case(title(op, fmt), op, ENGINE, "quantize_kv", fmt, make, run, reference, touched)
