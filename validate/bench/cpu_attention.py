"""Attention on a processor by torch: prefill, one decode step, and decode on latents."""

from __future__ import annotations

import math
from typing import Any

from perfmodel.roofline.op import Op
from perfmodel.validate.bench.case import Case, Inputs, NotRealised, Tensor, draw
from perfmodel.validate.bench.cpu_products import ENGINE
from perfmodel.validate.bench.machine import import_torch
from perfmodel.validate.bench.operators import WIDTH, title

#: Queries of which the result is compared.
SAMPLES = 16


def attention(op: Op) -> Case:
    """``scaled_dot_product_attention`` with grouped queries; tensors lie token by token, as engines keep them.

    One query sees every key; whole prompts are causal. The tensors are ``[batch, heads, tokens, dim]`` views.
    """
    i: Any = op.inputs
    batch, heads, kv_heads, dim = (int(i[name]) for name in ("batch", "heads", "kv_heads", "qk_dim"))
    q, kv, fmt = int(i["q"]), int(i["kv"]), str(i["math"])
    _refuse(i, q, kv, fmt)
    torch = import_torch()
    call = torch.nn.functional.scaled_dot_product_attention
    causal = q > 1

    def make() -> Inputs:
        return tuple(
            draw((batch, tokens, h, dim), fmt).transpose(1, 2)
            for tokens, h in ((q, heads), (kv, kv_heads), (kv, kv_heads))
        )

    def run(inputs: Inputs) -> Tensor:
        return call(*inputs, is_causal=causal, enable_gqa=heads != kv_heads)

    touched = batch * dim * (2 * q * heads + 2 * kv * kv_heads) * WIDTH[fmt]
    source = "torch scaled_dot_product_attention"
    return Case(title(op, fmt), op, ENGINE, source, fmt, make, run, sampled, touched)


def _refuse(i: Any, q: int, kv: int, fmt: str) -> None:
    if fmt not in ("fp32", "bf16", "fp16") or abs(float(i["kv_bytes"]) / WIDTH[fmt] - 1) > 1e-9:
        raise NotRealised("torch has no attention on a cache in another format than the arithmetic's")
    if q not in (1, kv):
        raise NotRealised("neither a whole prompt nor one new token")
    seen = float(i.get("window") or kv) + float(i.get("sinks") or 0)
    if i.get("chunk") or seen < kv:
        raise NotRealised("torch has no windowed attention that skips what is hidden")
    if i["qk_dim"] != i["v_dim"]:
        raise NotRealised("keys and values of other sizes")


def sampled(inputs: Inputs, result: Tensor) -> tuple[Tensor, Tensor]:
    """Some queries' results, ``[batch, heads, queries, dim]``, the last query sees the last key."""
    torch = import_torch()
    q, k, v = inputs
    batch, heads, queries, dim = q.shape
    group, keys = heads // k.shape[1], k.shape[2]
    draws = [torch.randint(0, size, (SAMPLES,)).tolist() for size in (batch, heads, queries)]
    draws[2][:2] = 0, queries - 1
    actual, expected = [], []
    for b, h, i in zip(*draws, strict=True):
        seen = keys - queries + i + 1
        scores = k[b, h // group, :seen].double() @ q[b, h, i].double() / math.sqrt(dim)
        expected.append(torch.softmax(scores, 0) @ v[b, h // group, :seen].double())
        actual.append(result[b, h, i].double())
    return torch.stack(actual), torch.stack(expected)


def latent(op: Op) -> Case:
    """Decode on latents: two products and a softmax in torch, all heads on one key of 512 + 64 columns."""
    i: Any = op.inputs
    batch, heads, q, kv, fmt = int(i["batch"]), int(i["heads"]), int(i["q"]), int(i["kv"]), str(i["math"])
    wide, rank = int(i["latent"] + i["rope"]), int(i["latent"])
    if q != 1 or i.get("topk") or fmt not in ("fp32", "bf16", "fp16"):
        raise NotRealised("latent attention is measured with one new token and all keys")
    torch, scale = import_torch(), 192**-0.5

    def make() -> Inputs:
        return draw((batch, heads, wide), fmt), draw((batch, kv, wide), fmt)

    def run(inputs: Inputs) -> Tensor:
        x, cache = inputs
        scores = torch.softmax(torch.bmm(x, cache.transpose(1, 2)).float() * scale, -1)
        return torch.bmm(scores.to(x.dtype), cache[:, :, :rank])

    def reference(inputs: Inputs, result: Tensor) -> tuple[Tensor, Tensor]:
        x, cache = (one[:2].double() for one in inputs)
        scores = torch.softmax(x @ cache.transpose(1, 2) * scale, -1)
        return result[:2].double(), scores @ cache[:, :, :rank]

    touched = batch * (kv * wide + heads * (wide + rank)) * WIDTH[fmt]
    return Case(title(op, fmt), op, ENGINE, "torch.bmm and softmax", fmt, make, run, reference, touched, 3e-2)
