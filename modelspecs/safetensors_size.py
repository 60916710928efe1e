"""Bytes of a safetensors checkpoint: what each quantizer stores for a matrix, and the header.

File: 8 bytes, a header in JSON padded to 8, the data (https://github.com/huggingface/safetensors). The order of the
header is that of its reference implementation: wider types first, then by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, prod

from perfmodel.modelspecs.format import Format
from perfmodel.modelspecs.stored.safetensors_file import BITS
from perfmodel.modelspecs.tensors import Tensor

PLAIN = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
#: Types in the order of the reference implementation, ``Dtype`` in safetensors/src/tensor.rs; headers go backwards.
ORDER = (
    "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "I16", "U16", "F16", "BF16",
    "I32", "U32", "F32", "C64", "F64", "I64", "U64",
)  # fmt: skip

#: Type, shape and place of a tensor in the header. [bytes]
ENTRY = 85


@dataclass(frozen=True)
class Part:
    """One stored tensor.

    Attributes
    ----------
    loaded : bool
        Whether it is among what ``Format.tensor_bytes`` counts; the rest stands in the file alone.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    loaded: bool = True

    @property
    def bytes(self) -> int:
        """Of its data."""
        return prod(self.shape) * BITS[self.dtype] // 8


def parts(name: str, shape: tuple[int, ...], fmt: Format, plain: str = "BF16") -> tuple[Part, ...]:
    """What a checkpoint stores for a tensor in a format; bytes of the loaded ones add up to ``Format.tensor_bytes``.

    Parameters
    ----------
    name : str
        Ending in ``.weight`` where the format has more than one part.
    plain : str
        Type of 16-bit scales.
    """
    if fmt.name in PLAIN:
        return (Part(name, PLAIN[fmt.name], shape),)
    if fmt.block:  # blocks of ggml as they are, scales within
        return (Part(name, "U8", (shape[0], round(fmt.tensor_bytes((1, shape[-1]))))),)
    stem = name.removesuffix(".weight")
    if fmt.name.startswith("gptq"):
        return tuple(_gptq(stem, shape, fmt))
    if fmt.name.startswith("awq") or fmt.name == "int4":
        return tuple(_awq(stem, shape, fmt))
    if fmt.name.startswith("nf4"):
        return tuple(_nf4(name, shape, fmt))
    return tuple(_scaled(name, shape, fmt, plain))


def _groups(cols: int, fmt: Format) -> int:
    size = fmt.group[1] if fmt.group else 0
    return ceil(cols / size) if size else 1


