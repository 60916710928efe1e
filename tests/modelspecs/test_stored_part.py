"""Whether tensors are a model's: names and shapes of checkpoints, whole and in part."""

from collections.abc import Iterator

import pytest

from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.stored.part import part_of
from perfmodel.modelspecs.tensors import tensors


def checkpoint(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of a model outside MTP and vision, layers and experts apart."""
    layers = {layer.name: layer.indices for layer in spec.layer_classes}
    for t in tensors(spec):
        places = layers.get(t.layer, (0,))
        if t.role in ("mtp", "buffer", "vision", "projector"):
            continue
        for place in places:
            for expert in range(t.count // len(places)):
                yield t.name.replace("{layer}", str(place)).replace("{expert}", str(expert)), t.shape


@pytest.mark.parametrize("name", ["llama3.1-8b", "mixtral-8x7b", "gpt2", "gemma2-9b", "qwen3-next-80b-a3b"])
def test_a_model_s_own_checkpoint(name) -> None:
    """All names are known, no shape is wrong, and all linear layers are there."""
    spec = model(name)
    part = part_of(spec, checkpoint(spec))
    assert part.unknown == part.wrong == ()
    assert part.whole
    assert part.stored == part.weights == sum(t.total for t in tensors(spec) if t.quantizable and t.role != "mtp")


def test_a_part_of_it() -> None:
    """Half of the layers are half of the weights; embedding and norms are known and no linear layers."""
    spec = model("llama3.1-8b")
    some = [(n, s) for n, s in checkpoint(spec) if ".layers." not in n or int(n.split(".")[2]) < 16]
    part = part_of(spec, some)
    assert part.stored * 2 == part.weights
    assert not part.whole
    assert "model.embed_tokens.weight" in part.known
    assert "model.embed_tokens.weight" not in part.linear


def test_matrices_side_by_side_and_experts_stacked() -> None:
    """A fused QKV matrix covers three, a stack of experts all of them; other shapes of theirs are wrong."""
    spec = model("llama3.1-8b")
    fused = "model.layers.0.self_attn.qkv_proj.weight"
    assert part_of(spec, [(fused, (6144, 4096))]).wrong == ()
    assert "25,165,824 elements expected, 16,777,216 stored" in str(part_of(spec, [(fused, (4096, 4096))]).wrong[0])
    moe = model("mixtral-8x7b")
    stacked = part_of(moe, [("model.layers.0.mlp.experts.down_proj", (8, 4096, 14336))])
    assert (stacked.wrong, stacked.stored) == ((), 8 * 4096 * 14336)
    assert part_of(moe, [("model.layers.0.mlp.experts.down_proj", (4, 4096, 14336))]).wrong


def test_what_is_not_the_model_s() -> None:
    """Unknown names are listed, tables that the classes compute and copies of a tied head are neither."""
    spec = model("llama3.2-1b")
    part = part_of(
        spec,
        [("score.weight", (2, 2048)), ("lm_head.weight", (128256, 2048)), ("model.rotary_emb.inv_freq", (32,))],
    )
    assert (part.known, part.unknown) == ((), ("score.weight",))
