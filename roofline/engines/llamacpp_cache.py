"""llama.cpp's caches: sizes as the log prints them, by the types of K and V, windows, slots and the form of a latent.

Source: src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp and src/llama-memory-recurrent.cpp of
https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Literal

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.modelspecs.counts import layer_state_bytes
from perfmodel.modelspecs.gguf_types import TYPES, GgmlType
from perfmodel.modelspecs.schema import Compressed, Gqa, LayerClass, Mla, ModelSpec

#: How a latent (MLA) is cached: as full heads, as the latent alone, or as the latent and its value part once more.
MlaCache = Literal["expanded", "latent", "latent_v"]
MLA_CACHES: tuple[MlaCache, ...] = ("expanded", "latent", "latent_v")

#: Cache type -> its layout in blocks. Those that llama.cpp's ``-ctk`` and ``-ctv`` take.
CACHE_TYPES: dict[str, GgmlType] = {
    t.name.casefold(): t
    for t in TYPES.values()
    if t.name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL")
}
CACHE_TYPES |= {"fp32": CACHE_TYPES["f32"], "fp16": CACHE_TYPES["f16"]}
PADDING = 256


@dataclass(frozen=True)
class KvRow:
    """Layers alike in what a token leaves in their caches.

    Attributes
    ----------
    count : int
        Layers.
    k, v : int
        Elements of K and of V a token and layer (``n_embd_k_gqa``, ``n_embd_v_gqa`` of the log).
    window : int
        0 for full attention. [tokens]
    """

    count: int
    k: int
    v: int
    window: int = 0


@dataclass(frozen=True)
class LlamaCache:
    """Sizes of the caches. [bytes]

    Attributes
    ----------
    cells, swa_cells : int
        Cells of the cache, of all slots together, and of the part with windows. [tokens]
    k, v : float
        Of the layers without a window.
    swa_k, swa_v : float
        Of the layers with one.
    state : float
        Recurrent states of all slots.
    """

    cells: int
    swa_cells: int
    k: float
    v: float
    swa_k: float = 0.0
    swa_v: float = 0.0
    state: float = 0.0

    @property
    def kv(self) -> float:
        """K and V of all layers. [bytes]"""
        return self.k + self.v + self.swa_k + self.swa_v

    @property
    def total(self) -> float:
        """Everything. [bytes]"""
        return self.kv + self.state


def cache_type(name: str) -> GgmlType:
    """The storage type that a name means.

    Raises
    ------
    UnknownName
    """
    found = CACHE_TYPES.get(name.strip().casefold())
    if found is None:
        raise UnknownName("llama.cpp cache type", name, CACHE_TYPES, "formats")
    return found


def row_bytes(kind: GgmlType, elements: int) -> float:
    """Bytes of a row of so many elements: whole blocks.

    >>> row_bytes(cache_type("q8_0"), 1024)
    1088.0

    Raises
    ------
    UsageError
        When the row is no whole number of blocks; llama.cpp refuses the type then.
    """
    if elements % kind.block:
        raise UsageError(f"{kind.name} stores {kind.block} elements a block, and a row has {elements}: use f16")
    return elements / kind.block * kind.block_bytes


def kv_rows(model: ModelSpec, mla: MlaCache = "latent") -> tuple[KvRow, ...]:
    """Rows of a model's layers, recurrent ones apart."""
    found = (kv_row(layer, mla) for layer in model.layer_classes)
    return tuple(row for row in found if row.k or row.v)


def kv_row(layer: LayerClass, mla: MlaCache = "latent") -> KvRow:
    """Row of the layers of a class; of no elements where they keep no tokens."""
    a = layer.attention
    if isinstance(a, Gqa) and a.cache_elements:
        return KvRow(layer.count, a.kv_heads * a.head_dim, a.kv_heads * a.value_dim, a.window or a.chunk or 0)
    if isinstance(a, Mla):
        if mla == "expanded":
            return KvRow(layer.count, a.heads * a.qk_head_dim, a.heads * a.v_head_dim)
        return KvRow(layer.count, a.cache_elements, a.kv_lora_rank if mla == "latent_v" else 0)
    if isinstance(a, Compressed):
        raise UsageError("llama.cpp's cache of compressed attention is not described here")
    return KvRow(layer.count, 0, 0)


def padded(cells: int) -> int:
    """Cells rounded up to what kernels want.

    >>> padded(4100)
    4352
    """
    return ceil(cells / PADDING) * PADDING


def kv_cache_bytes(
    model: ModelSpec | Iterable[KvRow], n_ctx: int, type_k: str = "f16", type_v: str | None = None, *,
    n_parallel: int = 1, unified: bool = True, n_ubatch: int = 512, swa_full: bool = False, swa_f16: bool = False,
    mla: MlaCache = "latent",
) -> LlamaCache:  # fmt: skip
    """Sizes of llama.cpp's caches, exact to the byte.

    Parameters
    ----------
    model : ModelSpec or iterable of KvRow
        A model, or what a log prints of one: layers, ``n_embd_k_gqa``, ``n_embd_v_gqa``.
    n_ctx : int
        ``-c``: tokens of all slots together. [tokens]
    type_k, type_v : str
        ``-ctk`` and ``-ctv``; V as K when left out.
    n_parallel : int
        Slots. Without a unified cache each has ``n_ctx / n_parallel`` cells of its own.
    n_ubatch : int
        Tokens of one pass: a window's cells are ``window x slots + n_ubatch``, padded.
    swa_full : bool
        Layers with a window keep every token.
    swa_f16 : bool
        The part with windows stays F16 whatever the types (builds of one day, 2026-04-01).
    mla : str
        ``expanded``, ``latent`` or ``latent_v``.

    Examples
    --------
    Llama-3-8B, 8192 tokens: the log says 1024.00 MiB.

    >>> kv_cache_bytes([KvRow(32, 1024, 1024)], 8192).kv / 2**20
    1024.0
    """
    if mla not in MLA_CACHES:
        raise UsageError(f"mla must be one of {', '.join(MLA_CACHES)}, not {str(mla)[:40]!r}")
    rows = kv_rows(model, mla) if isinstance(model, ModelSpec) else tuple(model)
    streams = 1 if unified else n_parallel
    each = padded(ceil(n_ctx / streams))
    k_type, v_type = cache_type(type_k), cache_type(type_v or type_k)
    sums = [0.0] * 4
    most = 0
    for row in rows:
        cells = each if swa_full or not row.window else swa_cells(each, row.window, n_ubatch, n_parallel, unified)
        f16 = swa_f16 and row.window > 0
        size = [
            row_bytes(cache_type("f16") if f16 else t, n) if n else 0.0 for t, n in ((k_type, row.k), (v_type, row.v))
        ]
        first = 2 if row.window else 0
        most = max(most, cells * streams if row.window else 0)
        sums[first] += row.count * size[0] * cells * streams
        sums[first + 1] += row.count * size[1] * cells * streams
    state = 0.0
    if isinstance(model, ModelSpec):
        state = n_parallel * sum(x.count * layer_state_bytes(x, "fp32", "fp32") for x in model.layer_classes)
    return LlamaCache(each * streams, most, sums[0], sums[1], sums[2], sums[3], state)


def swa_cells(cells: int, window: int, n_ubatch: int, n_parallel: int = 1, unified: bool = True) -> int:
    """Cells of a layer with a window, of one stream: ``pad256(min(cells, window x slots + n_ubatch))``.

    >>> swa_cells(32768, 1024, 512)
    1536
    """
    return padded(min(cells, window * (n_parallel if unified else 1) + n_ubatch))