def _gptq(stem: str, shape: tuple[int, ...], fmt: Format) -> Iterator[Part]:
    """GPTQ: zero points and group indices are always written; engines keep them where they say something.

    Source: ``QuantLinear`` of auto_gptq/nn_modules/qlinear/qlinear_cuda.py, https://github.com/AutoGPTQ/AutoGPTQ.
    """
    rows, cols = shape
    bits, groups = int(fmt.bits), _groups(cols, fmt)
    yield Part(f"{stem}.qweight", "I32", (cols * bits // 32, rows))
    yield Part(f"{stem}.scales", "F16", (groups, rows))
    yield Part(f"{stem}.qzeros", "I32", (groups, rows * bits // 32), bool(fmt.zero_bits))
    yield Part(f"{stem}.g_idx", "I32", (cols,), bool(fmt.input_bits))


def _awq(stem: str, shape: tuple[int, ...], fmt: Format) -> Iterator[Part]:
    rows, cols = shape
    groups = _groups(cols, fmt)
    yield Part(f"{stem}.qweight", "I32", (cols, rows // 8))
    yield Part(f"{stem}.scales", "F16", (groups, rows))
    if fmt.zero_bits:
        yield Part(f"{stem}.qzeros", "I32", (groups, rows // 8))


def _nf4(name: str, shape: tuple[int, ...], fmt: Format) -> Iterator[Part]:
    blocks = ceil(prod(shape) / 64)
    yield Part(name, "U8", (prod(shape) // 2, 1))
    yield Part(f"{name}.quant_map", "F32", (16,))
    if not fmt.nested[0]:
        yield Part(f"{name}.absmax", "F32", (blocks,))
        return
    yield Part(f"{name}.absmax", "U8", (blocks,))
    yield Part(f"{name}.nested_absmax", "F32", (ceil(blocks / fmt.nested[0]),))
    yield Part(f"{name}.nested_quant_map", "F32", (256,))


def _scaled(name: str, shape: tuple[int, ...], fmt: Format, plain: str) -> Iterator[Part]:
    """Weights with scales beside them: FP8, INT8, integers packed by compressed-tensors, micro-scaling.

    The shape beside packed integers: ``PackedQuantizationCompressor`` of
    https://github.com/vllm-project/compressed-tensors. NVFP4 as ModelOpt writes it, with a scale for the inputs.
    """
    rows, cols = shape
    across, down = fmt.group or (0, 0)
    scales = (ceil(rows / across) if across else 1, ceil(cols / down) if down else 1)
    kind = {32: "F32", 16: plain, 8: "F8_E8M0"}[int(fmt.scale_bits)]
    if fmt.name.startswith("int") and fmt.name != "int8":
        yield Part(f"{name}_packed", "I32", (rows, ceil(cols * int(fmt.bits) / 32)))
        yield Part(f"{name}_shape", "I64", (2,), loaded=False)
    elif fmt.bits < 8:
        yield Part(name, "U8", (rows, int(cols * fmt.bits) // 8))
    else:
        yield Part(name, "I8" if fmt.name in ("int8", "w8a16") else "F8_E4M3", shape)
    if fmt.name == "nvfp4":
        yield Part(f"{name}_scale", "F8_E4M3", scales)
        yield Part(f"{name}_scale_2", "F32", ())
        yield Part(f"{name.removesuffix('.weight')}.input_scale", "F32", (), loaded=False)
    else:
        yield Part(f"{name}_scale" + ("_inv" if fmt.name == "fp8_block" else ""), kind, scales)


def all_parts(tensors: Iterable[tuple[Tensor, Format]], layers: dict[str, tuple[int, ...]]) -> Iterator[Part]:
    """Every stored tensor of a checkpoint, layers and experts counted out.

    Parameters
    ----------
    layers : dict
        Layer class -> the layers that it is in.
    """
    for t, fmt in tensors:
        places = layers.get(t.layer) or (range(t.count) if "{layer}" in t.name else (0,))
        each = t.count // len(places)
        for place in places:
            for expert in range(each):
                name = t.name.replace("{layer}", str(place)).replace("{expert}", str(expert))
                yield from parts(name, t.shape, fmt)


def header_bytes(stored: Iterable[Part], metadata: dict[str, str] | None = None) -> int:
    """Bytes before the data: 8 and the header, padded to whole eights.

    >>> header_bytes([Part("w", "F32", (2, 3))])
    72
    """
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for part in sorted(stored, key=lambda one: (-ORDER.index(one.dtype), one.name)):
        header[part.name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [at, at + part.bytes]}
        at += part.bytes
    return 8 + ceil(len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()) / 8) * 8


def header_estimate(tensors: Iterable[tuple[Tensor, Format]]) -> int:
    """About the bytes of a header whose names of tensors are not known: the inventory's names, and 85 an entry."""
    return 8 + sum(t.count * sum(len(p.name) + ENTRY for p in parts(t.name, t.shape, fmt)) for t, fmt in tensors)


def unloaded_bytes(tensors: Iterable[tuple[Tensor, Format]]) -> int:
    """Bytes that stand in the file alone: group indices without act-order, zero points of symmetric GPTQ, shapes."""
    return sum(
        t.count * sum(part.bytes for part in parts(t.name, t.shape, fmt) if not part.loaded) for t, fmt in tensors
    )
