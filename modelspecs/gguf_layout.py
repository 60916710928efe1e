"""A model as a GGUF file stores it: names and shapes of the tensors, layer by layer, in the order of the quantizer.

How the converter of https://github.com/ggml-org/llama.cpp (``convert_hf_to_gguf.py``) lays out what a checkpoint has:
the experts of a layer stacked into one tensor, Q, K and V side by side where the architecture has them so, the two
halves of MLA's up-projection apart; vectors, norms and routers in 32 bits. Vision parts go to a file of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.schema import Gqa, LayerClass, Mla, ModelSpec, Moe
from perfmodel.modelspecs.schema_recurrent import NoMixer, Recurrent
from perfmodel.modelspecs.tensors import Tensor, tensors


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of the file.

    Attributes
    ----------
    name : str
    shape : tuple[int, ...]
        Outermost dimension first; a row is the last one.
    role : str
        Of the inventory; of tensors that hold several, the first.
    f32 : bool
        Whether it stays in 32 bits in every file.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    f32: bool = False

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)

    @property
    def layer(self) -> int:
        """Number of its layer; -1 outside the layers."""
        match = re.match(r"blk\.(\d+)\.", self.name)
        return int(match[1]) if match else -1


@dataclass(frozen=True)
class Architecture:
    """What llama.cpp makes of a family.

    Attributes
    ----------
    name : str
        ``general.architecture``.
    fused_qkv, fused_ffn : bool
        Q, K and V in one tensor; gate and up projection in one.
    norms : dict
        Names of norms that differ from Llama's.
    mtp : bool
        Whether prediction layers are stored.
    """

    name: str
    fused_qkv: bool = False
    fused_ffn: bool = False
    norms: tuple[tuple[str, str], ...] = ()
    mtp: bool = False


_FOUR = (
    ("post_attention_layernorm", "post_attention_norm"), ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
)  # fmt: skip
_AFTER = (("post_attention_layernorm", "post_attention_norm"), ("post_feedforward_layernorm", "post_ffw_norm"))
_MLA = Architecture("deepseek2")

#: Family of a spec -> its architecture. Others are refused: their layout is not described.
ARCHITECTURES: dict[str, Architecture] = {
    **{name: Architecture("llama") for name in ("llama", "mistral", "mistral3", "mixtral")},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_vl", "kimi_k25"), _MLA),
    **{name: Architecture(name) for name in ("gemma", "starcoder2", "orion", "olmoe", "smollm3", "granite")},
    **{name: Architecture(name, norms=_FOUR) for name in ("gemma2", "gemma3")},
    **{name: Architecture("olmo2", norms=_AFTER) for name in ("olmo2", "olmo3")},
    **{name: Architecture(name, fused_qkv=True) for name in ("falcon", "bloom", "gpt2", "mpt", "stablelm")},
    "stablelm": Architecture("stablelm"),
    "qwen2": Architecture("qwen2"), "qwen2_moe": Architecture("qwen2moe"), "qwen2_5_vl": Architecture("qwen2vl"),
    "qwen3": Architecture("qwen3"), "qwen3_moe": Architecture("qwen3moe"), "qwen3_vl": Architecture("qwen3vl"),
    "qwen3_vl_moe": Architecture("qwen3vlmoe"), "internlm2": Architecture("internlm2"),
    "phi": Architecture("phi2"), "phi3": Architecture("phi3", True, True), "phimoe": Architecture("phimoe"),
    "gpt_neox": Architecture("gptneox", True), "gpt_bigcode": Architecture("starcoder", True),
    "cohere": Architecture("command-r"), "cohere2": Architecture("cohere2"),
    "glm4_moe": Architecture("glm4moe", norms=(("post_attention_layernorm", "post_attention_norm"),), mtp=True),
    "gpt_oss": Architecture("gpt-oss", norms=(("post_attention_layernorm", "post_attention_norm"),)),
    "seed_oss": Architecture("seed_oss", norms=(("post_attention_layernorm", "post_attention_norm"),)),
    "minimax_m2": Architecture("minimax-m2"), "llama4": Architecture("llama4"),
    "nemotron-nas": Architecture("deci"),
}  # fmt: skip

_OUTSIDE = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.embed_positions": "position_embd", "model.embed_norm": "token_embd_norm",
}  # fmt: skip
#: Names below a layer: of the inventory -> of the file.
_INSIDE = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp", "mlp.experts.{expert}.gate_proj": "ffn_gate_exps",
    "mlp.experts.{expert}.up_proj": "ffn_up_exps", "mlp.experts.{expert}.down_proj": "ffn_down_exps",
    "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
    "shared_head.norm": "nextn.shared_head_norm", "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head",
}  # fmt: skip
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
#: Matrices that the converter leaves in 32 bits.
_F32_ROLES = ("router", "shared_router", "position")


def architecture(model: ModelSpec) -> Architecture:
    """llama.cpp's architecture of a model.

    Raises
    ------
    UsageError
        When the layout of its files is not described here.
    """
    found = ARCHITECTURES.get(model.family)
    recurrent = any(isinstance(a, Recurrent) or getattr(a, "beside", None) for a in model.attention.values())
    if found is None or recurrent:
        raise UsageError(
            f"GGUF files of {model.name} (family {model.family or 'unnamed'}) are not described; "
            f"{', '.join(ARCHITECTURES)} are. Other formats, such as int4, size it"
        )
    return found


def layout(model: ModelSpec, experts_apart: bool = False, latent: str = "split") -> tuple[GgufTensor, ...]:
    """Every tensor of the file: those outside the layers first, then layer by layer and by name.

    Parameters
    ----------
    experts_apart : bool
        A tensor an expert, as in files of before March 2024.
    latent : str
        MLA's up-projection: ``split`` into its two halves, ``whole`` (before April 2025), or ``both``.

    Examples
    --------
    >>> from perfmodel.modelspecs.load import model
    >>> found = layout(model("llama3-8b"))
    >>> len(found), found[0].name, found[-1].name
    (291, 'output.weight', 'blk.31.ffn_up.weight')
    """
    arch = architecture(model)
    found: list[GgufTensor] = []
    layers = {layer.name: layer for layer in model.layer_classes}
    for t in tensors(model):
        head = t.name == "lm_head.weight"  # stored though it is tied: the converter takes it over
        if t.role in ("vision", "projector") or (t.role == "buffer" and not head) or (t.role == "mtp" and not arch.mtp):
            continue
        if t.role == "mtp":
            found += _mtp(model, t, arch)
        elif not t.layer:
            stem, _, kind = t.name.rpartition(".")
            found.append(_stored(f"{_OUTSIDE[stem]}.{kind}", t.shape, t.role))
        else:
            layer = layers[t.layer]
            for index in layer.indices:
                found += _in_layer(t, layer, index, arch, experts_apart, latent)
    return tuple(sorted(_fused(found, model, arch), key=lambda t: (t.layer, t.name)))


def _stored(name: str, shape: tuple[int, ...], role: str) -> GgufTensor:
    plain = len(shape) < 2 or not name.endswith(".weight") or role in _F32_ROLES or "_norm." in name
    return GgufTensor(name, shape, role, plain)


def _name(t: Tensor, arch: Architecture) -> str:
    """Name below the layer: stem and kind."""
    short = re.sub(r"^model\.(?:layers|mtp)\.\{layer\}\.", "", t.name)
    stem, _, kind = short.rpartition(".")
    if short in _INSIDE:  # without a kind of its own
        return f"{_INSIDE[short]}.{'bias' if short.endswith('bias') else 'weight'}"
    renamed = dict(arch.norms).get(stem) or _INSIDE.get(stem)
    if renamed is None:
        raise UsageError(f"the place of {t.name} in a GGUF file is not described")
    return f"{renamed}.{kind}"


def _in_layer(t: Tensor, layer: LayerClass, index: int, arch: Architecture, apart: bool, latent: str
) -> Iterator[GgufTensor]:  # fmt: skip
    name = _name(t, arch)
    shape: tuple[int, ...] = t.shape[-1:] if t.shape[:-1] == (1,) else t.shape  # a single row is a vector
    experts = t.count // layer.count
    if "{expert}" in t.name and apart:
        for expert in range(experts):
            yield _stored(f"blk.{index}.{name.replace('_exps.', f'.{expert}.')}", shape, t.role)
        return
    if "{expert}" in t.name:
        shape = (experts, *shape)
    if isinstance(layer.attention, Mla) and t.role == "kv_b_proj" and latent != "whole":
        a = layer.attention
        yield _stored(f"blk.{index}.attn_k_b.weight", (a.heads, a.kv_lora_rank, a.qk_nope_head_dim), t.role)
        yield _stored(f"blk.{index}.attn_v_b.weight", (a.heads, a.v_head_dim, a.kv_lora_rank), t.role)
        if latent == "split":
            return
    yield _stored(f"blk.{index}.{name}", shape, t.role)


def _mtp(model: ModelSpec, t: Tensor, arch: Architecture) -> Iterator[GgufTensor]:
    """Prediction layers, which stand after the others."""
    assert model.mtp is not None
    for step in range(model.mtp.layers):
        shape = t.shape[-1:] if t.shape[:-1] == (1,) else t.shape
        if "{expert}" in t.name:
            shape = (t.count // model.mtp.layers, *shape)
        yield _stored(f"blk.{model.num_layers + step}.{_name(t, arch)}", shape, t.role)


def _fused(found: list[GgufTensor], model: ModelSpec, arch: Architecture) -> Iterator[GgufTensor]:
    """Put side by side what the architecture has in one tensor."""
    joined: dict[str, tuple[str, ...]] = {}
    if arch.fused_qkv:
        joined |= {"attn_qkv": ("attn_q", "attn_k", "attn_v")}
    if arch.fused_ffn:
        joined |= {"ffn_up": ("ffn_gate", "ffn_up")}
    into = {part: whole for whole, parts in joined.items() for part in parts}
    groups: dict[str, list[GgufTensor]] = {}
    for t in found:
        match = re.fullmatch(r"(blk\.\d+)\.(\w+)\.(weight|bias)", t.name)
        if match and match[2] in into:
            groups.setdefault(f"{match[1]}.{into[match[2]]}.{match[3]}", []).append(t)
        else:
            yield t
    for name, parts in groups.items():
        rows = sum(part.shape[0] for part in parts)
        yield GgufTensor(name, (rows, *parts[0].shape[1:]), parts[0].role, parts[0].f32)


def ffn_layers(model: ModelSpec) -> int:
    """Layers as the quantizer counts them: prediction layers that are stored included."""
    return model.num_layers + (model.mtp.layers if model.mtp and architecture(model).mtp else 0)


def experts_of(model: ModelSpec) -> int:
    """Experts of a layer; 0 of a dense model."""
    return max((f.experts for f in model.ffn.values() if isinstance(f, Moe)), default=0)


def query_group(model: ModelSpec, latent: str = "split") -> int:
    """Query heads a KV head in the first layer with attention; of MLA as the file's metadata say."""
    first = next((layer.attention for layer in model.layer_classes if not isinstance(layer.attention, NoMixer)), None)
    if isinstance(first, Mla):
        return 1 if latent == "whole" else first.heads
    return first.group if isinstance(first, Gqa) else 1
