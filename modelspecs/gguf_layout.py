"""A model as a GGUF file stores it: names and shapes of the tensors, layer by layer, in the order of the quantizer.

How the converter of https://github.com/ggml-org/llama.cpp (``convert_hf_to_gguf.py``) lays out what a checkpoint has:
the experts of a layer stacked into one tensor, Q, K and V side by side where the architecture has them so, the two
halves of MLA's up-projection apart; vectors, norms, routers, convolutions and decays in 32 bits. Vision parts go to a
file of their own. ``gguf_names`` has the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from perfmodel.base.errors import UsageError
from perfmodel.base.text import printable
from perfmodel.modelspecs.gguf_names import ARCHITECTURES, INSIDE, OUTSIDE, UNSUPPORTED, WHOLE, Architecture
from perfmodel.modelspecs.schema import Compressed, Gqa, LayerClass, Mla, ModelSpec, Moe
from perfmodel.modelspecs.schema_recurrent import GatedDelta, Mamba2
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
    fixed : str
        Type that it has in every file; ``""`` where the preset decides.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    fixed: str = ""

    @property
    def f32(self) -> bool:
        """Whether it stays in 32 bits in every file."""
        return self.fixed == "F32"

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)

    @property
    def layer(self) -> int:
        """Number of its layer; -1 outside the layers."""
        match = re.match(r"blk\.(\d+)\.", self.name)
        return int(match[1]) if match else -1


#: Roles that the converter leaves in 32 bits.
_F32_ROLES = ("router", "shared_router", "position", "conv")
#: What the quantizer leaves as the converter wrote it: integers, and the projection of Gemma's per-layer inputs.
_FIXED = {"ffn_gate_tid2eid.weight": "I32", "per_layer_model_proj.weight": "BF16"}


def architecture(model: ModelSpec) -> Architecture:
    """llama.cpp's architecture of a model.

    Raises
    ------
    UsageError
        When llama.cpp has none, or the layout of its files is not described here.
    """
    found = ARCHITECTURES.get(model.family) or ARCHITECTURES.get(model.family.removesuffix("_text"))
    if found is None:
        known, name = UNSUPPORTED.get(model.family), printable(model.name, 80)
        family = printable(model.family, 80) or "unnamed"
        why = (
            f"llama.cpp has no architecture for {known}: there are no GGUF files of {name}"
            if known
            else f"GGUF files of {name} (family {family}) are not described; those of {len(ARCHITECTURES)} families are"
        )
        raise UsageError(f"{why}. Other formats, such as int4, size it")
    if found.name == "nemotron_h" and experts_of(model):
        return replace(found, name="nemotron_h_moe")
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
    found: list[GgufTensor] = list(_added(model, arch))
    layers = {layer.name: layer for layer in model.layer_classes}
    for t in tensors(model):
        if _left_out(t, arch):
            continue
        if t.role == "mtp":
            found += _mtp(model, t, arch, latent)
        elif not t.layer:
            found.append(_stored(_outside(t, arch), t.shape, t.role))
        else:
            layer = layers[t.layer]
            for index in layer.indices:
                found += _in_layer(t, layer, index, arch, experts_apart, latent)
    return tuple(sorted(_fused(found, arch), key=lambda t: (t.layer, t.name)))


def _left_out(t: Tensor, arch: Architecture) -> bool:
    """What the file lacks: vision parts, prediction layers, and buffers but those that the converter takes over."""
    taken = t.name == "lm_head.weight" or t.name.endswith("tid2eid")
    if t.role == "buffer":
        return not taken
    return t.role in ("vision", "projector") or (t.role == "mtp" and not arch.mtp)


def _added(model: ModelSpec, arch: Architecture) -> Iterator[GgufTensor]:
    """What the converter adds: the frequencies of Gemma 4's full layers."""
    full = [a.head_dim for a in model.attention.values() if isinstance(a, Gqa) and not a.window]
    if arch.rope_freqs and full:
        yield GgufTensor("rope_freqs.weight", (full[0] // 2,), "rope", "F32")


def _stored(name: str, shape: tuple[int, ...], role: str) -> GgufTensor:
    """A tensor under its name; rows of ones around it are dropped, as the quantizer's writer does."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    fixed = next((kind for end, kind in _FIXED.items() if name.endswith(end)), "")
    plain = role in _F32_ROLES and not name.startswith("per_layer_token_embd")
    if len(shape) < 2 or not name.endswith(".weight") or "_norm." in name or plain:
        fixed = fixed or "F32"
    return GgufTensor(name, shape, role, fixed)


def _outside(t: Tensor, arch: Architecture) -> str:
    if t.name in WHOLE:
        return WHOLE[t.name]
    stem, _, kind = t.name.rpartition(".")
    renamed = dict(arch.names).get(stem) or OUTSIDE.get(stem)
    if renamed is None:
        raise UsageError(f"the place of {t.name} in a GGUF file is not described")
    return f"{renamed}.{kind}"


def _name(t: Tensor, arch: Architecture) -> str:
    """Name below the layer: stem and kind."""
    short = re.sub(r"^model\.(?:layers|mtp)\.\{layer\}\.", "", t.name)
    if short in WHOLE:
        return WHOLE[short]
    if short in dict(arch.names):
        return dict(arch.names)[short]
    stem, _, kind = short.rpartition(".")
    renamed = dict(arch.names).get(stem) or INSIDE.get(stem)
    if renamed is None:
        raise UsageError(f"the place of {t.name} in a GGUF file is not described")
    return f"{renamed}.{kind}"


def _in_layer(t: Tensor, layer: LayerClass, index: int, arch: Architecture, apart: bool, latent: str
) -> Iterator[GgufTensor]:  # fmt: skip
    experts = t.count // layer.count
    if "{expert}" in t.name and apart:
        name = _name(t, arch)
        for expert in range(experts):
            yield _stored(f"blk.{index}.{name.replace('_exps.', f'.{expert}.')}", t.shape, t.role)
        return
    yield from _pieces(t, layer, index, arch, experts, latent)


def _pieces(t: Tensor, layer: LayerClass, index: int, arch: Architecture, experts: int, latent: str
) -> Iterator[GgufTensor]:  # fmt: skip
    """A tensor of the inventory as the converter stores it: whole, in parts, or in another shape."""
    a, place = layer.attention, f"blk.{index}."
    if isinstance(a, Mla) and "kv_b_proj" in t.name and latent != "whole":
        yield _stored(f"{place}attn_k_b.weight", (a.heads, a.kv_lora_rank, a.qk_nope_head_dim), t.role)
        yield _stored(f"{place}attn_v_b.weight", (a.heads, a.v_head_dim, a.kv_lora_rank), t.role)
        if latent == "split":
            return
    if isinstance(a, GatedDelta) and "in_proj_qkvz" in t.name:
        yield _stored(f"{place}attn_qkv.weight", (a.conv_channels(), t.shape[1]), t.role)
        yield _stored(f"{place}attn_gate.weight", (a.values, t.shape[1]), t.role)
        return
    shape = (experts, *t.shape) if "{expert}" in t.name else _shape(t, layer)
    yield _stored(place + _name(t, arch), shape, t.role)


def _shape(t: Tensor, layer: LayerClass) -> tuple[int, ...]:
    """Shapes that the converter changes: convolutions without their middle, Mamba-2's vectors and norm as matrices."""
    a = layer.attention
    mamba = a if isinstance(a, Mamba2) else getattr(a, "beside", None)
    short = t.name.rpartition(".mixer.")[2]
    if isinstance(mamba, Mamba2) and short in ("A_log", "D"):
        return (t.shape[0], 1)
    if isinstance(mamba, Mamba2) and short == "norm.weight":
        return (mamba.groups, t.shape[0] // mamba.groups)
    if t.role == "conv" and len(t.shape) == 3 and not re.search(r"[qkv]_conv1d", t.name):
        return (t.shape[0], t.shape[2])
    return t.shape


def _mtp(model: ModelSpec, t: Tensor, arch: Architecture, latent: str) -> Iterator[GgufTensor]:
    """Prediction layers, which stand after the others."""
    assert model.mtp is not None
    layer = model.layer_class(model.mtp.layer)
    for step in range(model.mtp.layers):
        yield from _pieces(t, layer, model.num_layers + step, arch, t.count // model.mtp.layers, latent)


def _fused(found: list[GgufTensor], arch: Architecture) -> Iterator[GgufTensor]:
    """Put side by side what the architecture has in one tensor."""
    joined: dict[str, tuple[str, ...]] = {}
    if arch.fused_qkv:
        joined |= {"attn_qkv": ("attn_q", "attn_k", "attn_v")}
    if arch.fused_ffn:
        joined |= {"ffn_up": ("ffn_gate", "ffn_up")}
    if arch.fused_experts:
        joined |= {"ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps")}
    into = {part: whole for whole, parts in joined.items() for part in parts}
    groups: dict[str, list[GgufTensor]] = {}
    for t in found:
        match = re.fullmatch(r"(blk\.\d+)\.(\w+)\.(weight|bias)", t.name)
        if match and match[2] in into:
            groups.setdefault(f"{match[1]}.{into[match[2]]}.{match[3]}", []).append(t)
        else:
            yield t
    for name, parts in groups.items():
        at = 1 if name.endswith("_exps.weight") else 0  # rows of each expert, or of the matrix
        rows, first = sum(part.shape[at] for part in parts), parts[0]
        yield GgufTensor(name, (*first.shape[:at], rows, *first.shape[at + 1 :]), first.role, first.fixed)


def ffn_layers(model: ModelSpec) -> int:
    """Layers as the quantizer counts them: prediction layers that are stored included."""
    return model.num_layers + (model.mtp.layers if model.mtp and architecture(model).mtp else 0)


def experts_of(model: ModelSpec) -> int:
    """Experts of a layer; 0 of a dense model."""
    return max((f.experts for f in model.ffn.values() if isinstance(f, Moe)), default=0)


def query_group(model: ModelSpec, latent: str = "split") -> int:
    """Query heads a KV head as llama.cpp counts them, by the first layer; of MLA as the file's metadata say.

    0 where the first layer has no attention and the metadata list KV heads by layer; files with one number for all
    layers have the same ratio everywhere.
    """
    attention = [layer.attention for layer in model.layer_classes]
    if not architecture(model).kv_by_layer:
        attention = [a for a in attention if isinstance(a, Gqa | Mla | Compressed)]
    first = attention[0] if attention else None
    if isinstance(first, Mla):
        return 1 if latent == "whole" else first.heads
    if isinstance(first, Compressed):
        return first.heads
    return first.group if isinstance(first, Gqa) else 0
