"""The vision towers of Qwen3-VL and Qwen3.5: a patch embedding, blocks, and a merger into the text model's width."""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import Spec, expected
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.vision import HARMLESS_VISION, _linear, _norm, _tensor


def qwen_vision(k: Keys, text_width: int, kinds: tuple[str, ...], deep: bool = False) -> list[Spec]:
    """Tensors of the tower, without deep-stack mergers (Qwen3.5) or with them (Qwen3-VL).

    Parameters
    ----------
    text_width : int
        Must be the tower's ``out_hidden_size``.
    kinds : tuple[str, ...]
        What the section's ``model_type`` may be.
    deep : bool
        A further merger for each of ``deepstack_visual_indexes``.
    """
    expected(k)
    k.require("hidden_size", "intermediate_size", "depth", "out_hidden_size", "patch_size")
    k.expect("model_type", *kinds)
    if not deep:
        k.expect("deepstack_visual_indexes", [])
    k.expect("out_hidden_size", text_width)
    d, width, n = k.dim("hidden_size"), k.dim("intermediate_size"), k.dim("depth")
    patch, frames, merge = k.dim("patch_size"), k.dim("temporal_patch_size", 2), k.dim("spatial_merge_size", 2)
    merged, block = d * merge**2, "visual.blocks.{layer}."
    found = [
        _tensor("visual.patch_embed.proj.weight", (d, k.dim("in_channels", 3), frames, patch, patch)),
        _tensor("visual.patch_embed.proj.bias", (d,)),
        _tensor("visual.pos_embed.weight", (k.dim("num_position_embeddings", 2304), d)),
    ]
    found += _norm(f"{block}norm1", d, n) + _norm(f"{block}norm2", d, n)
    found += _linear(f"{block}attn.qkv", 3 * d, d, n) + _linear(f"{block}attn.proj", d, d, n)
    found += _linear(f"{block}mlp.linear_fc1", width, d, n) + _linear(f"{block}mlp.linear_fc2", d, width, n)
    merger = _norm("visual.merger.norm", d)
    merger += _linear("visual.merger.linear_fc1", merged, merged, 1)
    merger += _linear("visual.merger.linear_fc2", text_width, merged, 1)
    if deep:
        listed = k.numbers("deepstack_visual_indexes")
        if listed is None:
            raise k.error("deepstack_visual_indexes", "is missing; nothing is guessed: write [] for none")
        merger += _deep_mergers(merged, text_width, len(listed))
    k.finish(HARMLESS_VISION | {"num_heads", "rope_parameters", "fullatt_block_indexes"})
    return found + [{**t, "role": "projector"} for t in merger]


def _deep_mergers(merged: int, text_width: int, count: int) -> list[Spec]:
    """Mergers of the outputs of inner blocks, with a norm over the merged patches."""
    name = "visual.deepstack_merger_list.{layer}."
    if not count:
        return []
    found = _norm(f"{name}norm", merged, count) + _linear(f"{name}linear_fc1", merged, merged, count)
    return found + _linear(f"{name}linear_fc2", text_width, merged, count)
