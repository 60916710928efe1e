"""The tensor inventory: every weight tensor of a model, once.

Parameters, bytes in a format, a rank's share and the GEMM shapes of the graph all come from here, so they cannot
disagree. Matrices are ``(out, in)``; the experts of a layer are ``count`` tensors of one expert's shape.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from perfmodel.modelspecs.schema import Compressed, Dense, Gqa, LayerClass, Mla, ModelSpec, Moe, Norm
from perfmodel.modelspecs.schema_recurrent import NoFfn, NoMixer, Recurrent

#: Roles of small matrices that recipes leave at 16 bits.
LEFT_ALONE = ("router", "shared_router", "indexer_weights", "compressor_bias", "buffer", "mixer_gates", "state", "conv")

#: How tensor parallelism cuts a tensor: by rows (column parallel), by columns (row parallel), by vocabulary, by
#: key/value heads (replicated when there are fewer than ranks), whole experts, by rows of several parts, or not at all.
Shard = Literal["out", "in", "vocab", "kv", "expert_out", "expert_in", "parts", "whole"]


@dataclass(frozen=True)
class Tensor:
    """``count`` weight tensors of one kind.

    Attributes
    ----------
    name : str
        Name in a checkpoint, with ``{layer}`` and ``{expert}`` where it repeats.
    role : str
        What it does; ``total_params`` counts every role except ``mtp`` and ``buffer``.
    shape : tuple[int, ...]
        ``(out, in)`` of a matrix, ``(n,)`` of a vector.
    shard : Shard
    count : int
        Number of such tensors in the model.
    layer : str
        Layer class, ``""`` outside the layers.
    quantizable : bool
        Whether quantization recipes touch it (linear layers; embeddings, norms, routers and biases stay).
    kept_in : str
        A format in which it stays at 16 bits all the same: the native one, where the makers left it alone.
    kept_as : str
        The format that it has there instead of 16 bits, where the makers stored it in another one.
    parts : tuple[tuple[int, int], ...]
        Of a fused matrix that is cut by ``"parts"``: rows of each part, and the heads or groups that it is cut by.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    shard: Shard = "whole"
    count: int = 1
    layer: str = ""
    quantizable: bool = False
    kept_in: str = ""
    kept_as: str = "bf16"
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def numel(self) -> int:
        """Elements of one tensor."""
        return prod(self.shape)

    @property
    def total(self) -> int:
        """Elements of all ``count`` tensors."""
        return self.numel * self.count


@functools.lru_cache(maxsize=256)
def tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """Every weight tensor of a model: embedding, layers, final norm, LM head, MTP, vision parts and stored buffers."""
    found: list[Tensor] = [
        Tensor("model.embed_tokens.weight", "embedding", (model.vocab_size, model.hidden_size), "vocab")
    ]
    for layer in model.layer_classes:
        found += _layer(model, layer, "model.layers.{layer}.", layer.count)
    found += _norm(model, "model.norm", "norm", model.hidden_size, 1, "")
    if not model.tied_embeddings:
        found.append(Tensor("lm_head.weight", "lm_head", (model.vocab_size, model.hidden_size), "vocab"))
    if model.mtp:
        found += _mtp(model)
    found += [Tensor(extra.name, extra.role, extra.shape, count=extra.count) for extra in model.extra_tensors]
    return tuple(found)


def _layer(model: ModelSpec, layer: LayerClass, prefix: str, count: int) -> Iterator[Tensor]:
    for part in (_attention(model, layer.attention), _ffn(model, layer.ffn)):
        for t in part:
            quantizable = len(t.shape) == 2 and t.role not in LEFT_ALONE
            other = model.native_roles.get(t.role, "bf16")
            kept = model.native_format if quantizable and (t.role in model.native_16bit or other != "bf16") else ""
            yield Tensor(
                prefix + t.name, t.role, t.shape, t.shard, t.count * count, layer.name, quantizable, kept, other,
                t.parts,
            )  # fmt: skip
    for extra in model.layer_tensors:
        yield Tensor(prefix + extra.name, extra.role, extra.shape, count=count, layer=layer.name)
    for name in norm_names(model.norm, layer):
        yield from _norm(model, prefix + name, "norm", model.hidden_size, count, layer.name)


