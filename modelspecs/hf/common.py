"""What the families of Hugging Face configurations share: dimensions, attention, schedules, harmless keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.modelspecs.hf.keys import MAX_LAYERS, Keys

Spec = dict[str, Any]


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set of keys."""
    return frozenset(text.split())


CORE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
CORE_KV = (*CORE, "num_key_value_heads", "max_position_embeddings")
KINDS = ("full_attention", "sliding_attention")

#: Activations of gated feed-forward layers; all cost the same to within a rounding.
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "relu", "relu2", "swish", "xielu")

#: Keys that change neither a tensor's shape nor a cost: token ids, training and generation settings, numerics of the
#: norms and of the rotary embedding (its tables are computed, not stored), names, and what tools leave behind.
HARMLESS = words(
    """
    architectures model_type _name_or_path transformers_version auto_map torch_dtype dtype use_cache return_dict
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id unk_token_id bos_token eos_token
    initializer_range init_std attention_dropout hidden_dropout resid_pdrop embd_pdrop dropout classifier_dropout
    rms_norm_eps layer_norm_eps norm_eps layer_norm_epsilon rope_theta rope_scaling rope_parameters rope_interleaved
    rope_interleave partial_rotary_factor rope_local_base_freq original_max_position_embeddings model_max_length
    attn_implementation _attn_implementation _attn_implementation_autoset attn_implementation_autoset
    _attn_implementation_internal pretraining_tp _commit_hash name_or_path
    use_bfloat16 torchscript output_attentions output_hidden_states output_router_logits problem_type
    task_specific_params
    id2label label2id finetuning_task prefix tokenizer_class tie_encoder_decoder chunk_size_feed_forward
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens tf_legacy_loss
    cache_implementation is_llama_config transformers.js_config unsloth_version unsloth_fixed
    max_sequence_length ep_size
    """
)

#: Routing: how experts are chosen and weighted changes neither sizes nor costs.
ROUTING = words(
    "n_group topk_group norm_topk_prob routed_scaling_factor scoring_func seq_aux aux_loss_alpha router_aux_loss_coef "
    "router_jitter_noise num_experts_per_group moe_router_dtype swiglu_alpha swiglu_limit"
)
GEMMA = words("query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping sliding_window_size")
LLAMA4 = ROUTING | words("attn_temperature_tuning floor_scale attn_scale for_llm_compressor")
IMAGES = words(
    "image_token_index image_token_id boi_token_index boi_token_id eoi_token_index eoi_token_id mm_tokens_per_image"
)

#: Keys that only one value of leaves the formulas true.
EXPECTED: dict[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "pruned_heads": ({},),
    "sparse_attention": (),
}


def expected(k: Keys) -> None:
    """Refuse what no formula here holds for, such as an encoder beside the decoder."""
    for key, allowed in EXPECTED.items():
        k.expect(key, *allowed)


def base(k: Keys, tied: bool, max_context: int | None = None, vocabulary: int | None = None) -> Spec:
    """Fields that every family has. ``tied``: what the model class does when the key is absent."""
    expected(k)
    return {
        "hidden_size": k.dim("hidden_size"),
        "vocab_size": k.dim("vocab_size", vocabulary),
        "max_context": k.dim("max_position_embeddings", max_context),
        "tied_embeddings": k.flag("tie_word_embeddings", tied),
    }


