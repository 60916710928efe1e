"""The operators that are measured: those of the graph, one run each, and how they are written down and read again.

A measured kernel is paired with an ``Op`` whose cost formula is the graph's own, so that what is predicted for it is
what is predicted for a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.formats import FORMATS
from perfmodel.roofline import attention as attentions
from perfmodel.roofline import ops
from perfmodel.roofline.calibrated.shapes import ask
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.dequantize import instructions
from perfmodel.roofline.efficiency import passes_of
from perfmodel.roofline.op import Input, Op

#: Bytes of an element of a format, and of the result of a product in it.
WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
#: Name -> formula: what an operator may be made from.
FORMULAS: dict[str, Callable[..., Cost]] = {
    f.__name__: f
    for f in (
        ops.gemm, ops.grouped_gemm, ops.elementwise, ops.embedding, ops.kv_write, ops.sampling, ops.combine,
        attentions.gqa, attentions.mla, attentions.batched_per_head,
    )
}  # fmt: skip


def _op(name: str, kind: str, formula: Callable[..., Cost], **inputs: Input) -> Op:
    return Op(name, kind, "", 1.0, formula, inputs)


def gemm(m: float, n: float, k: float, math: str, out_bytes: float = 2.0) -> Op:
    """A linear layer ``[m, k] x [k, n]``."""
    return _op(
        "gemm", "gemm", ops.gemm, m=float(m), n=float(n), k=float(k), weight_bytes=n * k * WIDTH[math],
        act_bytes=WIDTH[math], out_bytes=out_bytes, math=math,
    )  # fmt: skip


def block_gemm(m: float, n: float, k: float) -> Op:
    """A linear layer in FP8 with a scale for each 128 activations of a row and 128 x 128 weights."""
    plain = gemm(m, n, k, "fp8")
    return replace(plain, name=BLOCKED, inputs={**plain.inputs, "weight_bytes": n * k * (1 + 4 / 128**2)})


#: Name of the products with block scales, and inputs that share a scale in 4-bit weights.
BLOCKED, GROUP = "gemm_block", 128


def narrow_gemm(m: float, n: float, k: float) -> Op:
    """A linear layer of 16-bit activations and 4-bit weights, a 16-bit scale for 128 of them."""
    plain = gemm(m, n, k, "bf16")
    unpack = instructions(FORMATS["int4"], "bf16")
    return replace(plain, inputs={**plain.inputs, "weight_bytes": n * k * (0.5 + 2 / GROUP), "dequant": unpack})


def attention(
    batch: float, heads: float, kv_heads: float, dim: float, q: float, kv: float, math: str,
    kv_bytes: float | None = None,
) -> Op:  # fmt: skip
    """Causal attention of ``q`` new tokens a sequence over ``kv``: prefill where they are equal, decode where q = 1."""
    width = WIDTH[math]
    return _op(
        "attention", "attention", attentions.gqa, batch=float(batch), heads=float(heads), kv_heads=float(kv_heads),
        qk_dim=float(dim), v_dim=float(dim), q=float(q), kv=float(kv), kv_bytes=kv_bytes or width, act_bytes=width,
        math=math,
    )  # fmt: skip


def latent(batch: float, heads: float, kv: float, math: str = "bf16", q: float = 1.0) -> Op:
    """Decode attention on latents of 512 with 64 rotary columns."""
    return _op(
        "attention", "mla", attentions.mla, batch=float(batch), heads=float(heads), latent=512.0, rope=64.0, q=float(q),
        kv=float(kv), kv_bytes=WIDTH[math], act_bytes=WIDTH[math], math=math,
    )  # fmt: skip


def grouped(tokens: float, n: float, k: float, experts: float, chosen: float, math: str) -> Op:
    """One product of routed experts: each token's row meets ``chosen`` of ``experts``."""
    width = WIDTH[math]
    return _op(
        "experts_down", "grouped_gemm", ops.grouped_gemm, tokens=float(tokens), n=float(n), k=float(k),
        experts=float(experts), chosen=float(chosen), local=float(experts), expert_bytes=n * k * width, act_bytes=width,
        out_bytes=width, math=math,
    )  # fmt: skip


def passing(name: str, rows: float, columns: float, math: str) -> Op:
    """A kernel that passes over ``rows x columns`` elements once: norm, activation, rope or softmax."""
    reads, writes, flops, exps = PASSES[name]
    kind = "norm" if "norm" in name else "elementwise"
    return _op(
        name, kind, ops.elementwise, elements=float(rows * columns), reads=reads, writes=writes,
        act_bytes=WIDTH[math], flops=flops, exps=exps,
    )  # fmt: skip


