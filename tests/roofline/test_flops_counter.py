"""FLOPs of the graph against torch's own counter on small instances of real architectures.

The counter counts what the eager code multiplies: attention scores of the full rectangle, masked or not. That surplus
is computed here by going over the mask pair by pair; nothing else may differ.
"""

import functools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from perfmodel.modelspecs import hf
from perfmodel.modelspecs.schema import Gqa, Mla, ModelSpec
from perfmodel.roofline.graph import graph
from perfmodel.roofline.step import Plan, Step, chunked_prefill, decode, prefill

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")

BATCH, LENGTH, VOCABULARY = 2, 20, 160
CORE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 256, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 3, "norm_topk_prob": True}
LATENT = CORE | EXPERTS | {
    "num_hidden_layers": 3, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip

#: model_type -> configuration as published files have it.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": CORE,
    "mistral": CORE | {"head_dim": 24, "sliding_window": 8},
    "qwen2": CORE,
    "qwen3": CORE | {"head_dim": 24},
    "mixtral": CORE | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2_moe": CORE | EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 48},
    "qwen3_moe": CORE | EXPERTS | {"head_dim": 24, "num_experts": 8},
    "deepseek_v2": LATENT | {"q_lora_rank": None, "topk_method": "greedy"},
    "deepseek_v3": LATENT | {"q_lora_rank": 24},
    "gpt_oss": CORE | {"head_dim": 24, "num_hidden_layers": 4, "num_local_experts": 8, "num_experts_per_tok": 3,
                       "sliding_window": 8, "attention_bias": True},
    "gemma2": CORE | {"head_dim": 24, "num_hidden_layers": 4, "sliding_window": 8, "tie_word_embeddings": True},
    "gemma3_text": CORE | {"head_dim": 24, "num_hidden_layers": 6, "sliding_window": 8, "tie_word_embeddings": True},
    "phi3": CORE,
    "olmo2": CORE,
    "cohere": CORE | {"tie_word_embeddings": True},
    "glm4_moe": CORE | EXPERTS | {"head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1,
                                  "topk_group": 1, "first_k_dense_replace": 1, "partial_rotary_factor": 0.5},
}  # fmt: skip
ALL = pytest.mark.parametrize("kind", CONFIGS)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """These matrices are tiny: threads only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def our_spec(kind: str) -> ModelSpec:
    return hf.from_config({"model_type": kind, **CONFIGS[kind]}, f"{kind}.json", kind)


@functools.cache
def torch_model(kind: str, attention: str = "eager") -> Any:
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[kind])
    config._attn_implementation, config._experts_implementation = attention, "eager"
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def counted(model: Any, ids: Any, **options: Any) -> int:
    """FLOPs of a forward pass by torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids, **options)
    return int(counter.get_total_flops())


def tokens(length: int) -> Any:
    torch.manual_seed(1)
    return torch.randint(0, VOCABULARY, (BATCH, length))


def cache_of(model: Any, length: int) -> Any:
    with torch.no_grad():
        return model(tokens(length), use_cache=True).past_key_values


def ours(spec: ModelSpec, step: Step) -> float:
    return float(sum(op.cost().matrix_flops for op in graph(spec, step, Plan())))


def masked_pairs(spec: ModelSpec, q: int, kv: int) -> Iterator[tuple[int, int]]:
    """(FLOPs of a pair in all heads, pairs of the rectangle that the mask removes), for each layer and sequence.

    A windowed layer's rectangle in a step with a cache is as wide as the cache it keeps: the window's last keys.
    """
    for layer in spec.layer_classes:
        a = layer.attention
        head = (a.head_dim + a.value_dim) if isinstance(a, Gqa) else (a.qk_head_dim + a.v_head_dim)
        window = getattr(a, "window", None) or kv
        width = kv if q == kv else min(kv, window - 1 + q)
        seen = sum(1 for p in range(kv - q + 1, kv + 1) for k in range(1, p + 1) if k > p - window)
        for _ in range(layer.count * BATCH):
            yield 2 * a.heads * head, q * width - seen


def surplus(spec: ModelSpec, q: int, kv: int) -> int:
    """FLOPs that the counter sees and the mask makes needless."""
    return sum(flops * pairs for flops, pairs in masked_pairs(spec, q, kv))


@ALL
def test_prefill_equals_the_counter_but_for_masked_pairs(kind: str) -> None:
    """Prefill with the last token's logits: counter = ours + FLOPs of masked pairs, to the FLOP, 16 architectures."""
    spec = our_spec(kind)
    found = counted(torch_model(kind), tokens(LENGTH), logits_to_keep=1)
    assert found == ours(spec, prefill(float(BATCH), float(LENGTH))) + surplus(spec, LENGTH, LENGTH)


