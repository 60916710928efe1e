"""Claims about what quantization saves and buys (chapter sections 4.2 to 4.5, 4.7 and 5.1): Q7, Q8, Q10 and Q11."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.counts import kv_bytes_per_token
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.quant_sizes import quantize
from perfmodel.modelspecs.sizes import weight_bytes
from perfmodel.reports.claims import Figure, Line, claim
from perfmodel.roofline.quantization.compare import compare
from perfmodel.roofline.quantization.published import (
    marlin_speedup,
    measured_speedup,
    of_speedup,
    pairs,
    predicted_speedup,
    published,
    sequences_for_rate,
)

LARGE = "llama3-70b"


@claim("Q7", where="4 and 5.1", says="70B in FP16 is 140 GB; 4-bit AWQ or GPTQ divides by 4")
def q7() -> Iterator[Line]:
    """Llama 3 70B; groups of 128 with scales and zero points, embedding and LM head in 16 bits."""
    whole, narrow = weight_bytes(model(LARGE), "fp16"), weight_bytes(model(LARGE), "int4")
    yield Line("Llama 3 70B in FP16", 140, whole / 1e9, "GB", weight_bytes)
    reason = "groups have scales and zero points (4.16 bits), and embedding and LM head stay at 16 bits"
    yield Line("Llama 3 70B: FP16 over 4 bits, groups of 128", 4, whole / narrow, "x", weight_bytes, reason)
    yield Line("Llama 3 70B in 4 bits", None, narrow / 1e9, "GB", weight_bytes)


def gpus_needed(name: str, device: str, fmt: str) -> int:
    """Fewest GPUs whose memory holds the weights alone."""
    return ceil(weight_bytes(model(name), fmt) / gpu(device).usable_memory)


@claim(
    "Q8",
    where="4.2, 4.3 and 4.5",
    says="GPTQ 3.25x on A100, 4.5x on A6000; AWQ with Marlin 741 tok/s; SmoothQuant 1.56x",
)
def q8() -> Iterator[Line]:
    """Each in its own setting, calibrated; bounds beside them. Nothing is fitted to them."""
    titles = {"gptq-a100": "A100", "gptq-a6000": "A6000", "smoothquant": "A100"}
    for name, card in titles.items():
        s = published().speedups[name]
        cards = f"{s.gpus_before} to {s.gpus_after} {card}"
        reason = "kernels of that time and library differ from those that times were fitted to"
        what = f"{s.title}, {cards}"
        yield Line(
            f"{what}: calibrated", s.speedup, of_speedup(name), "x", of_speedup, reason, published().sources[s.source]
        )
        yield Line(f"{what}: bound", None, of_speedup(name, "bound"), "x", of_speedup)
    for device, chapter in (("a100-sxm", 1), ("rtx-a6000", None)):
        needed = gpus_needed("opt-175b", device, "gptq3_channel")
        yield Line(f"OPT-175B in 3 bits: {device} cards for the weights", chapter, needed, "", gpus_needed, strict=True)
    halves = weight_bytes(model("opt-175b"), "fp16") / weight_bytes(model("opt-175b"), "int8")
    yield Line("SmoothQuant, OPT-175B: FP16 bytes over INT8's", 2, halves, "x", weight_bytes)
    source = "published: 3.87x; " + published().sources["marlin"]
    what = "Marlin's product on A10, 16 rows, against 16 bits: bound"
    yield Line(what, None, marlin_speedup(16), "x", marlin_speedup, note=source)
    yield Line("AWQ with Marlin", 741, None, "tokens/s", reason="a rate of a served model: the load is not given")
    yield Line("sequences at once at which Qwen2.5 32B in 4 bits on H200 makes that rate, 256 in, 256 out", None,
               sequences_for_rate(), "", sequences_for_rate)  # fmt: skip
    mean = [predicted_speedup(*pair) / measured_speedup(*pair) for pair in pairs()]
    off = sum(abs(ratio - 1) for ratio in mean) / len(mean) * 100
    yield Line(
        f"{len(mean)} measured speedups of gpt-fast and TensorRT-LLM: mean error of ours",
        None,
        off,
        "%",
        predicted_speedup,
    )


@claim("Q10", where="4.5 and 4.7", says="GGUF mixes precisions in blocks (Q4_K_M and others)")
def q10() -> Iterator[Line]:
    """Tensor by tensor from llama.cpp's rules."""
    for preset in ("Q4_K_M", "Q5_K_M", "Q8_0"):
        found = quantize("llama3.1-8b", preset)
        yield Line(f"Llama 3.1 8B as {preset}: bits a weight", None, found.bits_per_weight, "", quantize)
    kinds = len([t for t in quantize("llama3.1-8b", "Q4_K_M").by_type if t.startswith("Q")])
    yield Line("Llama 3.1 8B as Q4_K_M: block types in it", (2, float("inf")), kinds, "", quantize, strict=True)


#: Cache format, what the chapter says it saves, why another number is right.
CACHES: tuple[tuple[str, Figure, str], ...] = (
    ("fp8", (2, 8), ""),
    ("int8_head", (2, 8), "a scale a token and head comes with it"),
    ("kivi2", (2, 8), ""),
    ("nvfp4", (2, 8), ""),
)


@claim("Q11", where="4.7 and 5.2", says="KV cache in FP8, INT8, KIVI 2-bit, NVFP4: 2 to 8 times smaller")
def q11() -> Iterator[Line]:
    """Bytes with their scales, and what they do to the capacity of a GPU."""
    spec = model("llama3.1-8b")
    plain = kv_bytes_per_token(spec, "bf16")
    for name, chapter, reason in CACHES:
        ratio = plain / kv_bytes_per_token(spec, name)
        yield Line(f"Llama 3.1 8B: bytes a token in BF16 over {name}, scales included", chapter, ratio, "x",
                   kv_bytes_per_token, reason)  # fmt: skip
    lines = {kv: compare("llama3.1-8b", "h100", ["bf16"], kv=kv, input=8192).lines[0] for kv in ("bf16", "fp8")}
    more = lines["fp8"].kv_tokens / lines["bf16"].kv_tokens
    yield Line("Llama 3.1 8B on H100 under vLLM: KV tokens in FP8 over BF16", None, more, "x", compare)
