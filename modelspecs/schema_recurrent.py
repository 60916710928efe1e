"""Recurrent mixers: what takes the place of attention in a layer and keeps a state of fixed size instead of a cache.

Each says how large its state is, by what units tensor parallelism cuts it, and in which format it is kept. Sizes of the
states as in vLLM's ``MambaStateShapeCalculator`` (vllm/model_executor/layers/mamba/mamba_utils.py): the convolution
keeps ``kernel - 1`` columns of its input.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

from pydantic import Field, model_validator

from perfmodel.modelspecs.schema_base import Dim, Frozen, Size

#: Rows of a fused matrix that belong together, and the units (heads, groups) that they are cut by.
Parts = tuple[tuple[int, int], ...]


class Recurrent(Frozen):
    """A mixer with a state: a short causal convolution's last inputs, and a matrix a head."""

    state_format: Literal["fp32", "bf16", "fp16"] | None = Field(
        None, description="of the recurrent state, where the makers say so; 32 bits is what the scan kernels work in"
    )

    @property
    def cache_elements(self) -> int:
        """Elements a token and layer leave in the KV cache: none."""
        return 0

    @property
    def conv_parts(self) -> Parts:
        """Channels of the causal convolution, with the units by which each part is cut."""
        return ()

    @property
    def conv_columns(self) -> int:
        """Past inputs a channel that the convolution needs."""
        return 0

    @property
    def units(self) -> int:
        """What tensor parallelism cuts the state by: heads, or channels."""
        return 1

    @property
    def unit_elements(self) -> int:
        """Elements of a unit's recurrent state."""
        return 0

    @property
    def replicated(self) -> int:
        """Smaller groups that ranks share a copy of when there are fewer than ranks; 0 where there are none."""
        return 0

    @property
    def unit_name(self) -> str:
        """What the units are called in messages."""
        return "heads"

    def conv_channels(self, ranks: int = 1) -> int:
        """Channels of the convolution on one of so many ranks."""
        return sum(rank_rows(self.conv_parts, ranks))

    def conv_elements(self, ranks: int = 1) -> int:
        """Elements of the convolution's state of one sequence and layer, on one of so many ranks."""
        return self.conv_channels(ranks) * self.conv_columns

    def state_elements(self, ranks: int = 1) -> int:
        """Elements of the recurrent state of one sequence and layer, on one of so many ranks."""
        return ceil(self.units / ranks) * self.unit_elements


