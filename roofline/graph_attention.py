"""Operators of the attention part of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from perfmodel.modelspecs.schema import Compressed, Gqa, Mla
from perfmodel.modelspecs.schema_recurrent import NoMixer, Recurrent
from perfmodel.roofline import attention, ops
from perfmodel.roofline.graph import Site
from perfmodel.roofline.graph_compressed import compressed_ops
from perfmodel.roofline.graph_recurrent import recurrent_ops
from perfmodel.roofline.op import Op
from perfmodel.roofline.sharding import stored_bytes


def attention_ops(site: Site) -> Iterator[Op]:
    """Projections, norms, rotary, cache write, attention, output projection and its all-reduce."""
    assert site.layer is not None
    a = site.layer.attention
    if isinstance(a, NoMixer):
        return
    if isinstance(a, Recurrent):
        yield from recurrent_ops(site, a)
        yield from site.all_reduce("mixer_all_reduce")
        return
    if isinstance(a, Compressed):
        yield from compressed_ops(site, a)
    else:
        yield from _gqa(site, a) if isinstance(a, Gqa) else _mla(site, a)
    yield site.linear("o_proj", ("o_proj",))
    if isinstance(a, Gqa) and a.beside:
        yield from recurrent_ops(site, a.beside)
    yield from site.all_reduce("attention_all_reduce")


def _gqa(site: Site, a: Gqa) -> Iterator[Op]:
    plan, step, m = site.plan, site.step, site.tokens
    heads, kv_heads = float(ceil(a.heads / plan.tp)), float(ceil(a.kv_heads / plan.tp))
    yield site.linear("qkv_proj", ("q_proj", "k_proj", "v_proj"))
    if a.head_gate:
        yield site.linear("head_gate_proj", ("head_gate",))
    rows = m * (heads + (0.0 if a.shared_kv else kv_heads)) * a.head_dim
    if a.qk_norm != "none":
        yield site.pass_over("qk_norm", rows, 1, 1, 4)
    if a.rope:
        yield site.pass_over("rope", rows, 1, 1, 3)
    if not a.shared_kv:  # an earlier layer wrote them
        yield _cache_write(site, kv_heads * (a.head_dim + a.value_dim), a.head_dim)
    yield site.op(
        "attention", "attention", attention.gqa,
        batch=site.batch, heads=heads, kv_heads=kv_heads, qk_dim=float(a.head_dim), v_dim=float(a.value_dim),
        q=step.q, kv=step.kv, kv_bytes=site.cache_element(a.head_dim, a.window or a.chunk),
        act_bytes=plan.act_bytes, math=plan.attention_math,
        window=_optional(a.window), sinks=float(a.sink_tokens), chunk=_optional(a.chunk),
    )  # fmt: skip
    if a.output_gate or a.head_gate:
        yield site.pass_over("attention_gate", m * heads * a.value_dim, 2, 1, 2, 1)


def _optional(value: int | None) -> float | None:
    return None if value is None else float(value)


def _cache_write(site: Site, elements: float, head_dim: int) -> Op:
    kv_bytes, act_bytes = float(site.plan.kv.cache_bits(head_dim)) / 8, site.plan.act_bytes
    return site.op(
        "kv_write", "kv_write", ops.kv_write,
        tokens=site.tokens, elements=elements, kv_bytes=kv_bytes, act_bytes=act_bytes,
    )  # fmt: skip


def _mla(site: Site, a: Mla) -> Iterator[Op]:
    heads = float(ceil(a.heads / site.plan.tp))
    if a.q_lora_rank:
        yield site.linear("q_kv_a_proj", ("q_a_proj", "kv_a_proj"))
        yield site.pass_over("latent_norm", site.tokens * (a.q_lora_rank + a.kv_lora_rank), 1, 1, 4)
        yield site.linear("q_b_proj", ("q_b_proj",))
    else:
        yield site.linear("q_kv_a_proj", ("q_proj", "kv_a_proj"))
        yield site.pass_over("latent_norm", site.tokens * float(a.kv_lora_rank), 1, 1, 4)
    yield site.pass_over("rope", site.tokens * (heads + 1) * a.qk_rope_head_dim, 1, 1, 3)
    yield _cache_write(site, float(a.cache_elements), a.cache_elements)
    if a.indexer:
        yield from _indexer(site, a)
    if site.step.absorbed or a.topk:
        yield from _absorbed(site, a, heads)
    else:
        yield from _expanded(site, a, heads)


def _indexer(site: Site, a: Mla) -> Iterator[Op]:
    assert a.indexer is not None
    i, math = a.indexer, "fp8" if site.plan.linear_math == "fp8" else site.plan.attention_math
    yield site.linear("indexer_q_proj", ("indexer_q",))
    yield site.linear("indexer_k_proj", ("indexer_k", "indexer_weights"))
    yield site.op(
        "indexer", "attention", attention.indexer,
        batch=site.batch, heads=float(i.heads), dim=float(i.head_dim), q=site.step.q, kv=site.step.kv, math=math,
    )  # fmt: skip


def _absorbed(site: Site, a: Mla, heads: float) -> Iterator[Op]:
    """Queries carried into the latent space and outputs out of it: the up-projection is never applied to the cache."""
    plan, step, latent = site.plan, site.step, float(a.kv_lora_rank)
    weights = stored_bytes(site.tensors["kv_b_proj"], plan) / (a.qk_nope_head_dim + a.v_head_dim)
    yield site.op(
        "q_absorb", "gemm_per_head", attention.batched_per_head,
        m=site.tokens, heads=heads, n=latent, k=float(a.qk_nope_head_dim),
        weight_bytes=weights * a.qk_nope_head_dim, act_bytes=plan.act_bytes, math=plan.dense_math,
    )  # fmt: skip
    yield site.op(
        "attention", "mla", attention.mla,
        batch=site.batch, heads=heads, latent=latent, rope=float(a.qk_rope_head_dim), q=step.q, kv=step.kv,
        kv_bytes=site.cache_element(a.cache_elements), act_bytes=plan.act_bytes, math=plan.attention_math,
        topk=_optional(a.topk),
    )  # fmt: skip
    yield site.op(
        "v_up", "gemm_per_head", attention.batched_per_head,
        m=site.tokens, heads=heads, n=float(a.v_head_dim), k=latent,
        weight_bytes=weights * a.v_head_dim, act_bytes=plan.act_bytes, math=plan.dense_math,
    )  # fmt: skip


def _expanded(site: Site, a: Mla, heads: float) -> Iterator[Op]:
    """Keys and values of all heads made from the latents of every token in the context, then ordinary attention."""
    plan, step = site.plan, site.step
    yield site.linear("kv_b_proj", ("kv_b_proj",), site.batch * step.kv)
    yield site.op(
        "attention", "attention", attention.gqa,
        batch=site.batch, heads=heads, kv_heads=heads, qk_dim=float(a.qk_head_dim), v_dim=float(a.v_head_dim),
        q=step.q, kv=step.kv, kv_bytes=plan.act_bytes, act_bytes=plan.act_bytes, math=plan.dense_math,
    )  # fmt: skip