def num_layers(k: Keys) -> int:
    """Number of layers, bounded before anything is built from it."""
    layers = k.dim("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise k.error("num_hidden_layers", f"{layers} layers; at most {MAX_LAYERS}")
    return layers


def head_dim(k: Keys, heads: int) -> int:
    """``head_dim``, or ``hidden_size / heads`` as the model classes have it when the key is absent."""
    hidden = k.dim("hidden_size")
    if not k.has("head_dim"):
        if hidden % heads:
            raise k.error("hidden_size", f"{hidden} is not a multiple of num_attention_heads ({heads}); add head_dim")
        return k.dim("head_dim", hidden // heads)
    return k.dim("head_dim")


def gqa(k: Keys, mha_if_absent: bool = False, kv_heads: int | None = None, heads: int | None = None,
        dim: int | None = None, **more: object) -> Spec:  # fmt: skip
    """Grouped-query attention.

    Parameters
    ----------
    mha_if_absent : bool
        The model class takes as many KV heads as heads when ``num_key_value_heads`` is absent.
    kv_heads, heads, dim : int, optional
        Defaults of the model class for ``num_key_value_heads``, ``num_attention_heads`` and ``head_dim``.
    """
    query_heads = k.dim("num_attention_heads", heads)
    groups = k.dim("num_key_value_heads", query_heads if mha_if_absent else kv_heads)
    if query_heads % groups:
        raise k.error("num_key_value_heads", f"{groups} does not divide num_attention_heads ({query_heads})")
    size = k.dim("head_dim", dim) if dim else head_dim(k, query_heads)
    return {"kind": "gqa", "heads": query_heads, "kv_heads": groups, "head_dim": size, **more}


def dense(k: Keys, key: str = "intermediate_size", default_activation: str = "silu", **more: object) -> Spec:
    """A gated feed-forward layer."""
    return {
        "kind": "dense",
        "intermediate_size": k.dim(key),
        "activation": activation(k, default_activation),
        **more,
    }


def activation(k: Keys, default: str = "silu") -> str:
    """``hidden_activation`` (Gemma) or ``hidden_act``."""
    old = k.text("hidden_act", ACTIVATIONS, default)
    return k.text("hidden_activation", ACTIVATIONS, old)


def effective_window(k: Keys, window: int | None, max_context: int) -> int | None:
    """A window as long as the longest context is none."""
    if window is not None and window >= max_context:
        k.remarks.append(f"{k.prefix}sliding_window = {window} reaches over the whole context: full attention")
        return None
    return window


def schedule(layers: Sequence[str]) -> list[Spec]:
    """Runs of a list of layers: the shortest repeated pattern, or stretches of equal layers.

    >>> schedule(["s/d", "s/d", "f/d", "s/d", "s/d", "f/d", "s/d"])
    [{'repeat': 2, 'pattern': ('s/d', 's/d', 'f/d')}, {'repeat': 1, 'pattern': ('s/d',)}]
    """
    for period in range(1, min(13, len(layers) // 2 + 1)):
        if all(layers[i] == layers[i % period] for i in range(len(layers))):
            runs: list[Spec] = [{"repeat": len(layers) // period, "pattern": tuple(layers[:period])}]
            rest = len(layers) % period
            return runs + ([{"repeat": 1, "pattern": tuple(layers[:rest])}] if rest else [])
    found: list[Spec] = []
    for layer in layers:
        if found and found[-1]["pattern"] == (layer,):
            found[-1]["repeat"] += 1
        else:
            found.append({"repeat": 1, "pattern": (layer,)})
    return found


def windowed(full: Spec, window: int | None, kinds: Sequence[str], ffn: Sequence[str]) -> Spec:
    """Attention variants and schedule of layers that are ``"full_attention"`` or ``"sliding_attention"``."""
    names = ["sliding" if kind == "sliding_attention" and window else "full" for kind in kinds]
    attention = {"full": full, "sliding": {**full, "window": window}}
    return {
        "attention": {name: attention[name] for name in dict.fromkeys(names)},
        "layers": schedule([f"{a}/{f}" for a, f in zip(names, ffn, strict=True)]),
    }


def nested(k: Keys, model_type: str | tuple[str, ...], read: Callable[[Keys], Spec], harmless: frozenset[str]) -> Spec:
    """The spec of the text section of a model with vision parts."""
    expected(k)
    k.require("text_config")
    section = k.section("text_config")
    assert section is not None
    section.expect("model_type", *((model_type,) if isinstance(model_type, str) else model_type))
    spec = read(section)
    section.finish(HARMLESS | harmless)
    if "tie_word_embeddings" in k.data:  # the outer key is the one that the class reads
        spec["tied_embeddings"] = k.flag("tie_word_embeddings", True)
    if not k.has("vision_config"):
        k.remarks.append("no vision_config: the language model alone is counted")
    return spec