def rank_rows(parts: Parts, ranks: int) -> tuple[int, ...]:
    """Rows of each part on the fullest of so many ranks: whole units, at least one.

    >>> rank_rows(((8192, 128), (1024, 8)), 16)
    (512, 128)
    """
    return tuple(rows // units * ceil(units / ranks) for rows, units in parts)


class Mamba2(Recurrent):
    """Mamba-2 (state-space duality): a state of ``head_dim x state`` a head; B and C shared by a group of heads."""

    kind: Literal["mamba2"] = "mamba2"
    heads: Dim
    head_dim: Dim
    state: Dim = Field(description="size of B and C: of the state of one channel")
    groups: Dim
    conv_kernel: Dim = 4
    conv_bias: bool = True
    proj_bias: bool = False
    gated_norm: bool = Field(True, description="a norm with weights before the output projection")
    scan_chunk: Dim = Field(256, description="tokens of a block of the prefill's scan")

    @model_validator(mode="after")
    def _groups(self) -> Mamba2:
        if self.heads % self.groups:
            raise ValueError(f"heads ({self.heads}) must be a multiple of groups ({self.groups})")
        return self

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_parts(self) -> Parts:
        """x, B and C."""
        return (
            (self.inner, self.heads),
            (self.groups * self.state, self.groups),
            (self.groups * self.state, self.groups),
        )

    @property
    def in_parts(self) -> Parts:
        """Rows of the input projection: gate, x, B, C, and a time step a head."""
        return ((self.inner, self.heads), *self.conv_parts, (self.heads, self.heads))

    @property
    def conv_columns(self) -> int:
        """Past inputs a channel that the convolution needs."""
        return self.conv_kernel - 1

    @property
    def units(self) -> int:
        """Heads."""
        return self.heads

    @property
    def unit_elements(self) -> int:
        """A matrix ``head_dim x state``."""
        return self.head_dim * self.state

    @property
    def replicated(self) -> int:
        """Groups of B and C."""
        return self.groups

    @property
    def unit_name(self) -> str:
        """What the units are called in messages."""
        return "state-space heads"


class Mamba1(Recurrent):
    """Mamba (selective scan): a state of ``state`` a channel; time step, B and C from a narrow projection."""

    kind: Literal["mamba1"] = "mamba1"
    inner: Dim = Field(description="channels")
    state: Dim
    dt_rank: Dim
    conv_kernel: Dim = 4
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = Field(False, description="norms with weights on time step, B and C (Jamba)")

    @property
    def conv_parts(self) -> Parts:
        """The channels."""
        return ((self.inner, self.inner),)

    @property
    def conv_columns(self) -> int:
        """Past inputs a channel that the convolution needs."""
        return self.conv_kernel - 1

    @property
    def units(self) -> int:
        """Channels."""
        return self.inner

    @property
    def unit_elements(self) -> int:
        """A vector a channel."""
        return self.state

    @property
    def unit_name(self) -> str:
        """What the units are called in messages."""
        return "channels"


class GatedDelta(Recurrent):
    """Gated delta net (Qwen3-Next, Qwen3.5): a state of ``key_head_dim x value_head_dim`` a value head."""

    kind: Literal["gated_delta"] = "gated_delta"
    key_heads: Dim
    value_heads: Dim
    key_head_dim: Dim
    value_head_dim: Dim
    conv_kernel: Dim = 4
    fused: bool = Field(False, description="two projections, qkvz and ba (Qwen3-Next); else qkv, z, b and a (Qwen3.5)")
    scan_chunk: Dim = Field(64, description="tokens of a block of the prefill's scan")

    @model_validator(mode="after")
    def _groups(self) -> GatedDelta:
        if self.value_heads % self.key_heads:
            raise ValueError(f"value_heads ({self.value_heads}) must be a multiple of key_heads ({self.key_heads})")
        return self

    @property
    def keys(self) -> int:
        """Channels of the keys, and of the queries."""
        return self.key_heads * self.key_head_dim

    @property
    def values(self) -> int:
        """Channels of the values, of the gate and of the output."""
        return self.value_heads * self.value_head_dim

    @property
    def conv_parts(self) -> Parts:
        """Queries, keys and values."""
        return ((self.keys, self.key_heads), (self.keys, self.key_heads), (self.values, self.value_heads))

    @property
    def conv_columns(self) -> int:
        """Past inputs a channel that the convolution needs."""
        return self.conv_kernel - 1

    @property
    def units(self) -> int:
        """Value heads."""
        return self.value_heads

    @property
    def unit_elements(self) -> int:
        """A matrix ``key_head_dim x value_head_dim``."""
        return self.key_head_dim * self.value_head_dim

    @property
    def replicated(self) -> int:
        """Key heads."""
        return self.key_heads

    @property
    def unit_name(self) -> str:
        """What the units are called in messages."""
        return "value heads"


class Kda(Recurrent):
    """Kimi delta attention: a gated delta rule whose decay is one a channel of the key, from a low-rank projection."""

    kind: Literal["kda"] = "kda"
    heads: Dim
    head_dim: Dim
    conv_kernel: Dim = 4
    scan_chunk: Dim = Field(64, description="tokens of a block of the prefill's scan")

    @property
    def inner(self) -> int:
        """Channels of the queries, the keys and the values, each."""
        return self.heads * self.head_dim

    @property
    def conv_parts(self) -> Parts:
        """Queries, keys and values."""
        return ((self.inner, self.heads),) * 3

    @property
    def conv_columns(self) -> int:
        """Past inputs a channel that the convolution needs."""
        return self.conv_kernel - 1

    @property
    def units(self) -> int:
        """Heads."""
        return self.heads

    @property
    def unit_elements(self) -> int:
        """A square matrix a head."""
        return self.head_dim * self.head_dim

    @property
    def unit_name(self) -> str:
        """What the units are called in messages."""
        return "linear-attention heads"


class Lightning(Recurrent):
    """Lightning attention (MiniMax-Text-01): linear attention with a fixed decay a head, no convolution."""

    kind: Literal["lightning"] = "lightning"
    heads: Dim
    head_dim: Dim
    scan_chunk: Dim = Field(256, description="tokens of a block of the prefill's scan")

    @property
    def inner(self) -> int:
        """Channels of the queries, the keys, the values and the gate, each."""
        return self.heads * self.head_dim

    @property
    def units(self) -> int:
        """Heads."""
        return self.heads

    @property
    def unit_elements(self) -> int:
        """A square matrix a head."""
        return self.head_dim * self.head_dim

    @property
    def unit_name(self) -> str:
        """What the units are called in messages."""
        return "linear-attention heads"


class ShortConv(Recurrent):
    """Gated short convolution (LFM2): ``C * conv(B * x)``; its state is the convolution's alone."""

    kind: Literal["short_conv"] = "short_conv"
    channels: Dim
    conv_kernel: Dim = 3
    bias: bool = False

    @property
    def conv_parts(self) -> Parts:
        """The channels."""
        return ((self.channels, self.channels),)

    @property
    def conv_columns(self) -> int:
        """Past inputs a channel that the convolution needs."""
        return self.conv_kernel - 1

    @property
    def units(self) -> int:
        """Channels."""
        return self.channels

    @property
    def unit_name(self) -> str:
        """What the units are called in messages."""
        return "channels"


class NoMixer(Frozen):
    """No mixer: a layer that is a feed-forward part alone (Nemotron-H)."""

    kind: Literal["none"] = "none"

    @property
    def cache_elements(self) -> int:
        """Elements a token and layer leave in the KV cache: none."""
        return 0


class NoFfn(Frozen):
    """No feed-forward part: a layer that is a mixer alone (Mamba, Nemotron-H)."""

    kind: Literal["none"] = "none"
    intermediate_size: Size = Field(0, le=0, description="always 0: there is none")


#: Everything that keeps a state.
RECURRENT = (Mamba2, Mamba1, GatedDelta, Kda, Lightning, ShortConv)
