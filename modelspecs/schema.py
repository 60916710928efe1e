"""The schema of model specs: what a transformer is made of, layer by layer.

A model is a schedule of layer classes; a layer class is one attention variant and one feed-forward variant. Nothing
is averaged over layers. Dimensions are plain integers (elements); storage formats live in ``formats``.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from perfmodel.base.errors import PerfmodelError
from perfmodel.modelspecs.formats import FORMATS, weight_format
from perfmodel.modelspecs.schema_base import Dim, Size
from perfmodel.modelspecs.schema_base import Frozen as _Frozen
from perfmodel.modelspecs.schema_recurrent import (
    GatedDelta,
    Kda,
    Lightning,
    Mamba1,
    Mamba2,
    NoFfn,
    NoMixer,
    ShortConv,
)


class Gqa(_Frozen):
    """Multi-head attention with shared key/value heads: MHA (kv_heads = heads), GQA, MQA (kv_heads = 1)."""

    kind: Literal["gqa"] = "gqa"
    heads: Dim
    kv_heads: Dim
    head_dim: Dim
    v_head_dim: Dim | None = Field(None, description="where V heads differ from Q and K heads")
    window: Dim | None = Field(None, description="sliding window: the keys a query sees, itself included")
    chunk: Dim | None = Field(None, description="chunked attention: a query sees its own chunk only")
    sink_tokens: Size = Field(0, description="StreamingLLM: first tokens kept beside the window")
    sink_logits: bool = Field(False, description="one learned logit a head in the softmax's denominator")
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = Field("none", description="norm weights: of one head, or of all heads")
    qk_norm_weights: bool = True
    rope: bool = True
    output_gate: bool = Field(False, description="q_proj is twice as wide: a sigmoid gate for the output")
    head_gate: bool = Field(False, description="g_proj: one sigmoid gate a head for the output (Step 3.5)")
    shared_kv: bool = Field(False, description="K and V are an earlier layer's: no projections and no cache of its own")
    norms_shared_k: bool = Field(False, description="with shared_kv: K is normed again by weights of its own (Hunyuan)")
    v_from_k: bool = Field(False, description="V is K's projection before norm and rotary (Gemma 4): no v_proj")
    beside: Mamba2 | None = Field(None, description="a Mamba-2 mixer on the same input, added to it (Falcon-H1)")

    @model_validator(mode="after")
    def _groups(self) -> Gqa:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.window and self.chunk:
            raise ValueError("window and chunk exclude each other")
        if self.sink_tokens and not self.window:
            raise ValueError("sink_tokens needs a window: full attention keeps all tokens anyway")
        if self.v_from_k and self.value_dim != self.head_dim:
            raise ValueError("v_from_k needs values of head_dim")
        return self

    @property
    def value_dim(self) -> int:
        """Size of a value head."""
        return self.v_head_dim or self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def cache_elements(self) -> int:
        """Elements a token and layer leave in the KV cache: none where K and V are an earlier layer's."""
        return 0 if self.shared_kv else self.kv_heads * (self.head_dim + self.value_dim)


class Indexer(_Frozen):
    """DeepSeek's sparse attention: a small scorer picks ``topk`` tokens for each query."""

    heads: Dim
    head_dim: Dim
    topk: Dim


