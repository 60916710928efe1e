"""Operations that a user's kernel can do: what it is called with, what it must give, and what stands beside it.

Tensors come in the order of our public function for the operation, without its options. An operation draws them, knows
the operator of the graph that it is, what is right (in float64, on a sample), a library's call, and our kernel. Nothing
needs Triton but our kernels themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench import operators
from perfmodel.validate.bench import own_calls as calls
from perfmodel.validate.bench.case import Tensor, torch_type
from perfmodel.validate.bench.own_calls import Call, Numbers, Operands

SIXTEEN = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class OwnOp:
    """An operation that a user's kernel can do.

    Attributes
    ----------
    name, signature, gives : str
        For ``--op``; arguments with their shapes; the result and its shape.
    shape : tuple
        Of the result: sizes by name, or numbers.
    defaults : tuple of mappings
        Sizes that are measured unless others are asked for: Llama 3 8B's.
    op : Callable
        (sizes, format) -> operator of the graph.
    make : Callable
        (sizes, format, device) -> operands, drawn at random.
    exact : Callable
        (operands, result) -> a sample of the result, and the same in float64.
    library : Mapping or str
        What ``theirs`` calls, by format where it differs (``""``: the others).
    theirs : Callable
        (operands) -> result.
    ours : Callable, optional
        (format) -> our kernel, which takes ``args``.
    formats : tuple[str, ...]
        The first is the default.
    least : Mapping
        Largest relative error by format, where it is not that of a product.
    """

    name: str
    signature: str
    gives: str
    shape: tuple[str | int, ...]
    defaults: tuple[Numbers, ...]
    op: Callable[[Numbers, str], Op]
    make: Callable[[Numbers, str, str], Operands]
    exact: Callable[[Operands, Tensor], tuple[Tensor, Tensor]]
    library: Mapping[str, str] | str
    theirs: Callable[[Operands], Tensor]
    ours: Callable[[str], Call] | None
    formats: tuple[str, ...] = SIXTEEN
    least: Mapping[str, float] = field(default_factory=dict)

    def library_name(self, fmt: str) -> str:
        """What ``theirs`` calls in a format."""
        return self.library if isinstance(self.library, str) else self.library.get(fmt, self.library[""])

    def result_shape(self, sizes: Numbers) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(sizes[one] if isinstance(one, str) else one for one in self.shape)

    def result_type(self, fmt: str) -> Any:
        """torch's type of the result: that of the arguments, and bf16 where these have 8 bits."""
        return torch_type(fmt if fmt in SIXTEEN else "bf16")


def _gemm(s: Numbers, fmt: str) -> Op:
    return operators.gemm(s["m"], s["n"], s["k"], fmt, 4.0 if fmt == "fp32" else 2.0)


def _prefill(s: Numbers, fmt: str) -> Op:
    return operators.attention(s["batch"], s["heads"], s["kv_heads"], s["dim"], s["tokens"], s["tokens"], fmt)


def _decode(s: Numbers, fmt: str) -> Op:
    return operators.attention(s["batch"], s["heads"], s["kv_heads"], s["dim"], 1, s["context"], fmt)


def _latent(s: Numbers, fmt: str) -> Op:
    return operators.latent(s["batch"], s["heads"], s["context"], fmt)


def _pass(name: str) -> Callable[[Numbers, str], Op]:
    return lambda s, fmt: operators.passing(name, s["rows"], s["columns"], fmt)


def _rows(columns: int) -> tuple[Numbers, ...]:
    return tuple({"rows": rows, "columns": columns} for rows in (64, 2048))


#: Rounding of values that stand for themselves, not for sums.
_PASS = {"bf16": 2e-2, "fp16": 2e-3, "fp32": 2e-5}
_PRODUCTS = {"": "torch.mm", "int8": "torch._int_mm, scaled", "fp8": "torch._scaled_mm"}
_HEADS = {"heads": 32, "kv_heads": 8, "dim": 128}

