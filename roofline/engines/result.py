"""The answer to "does it fit, and how much does it hold": every term by name, with its formula and its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import gib

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Term:
    """One term of an engine's memory budget, of one GPU.

    Attributes
    ----------
    name : str
        ``usable``, ``requested``, ``weights``, ``activations``, ``cuda_graphs``, ``non_torch``, ``reserved``,
        ``kv_pool`` and others.
    bytes : float
    formula : str
        How it comes about, in words.
    source : str
        Where the formula or the number was read.
    low, high : float, optional
        80 % interval of a term that was fitted or that follows from one. [bytes]
    part : bool
        Whether it is part of another term and not to be added again.
    """

    name: str
    bytes: float
    formula: str
    source: str
    low: float | None = None
    high: float | None = None
    part: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The term, ready for JSON."""
        return {
            "term": self.name, "bytes": self.bytes, "low_bytes": self.low, "high_bytes": self.high,
            "formula": self.formula, "source": self.source,
        }  # fmt: skip


@dataclass(frozen=True)
class EngineMemory:
    """Memory of one GPU under an engine: the rank that decides, which is the one with the least room.

    Attributes
    ----------
    model, gpu, engine, version : str
    settings : Mapping[str, Any]
        What was asked for and what the engine chose: parallelism, formats, lengths, fractions.
    terms : tuple[Term, ...]
    kv_tokens : int
        Tokens of KV cache as the engine prints them, of one data-parallel replica.
    max_concurrency : float
        Requests of ``max_model_len`` tokens that the cache holds at once, by the engine's own definition.
    blocks, block_size : int
        Blocks of the KV pool on a GPU and tokens of one.
    block_bytes : float
        Bytes of one block on a GPU. [bytes]
    request_bytes : float
        What one request of ``max_model_len`` tokens takes from the KV pool. [bytes]
    state_bytes : float
        Recurrent state of one request on a GPU. [bytes]
    fits : bool
        Whether the engine would start and hold one request of ``max_model_len`` tokens.
    notice : str
        What does not fit, or what to know; empty when there is nothing to say.
    remedies : tuple[str, ...]
        Options that would make it fit.
    remarks : tuple[str, ...]
        What engines do with weights that the GPU has no unit for.
    kv_tokens_low, kv_tokens_high : int
        80 % interval from the terms that were fitted.
    """

    model: str
    gpu: str
    engine: str
    version: str
    settings: Mapping[str, Any]
    terms: tuple[Term, ...]
    kv_tokens: int
    max_concurrency: float
    blocks: int
    block_size: int
    block_bytes: float
    request_bytes: float
    state_bytes: float
    fits: bool
    notice: str = ""
    remedies: tuple[str, ...] = ()
    kv_tokens_low: int = 0
    kv_tokens_high: int = 0
    facts: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def term(self, name: str) -> Term:
        """A term by name.

        Raises
        ------
        KeyError
            When this engine has no such term.
        """
        for term in self.terms:
            if term.name == name:
                return term
        raise KeyError(name)

    def bytes_of(self, name: str) -> float:
        """Bytes of a term, 0 when this engine has none of that name."""
        return next((term.bytes for term in self.terms if term.name == name), 0.0)

    @property
    def usable(self) -> float:
        """Device memory as the driver gives it. [bytes]"""
        return self.bytes_of("usable")

    @property
    def requested(self) -> float:
        """What the engine allows itself. [bytes]"""
        return self.bytes_of("requested")

    @property
    def weights(self) -> float:
        """Weights on the deciding rank. [bytes]"""
        return self.bytes_of("weights")

    @property
    def activations(self) -> float:
        """Peak of activations. [bytes]"""
        return self.bytes_of("activations")

    @property
    def cuda_graphs(self) -> float:
        """Memory of captured CUDA graphs. [bytes]"""
        return self.bytes_of("cuda_graphs")

    @property
    def non_torch(self) -> float:
        """Memory outside PyTorch: communicators, kernels, the context. [bytes]"""
        return self.bytes_of("non_torch")

    @property
    def reserved(self) -> float:
        """What the engine leaves alone. [bytes]"""
        return self.bytes_of("reserved")

    @property
    def kv_pool(self) -> float:
        """Memory of the KV cache; below 0 by what is missing. [bytes]"""
        return self.bytes_of("kv_pool")

    @property
    def title(self) -> str:
        """Model, engine, GPU and settings in one line."""
        s = self.settings
        degrees = [f"{n.upper()} {s[n]}" for n in ("tp", "pp", "ep", "dp") if s.get(n, 1) > 1]
        spread = f" ({', '.join(degrees)})" if degrees else ""
        return (
            f"{self.model} in {self.engine} {self.version} on {s.get('gpus', 1)} x {self.gpu}{spread}, weights "
            f"{s['weights']}, KV cache {s['kv']}, {s['max_model_len']:,} tokens a request"
        )

    @property
    def sentence(self) -> str:
        """The answer in words."""
        verdict = "fits" if self.fits else "does not fit"
        return (
            f"{verdict}: weights {gib(self.weights)}, KV pool {gib(self.kv_pool)} a GPU: {self.kv_tokens:,} tokens, "
            f"{self.max_concurrency:.2f} requests of {self.settings['max_model_len']:,}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row a term."""
        return [term.to_dict() for term in self.terms]

    @property
    def frame(self) -> pd.DataFrame:
        """``rows`` as a frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; ``weights_bytes_per_gpu``, ``kv_tokens``, ``max_concurrency`` are a contract."""
        return {
            "model": self.model, "gpu": self.gpu, "engine": self.engine, "version": self.version,
            "settings": dict(self.settings), "weights_bytes_per_gpu": self.weights, "kv_tokens": self.kv_tokens,
            "kv_tokens_low": self.kv_tokens_low, "kv_tokens_high": self.kv_tokens_high,
            "max_concurrency": self.max_concurrency, "usable_bytes": self.usable, "requested_bytes": self.requested,
            "activation_bytes": self.activations, "cuda_graph_bytes": self.cuda_graphs,
            "non_torch_bytes": self.non_torch, "reserved_bytes": self.reserved, "kv_pool_bytes": self.kv_pool,
            "blocks": self.blocks, "block_size": self.block_size, "block_bytes": self.block_bytes,
            "request_bytes": self.request_bytes, "state_bytes": self.state_bytes, "fits": self.fits,
            "notice": self.notice, "remedies": list(self.remedies), "remarks": list(self.remarks), **self.facts,
            "terms": self.rows(),
        }  # fmt: skip

    def plot(self, **options: Any) -> Any:
        """The memory picture: a matplotlib figure (``perfmodel.reports.memory_plot.draw``)."""
        from importlib import import_module  # reports sit above this floor: looked up, not imported

        return import_module("perfmodel.reports.memory_plot").draw([self], **options)

    def _repr_html_(self) -> str:
        import html

        lines = [self.title, self.sentence] + ([self.notice] if self.notice else []) + list(self.remarks)
        text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        return text + str(self.frame.to_html(index=False))