#: Passes of the graph by name: streams read and written, FLOPs and exponentials an element. Softmax is no operator of
#: the graph by itself: scores read and written once, maximum, subtraction and division.
PASSES = {
    "norm": (2.0, 2.0, 5.0, 0.0), "activation": (2.0, 1.0, 4.0, 1.0), "rope": (1.0, 1.0, 3.0, 0.0),
    "softmax": (1.0, 1.0, 3.0, 1.0), "quantize": (1.0, 0.5, 2.0, 0.0),
}  # fmt: skip


def verified(name: str, rows: float, vocab: float, act_bytes: float = 2.0) -> Op:
    """A pass over logits that verification makes: ``greedy`` (argmax) or ``logsumexp``."""
    return _op(name, "sampling", ops.sampling, rows=float(rows), vocab=float(vocab), act_bytes=act_bytes)


def rejection(batch: float, drafts: float, vocab: float, act_bytes: float = 4.0) -> Op:
    """Verification of a drafted chain: the target's ``drafts + 1`` rows and the draft's ``drafts``, each read once."""
    rows = batch * (2 * drafts + 1)
    return _op("rejection", "sampling", ops.sampling, rows=float(rows), vocab=float(vocab), act_bytes=act_bytes)


def sampling(rows: float, vocab: float, act_bytes: float = 4.0) -> Op:
    """A token a row: softmax over the logits and one draw."""
    return _op("sampling", "sampling", ops.sampling, rows=float(rows), vocab=float(vocab), act_bytes=act_bytes)


def embedding(tokens: float, d: float, math: str) -> Op:
    """Rows gathered from the embedding."""
    width = WIDTH[math]
    return _op(
        "embedding", "embedding", ops.embedding, tokens=float(tokens), d=float(d), weight_bytes=width, act_bytes=width
    )  # fmt: skip


def kv_write(tokens: float, elements: float, math: str, kv_bytes: float | None = None) -> Op:
    """New keys and values stored in the cache, ``elements`` of them a token."""
    width = WIDTH[math]
    return _op(
        "kv_write", "kv_write", ops.kv_write, tokens=float(tokens), elements=float(elements),
        kv_bytes=kv_bytes or width, act_bytes=width,
    )  # fmt: skip


def pack(op: Op) -> dict[str, Any]:
    """An operator as the store keeps it."""
    return {"op": op.name, "formula": op.formula.__name__, **op.inputs}


def unpack(kind: str, packed: Mapping[str, Any]) -> Op:
    """The operator that was kept.

    Raises
    ------
    SpecError
        For a formula or an input that this version does not have.
    """
    inputs = dict(packed)
    name, formula = str(inputs.pop("op", "")), FORMULAS.get(str(inputs.pop("formula", "")))
    if formula is None:
        raise SpecError("store", name, f"has the formula {packed.get('formula')!r}, which this version does not know")
    op = Op(name, kind, "", 1.0, formula, inputs)
    try:
        _ = op.unit_cost
    except TypeError as error:
        raise SpecError("store", name, f"does not fit its formula: {error}") from error
    return op


def key(op: Op) -> tuple[str, str]:
    """Which fit answers for an operator: kind and format."""
    asked = ask(op)
    if not asked.kind:
        return passes_of(op)[0], ""
    return asked.kind, label(op) if asked.kind == "gemm" else asked.formats[0]


def label(op: Op) -> str:
    """Format of a product as its kernels differ by it: that of its arithmetic, ``fp8_block``, or ``w4a16``."""
    if op.inputs.get("dequant"):
        return "w4a16"
    math = str(op.inputs["math"])
    return "fp8_block" if op.name == BLOCKED else {"fp16": "bf16"}.get(math, math)


def family(op: Op) -> str:
    """What people call it: gemm, prefill, decode, experts, or its own name."""
    kind = ask(op).kind
    return {"mla_generation": "decode", "mla_context": "prefill"}.get(kind, kind) or passes_of(op)[0]


def title(op: Op, fmt: str) -> str:
    """Name of a case: what it is, its format and its sizes."""
    shown = {
        "gemm": ("m", "n", "k"), "gqa": ("batch", "q", "kv", "heads", "kv_heads", "qk_dim"),
        "mla": ("batch", "heads", "kv"), "grouped_gemm": ("tokens", "n", "k", "experts", "chosen"),
        "elementwise": ("elements",), "sampling": ("rows", "vocab"), "embedding": ("tokens", "d"),
        "kv_write": ("tokens", "elements"), "combine": ("tokens", "chosen", "d"),
        "batched_per_head": ("m", "heads", "n", "k"),
    }[op.formula.__name__]  # fmt: skip
    sizes = " ".join(f"{name}={float(op.inputs[name]):g}" for name in shown)  # type: ignore[arg-type]
    name = family(op) if ask(op).kind else op.name
    return f"{name} {fmt} {sizes}"
