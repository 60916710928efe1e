"""Attention by our Triton kernels, beside torch's: prefill, paged decode, a tree of drafts, decode on latents."""

from __future__ import annotations

import math
from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench import own_calls as calls
from perfmodel.validate.bench.case import Case, Inputs, NotRealised, Tensor, draw
from perfmodel.validate.bench.cuda_products import ENGINE
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import WIDTH, title
from perfmodel.validate.bench.own_calls import Operands

FORMATS = ("bf16", "fp16")
#: Tokens of a page; nodes of a tree at most; scores that standard attention may write. [1, 1, bytes]
PAGE, MOST_NODES, MOST_SCORES = 64, 64, 2e9
#: Queries of which a tree's result is compared.
SAMPLES = 16


def attention(op: Op, device: str) -> Case:
    """The kernel that does an attention of the graph."""
    i: Any = op.inputs
    q, kv, fmt = int(i["q"]), int(i["kv"]), str(i["math"])
    if fmt not in FORMATS or float(i["kv_bytes"]) != WIDTH[fmt]:
        raise NotRealised("caches in another format than the arithmetic are not measured yet")
    if i["qk_dim"] != i["v_dim"] or int(i["qk_dim"]) not in (64, 128, 256):
        raise NotRealised("our kernels have head dimensions of 64, 128 and 256, values like keys")
    if i.get("window") or i.get("sinks") or i.get("chunk"):
        raise NotRealised("windows and sinks are not measured")
    s = {
        "batch": int(i["batch"]), "heads": int(i["heads"]), "kv_heads": int(i["kv_heads"]), "dim": int(i["qk_dim"]),
        "tokens": q, "context": kv, "page": PAGE,
    }  # fmt: skip
    if q == 1:
        return decode(op, s, fmt, device)
    if q == kv:
        return prefill(op, s, fmt, device)
    if q <= MOST_NODES:
        return tree(op, s, fmt, device)
    raise NotRealised("neither a whole prompt, nor one new token, nor a tree of drafts")


def _touched(s: dict[str, int], fmt: str) -> float:
    queries, keys = 2 * s["tokens"] * s["heads"], 2 * s["context"] * s["kv_heads"]
    return s["batch"] * s["dim"] * WIDTH[fmt] * (queries + keys)


def prefill(op: Op, s: dict[str, int], fmt: str, device: str) -> Case:
    """Causal attention of whole prompts; beside it torch's, and the one that writes its scores where they fit."""
    ours = calls.prefill_ours(fmt)
    beside = {"torch SDPA": calls.prefill_theirs}
    if 2.0 * s["batch"] * s["heads"] * s["tokens"] ** 2 <= MOST_SCORES:
        beside["ours, scores in memory"] = _standard
    return Case(
        title(op, fmt), op, ENGINE, "prefill_attention", fmt, lambda: calls.prefill_make(s, fmt, device),
        lambda x: ours(*x.args), calls.prefill_exact, _touched(s, fmt), beside=beside,
    )  # fmt: skip


def _standard(x: Operands) -> Tensor:
    from perfmodel.kernels.attention.standard import standard_attention

    return standard_attention(*x.args)


def decode(op: Op, s: dict[str, int], fmt: str, device: str) -> Case:
    """One token a sequence over a paged cache; torch's beside it has no pages."""
    ours = calls.decode_ours(fmt)
    return Case(
        title(op, fmt), op, ENGINE, "paged_decode", fmt, lambda: calls.decode_make(s, fmt, device),
        lambda x: ours(*x.args), calls.decode_exact, _touched(s, fmt),
        beside={"torch SDPA without pages": calls.decode_theirs},
    )  # fmt: skip


def tree(op: Op, s: dict[str, int], fmt: str, device: str) -> Case:
    """A tree of drafts: each node sees all tokens before the tree, itself and its ancestors."""
    from perfmodel.kernels.attention.paged_launch import Paged
    from perfmodel.kernels.attention.tree import ancestor_masks, tree_attention

    torch, nodes = import_torch(), s["tokens"]

    def make() -> Inputs:
        paged = calls.decode_make(s, fmt, device)
        q = draw((s["batch"], nodes, s["heads"], s["dim"]), fmt, device)
        node = torch.arange(nodes)
        parents = torch.where(node > 0, (node - 1) // 2, -1).expand(s["batch"], nodes).contiguous().to(device)
        return Operands((q, *paged.args[1:], ancestor_masks(parents)), paged.more)

    def run(x: Operands) -> Tensor:
        q, k, v, table, lengths, masks = x.args
        return tree_attention(q, Paged(k, v, table, lengths), masks)[0]

    def reference(x: Operands, result: Tensor) -> tuple[Tensor, Tensor]:
        q, masks, (k, v) = x.args[0], x.args[-1], x.more
        group, before = s["heads"] // s["kv_heads"], s["context"] - nodes
        actual, exact = [], []
        for _ in range(SAMPLES):
            b, h, n = (int(torch.randint(0, size, (1,))) for size in (s["batch"], s["heads"], nodes))
            keys, values = k[b, :, h // group].double(), v[b, :, h // group].double()
            seen = torch.ones(s["context"], dtype=torch.bool)
            seen[before:] = torch.tensor([bool(int(masks[b, n]) >> j & 1) for j in range(nodes)])
            scores = (keys @ q[b, n, h].double() / math.sqrt(s["dim"])).masked_fill(~seen.to(keys.device), -math.inf)
            exact.append(torch.softmax(scores, 0) @ values)
            actual.append(result[b, n, h].double())
        return torch.stack(actual), torch.stack(exact)

    return Case(title(op, fmt), op, ENGINE, "tree_attention", fmt, make, run, reference, _touched(s, fmt))


def latent(op: Op, device: str) -> Case:
    """Decode on latents of 512 with 64 rotary columns, paged."""
    i: Any = op.inputs
    fmt = str(i["math"])
    if (i["latent"], i["rope"], i["q"]) != (512, 64, 1) or i.get("topk"):
        raise NotRealised("our kernel takes latents of 512 with 64 rotary columns, and is measured with one new token")
    if fmt not in FORMATS or float(i["kv_bytes"]) != WIDTH[fmt]:
        raise NotRealised("caches in another format than the arithmetic are not measured yet")
    s = {"batch": int(i["batch"]), "heads": int(i["heads"]), "context": int(i["kv"]), "page": PAGE}
    ours = calls.latent_ours(fmt)
    touched = s["batch"] * WIDTH[fmt] * (s["context"] * 576 + s["heads"] * (576 + 512))
    return Case(
        title(op, fmt), op, ENGINE, "mla_decode", fmt, lambda: calls.latent_make(s, fmt, device),
        lambda x: ours(*x.args), calls.latent_exact, touched, 2e-2,
        {"torch bmm, softmax, bmm without pages": calls.latent_theirs},
    )  # fmt: skip