class Mla(_Frozen):
    """Multi-head latent attention (DeepSeek V2, V3): one latent of K and V a token, and one shared rotary key."""

    kind: Literal["mla"] = "mla"
    heads: Dim
    q_lora_rank: Dim | None = None
    kv_lora_rank: Dim
    qk_nope_head_dim: Dim
    qk_rope_head_dim: Dim
    v_head_dim: Dim
    indexer: Indexer | None = None
    shared_topk: Dim | None = Field(None, description="tokens chosen by an earlier layer's indexer: none of its own")

    @model_validator(mode="after")
    def _chooser(self) -> Mla:
        if self.indexer and self.shared_topk:
            raise ValueError("indexer and shared_topk exclude each other")
        return self

    @property
    def topk(self) -> int | None:
        """Tokens that a query attends to at most, where an indexer chooses them."""
        return self.indexer.topk if self.indexer else self.shared_topk

    @property
    def qk_head_dim(self) -> int:
        """Size of an expanded query/key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cache_elements(self) -> int:
        """Elements a token and layer leave in the KV cache: the latent and the rotary key (indexer apart)."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class Compressed(_Frozen):
    """Compressed attention (DeepSeek V4): one shared head that is key and value, over a window and compressed tokens.

    Every ``ratio`` tokens leave one compressed entry beside the last ``window`` tokens; with an ``indexer`` a query
    sees the ``topk`` entries that it scores highest, without one all of them; ``ratio`` 0 is the window alone.
    ``overlap``: an entry is made from 2 x ratio tokens, so that the projections are twice as wide. Queries come from a
    latent and the output goes out through ``o_groups`` block-diagonal matrices of rank ``o_lora_rank``.
    """

    kind: Literal["compressed"] = "compressed"
    heads: Dim
    head_dim: Dim
    rope_head_dim: Dim
    q_lora_rank: Dim
    o_groups: Dim
    o_lora_rank: Dim
    window: Dim
    ratio: Size = 0
    overlap: bool = False
    indexer: Indexer | None = None

    @model_validator(mode="after")
    def _parts(self) -> Compressed:
        if self.heads % self.o_groups:
            raise ValueError(f"heads ({self.heads}) must be a multiple of o_groups ({self.o_groups})")
        if not self.ratio and (self.overlap or self.indexer):
            raise ValueError("overlap and indexer need compressed entries: a ratio above 0")
        return self

    @property
    def cache_elements(self) -> int:
        """Elements of one token of the window, or of one compressed entry: key and value are the same."""
        return self.head_dim

    @property
    def series(self) -> int:
        """Compressed series that a token is projected to: two where entries overlap."""
        return 2 if self.overlap else 1


class Dense(_Frozen):
    """Feed-forward layer: gated (SwiGLU, GeGLU: three matrices) or plain (two)."""

    kind: Literal["dense"] = "dense"
    intermediate_size: Dim
    gated: bool = True
    activation: str = "silu"
    bias: bool = False


class Moe(_Frozen):
    """Mixture of experts: a router picks ``experts_per_token`` of ``experts``; shared experts see every token."""

    kind: Literal["moe"] = "moe"
    experts: Dim
    experts_per_token: Dim
    intermediate_size: Dim = Field(description="of one routed expert")
    shared_intermediate_size: Size = Field(0, description="of all shared experts together")
    shared_gate: bool = Field(False, description="a sigmoid gate on the shared expert (one more row)")
    gated: bool = True
    activation: str = "silu"
    bias: bool = Field(False, description="biases in the experts (gpt-oss)")
    router_bias: bool = Field(False, description="bias in the router")
    correction_bias: bool = Field(False, description="a score correction an expert, used for choosing only (V3)")
    hash_table: bool = Field(False, description="experts follow from the token's id, by a stored table (V4)")
    latent_size: Dim | None = Field(None, description="experts work on a projection to so many features (Nemotron 3)")

    @model_validator(mode="after")
    def _topk(self) -> Moe:
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token ({self.experts_per_token}) is above experts ({self.experts})")
        return self


Attention = Annotated[
    Gqa | Mla | Compressed | Mamba2 | Mamba1 | GatedDelta | Kda | Lightning | ShortConv | NoMixer,
    Field(discriminator="kind"),
]
FeedForward = Annotated[Dense | Moe | NoFfn, Field(discriminator="kind")]


class Run(_Frozen):
    """``repeat`` times the pattern, a list of layers written ``attention/ffn``."""

    repeat: Dim
    pattern: tuple[str, ...] = Field(min_length=1)


class ExtraTensor(_Frozen):
    """A tensor that is not part of the language model's layers (vision tower, projector, stored buffer)."""

    name: str
    role: Literal["vision", "projector", "buffer", "position", "norm", "hyper", "lm_head"]
    shape: tuple[Dim, ...]
    count: Dim = 1


class LayerTensor(_Frozen):
    """A tensor that every layer has beside its attention and feed-forward part: extra norms, scales, stream mixers.

    ``hyper`` are the projections of hyper-connections, ``gate`` and ``out`` the two small matrices of an input that
    each layer has of its own: both are multiplied with every token.
    """

    name: str
    role: Literal["norm", "scale", "router", "hyper", "input_gate", "input_out"]
    shape: tuple[Dim, ...]


class Mtp(_Frozen):
    """Multi-token-prediction layers: a whole layer each, with a 2d -> d projection and, when stored, its own head."""

    layers: Dim = 1
    layer: str
    more: tuple[str, ...] = Field((), description="further layers of a step, after ``layer`` (Nemotron 3)")
    own_embedding: bool = Field(False, description="the checkpoint stores embedding and head again")
    own_head: bool = Field(False, description="the checkpoint stores the head again, the embedding not")
    final_norm: bool = Field(True, description="a norm of its own before the head")
    tensors: tuple[LayerTensor, ...] = Field((), description="what such a layer has besides (V4's stream mixer)")


