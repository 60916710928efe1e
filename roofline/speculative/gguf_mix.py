"""Which ggml type each matrix of a GGUF file has: llama.cpp's mixes, for what a decode step reads.

A file type such as ``Q4_K_M`` names a recipe, not a type: some layers' values and down projections get more bits, the
head has 6 bits, and a matrix whose rows are no multiple of 256 falls back to a type with blocks of 32. Dense models of
Llama's and Qwen's family, without an importance matrix.

Source: ``llama_tensor_get_type`` in ``src/llama-quant.cpp`` of https://github.com/ggml-org/llama.cpp. The sums agree
with published files to three digits: Qwen2.5 7B ``Q4_K_M`` 4.68 GB, Qwen2 72B ``Q4_K_M`` 47.4 GB.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.gguf_types import TYPES, GgmlType
from perfmodel.modelspecs.schema import Dense, Gqa, ModelSpec

#: File type -> the type of most of its matrices.
MAIN: dict[str, str] = {
    "F16": "F16", "FP16": "F16", "BF16": "BF16", "F32": "F32", "Q8_0": "Q8_0", "Q6_K": "Q6_K", "Q5_K_M": "Q5_K",
    "Q5_K_S": "Q5_K", "Q5_0": "Q5_0", "Q5_1": "Q5_1", "Q4_K_M": "Q4_K", "Q4_K_S": "Q4_K", "Q4_0": "Q4_0",
    "Q4_1": "Q4_1", "Q3_K_L": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_S": "Q3_K", "Q2_K": "Q2_K", "IQ4_NL": "IQ4_NL",
}  # fmt: skip
#: What stands in for a type with blocks of 256 where the rows are no multiple of it.
FALLBACK = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_BY_NAME = {t.name: t for t in TYPES.values()}
_PLAIN = ("F16", "BF16", "F32")


@dataclass(frozen=True)
class Stored:
    """Matrices of one shape and type that a decode step reads.

    Attributes
    ----------
    type : GgmlType
    rows, columns : int
        Output and input features.
    count : int
    """

    type: GgmlType
    rows: int
    columns: int
    count: int

    @property
    def weights(self) -> float:
        """Elements in all."""
        return float(self.rows) * self.columns * self.count

    @property
    def bytes(self) -> float:
        """Bytes in all, scales included."""
        return self.weights * self.type.bits / 8


def more_bits(layer: int, layers: int) -> bool:
    """Whether a mix spends more on this layer: the first and last eighth, and every third between.

    >>> [i for i in range(16) if more_bits(i, 16)]
    [0, 1, 4, 7, 10, 13, 14, 15]
    """
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _value(mix: str, layer: int, layers: int, sharing: int) -> str:
    """Type of a layer's value projection."""
    if mix == "Q2_K":
        return "Q4_K" if sharing >= 4 else "Q3_K"
    if mix == "Q3_K_M":
        return "Q5_K" if layer < 2 else "Q4_K"
    if mix == "Q3_K_L" or (mix == "Q4_K_S" and layer < 4):
        return "Q5_K"
    return "Q6_K" if mix in ("Q4_K_M", "Q5_K_M") and more_bits(layer, layers) else MAIN[mix]


def _down(mix: str, layer: int, layers: int) -> str:
    """Type of a layer's down projection."""
    if mix == "Q2_K":
        return "Q3_K"
    if mix == "Q3_K_M":
        return "Q5_K" if layer < layers // 16 else "Q4_K"
    if mix == "Q3_K_L" or (mix == "Q4_K_S" and layer < layers // 8):
        return "Q5_K"
    return "Q6_K" if mix in ("Q4_K_M", "Q5_K_M") and more_bits(layer, layers) else MAIN[mix]


_OUTPUT = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}


def _fitting(name: str, columns: int) -> GgmlType:
    found = _BY_NAME[name]
    return found if columns % found.block == 0 else _BY_NAME[FALLBACK.get(name, "F16")]


def _head(mix: str, columns: int) -> GgmlType:
    """Type of the LM head: 6 bits, or 8 where its rows are no multiple of 256."""
    if MAIN[mix] in _PLAIN or MAIN[mix] == "Q8_0":
        return _BY_NAME[MAIN[mix]]
    return _BY_NAME["Q6_K" if columns % 256 == 0 else "Q8_0"]


def _layer(mix: str, a: Gqa, f: Dense, d: int, i: int, layers: int) -> list[tuple[GgmlType, int, int]]:
    sharing, q, kv, width = a.heads // a.kv_heads, a.heads * a.head_dim, a.kv_heads * a.head_dim, f.intermediate_size
    main, value = MAIN[mix], _value(mix, i, layers, sharing)
    if layers == 80 and sharing == 8 and value in ("Q3_K", "Q4_K"):  # the models that llama.cpp calls 70B
        value = "Q5_K"
    sized = [
        (main, q, d), (main, kv, d), (value, kv, d), (_OUTPUT.get(mix, main), d, q), (main, width, d), (main, width, d),
        (_down(mix, i, layers), d, width),
    ]  # fmt: skip
    return [(_fitting(name, columns), rows, columns) for name, rows, columns in sized]


@functools.lru_cache(maxsize=512)
def stored(model: ModelSpec, mix: str) -> tuple[Stored, ...]:
    """The matrices that a step of a GGUF file reads: all layers and the LM head; the embedding is a row lookup.

    Parameters
    ----------
    mix : str
        File type, such as ``Q4_K_M``.

    Raises
    ------
    UsageError
        For an unknown file type, or a model that is not dense with grouped-query attention throughout.
    """
    name = mix.upper()
    if name not in MAIN:
        raise UsageError(f"{mix[:40]!r} is no GGUF file type that is known; known are {', '.join(MAIN)}")
    attention, ffn = list(model.attention.values()), list(model.ffn.values())
    if len(attention) != 1 or len(ffn) != 1 or not isinstance(attention[0], Gqa) or not isinstance(ffn[0], Dense):
        raise UsageError(f"{model.title}: mixes of GGUF files are known for dense models of one kind of layer")
    a, f, n = attention[0], ffn[0], model.num_layers
    found = Counter(m for i in range(n) for m in _layer(name, a, f, model.hidden_size, i, n))
    found[(_head(name, model.hidden_size), model.vocab_size, model.hidden_size)] += 1
    return tuple(Stored(t, rows, columns, count) for (t, rows, columns), count in found.items())
