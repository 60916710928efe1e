"""What a storage format is: bits an element, scales and zero points a group, blocks, and what a tensor adds."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from perfmodel.base.num import Num

#: Number formats that 16-bit activations are multiplied in, best first.
PLAIN_MATH = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Format:
    """How a tensor, or a KV cache, is stored.

    Attributes
    ----------
    name : str
    bits : float
        Bits an element; of a block format (GGUF) its whole block divided by its elements.
    group : tuple[int, int] or None
        Elements that share a scale, as (rows, columns) of an ``[out, in]`` matrix; 0 means the whole extent. ``None``:
        no scales. Of a cache the second number alone counts: elements of a head's vector (0: all of it), or tokens.
    scale_bits, zero_bits : float
        Bits of a group's scale and zero point.
    math : tuple[str, ...]
        Number formats the matrix units may multiply this in, best first; the weights are converted for the rest.
    source : str
    nested : tuple[int, float]
        Scales that share a second scale, and its bits: double quantization. (0, 0): none.
    tensor_bits : float
        Bits that a matrix has once: a global scale, code books.
    input_bits : float
        Bits an input feature: the group index of GPTQ's act-order.
    block : int
        Elements that are stored together along a row; a row takes whole blocks. 0: no blocks.
    flat : bool
        Whether groups run through the whole tensor, rows apart or not (bitsandbytes).
    kept_tokens : int
        Of a cache: the newest tokens, which stay at 16 bits.
    roles : tuple
        Of a preset of llama.cpp for one model: (role, whether a matrix) -> the format of such tensors.
    parts : str
        Of the same: its types, with their shares of the bytes.
    """

    name: str
    bits: float
    group: tuple[int, int] | None = None
    scale_bits: float = 0
    zero_bits: float = 0
    math: tuple[str, ...] = PLAIN_MATH
    source: str = ""
    title: str = ""
    nested: tuple[int, float] = (0, 0)
    tensor_bits: float = 0
    input_bits: float = 0
    block: int = 0
    flat: bool = False
    kept_tokens: int = 0
    roles: tuple[tuple[tuple[str, bool], Format], ...] = ()
    parts: str = ""

    def scales(self, shape: tuple[int, ...]) -> int:
        """Number of groups in a tensor whose last two dimensions are (out, in)."""
        if self.group is None or not (self.scale_bits or self.zero_bits):
            return 0
        if self.flat:
            return ceil(prod(shape) / self.group[1])
        rows, cols = (1, shape[0]) if len(shape) == 1 else (shape[-2], shape[-1])
        across, down = (ceil(n / g) if g else 1 for n, g in zip((rows, cols), self.group, strict=True))
        return prod(shape[:-2]) * across * down

    def tensor_bytes(self, shape: tuple[int, ...]) -> float:
        """Bytes of a tensor with all that belongs to it: scales, zero points, group indices.

        ``(elements x bits + groups x (scale + zero) + nested scales + inputs x index + once a matrix) / 8``

        >>> from perfmodel.modelspecs.formats import FORMATS
        >>> FORMATS["int4"].tensor_bytes((1, 128)), FORMATS["q4_k"].tensor_bytes((1, 300))
        (66.5, 288.0)
        """
        cols, matrices = shape[-1] if shape else 1, prod(shape[:-2])
        elements = prod(shape)
        if self.block:
            elements = elements // cols * ceil(cols / self.block) * self.block
        groups = self.scales(shape)
        size, bits = self.nested
        total = elements * self.bits + groups * (self.scale_bits + self.zero_bits)
        total += (ceil(groups / size) * bits if size else 0) + matrices * (cols * self.input_bits + self.tensor_bits)
        return total / 8

    def bits_per_weight(self, rows: int = 4096, cols: int = 4096) -> float:
        """Bits an element of a matrix with all that belongs to it.

        >>> from perfmodel.modelspecs.formats import weight_format
        >>> weight_format("gptq_g128").bits_per_weight(), weight_format("nf4").bits_per_weight()
        (4.15625, 4.500030517578125)
        """
        return self.tensor_bytes((rows, cols)) * 8 / (rows * cols)

    def cache_bits(self, head_dim: int, kept: Num | None = None) -> Num:
        """Bits an element of a KV cache takes on average, scales and zero points included.

        ``bits + (scale + zero) / group``; with tokens that stay at 16 bits, of ``kept`` tokens
        ``(16 min(kept, newest) + (...) max(kept - newest, 0)) / kept``.

        Parameters
        ----------
        head_dim : int
            Elements of a head's vector: what one scale covers where the format has one a token and head.
        kept : Num, optional
            Tokens in the cache; without it the limit of long contexts.

        >>> from perfmodel.modelspecs.formats import kv_format
        >>> kv_format("kivi2").cache_bits(128), float(kv_format("kivi2").cache_bits(128, 256.0))
        (3.0, 9.5)
        """
        bits = self.bits
        if self.group is not None:
            size = min(self.group[1], head_dim) or head_dim
            bits += (self.scale_bits + self.zero_bits) * ceil(head_dim / size) / head_dim
        if not self.kept_tokens or kept is None:
            return bits
        newest = np.minimum(kept, float(self.kept_tokens))
        return (16.0 * newest + bits * (kept - newest)) / np.maximum(kept, 1.0)