class Published(_Frozen):
    """What the makers print: rounded counts, to compare with."""

    total: str | None = None
    active: str | None = None
    source: str


class Norm(_Frozen):
    """Normalisation: kind and how many sit in a layer."""

    kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    per_layer: Literal[1, 2, 4] = 2
    placement: Literal["pre", "post"] = Field("pre", description="of two: before or after each part (OLMo 2)")
    weights: bool = True
    bias: bool = False


class LayerClass(_Frozen):
    """Layers that are alike: their attention, feed-forward part, and which layers they are."""

    attention_name: str
    ffn_name: str
    attention: Attention
    ffn: FeedForward
    indices: tuple[int, ...]

    @property
    def name(self) -> str:
        """``attention/ffn``."""
        return f"{self.attention_name}/{self.ffn_name}"

    @property
    def count(self) -> int:
        """How many layers are of this class."""
        return len(self.indices)


def _few(names: dict[str, Any]) -> str:
    """The first names of a table, for a message."""
    return str(sorted(name[:40] for name in names)[:8]) + (" ..." if len(names) > 8 else "")


class ModelSpec(_Frozen):
    """A language model, with a source."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    source: str = Field(min_length=3)
    family: str = ""
    released: str | None = None
    published: Published | None = None
    hidden_size: Dim
    vocab_size: Dim
    tied_embeddings: bool = False
    max_context: Dim
    native_format: str = "bf16"
    native_16bit: tuple[str, ...] = Field((), description="roles that the native checkpoint leaves at 16 bits")
    native_roles: dict[str, str] = Field({}, description="roles that the native checkpoint stores in another format")
    native_kv: Literal["fp8", "int8"] | None = Field(None, description="KV cache that the native checkpoint asks for")
    norm: Norm = Norm()
    attention: dict[str, Attention] = Field(min_length=1)
    ffn: dict[str, FeedForward] = Field(min_length=1)
    layers: tuple[Run, ...] = Field(min_length=1)
    mtp: Mtp | None = None
    layer_tensors: tuple[LayerTensor, ...] = ()
    streams: Dim = Field(1, description="residual streams (hyper-connections, DeepSeek V4)")
    extra_tensors: tuple[ExtraTensor, ...] = ()
    notes: str = ""

    @field_validator("native_format")
    @classmethod
    def _format_known(cls, name: str) -> str:
        try:
            return weight_format(name).name
        except PerfmodelError:
            raise ValueError(f"is not a weight format; one of {', '.join(FORMATS)}") from None

    @field_validator("native_roles")
    @classmethod
    def _role_formats_known(cls, roles: dict[str, str]) -> dict[str, str]:
        for name in roles.values():
            cls._format_known(name)
        return roles

    @model_validator(mode="after")
    def _schedule_names(self) -> ModelSpec:
        names = [layer for run in self.layers for layer in run.pattern]
        names += [self.mtp.layer, *self.mtp.more] if self.mtp else []
        for layer in names:
            attention, _, ffn = layer.partition("/")
            if attention not in self.attention or ffn not in self.ffn:
                raise ValueError(
                    f"layers: {layer[:80]!r} must be attention/ffn with attention one of {_few(self.attention)} and "
                    f"ffn one of {_few(self.ffn)}"
                )
        if self.num_layers > 10_000:
            raise ValueError(f"layers: {self.num_layers} layers; at most 10000")
        return self

    def __hash__(self) -> int:
        return hash((self.name, self.hidden_size, self.vocab_size, self.layers))

    @property
    def num_layers(self) -> int:
        """Number of layers, MTP layers apart."""
        return sum(run.repeat * len(run.pattern) for run in self.layers)

    @functools.cached_property
    def layer_classes(self) -> tuple[LayerClass, ...]:
        """The distinct layers in order of first appearance, with the indices of each."""
        indices: dict[str, list[int]] = {}
        index = 0
        for run in self.layers:
            for _ in range(run.repeat):
                for layer in run.pattern:
                    indices.setdefault(layer, []).append(index)
                    index += 1
        return tuple(self.layer_class(layer, tuple(found)) for layer, found in indices.items())

    def layer_class(self, layer: str, indices: tuple[int, ...] = (0,)) -> LayerClass:
        """The layer class that ``attention/ffn`` names."""
        attention, _, ffn = layer.partition("/")
        fields: dict[str, Any] = {"attention": self.attention[attention], "ffn": self.ffn[ffn], "indices": indices}
        return LayerClass(attention_name=attention, ffn_name=ffn, **fields)