@ALL
def test_all_logits_cost_the_head_once_a_position(kind: str) -> None:
    """Without logits_to_keep the head runs on every position: 2 x hidden x vocabulary FLOPs for each of the rest."""
    spec, model = our_spec(kind), torch_model(kind)
    every = Step("prefill", float(BATCH), float(LENGTH), float(LENGTH), logits=float(LENGTH))
    assert counted(model, tokens(LENGTH)) == ours(spec, every) + surplus(spec, LENGTH, LENGTH)
    head = 2 * spec.hidden_size * VOCABULARY
    more = ours(spec, every) - ours(spec, prefill(float(BATCH), float(LENGTH)))
    assert more == BATCH * (LENGTH - 1) * head


@ALL
def test_decode_equals_the_counter(kind: str) -> None:
    """A token after a cache of LENGTH: equal. MLA's eager code expands the whole cache again, as our chunk does."""
    spec, model = our_spec(kind), torch_model(kind)
    found = counted(model, tokens(1), past_key_values=cache_of(model, LENGTH), use_cache=True)
    if isinstance(spec.layer_classes[0].attention, Mla):
        assert found == ours(spec, chunked_prefill(float(BATCH), 1.0, float(LENGTH)))
    else:
        assert found == ours(spec, decode(float(BATCH), float(LENGTH + 1)))


@ALL
def test_chunk_equals_the_counter_but_for_masked_pairs(kind: str) -> None:
    """Five more prompt tokens on a cache of LENGTH: counter = ours + FLOPs of masked pairs."""
    spec, model, q = our_spec(kind), torch_model(kind), 5
    found = counted(model, tokens(q), past_key_values=cache_of(model, LENGTH), use_cache=True, logits_to_keep=1)
    step = chunked_prefill(float(BATCH), float(q), float(LENGTH))
    assert found == ours(spec, step) + surplus(spec, q, LENGTH + q)


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_absorbed_decode_differs_from_the_eager_code_by_the_expansion(kind: str) -> None:
    """MLA decode: the eager code makes K and V of all cached tokens again; ours works on the latents instead."""
    spec, model, kv = our_spec(kind), torch_model(kind), LENGTH + 1
    a = spec.layer_classes[0].attention
    assert isinstance(a, Mla)
    found = counted(model, tokens(1), past_key_values=cache_of(model, LENGTH), use_cache=True)
    expand = 2 * a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)  # a token: kv_b_proj
    eager = kv * expand + kv * 2 * a.heads * (a.qk_head_dim + a.v_head_dim)
    # absorbed: the same matrices once for the new token, then 2 x latent + rope a pair
    absorbed = expand + kv * 2 * a.heads * (2 * a.kv_lora_rank + a.qk_rope_head_dim)
    difference = spec.num_layers * BATCH * (eager - absorbed)
    assert found - ours(spec, decode(float(BATCH), float(kv))) == difference


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_fused_attention_on_cpu_is_not_counted(kind: str) -> None:
    """The counter knows no CPU kernel of scaled_dot_product_attention: it then misses attention entirely, we do not."""
    spec = our_spec(kind)
    full = sum(flops * LENGTH * LENGTH for flops, _ in masked_pairs(spec, LENGTH, LENGTH))
    eager = counted(torch_model(kind), tokens(LENGTH), logits_to_keep=1)
    assert counted(torch_model(kind, "sdpa"), tokens(LENGTH), logits_to_keep=1) == eager - full


def by_module(model: Any, ids: Any) -> dict[str, int]:
    """FLOPs by module path, logits of the last token."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids, logits_to_keep=1)
    return {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}


PARTS = {
    "llama": {"qkv_proj": "qkv", "o_proj": "self_attn.o_proj", "gate_up_proj": "gate_up", "down_proj": "mlp.down_proj"},
    "mixtral": {"qkv_proj": "qkv", "o_proj": "self_attn.o_proj", "router": "mlp.gate", "experts": "mlp.experts"},
    "deepseek_v3": {"q_b_proj": "self_attn.q_b_proj", "kv_b_proj": "self_attn.kv_b_proj", "o_proj": "self_attn.o_proj",
                    "experts": "mlp.experts", "shared": "mlp.shared_experts"},
}  # fmt: skip
FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
}


@pytest.mark.parametrize("kind", PARTS)
def test_each_part_of_the_graph_equals_its_module(kind: str) -> None:
    """Not only the sum: projections, router, experts, shared experts and head have their modules' FLOPs."""
    spec, counts = our_spec(kind), by_module(torch_model(kind), tokens(LENGTH))
    graph_ops = graph(spec, prefill(float(BATCH), float(LENGTH)), Plan())
    prefixes = {"experts": "experts_", "shared": "shared_"}

    def mine(part: str) -> float:
        return sum(
            float(op.cost().matrix_flops)
            for op in graph_ops
            if op.name == part or (part in prefixes and op.name.startswith(prefixes[part]))
        )

    for part, module in PARTS[kind].items():
        suffixes = FUSED.get(module, (module,))
        theirs = sum(n for name, n in counts.items() if name.endswith(suffixes))
        assert theirs > 0
        assert mine(part) == theirs, part
    assert mine("lm_head") == sum(n for name, n in counts.items() if name.endswith("lm_head"))
