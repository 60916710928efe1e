"""How the operations of a user's kernel are drawn, checked in float64, and done by a library and by our kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench import operators
from perfmodel.validate.bench.case import Tensor, draw, pick
from perfmodel.validate.bench.cpu_attention import sampled
from perfmodel.validate.bench.machine import import_torch

#: Sizes of a call by name.
Numbers = Mapping[str, int]
#: A kernel: it takes the tensors of a call and gives the one that is checked.
Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Operands:
    """Tensors of a call.

    Attributes
    ----------
    args : tuple
        What the user's function is given.
    more : tuple
        What only a library needs: keys and values in order, without pages.
    """

    args: tuple[Tensor, ...]
    more: tuple[Tensor, ...] = ()


def doubles(x: Tensor, at: Tensor) -> Tensor:
    """Some rows in float64; not every version of torch takes rows of 8-bit floats."""
    torch = import_torch()
    if x.dtype.is_floating_point and x.dtype.itemsize == 1:
        return x.view(torch.uint8)[at].view(x.dtype).float().double()
    return x[at].double()


# Products: a b^T, in 8-bit formats times scales


def product_make(s: Numbers, fmt: str, device: str) -> Operands:
    """Operands of a product: normal numbers, whole ones in int8; scales by row and column in int8, one in fp8."""
    torch = import_torch()
    a, b = draw((s["m"], s["k"]), fmt, device), draw((s["n"], s["k"]), fmt, device)
    if fmt not in ("int8", "fp8"):
        return Operands((a, b))
    rows, columns = (s["m"], s["n"]) if fmt == "int8" else (1, 1)
    scales = (torch.rand(count, device=device) * 1e-2 + 1e-3 for count in (rows, columns))
    return Operands((a, b, *scales))


def product_exact(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
    """Some rows and columns."""
    a, b, *scales = x.args
    rows, columns = pick(a.shape[0], 48).to(a.device), pick(b.shape[0], 48).to(a.device)
    exact = doubles(a, rows) @ doubles(b, columns).t()
    if scales:
        left, right = (one.double().reshape(-1) for one in scales)
        exact = exact * (left if len(left) == 1 else left[rows])[:, None]
        exact = exact * (right if len(right) == 1 else right[columns])
    return result[rows][:, columns].double(), exact


def product_theirs(x: Operands) -> Tensor:
    """The library's product."""
    torch = import_torch()
    a, b, *scales = x.args
    if not scales:
        return torch.mm(a, b.t())
    if a.dtype == torch.int8:
        return (torch._int_mm(a, b.t()).float() * scales[0][:, None] * scales[1]).to(torch.bfloat16)
    return torch._scaled_mm(a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)


def product_ours(fmt: str) -> Call:
    """Our kernel of a format."""
    from perfmodel.kernels.gemm.dense import gemm_dense
    from perfmodel.kernels.gemm.fp8 import gemm_fp8
    from perfmodel.kernels.gemm.int8 import gemm_w8a8

    return {"int8": gemm_w8a8, "fp8": gemm_fp8}.get(fmt, gemm_dense)


# Attention


def prefill_make(s: Numbers, fmt: str, device: str) -> Operands:
    """Queries, keys and values token by token."""
    shapes = ((s["batch"], s["tokens"], heads, s["dim"]) for heads in (s["heads"], s["kv_heads"], s["kv_heads"]))
    return Operands(tuple(draw(shape, fmt, device) for shape in shapes))


def swapped(x: Tensor) -> Tensor:
    """Heads before tokens."""
    return x.transpose(1, 2)


