"""The storage types of ggml: elements a block and bytes a block, as data.

A tensor of a type is stored in blocks along its innermost dimension, so ``bytes = elements / block x block bytes``
exactly, scales and minima included. Source: ``GGMLQuantizationType`` and ``GGML_QUANT_SIZES`` of the ``gguf`` package
0.19.0 (``gguf-py/gguf/constants.py`` of https://github.com/ggml-org/llama.cpp), which a test compares with this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GgmlType:
    """A storage type.

    Attributes
    ----------
    number : int
        As stored in a tensor info.
    name : str
    block : int
        Elements a block; the innermost dimension must be a multiple of it.
    block_bytes : int
        Bytes a block.
    layout : str
        What the bytes of a block are.
    """

    number: int
    name: str
    block: int
    block_bytes: int
    layout: str

    @property
    def bits(self) -> float:
        """Bits an element, scales included.

        >>> TYPES[12].name, TYPES[12].bits
        ('Q4_K', 4.5)
        """
        return 8 * self.block_bytes / self.block


def _table(*rows: tuple[int, str, int, int, str]) -> dict[int, GgmlType]:
    return {row[0]: GgmlType(*row) for row in rows}


#: Type number -> storage type. ``super`` is a block of 256 elements with sub-scales (QK_K).
TYPES: dict[int, GgmlType] = _table(
    (0, "F32", 1, 4, "IEEE 754 binary32"),
    (1, "F16", 1, 2, "IEEE 754 binary16"),
    (2, "Q4_0", 32, 18, "2 scale + 16 nibbles"),
    (3, "Q4_1", 32, 20, "2 scale + 2 minimum + 16 nibbles"),
    (6, "Q5_0", 32, 22, "2 scale + 4 high bits + 16 nibbles"),
    (7, "Q5_1", 32, 24, "2 scale + 2 minimum + 4 high bits + 16 nibbles"),
    (8, "Q8_0", 32, 34, "2 scale + 32 bytes"),
    (9, "Q8_1", 32, 40, "4 scale + 4 sum + 32 bytes"),
    (10, "Q2_K", 256, 84, "super: 2 scale + 2 minimum + 16 sub-scales + 64 (2 bits each)"),
    (11, "Q3_K", 256, 110, "super: 2 scale + 12 sub-scales + 32 high bits + 64 (2 bits each)"),
    (12, "Q4_K", 256, 144, "super: 2 scale + 2 minimum + 12 sub-scales + 128 nibbles"),
    (13, "Q5_K", 256, 176, "super: 2 scale + 2 minimum + 12 sub-scales + 32 high bits + 128 nibbles"),
    (14, "Q6_K", 256, 210, "super: 2 scale + 16 sub-scales + 64 high bits + 128 nibbles"),
    (15, "Q8_K", 256, 292, "super: 4 scale + 256 bytes + 32 sums"),
    (16, "IQ2_XXS", 256, 66, "super: 2 scale + 64 (codebook, signs, sub-scales)"),
    (17, "IQ2_XS", 256, 74, "super: 2 scale + 64 (codebook and signs) + 8 sub-scales"),
    (18, "IQ3_XXS", 256, 98, "super: 2 scale + 64 (codebook) + 32 (signs, sub-scales)"),
    (19, "IQ1_S", 256, 50, "super: 2 scale + 32 (codebook) + 16 (high bits, sub-scales)"),
    (20, "IQ4_NL", 32, 18, "2 scale + 16 nibbles of a non-linear codebook"),
    (21, "IQ3_S", 256, 110, "super: 2 scale + 64 (codebook) + 8 high bits + 32 signs + 4 sub-scales"),
    (22, "IQ2_S", 256, 82, "super: 2 scale + 64 (codebook and signs) + 8 high bits + 8 sub-scales"),
    (23, "IQ4_XS", 256, 136, "super: 2 scale + 2 + 4 sub-scales + 128 nibbles"),
    (24, "I8", 1, 1, "integer"),
    (25, "I16", 1, 2, "integer"),
    (26, "I32", 1, 4, "integer"),
    (27, "I64", 1, 8, "integer"),
    (28, "F64", 1, 8, "IEEE 754 binary64"),
    (29, "IQ1_M", 256, 56, "super: 32 (codebook) + 16 high bits + 8 (scale and sub-scales)"),
    (30, "BF16", 1, 2, "bfloat16"),
    (34, "TQ1_0", 256, 54, "super: 2 scale + 48 + 4 (five ternary digits a byte)"),
    (35, "TQ2_0", 256, 66, "super: 2 scale + 64 (2 bits each)"),
    (39, "MXFP4", 32, 17, "1 scale (E8M0) + 16 nibbles (E2M1)"),
    (40, "NVFP4", 64, 36, "4 scales (UE4M3, one for 16) + 32 nibbles (E2M1)"),
    (41, "Q1_0", 128, 18, "2 scale + 16 (1 bit each)"),
)

#: Numbers that older files may hold, which ggml has withdrawn.
WITHDRAWN: dict[int, str] = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}  # fmt: skip

#: Value types of metadata: number -> (name, ``struct`` code). Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
SCALARS: dict[int, tuple[str, str]] = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"), 4: ("uint32", "I"), 5: ("int32", "i"),
    6: ("float32", "f"), 7: ("bool", "B"), 10: ("uint64", "Q"), 11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
STRING, ARRAY, BOOL = 8, 9, 7
