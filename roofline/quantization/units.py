"""In which numbers a GPU multiplies a format, and what engines do where it has no unit for it."""

from __future__ import annotations

from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.formats import Format, weight_format
from perfmodel.modelspecs.mixes import meaning
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.dequantize import needs_dequantization
from perfmodel.roofline.step import Plan, choose_math

#: Number format -> whose kernel runs instead, with 16-bit activations, from Turing on. Sources:
#: docs/features/quantization/llm_compressor/fp8.md of https://github.com/vllm-project/vllm ("FP8 models will run on
#: compute capability >= 7.5 (Turing) as weight-only W8A16, utilizing FP8 Marlin") and modelopt.md beside it (without
#: native FP4 "vLLM falls back to weight-only (W4A16) execution via Marlin and logs a warning").
MARLIN = ("fp8", "fp4")
MARLIN_FROM = 7.5
#: Number formats that only some GPUs multiply; the rest is what every GPU unpacks.
UNITS = ("fp8", "fp6", "fp4", "int8")


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
    >>> fallback(FORMATS["fp8"], gpu("a100"))[:49]
    'a100-sxm has no fp8 units: engines fall back to w'
    >>> fallback(FORMATS["fp8"], gpu("h100"))
    ''
    """
    wanted, got = fmt.math[0], choose_math(fmt, gpu)
    if wanted == got or wanted not in UNITS:
        return ""
    whose = ""
    if wanted in MARLIN:
        marlin = gpu.vendor == "nvidia" and float(gpu.compute_capability or 0) >= MARLIN_FROM
        whose = ", by Marlin in vLLM" if marlin else ", for which no engine's kernel is known here"
    return (
        f"{gpu.name} has no {wanted} units: engines fall back to weights only (W{int(fmt.bits)}A16){whose}; {fmt.name} "
        f"weights are unpacked, activations and products stay in {got}"
    )


def remarks(model: ModelSpec, plan: Plan, gpu: Gpu) -> tuple[str, ...]:
    """The same of every format that a plan stores weights in: the makers may have stored some matrices in another one.

    Before it what a name stands for that means two things (``q4_k``: a type; ``Q4_K_M``: a preset of llama.cpp).

    >>> from perfmodel.roofline.setup import setup
    >>> ready = setup("llama3.1-8b", "h100", weights="int4")
    >>> remarks(ready.model, ready.plan, ready.gpu)
    ()
    """
    native = plan.weights.name == model.native_format
    others = [weight_format(name) for name in model.native_roles.values()] if native else []
    said = [meaning(plan.weights), *(fallback(fmt, gpu) for fmt in (plan.weights, *others))]
    return tuple(dict.fromkeys(text for text in said if text))