_LIST = (
    OwnOp(
        name="gemm",
        signature="a [m, k], b [n, k]; int8: and scale_a [m], scale_b [n]; fp8: and scale_a [1], scale_b [1] (fp32)",
        gives="a b^T, times the scales: [m, n], in the format of a (int8, fp8: bf16)",
        shape=("m", "n"), defaults=tuple({"m": m, "n": 4096, "k": 4096} for m in (1, 64, 1024)), op=_gemm,
        make=calls.product_make, exact=calls.product_exact, library=_PRODUCTS,
        theirs=calls.product_theirs, ours=calls.product_ours, formats=(*SIXTEEN, "int8", "fp8"),
    ),
    OwnOp(
        name="prefill", signature="q [batch, tokens, heads, dim], k and v [batch, tokens, kv_heads, dim]",
        gives="causal attention, like q; query head h reads head h // (heads / kv_heads); scale 1 / sqrt(dim)",
        shape=("batch", "tokens", "heads", "dim"),
        defaults=tuple({"batch": 1, "tokens": tokens, **_HEADS} for tokens in (512, 2048)), op=_prefill,
        make=calls.prefill_make, exact=calls.prefill_exact, library="torch SDPA", theirs=calls.prefill_theirs,
        ours=calls.prefill_ours,
    ),
    OwnOp(
        name="decode",
        signature="q [batch, 1, heads, dim], k and v [pages, page, kv_heads, dim], table [batch, most pages] (int32: a "
        "sequence's pages in order), lengths [batch] (int32)",
        gives="attention of one new token a sequence over all its tokens, like q; heads and scale as in prefill",
        shape=("batch", 1, "heads", "dim"),
        defaults=tuple({"batch": b, "context": 2048, **_HEADS, "page": 16} for b in (1, 8)), op=_decode,
        make=calls.decode_make, exact=calls.decode_exact, library="torch SDPA without pages",
        theirs=calls.decode_theirs, ours=calls.decode_ours,
    ),
    OwnOp(
        name="mla",
        signature="q [batch, 1, heads, 576], cache [pages, page, 576], table [batch, most pages], lengths [batch]",
        gives="attention on latents: [batch, 1, heads, 512]; values are the first 512 columns; scale 1 / sqrt(192)",
        shape=("batch", 1, "heads", calls.LATENT), defaults=({"batch": 4, "context": 1024, "heads": 16, "page": 64},),
        op=_latent, make=calls.latent_make, exact=calls.latent_exact, library="torch bmm, softmax, bmm without pages",
        theirs=calls.latent_theirs, ours=calls.latent_ours, least={"bf16": 2e-2, "fp16": 3e-3, "fp32": 2e-5},
    ),
    OwnOp(
        name="norm", signature="x [rows, columns], weight [columns]",
        gives="x / sqrt(mean(x^2) + 1e-6) * weight, like x", shape=("rows", "columns"), defaults=_rows(4096),
        op=calls.norm_op, make=calls.norm_make, exact=calls.norm_exact, library="torch rms_norm",
        theirs=calls.norm_theirs, ours=calls.norm_ours, least=_PASS,
    ),
    OwnOp(
        name="swiglu", signature="x [rows, 2 columns]: a row's gate, then its up",
        gives="silu(gate) * up: [rows, columns]", shape=("rows", "columns"), defaults=_rows(14336),
        op=_pass("activation"), make=calls.swiglu_make, exact=calls.swiglu_exact, library="torch silu * up",
        theirs=calls.swiglu_theirs, ours=calls.swiglu_ours, least=_PASS,
    ),
    OwnOp(
        name="softmax", signature="x [rows, columns]", gives="softmax of each row, like x", shape=("rows", "columns"),
        defaults=_rows(8192), op=_pass("softmax"), make=calls.softmax_make, exact=calls.softmax_exact,
        library="torch.softmax", theirs=calls.softmax_theirs, ours=None, least=_PASS,
    ),
)  # fmt: skip
#: By name.
OPS: dict[str, OwnOp] = {one.name: one for one in _LIST}
