"""Operators of compressed attention (DeepSeek V4), and of the residual streams that its layers mix."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from perfmodel.modelspecs.schema import Compressed
from perfmodel.roofline import attention, attention_compressed, ops
from perfmodel.roofline.graph import Site
from perfmodel.roofline.op import Op
from perfmodel.roofline.sharding import stored_bytes


def compressed_ops(site: Site, a: Compressed) -> Iterator[Op]:
    """Latent queries, the shared head, compressors, attention over window and entries, the grouped projection."""
    plan, step, m = site.plan, site.step, site.tokens
    heads = float(ceil(a.heads / plan.tp))
    yield site.linear("q_kv_a_proj", ("q_a_proj", "kv_proj"))
    yield site.pass_over("latent_norm", m * float(a.q_lora_rank + a.head_dim), 1, 1, 4)
    yield site.linear("q_b_proj", ("q_b_proj",))
    yield site.pass_over("q_norm", m * heads * a.head_dim, 1, 1, 4)
    yield site.pass_over("rope", m * (2 * heads + 1) * a.rope_head_dim, 1, 1, 3)  # of queries, key and outputs
    yield _write(site, "kv_write", float(a.head_dim), 1)
    if a.ratio:
        yield from _compressor(site, a, "compressor", a.head_dim)
    if a.indexer:
        yield from _indexer(site, a)
    yield site.op(
        "attention", "attention", attention_compressed.compressed,
        batch=site.batch, heads=heads, dim=float(a.head_dim), q=step.q, kv=step.kv, window=float(a.window),
        kv_bytes=site.cache_element(a.head_dim), act_bytes=plan.act_bytes, math=plan.attention_math,
        ratio=float(a.ratio) if a.ratio else None, topk=float(a.indexer.topk) if a.indexer else None,
    )  # fmt: skip
    groups = float(ceil(a.o_groups / plan.tp))
    yield site.op(
        "o_a_proj", "gemm_per_head", attention.batched_per_head,
        m=m, heads=groups, n=float(a.o_lora_rank), k=a.heads * a.head_dim / a.o_groups,
        weight_bytes=stored_bytes(site.tensors["o_a_proj"], plan), act_bytes=plan.act_bytes, math=plan.dense_math,
    )  # fmt: skip


def _write(site: Site, name: str, elements: float, ratio: int) -> Op:
    kv_bytes, act_bytes = float(site.plan.kv.cache_bits(int(elements))) / 8, site.plan.act_bytes
    return site.op(
        name, "kv_write", ops.kv_write,
        tokens=site.tokens / ratio, elements=elements, kv_bytes=kv_bytes, act_bytes=act_bytes,
    )  # fmt: skip


def _compressor(site: Site, a: Compressed, role: str, size: int) -> Iterator[Op]:
    """Two small projections of every token, a softmax-weighted sum over each window, and one entry written."""
    yield site.linear(f"{role}_proj", (f"{role}_k", f"{role}_gate"))
    yield site.pass_over(f"{role}_pool", site.tokens * float(a.series * size), 2, 1 / (a.ratio * a.series), 4, 1)
    yield _write(site, f"{role}_write", float(size), a.ratio)


def _indexer(site: Site, a: Compressed) -> Iterator[Op]:
    assert a.indexer is not None
    i, math = a.indexer, "fp8" if site.plan.linear_math == "fp8" else site.plan.attention_math
    yield from _compressor(site, a, "indexer", i.head_dim)
    yield site.linear("indexer_q_proj", ("indexer_q",))
    yield site.linear("indexer_weights_proj", ("indexer_weights",))
    yield site.op(
        "indexer", "attention", attention_compressed.entry_indexer,
        batch=site.batch, heads=float(i.heads), dim=float(i.head_dim), q=site.step.q, kv=site.step.kv,
        ratio=float(a.ratio), math=math,
    )  # fmt: skip


def layer_extra_ops(site: Site) -> Iterator[Op]:
    """What a layer runs beside attention and feed-forward part: mixing of residual streams, an input of its own.

    Mixing, before and after each of the two parts: the weights are a product with all streams of a token; the streams
    are collapsed to one, and mixed with what comes out.
    """
    d, streams = float(site.model.hidden_size), site.model.streams
    if "hyper" in site.tensors:
        yield site.linear("stream_weights", ("hyper",))
        yield site.pass_over("stream_mix", site.tokens * d * streams, 2, 1, 2.0 * streams + 2, times=2.0)
    if "input_gate" in site.tensors:
        width = float(sum(t.shape[0] for t in site.tensors["input_gate"] if len(t.shape) == 2))
        yield site.linear("input_gate_proj", ("input_gate",))
        yield site.pass_over("input_gate", site.tokens * width, 2, 1, 4, 1)
        yield site.linear("input_out_proj", ("input_out",))
