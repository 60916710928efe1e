"""The metadata of one architecture and the tensors beside it, read with types and ranges."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.hf.common import Spec, words
from perfmodel.modelspecs.hf.keys import LARGEST, Keys
from perfmodel.modelspecs.stored.gguf import Gguf
from perfmodel.modelspecs.stored.tensor import StoredTensor, by_dtype

#: Keys that change neither a tensor's shape nor a cost: numerics of norms and of the rotary embedding, routing, labels.
HARMLESS = words(
    """
    attention.layer_norm_rms_epsilon attention.layer_norm_epsilon attention.scale attention.temperature_length
    attention.temperature_scale attn_logit_softcapping final_logit_softcapping router_logit_softcapping logit_scale
    embedding_scale residual_scale expert_weights_scale expert_weights_norm expert_gating_func expert_group_count
    expert_group_used_count tensor_data_layout pooling_type rope.dimension_count rope.dimension_count_swa
    attention.clamp_kqv attention.max_alibi_bias rope.dimension_sections rope.freq_base rope.freq_base_swa
    rope.scale_linear n_deepstack_layers
    """
)

#: Names of stored tables that are no parameters: rotary frequencies and factors.
BUFFERS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

#: Tensors outside the layers that only some architectures have -> name and role in the inventory.
BESIDE = {
    "position_embd.weight": ("model.embed_positions.weight", "position"),
    "token_embd_norm.weight": ("model.embed_norm.weight", "norm"),
    "token_embd_norm.bias": ("model.embed_norm.bias", "norm"),
    "output.bias": ("lm_head.bias", "lm_head"),
}

#: Storage types that are formats of their own; the mixtures of a quantized file are none.
FORMATS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


class Header:
    """The keys of an architecture without its prefix, the tensors by name, and what both say about the whole model.

    Raises
    ------
    SpecError
        When the embedding is missing, or metadata and tensors contradict each other.
    """

    def __init__(self, header: Gguf, architecture: str, file: object) -> None:
        prefix = f"{architecture}."
        own = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
        self.keys, self.file = Keys(own, file, prefix), file
        self.stored = {t.name: t for t in header.tensors}
        self.types = by_dtype(header.tensors)
        self.width = self.keys.dim("embedding_length")
        self.mtp = self.count("nextn_predict_layers")
        self.layers = self.keys.dim("block_count") - self.mtp
        if self.layers < 1 or self.layers + self.mtp > len(self.stored):
            raise self.keys.error(
                "block_count",
                f"{self.layers + self.mtp} layers, {self.mtp} of them MTP, and {len(self.stored)} tensors",
            )
        self.vocabulary = self._vocabulary()

    def _vocabulary(self) -> int:
        embedding = self.stored.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise SpecError(self.file, "token_embd.weight", "is missing or not a matrix: is it a language model?")
        if embedding.shape[1] != self.width:
            raise self.keys.error(
                "embedding_length", f"{self.width}, and token_embd.weight is {embedding.shape[1]} wide"
            )
        self.keys.expect("vocab_size", embedding.shape[0])
        return embedding.shape[0]

    def count(self, key: str) -> int:
        """A whole number from 0; absent means none."""
        return self.keys.dim(key, least=0) if self.keys.has(key) else 0

    def has(self, *names: str) -> bool:
        """Whether one of these tensors is stored."""
        return any(name in self.stored for name in names)

    def per_layer(self, key: str, absent: list[int] | None = None) -> list[int]:
        """A number for every layer: the file has one for all, or a list."""
        value = self.keys.data.get(key)
        if value is None and absent is not None:
            self.keys.read.add(key)
            return absent
        if not isinstance(value, list):
            return [self.keys.dim(key)] * self.layers
        self.keys.read.add(key)
        if len(value) < self.layers or not all(type(n) is int and 0 <= n <= LARGEST for n in value):
            raise self.keys.error(key, f"must be a whole number, or one for each of {self.layers} layers")
        if 0 in value[: self.layers]:
            layer = value.index(0)
            raise self.keys.error(key, f"is 0 in layer {layer}: layers without it are not understood")
        return value[: self.layers]

    def head_sizes(self, heads: int) -> tuple[int, int]:
        """Sizes of key and value heads; absent: embedding length over heads."""
        given = self.keys.has("attention.key_length") and self.keys.has("attention.value_length")
        if not given and self.width % heads:
            raise self.keys.error("attention.key_length", f"is missing, and {heads} heads do not divide {self.width}")
        k = self.keys.dim("attention.key_length", self.width // heads)
        return k, self.keys.dim("attention.value_length", self.width // heads)

    def qk_norm(self, heads: int, size: int) -> str:
        """What the stored norm of Q covers: nothing, one head, or all of them."""
        stored = self.stored.get("blk.0.attn_q_norm.weight")
        if stored is None:
            return "none"
        kinds = {size: "head", heads * size: "full"}
        if stored.elements not in kinds:
            raise SpecError(
                self.file, stored.name, f"has {stored.elements} elements; {size} or {heads * size} belong there"
            )
        return kinds[stored.elements]

    def norms(self, known: Spec) -> Spec:
        """Norms of a layer: what the architecture says, and whether weights, biases and a second one are stored."""
        found = {"weights": self.has("output_norm.weight"), "bias": self.has("output_norm.bias"), **known}
        side_by_side = "use_parallel_residual" in self.keys.data and not self.has("blk.0.ffn_norm.weight")
        self.keys.read.add("use_parallel_residual")
        return found | ({"per_layer": 1} if side_by_side else {})

    def native(self) -> Spec:
        """The storage format of the weights, when it is a plain one; else a note with the mixture."""
        first = next(iter(self.types), "F32")
        if first not in FORMATS:
            mixture = ", ".join(f"{name} {total.bytes:,} bytes" for name, total in self.types.items())
            self.keys.notes.append(f"stored as {mixture}; native_format is what it is converted to")
        return {"native_format": FORMATS.get(first, "bf16")}

    def finish(self) -> None:
        """Refuse keys that were neither read nor known to be harmless."""
        self.keys.expect("attention.causal", True)
        scaling = {key for key in self.keys.data if key.startswith("rope.scaling.")}
        self.keys.finish(HARMLESS | scaling)


def extras(tensors: Iterable[StoredTensor]) -> list[Spec]:
    """Stored tables that are no parameters, positions, and what stands beside embedding and output matrix."""
    found = [{"name": t.name, "role": "buffer", "shape": t.shape} for t in tensors if t.name in BUFFERS]
    named = ((t, BESIDE[t.name]) for t in tensors if t.name in BESIDE)
    return found + [{"name": name, "role": role, "shape": t.shape} for t, (name, role) in named]