def norm_names(norm: Norm, layer: LayerClass) -> tuple[str, ...]:
    """Names of a layer's norms; a layer with a mixer or a feed-forward part alone has the first half of them."""
    after = ("post_attention_layernorm", "post_feedforward_layernorm")
    if norm.per_layer == 1:  # attention and feed-forward part side by side on one normed input
        names: tuple[str, ...] = ("input_layernorm",)
    elif norm.per_layer == 2:
        names = after if norm.placement == "post" else ("input_layernorm", "post_attention_layernorm")
    else:
        names = ("input_layernorm", after[0], "pre_feedforward_layernorm", after[1])
    parts = 2 - isinstance(layer.attention, NoMixer) - isinstance(layer.ffn, NoFfn)
    return names if parts == 2 else names[: max(1, len(names) * parts // 2)] if parts else ()


def _norm(model: ModelSpec, name: str, role: str, size: int, count: int, layer: str) -> Iterator[Tensor]:
    if model.norm.weights:
        yield Tensor(f"{name}.weight", role, (size,), count=count, layer=layer)
        if model.norm.bias:
            yield Tensor(f"{name}.bias", role, (size,), count=count, layer=layer)


def _linear(name: str, role: str, out: int, inp: int, shard: Shard, bias: bool = False, n: int = 1) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", role, (out, inp), shard, n)
    if bias:  # a row-parallel layer adds its bias once, after the reduction: it is not cut
        cut: dict[Shard, Shard] = {"in": "whole", "expert_in": "expert_in"}
        yield Tensor(f"{name}.bias", role, (out,), cut.get(shard, shard), n)


def _attention(model: ModelSpec, a: Gqa | Mla | Compressed | Recurrent | NoMixer) -> Iterator[Tensor]:
    if isinstance(a, NoMixer):
        return iter(())
    if isinstance(a, Recurrent):
        return _recurrent(model, a)
    if isinstance(a, Compressed):
        return _compressed(model, a)
    return _gqa(model, a) if isinstance(a, Gqa) else _mla(model, a)


def _recurrent(model: ModelSpec, a: Recurrent) -> Iterator[Tensor]:
    from perfmodel.modelspecs.tensors_recurrent import recurrent_tensors

    return recurrent_tensors(model.hidden_size, a)


def _ffn(model: ModelSpec, f: Dense | Moe | NoFfn) -> Iterator[Tensor]:
    if isinstance(f, NoFfn):
        return iter(())
    return _dense(model, f) if isinstance(f, Dense) else _moe(model, f)


def _gqa(model: ModelSpec, a: Gqa) -> Iterator[Tensor]:
    d, q_width = model.hidden_size, a.heads * a.head_dim
    yield from _linear("self_attn.q_proj", "q_proj", q_width * (2 if a.output_gate else 1), d, "out", a.qkv_bias)
    if not a.shared_kv:
        yield from _linear("self_attn.k_proj", "k_proj", a.kv_heads * a.head_dim, d, "kv", a.qkv_bias)
        if not a.v_from_k:
            yield from _linear("self_attn.v_proj", "v_proj", a.kv_heads * a.value_dim, d, "kv", a.qkv_bias)
    if a.head_gate:
        yield from _linear("self_attn.g_proj", "head_gate", a.heads, d, "out")
    yield from _linear("self_attn.o_proj", "o_proj", d, a.heads * a.value_dim, "in", a.o_bias)
    if a.qk_norm != "none" and a.qk_norm_weights:
        q_size, k_size = (a.head_dim, a.head_dim) if a.qk_norm == "head" else (q_width, a.kv_heads * a.head_dim)
        yield Tensor("self_attn.q_norm.weight", "qk_norm", (q_size,))
        if not a.shared_kv or a.norms_shared_k:
            yield Tensor("self_attn.k_norm.weight", "qk_norm", (k_size,))
    if a.sink_logits:
        yield Tensor("self_attn.sinks", "sinks", (a.heads,), "out")
    if a.beside:
        yield from _recurrent(model, a.beside)


def _mla(model: ModelSpec, a: Mla) -> Iterator[Tensor]:
    d, q_width = model.hidden_size, a.heads * a.qk_head_dim
    if a.q_lora_rank:
        yield from _linear("self_attn.q_a_proj", "q_a_proj", a.q_lora_rank, d, "whole")
        yield Tensor("self_attn.q_a_layernorm.weight", "qk_norm", (a.q_lora_rank,))
        yield from _linear("self_attn.q_b_proj", "q_b_proj", q_width, a.q_lora_rank, "out")
    else:
        yield from _linear("self_attn.q_proj", "q_proj", q_width, d, "out")
    yield from _linear("self_attn.kv_a_proj_with_mqa", "kv_a_proj", a.cache_elements, d, "whole")
    yield Tensor("self_attn.kv_a_layernorm.weight", "qk_norm", (a.kv_lora_rank,))
    kv_width = a.heads * (a.qk_nope_head_dim + a.v_head_dim)
    yield from _linear("self_attn.kv_b_proj", "kv_b_proj", kv_width, a.kv_lora_rank, "out")
    yield from _linear("self_attn.o_proj", "o_proj", d, a.heads * a.v_head_dim, "in")
    if a.indexer:
        i, q_in = a.indexer, a.q_lora_rank or d
        yield from _linear("self_attn.indexer.wq_b", "indexer_q", i.heads * i.head_dim, q_in, "whole")
        yield from _linear("self_attn.indexer.wk", "indexer_k", i.head_dim, d, "whole")
        yield Tensor("self_attn.indexer.k_norm.weight", "qk_norm", (i.head_dim,))
        yield Tensor("self_attn.indexer.k_norm.bias", "qk_norm", (i.head_dim,))
        yield from _linear("self_attn.indexer.weights_proj", "indexer_weights", i.heads, d, "whole")


def _compressed(model: ModelSpec, a: Compressed) -> Iterator[Tensor]:
    """DeepSeek V4: latent queries, one head that is key and value, compressors, a grouped output."""
    d, width, name = model.hidden_size, a.heads * a.head_dim, "self_attn."
    yield from _linear(f"{name}q_a_proj", "q_a_proj", a.q_lora_rank, d, "whole")
    yield Tensor(f"{name}q_a_norm.weight", "qk_norm", (a.q_lora_rank,))
    yield from _linear(f"{name}q_b_proj", "q_b_proj", width, a.q_lora_rank, "out")
    yield from _linear(f"{name}kv_proj", "kv_proj", a.head_dim, d, "whole")
    yield Tensor(f"{name}kv_norm.weight", "qk_norm", (a.head_dim,))
    yield from _linear(f"{name}o_a_proj", "o_a_proj", a.o_groups * a.o_lora_rank, width // a.o_groups, "out")
    yield from _linear(f"{name}o_b_proj", "o_proj", d, a.o_groups * a.o_lora_rank, "in")
    yield Tensor(f"{name}sinks", "sinks", (a.heads,), "out")
    if a.ratio:
        yield from _compressor(f"{name}compressor.", "compressor", d, a.head_dim, a)
    if a.indexer:
        i, inner = a.indexer, f"{name}compressor.indexer."
        yield from _compressor(inner, "indexer", d, i.head_dim, a)
        yield from _linear(f"{inner}q_b_proj", "indexer_q", i.heads * i.head_dim, a.q_lora_rank, "whole")
        yield from _linear(f"{inner}scorer.weights_proj", "indexer_weights", i.heads, d, "whole")


def _compressor(prefix: str, role: str, d: int, size: int, a: Compressed) -> Iterator[Tensor]:
    wide = a.series * size
    yield from _linear(f"{prefix}kv_proj", f"{role}_k", wide, d, "whole")
    yield from _linear(f"{prefix}gate_proj", f"{role}_gate", wide, d, "whole")
    yield Tensor(f"{prefix}position_bias", "compressor_bias", (a.ratio, wide))
    yield Tensor(f"{prefix}kv_norm.weight", "qk_norm", (size,))


def _mlp(prefix: str, role: str, d: int, width: int, gated: bool, bias: bool, cuts: tuple[Shard, Shard], n: int = 1
) -> Iterator[Tensor]:  # fmt: skip
    if gated:
        yield from _linear(f"{prefix}gate_proj", f"{role}_gate", width, d, cuts[0], bias, n)
    yield from _linear(f"{prefix}up_proj", f"{role}_up", width, d, cuts[0], bias, n)
    yield from _linear(f"{prefix}down_proj", f"{role}_down", d, width, cuts[1], bias, n)


def _dense(model: ModelSpec, f: Dense) -> Iterator[Tensor]:
    yield from _mlp("mlp.", "ffn", model.hidden_size, f.intermediate_size, f.gated, f.bias, ("out", "in"))


def _moe(model: ModelSpec, f: Moe) -> Iterator[Tensor]:
    d = model.hidden_size
    yield from _linear("mlp.gate", "router", f.experts, d, "whole", f.router_bias)
    if f.correction_bias:
        yield Tensor("mlp.gate.e_score_correction_bias", "router", (f.experts,))
    if f.hash_table:
        yield Tensor("mlp.gate.tid2eid", "buffer", (model.vocab_size, f.experts_per_token))
    name, width = "mlp.experts.{expert}.", f.latent_size or d
    if f.latent_size:  # every rank projects its tokens; the experts see the latent
        yield from _linear("mlp.fc1_latent_proj", "latent_in", f.latent_size, d, "whole")
        yield from _linear("mlp.fc2_latent_proj", "latent_out", d, f.latent_size, "whole")
    cuts: tuple[Shard, Shard] = ("expert_out", "expert_in")
    yield from _mlp(name, "expert", width, f.intermediate_size, f.gated, f.bias, cuts, f.experts)
    if f.shared_intermediate_size:
        width = f.shared_intermediate_size
        yield from _mlp("mlp.shared_experts.", "shared_expert", d, width, f.gated, f.bias, ("out", "in"))
        if f.shared_gate:
            yield Tensor("mlp.shared_expert_gate.weight", "shared_router", (1, d))


def _mtp(model: ModelSpec) -> Iterator[Tensor]:
    assert model.mtp is not None
    d, n, prefix = model.hidden_size, model.mtp.layers, "model.mtp.{layer}."
    for i, name in enumerate((model.mtp.layer, *model.mtp.more)):
        for t in _layer(model, model.layer_class(name), f"{prefix}{i}." if model.mtp.more else prefix, n):
            kept = t.quantizable and "mtp" in model.native_16bit
            t = replace(t, kept_in=model.native_format, kept_as="bf16") if kept else t
            yield replace(t, role="mtp")
    for name in ("enorm", "hnorm", *(("shared_head.norm",) if model.mtp.final_norm else ())):
        yield Tensor(f"{prefix}{name}.weight", "mtp", (d,), count=n)
    stored = model.native_roles.get("mtp_proj")
    alone = model.native_format if stored else ""
    yield Tensor(f"{prefix}eh_proj.weight", "mtp", (d, 2 * d), "whole", n, "", bool(stored), alone, stored or "bf16")
    for extra in model.mtp.tensors:
        yield Tensor(f"{prefix}{extra.name}", "mtp", extra.shape, count=n)
    own = ("embed_tokens", "shared_head.head") if model.mtp.own_embedding else ()
    for name in own or (("shared_head.head",) if model.mtp.own_head else ()):
        yield Tensor(f"{prefix}{name}.weight", "mtp", (model.vocab_size, d), "vocab", n)
