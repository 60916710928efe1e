"""What an engine's cache manager sees of a model: layers alike in what a token, a window or a state costs on a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from perfmodel.modelspecs.counts import compressed_bytes_per_token, layer_state_bytes
from perfmodel.modelspecs.schema import LayerClass, ModelSpec
from perfmodel.roofline.memory import rank_token_bytes
from perfmodel.roofline.sharding import layers_in, stage_layers
from perfmodel.roofline.step import Plan

TokenBytes = Callable[[LayerClass, Plan], float]


@dataclass(frozen=True)
class CacheLayers:
    """``count`` layers of one rank that are alike to a cache manager.

    Attributes
    ----------
    count : int
    token_bytes : float
        Bytes that a kept token takes in one layer on one rank; 0 for a recurrent layer.
    window, chunk : int
        Sliding window or chunk of the attention; 0 for full attention. [tokens]
    state_bytes : float
        Recurrent state of one sequence in one layer on one rank. [bytes]
    """

    count: int
    token_bytes: float
    window: int = 0
    chunk: int = 0
    state_bytes: float = 0.0

    @property
    def recurrent(self) -> bool:
        """Whether the layer keeps a state instead of tokens."""
        return self.token_bytes == 0 and self.state_bytes > 0

    @property
    def full(self) -> bool:
        """Whether every token is kept."""
        return not (self.window or self.chunk or self.recurrent)


def describe(
    layer: LayerClass, count: int, plan: Plan, token_bytes: TokenBytes = rank_token_bytes
) -> list[CacheLayers]:
    """``count`` layers of a class as a cache manager sees them: tokens, compressed entries and states each apart."""
    a = layer.attention
    window, chunk = getattr(a, "window", None) or 0, getattr(a, "chunk", None) or 0
    entries = compressed_bytes_per_token(layer, plan.kv)
    state = layer_state_bytes(layer, ranks=plan.tp)
    found = [CacheLayers(count, token_bytes(layer, plan), window, chunk)] if a.cache_elements else []
    found += [CacheLayers(count, entries)] if entries else []
    return found + ([CacheLayers(count, 0.0, state_bytes=state)] if state else [])


def cache_layers(
    model: ModelSpec, plan: Plan, stage: int = 0, token_bytes: TokenBytes = rank_token_bytes
) -> tuple[CacheLayers, ...]:
    """Layers of a pipeline stage that keep anything, those that are alike together.

    Parameters
    ----------
    token_bytes : callable
        Bytes that a kept token takes in a layer on a rank; an engine with a cache format of its own has its own.
    """
    here = stage_layers(model.num_layers, plan.pp)[stage]
    counts = [(layer, layers_in(layer, here)) for layer in model.layer_classes]
    return merge(one for layer, count in counts if count for one in describe(layer, count, plan, token_bytes))


def merge(layers: Iterable[CacheLayers]) -> tuple[CacheLayers, ...]:
    """Add up the layers that differ in their number only.

    >>> merge([CacheLayers(2, 4096.0), CacheLayers(3, 4096.0, window=128), CacheLayers(1, 4096.0)])[0].count
    3
    """
    counts: dict[CacheLayers, int] = {}
    for one in layers:
        key = replace(one, count=1)
        counts[key] = counts.get(key, 0) + one.count
    return tuple(replace(key, count=count) for key, count in counts.items())


def held_bytes(layers: Iterable[CacheLayers], tokens: int) -> float:
    """Bytes of one sequence of ``tokens`` tokens without an engine's paging: windows hold at most their own length.

    >>> held_bytes([CacheLayers(2, 10.0), CacheLayers(1, 10.0, window=4)], 100)
    2040.0
    """
    return sum(
        one.count * (one.token_bytes * min(tokens, one.window or one.chunk or tokens) + one.state_bytes)
        for one in layers
    )