def prefill_exact(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
    """Some queries' results."""
    return sampled(tuple(map(swapped, x.args)), swapped(result))


def prefill_theirs(x: Operands) -> Tensor:
    """``scaled_dot_product_attention``, causal."""
    call = import_torch().nn.functional.scaled_dot_product_attention
    return swapped(call(*map(swapped, x.args), is_causal=True, enable_gqa=True))


def prefill_ours(fmt: str) -> Call:
    """Our kernel."""
    from perfmodel.kernels.attention.prefill import prefill_attention

    return lambda q, k, v: prefill_attention(q, k, v)[0]


def paged(s: Numbers, device: str) -> tuple[int, Tensor, Tensor]:
    """Pages of a sequence, the shuffled table of them, and the lengths."""
    torch = import_torch()
    each = -(-s["context"] // s["page"])
    table = torch.randperm(s["batch"] * each).view(s["batch"], each).to(torch.int32).to(device)
    return each, table, torch.full((s["batch"],), s["context"], dtype=torch.int32, device=device)


def in_order(cache: Tensor, table: Tensor, tokens: int) -> Tensor:
    """A cache without its pages: [sequences, tokens, ...]."""
    return cache[table.long()].flatten(1, 2)[:, :tokens].contiguous()


def decode_make(s: Numbers, fmt: str, device: str) -> Operands:
    """One query a sequence; keys and values in shuffled pages, and the same in order."""
    each, table, lengths = paged(s, device)
    shape = (s["batch"] * each, s["page"], s["kv_heads"], s["dim"])
    k, v = draw(shape, fmt, device), draw(shape, fmt, device)
    q = draw((s["batch"], 1, s["heads"], s["dim"]), fmt, device)
    return Operands((q, k, v, table, lengths), tuple(in_order(x, table, s["context"]) for x in (k, v)))


def decode_exact(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
    """Some heads' results."""
    q, (k, v) = x.args[0], x.more
    return sampled(tuple(map(swapped, (q, k, v))), swapped(result))


def decode_theirs(x: Operands) -> Tensor:
    """``scaled_dot_product_attention`` on keys and values without pages."""
    call = import_torch().nn.functional.scaled_dot_product_attention
    return swapped(call(*map(swapped, (x.args[0], *x.more)), enable_gqa=True))


def decode_ours(fmt: str) -> Call:
    """Our kernel."""
    from perfmodel.kernels.attention.decode import paged_decode
    from perfmodel.kernels.attention.paged_launch import Paged

    return lambda q, k, v, table, lengths: paged_decode(q, Paged(k, v, table, lengths))[0]


#: Columns of a latent vector and of its rotary part, and what scores are multiplied by (DeepSeek-V3's head).
LATENT, ROTARY, LATENT_SCALE = 512, 64, 1 / math.sqrt(192)


def latent_make(s: Numbers, fmt: str, device: str) -> Operands:
    """One query a sequence, latent vectors in shuffled pages, and the same in order."""
    each, table, lengths = paged(s, device)
    cache = draw((s["batch"] * each, s["page"], LATENT + ROTARY), fmt, device)
    q = draw((s["batch"], 1, s["heads"], LATENT + ROTARY), fmt, device)
    return Operands((q, cache, table, lengths), (in_order(cache, table, s["context"]),))


def latent(q: Tensor, cache: Tensor) -> Tensor:
    """Attention on latents: [batch, 1, heads, 512]."""
    torch = import_torch()
    weights = torch.softmax(torch.bmm(q[:, 0], cache.transpose(1, 2)) * LATENT_SCALE, -1, dtype=wide(q))
    return torch.bmm(weights.to(q.dtype), cache[:, :, :LATENT])[:, None]


def wide(x: Tensor) -> Any:
    """Type of sums."""
    torch = import_torch()
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def latent_exact(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
    """Some sequences' results."""
    some = pick(len(result), 2).to(result.device)
    return result[some].double(), latent(x.args[0][some].double(), x.more[0][some].double())


def latent_theirs(x: Operands) -> Tensor:
    """Two products and a softmax, on vectors without pages."""
    return latent(x.args[0], x.more[0])


def latent_ours(fmt: str) -> Call:
    """Our kernel."""
    from perfmodel.kernels.attention.mla import Latents, mla_decode

    return lambda q, cache, table, lengths: mla_decode(q, Latents(cache, table, lengths), LATENT_SCALE)[0]


# Passes over activations

EPS = 1e-6


def norm_make(s: Numbers, fmt: str, device: str) -> Operands:
    """Rows and gains."""
    return Operands((draw((s["rows"], s["columns"]), fmt, device), draw((s["columns"],), fmt, device)))


def norm_op(s: Numbers, fmt: str) -> Op:
    """A norm by itself: it reads and writes once; the graph's adds the residual in the same pass."""
    both = operators.passing("norm", s["rows"], s["columns"], fmt)
    return replace(both, inputs={**both.inputs, "reads": 1.0, "writes": 1.0})


def norm_exact(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
    """Some rows."""
    a, weight = x.args
    some = pick(len(a), 32).to(a.device)
    h = a[some].double()
    return result[some].double(), h / (h.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def norm_theirs(x: Operands) -> Tensor:
    """``rms_norm``."""
    a, weight = x.args
    return import_torch().nn.functional.rms_norm(a, (a.shape[-1],), weight, EPS)


def norm_ours(fmt: str) -> Call:
    """Our kernel."""
    from perfmodel.kernels.support.norm import rms_norm

    return lambda x, weight: rms_norm(x, weight, EPS)[0]


def swiglu_make(s: Numbers, fmt: str, device: str) -> Operands:
    """Gate and up side by side."""
    return Operands((draw((s["rows"], 2 * s["columns"]), fmt, device),))


def swiglu_exact(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
    """Some rows."""
    some = pick(len(x.args[0]), 32).to(result.device)
    gate, up = x.args[0][some].double().chunk(2, -1)
    return result[some].double(), gate / (1 + (-gate).exp()) * up


def swiglu_theirs(x: Operands) -> Tensor:
    """``silu(gate) * up``."""
    gate, up = x.args[0].chunk(2, -1)
    return import_torch().nn.functional.silu(gate) * up


def swiglu_ours(fmt: str) -> Call:
    """Our kernel."""
    from perfmodel.kernels.support.swiglu import swiglu

    return swiglu


def softmax_make(s: Numbers, fmt: str, device: str) -> Operands:
    """Rows."""
    return Operands((draw((s["rows"], s["columns"]), fmt, device),))


def softmax_exact(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
    """Some rows."""
    some = pick(len(x.args[0]), 32).to(result.device)
    return result[some].double(), import_torch().softmax(x.args[0][some].double(), -1)


def softmax_theirs(x: Operands) -> Tensor:
    """``torch.softmax``."""
    return import_torch().softmax(x.args[0], -1)
