"""Bytes of a GGUF file: data in blocks, padded to the alignment, tensor infos, and metadata.

File: 24 bytes (magic, version, counts), the key-value pairs, one info a tensor, padding, the data, each tensor padded
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). All but the pairs follows from the model; of those the
tokenizer is nearly all, and its bytes are estimated from the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from perfmodel.modelspecs.gguf_layout import GgufTensor
from perfmodel.modelspecs.gguf_types import GgmlType
from perfmodel.modelspecs.schema import ModelSpec

ALIGNMENT = 32
#: Magic, version, number of tensors, number of pairs. [bytes]
START = 24
#: Bytes a vocabulary entry takes in the metadata: a token (8 + its text), its type, and its score or its merge. From
#: the arithmetic of the format with mean lengths of tokens; Llama 3's merges are over twice its tokens. [bytes]
ENTRY_BYTES = {"sentencepiece": 24.0, "bpe": 40.0, "llama3": 61.0}
#: The estimate is good to this factor.
ENTRY_FACTOR = 1.5
#: Architecture's keys, chat template and the like. [bytes]
REST = 8_000.0


def padded(size: float, alignment: int = ALIGNMENT) -> int:
    """Bytes up to the next multiple of the alignment.

    >>> padded(33), padded(64)
    (64, 64)
    """
    return ceil(size / alignment) * alignment


def tensor_bytes(t: GgufTensor, kind: GgmlType) -> int:
    """Bytes of a tensor's data in a type, whose blocks its rows fill."""
    return t.elements // kind.block * kind.block_bytes


def info_bytes(tensors: Iterable[GgufTensor]) -> int:
    """Bytes of the tensor infos: name, dimensions, type and place of each."""
    return sum(8 + len(t.name.encode()) + 4 + 8 * len(t.shape) + 4 + 8 for t in tensors)


def pair_bytes(metadata: Mapping[str, Any]) -> int:
    """Bytes of key-value pairs: integers and floats take 4 bytes, booleans 1, texts and arrays their length and items.

    >>> pair_bytes({"general.architecture": "llama", "llama.block_count": 2})
    78
    """
    return sum(8 + len(key.encode()) + 4 + _value_bytes(value) for key, value in metadata.items())


def _value_bytes(value: Any) -> int:
    if isinstance(value, bool):
        return 1
    if isinstance(value, int | float):
        return 4
    if isinstance(value, str):
        return 8 + len(value.encode())
    if isinstance(value, Sequence):  # the items' type and their number before them
        return 4 + 8 + sum(_value_bytes(one) for one in value)
    raise TypeError(f"no GGUF value: {type(value).__name__}")


def tokenizer(model: ModelSpec) -> str:
    """Kind of tokenizer, by the vocabulary: ``sentencepiece``, ``bpe`` or ``llama3``."""
    if (128_000 <= model.vocab_size < 130_000 and model.family == "llama") or model.family.startswith("gemma4"):
        return "llama3"
    small = model.vocab_size <= 33_000 and model.family not in ("gpt2", "opt")
    return "sentencepiece" if small or model.family.startswith("gemma") else "bpe"


def metadata_estimate(model: ModelSpec) -> float:
    """Bytes of a file's metadata, estimated within a factor of ``ENTRY_FACTOR``: nearly all is the tokenizer."""
    return model.vocab_size * ENTRY_BYTES[tokenizer(model)] + REST


def file_bytes(tensors: Sequence[GgufTensor], types: Sequence[GgmlType], metadata: float) -> int:
    """Bytes of the file with ``metadata`` bytes of key-value pairs; exact when those are."""
    data = sum(padded(tensor_bytes(t, kind)) for t, kind in zip(tensors, types, strict=True))
    return padded(START + metadata + info_bytes(tensors)) + data
