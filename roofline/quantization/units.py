"""In which numbers a GPU multiplies a format, and what engines do where it has no unit for it."""

from __future__ import annotations

from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.formats import Format
from perfmodel.roofline.dequantize import needs_dequantization
from perfmodel.roofline.step import choose_math

#: What engines run instead, from Turing on. Sources: docs/features/quantization/llm_compressor/fp8.md of
#: https://github.com/vllm-project/vllm ("FP8 models will run on compute capability >= 7.5 (Turing) as weight-only
#: W8A16, utilizing FP8 Marlin") and modelopt.md beside it (without native FP4 "vLLM falls back to weight-only (W4A16)
#: execution via Marlin and logs a warning").
FALLBACKS = {
    "fp8": "weights only (W8A16), by Marlin in vLLM",
    "fp4": "weights only (W4A16), by Marlin in vLLM",
    "int8": "weights only (W8A16)",
    "fp6": "weights only (W6A16)",
}
MARLIN_FROM = 7.5


def computes_in(fmt: Format, gpu: Gpu) -> str:
    """The number format of the products, and whether weights are unpacked first.

    >>> from perfmodel.hwspecs.load import gpu
    >>> from perfmodel.modelspecs.formats import FORMATS
    >>> computes_in(FORMATS["int4"], gpu("h100")), computes_in(FORMATS["fp8"], gpu("h100"))
    ('bf16, unpacked', 'fp8')
    """
    math = choose_math(fmt, gpu)
    return f"{math}, unpacked" if needs_dequantization(fmt, math) else math


def fallback(fmt: Format, gpu: Gpu) -> str:
    """What is said of a format that the GPU has no unit for: what engines do instead; empty where it has one.

    >>> from perfmodel.hwspecs.load import gpu
    >>> from perfmodel.modelspecs.formats import FORMATS
    >>> fallback(FORMATS["fp8"], gpu("a100"))[:44]
    'a100-sxm has no fp8 units: weights only (W8A'
    >>> fallback(FORMATS["fp8"], gpu("h100"))
    ''
    """
    wanted, got = fmt.math[0], choose_math(fmt, gpu)
    if wanted == got or wanted not in FALLBACKS:
        return ""
    instead = FALLBACKS[wanted]
    if "Marlin" in instead and (gpu.vendor != "nvidia" or float(gpu.compute_capability or 0) < MARLIN_FROM):
        instead = f"{instead.partition(',')[0]}, for which no engine's kernel is known here"
    return f"{gpu.name} has no {wanted} units: {instead}; activations and products stay in {got}"
