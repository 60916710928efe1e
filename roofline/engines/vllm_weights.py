"""Weights of a rank as vLLM loads them: the tensors, and what the loader adds to them.

Source: vLLM 0.19.0. Rotary tables: model_executor/layers/rotary_embedding/base.py and, of Gemma 3's scaled positions,
linear_scaling_rope.py. Vocabulary padding: model_executor/layers/vocab_parallel_embedding.py. Copies of
``kv_b_proj``: model_executor/layers/attention/mla_attention.py, ``process_weights_after_loading``. MXFP4 padding:
model_executor/layers/fused_moe/oracle/mxfp4.py.
"""

from __future__ import annotations

from math import ceil

from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.formats import FORMATS
from perfmodel.modelspecs.schema import Gqa, Mla, ModelSpec, Moe
from perfmodel.modelspecs.sizes import is_plain, tensor_bytes, tensor_format
from perfmodel.modelspecs.tensors import Tensor, tensors
from perfmodel.roofline.engines.overheads import Overheads
from perfmodel.roofline.engines.rules import Rules
from perfmodel.roofline.sharding import layer_tensors, layers_in, stage_layers, stage_weight_bytes
from perfmodel.roofline.step import Plan

#: Linear scaling of Gemma 3's positions (``rope_scaling`` of its configurations), which those of 32k contexts lack.
SCALED_POSITIONS, UNSCALED_CONTEXT = 8, 32_768

#: vLLM pads the vocabulary to whole multiples of this.
VOCABULARY_PADDING = 64

#: Expert tensors in MXFP4: multiples to which the kernels of a compute capability pad the hidden size and a rank's
#: share of the intermediate size, and whether the scales are padded with the values.
MXFP4_PADDING = {"9": (256, 64, False), "10": (256, 256, True), "": (256, 128, True)}


def loaded_weights(
    model: ModelSpec, gpu: Gpu, plan: Plan, stage: int, rules: Rules, fitted: Overheads, mtp: bool = False
) -> dict[str, tuple[float, str]]:
    """Parts of the weights on a rank of one pipeline stage: bytes and the formula in words, by name."""
    parts = {"tensors": (stage_weight_bytes(model, plan, stage, mtp), "tensors of the rank's layers in their formats")}
    if stage == 0 and plan.tp > 1 and rules["weights_cut_vision"]:
        cut = -(1 - 1 / plan.tp) * vision_bytes(model, plan)
        parts["vision_cut"] = (cut, "the vision tower is cut by tensor parallelism, its projector is not")
    parts["rotary"] = (rotary_bytes(model, plan), "cosine and sine tables: longest context x rotary size x element")
    parts["vocabulary"] = (vocabulary_bytes(model, plan, stage), "vocabulary padded to a multiple of 64")
    parts["latent_copies"] = (latent_copies(model, plan, stage), "16-bit copies of a quantized kv_b_proj")
    parts["expert_padding"] = (expert_padding(model, gpu, plan, stage), "MXFP4 experts padded for the kernels")
    if rules["moe_buffers"] and moe_layers(model, plan, stage):
        parts["moe_buffers"] = (fitted.moe_buffers, "what loading a mixture of experts leaves (fitted)")
    return {name: part for name, part in parts.items() if part[0]}


def moe_layers(model: ModelSpec, plan: Plan, stage: int) -> int:
    """Layers of a stage that are mixtures of experts."""
    here = stage_layers(model.num_layers, plan.pp)[stage]
    return sum(layers_in(layer, here) for layer in model.layer_classes if isinstance(layer.ffn, Moe))


def vision_bytes(model: ModelSpec, plan: Plan) -> float:
    """Bytes of the vision tower, its projector apart."""
    return sum(t.count * tensor_bytes(t, plan.weights) for t in tensors(model) if t.role == "vision")


def rotary_bytes(model: ModelSpec, plan: Plan) -> float:
    """Tables of the rotary embedding: one for each size of head, in the activations' type.

    Gemma 3 has one for its windowed layers and one for the others. The latter's positions are scaled down by 8 where
    the context is long, and then vLLM makes its table 8 times as long.
    """
    tables = set()
    for a in model.attention.values():
        if isinstance(a, Mla):
            tables.add((a.qk_rope_head_dim, 1))
        elif isinstance(a, Gqa) and a.rope:
            wide = model.family == "gemma3" and a.window is None
            factor = SCALED_POSITIONS if wide and model.max_context > UNSCALED_CONTEXT else 1
            tables.add((a.head_dim, factor if not wide else -factor))
    return sum(model.max_context * size * abs(factor) * plan.act_bytes for size, factor in tables)


def vocabulary_bytes(model: ModelSpec, plan: Plan, stage: int) -> float:
    """Rows that padding adds to the embedding on the first stage and to the LM head on the last."""
    padded = ceil(model.vocab_size / VOCABULARY_PADDING) * VOCABULARY_PADDING
    rows = ceil(padded / plan.tp) - ceil(model.vocab_size / plan.tp)
    last = stage == plan.pp - 1
    held = (stage == 0) + (last and not (model.tied_embeddings and stage == 0))
    bits = plan.weights.bits if is_plain(plan.weights) else 16
    return held * rows * model.hidden_size * bits / 8


def latent_copies(model: ModelSpec, plan: Plan, stage: int) -> float:
    """16-bit copies of ``kv_b_proj`` that absorbed attention multiplies by, where the stored one is quantized."""
    here = stage_layers(model.num_layers, plan.pp)[stage]
    total = 0.0
    for layer in model.layer_classes:
        for t in layer_tensors(model, layer, plan).get("kv_b_proj", []):
            if tensor_format(t, plan.weights).bits < 16:
                total += layers_in(layer, here) * t.total * plan.act_bytes
    return total


def expert_padding(model: ModelSpec, gpu: Gpu, plan: Plan, stage: int) -> float:
    """What the padding of MXFP4 expert tensors adds on a rank."""
    if plan.weights.name != "mxfp4":
        return 0.0
    here = stage_layers(model.num_layers, plan.pp)[stage]
    major = (gpu.compute_capability or "").partition(".")[0]
    hidden, inner, scales = MXFP4_PADDING.get(major, MXFP4_PADDING[""])
    total = 0.0
    for layer in model.layer_classes:
        for role, parts in layer_tensors(model, layer, plan).items():
            if role.startswith("expert_"):
                added = sum(_padded(t, role, hidden, inner, scales) for t in parts if len(t.shape) == 2)
                total += layers_in(layer, here) * added
    return total


def _padded(t: Tensor, role: str, hidden: int, inner: int, scales: bool) -> float:
    rows, cols = t.shape
    down = role == "expert_down"
    wide = (_up(rows, hidden), _up(cols, inner)) if down else (_up(rows, inner), _up(cols, hidden))
    if not scales:  # on Hopper the swizzled values are padded along the columns only, whichever they are
        wide = (rows if down else wide[0], _up(wide[1], 256))
    extra = FORMATS["mxfp4"]
    elements = wide[0] * wide[1] - rows * cols
    padded_scales = extra.scales(wide) - extra.scales((rows, cols)) if scales else 0
    return t.count * (elements * extra.bits + padded_scales * extra.scale_bits) / 8


def _up(size: int, multiple: int) -> int:
    return ceil(size / multiple) * multiple
