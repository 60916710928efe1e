"""Storage formats of weights and of the KV cache: bits an element, scales and zero points a group."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from perfmodel.base.errors import UnknownName


@dataclass(frozen=True)
class Format:
    """How a tensor is stored.

    Attributes
    ----------
    name : str
    bits : float
        Bits an element.
    group : tuple[int, int] or None
        Elements that share a scale, as (rows, columns) of an ``[out, in]`` matrix; 0 means the whole extent. ``None``:
        no scales.
    scale_bits, zero_bits : float
        Bits of a group's scale and zero point.
    math : tuple[str, ...]
        Number formats the matrix units may multiply this in, best first; the weights are converted for the rest.
    source : str
    """

    name: str
    bits: float
    group: tuple[int, int] | None = None
    scale_bits: float = 0
    zero_bits: float = 0
    math: tuple[str, ...] = ("bf16", "fp16", "fp32")
    source: str = ""
    title: str = ""

    def scales(self, shape: tuple[int, ...]) -> int:
        """Number of groups in a tensor whose last two dimensions are (out, in)."""
        if self.group is None:
            return 0
        rows, cols = (1, shape[0]) if len(shape) == 1 else (shape[-2], shape[-1])
        across, down = (ceil(n / g) if g else 1 for n, g in zip((rows, cols), self.group, strict=True))
        return prod(shape[:-2]) * across * down

    def tensor_bytes(self, shape: tuple[int, ...]) -> float:
        """Bytes of a tensor with its scales and zero points.

        >>> FORMATS["int4"].tensor_bytes((1, 128))
        66.5
        """
        return (prod(shape) * self.bits + self.scales(shape) * (self.scale_bits + self.zero_bits)) / 8


_IEEE = "IEEE 754-2019"
_OCP8 = "OCP 8-bit Floating Point Specification 1.0 (2023)"
_MX = "OCP Microscaling Formats (MX) Specification 1.0 (2023)"
_GPTQ = "GPTQ and AWQ checkpoints: group 128, 16-bit scale and packed 4-bit zero point"

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp32", 32, math=("tf32", "fp32"), source=_IEEE, title="32-bit float"),
        Format("bf16", 16, source="Intel bfloat16 definition (2018)", title="bfloat16"),
        Format("fp16", 16, math=("fp16", "bf16", "fp32"), source=_IEEE, title="16-bit float"),
        Format(
            "fp8", 8, (1, 0), 32, math=("fp8", "bf16", "fp16", "fp32"), source=_OCP8, title="FP8, a scale a channel",
        ),
        Format("fp8_tensor", 8, (0, 0), 32, math=("fp8", "bf16", "fp16", "fp32"), source=_OCP8, title="FP8, one scale"),
        Format(
            "fp8_block", 8, (128, 128), 32, math=("fp8", "bf16", "fp16", "fp32"),
            source="DeepSeek-V3 checkpoint: weight_scale_inv, fp32, a 128 x 128 block", title="FP8, 128 x 128 blocks",
        ),
        Format(
            "fp8_block_e8m0", 8, (128, 128), 8, math=("fp8", "bf16", "fp16", "fp32"),
            source="DeepSeek-V4 checkpoints: scale, float8_e8m0fnu, a 128 x 128 block",
            title="FP8, 128 x 128 blocks, 8-bit scales",
        ),
        Format(
            "int8", 8, (1, 0), 16, math=("int8", "bf16", "fp16", "fp32"), source="SmoothQuant W8A8", title="INT8 W8A8",
        ),
        Format("w8a16", 8, (1, 0), 16, source="weight-only INT8, a scale a channel", title="INT8 weights only"),
        Format("int4", 4, (1, 128), 16, 4, source=_GPTQ, title="INT4 weights only, group 128"),
        Format(
            "int4_g32", 4, (1, 32), 16,
            source="compressed-tensors checkpoints of Kimi K2 Thinking and K2.5: symmetric, 16-bit scale a group of 32",
            title="INT4 weights only, group 32, symmetric",
        ),
        Format("mxfp4", 4, (1, 32), 8, math=("fp4", "bf16", "fp16", "fp32"), source=_MX, title="MXFP4, group 32"),
        Format(
            "nvfp4", 4, (1, 16), 8, math=("fp4", "bf16", "fp16", "fp32"),
            source="NVIDIA NVFP4: FP8 E4M3 scale a group of 16 (and one FP32 scale a tensor)", title="NVFP4, group 16",
        ),
    )
}  # fmt: skip

#: Formats that a KV cache can have. Scales a tensor or head are a few bytes and left out.
KV_FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("bf16", 16, source="Intel bfloat16 definition (2018)"),
        Format("fp16", 16, math=("fp16", "bf16", "fp32"), source=_IEEE),
        Format("fp32", 32, math=("tf32", "fp32"), source=_IEEE),
        Format("fp8", 8, math=("fp8", "bf16", "fp16", "fp32"), source=_OCP8),
        Format("int8", 8, math=("bf16", "fp16", "fp32"), source="engines' per-tensor INT8 cache"),
    )
}

_ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "w8a8": "int8",
    "fp8_e4m3": "fp8", "w4a16": "int4", "fp4": "nvfp4", "auto": "bf16",
}  # fmt: skip


def weight_format(name: str | Format) -> Format:
    """The storage format of weights that a name means.

    >>> weight_format("bfloat16").bits
    16
    """
    return _find(name, FORMATS, "weight format")


def kv_format(name: str | Format) -> Format:
    """The storage format of the KV cache that a name means."""
    return _find(name, KV_FORMATS, "KV-cache format")


def _find(name: str | Format, table: dict[str, Format], kind: str) -> Format:
    if isinstance(name, Format):
        return name
    key = _ALIASES.get(name.casefold(), name.casefold())
    if key not in table:
        raise UnknownName(kind, name, table, "formats")
    return table[key]
