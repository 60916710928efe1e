"""Storage formats as data, each with its source: floats, integers, groups, micro-scaling, and every type of ggml."""

from __future__ import annotations

from perfmodel.modelspecs.format import PLAIN_MATH, Format
from perfmodel.modelspecs.gguf_types import TYPES

_IEEE = "IEEE 754-2019"
_OCP8 = "OCP 8-bit Floating Point Specification 1.0 (2023)"
_MX = "OCP Microscaling Formats (MX) Specification 1.0 (2023)"
_GPTQ = "GPTQ and AWQ checkpoints: group 128, 16-bit scale and packed 4-bit zero point"
_GGML = "ggml block layout: gguf-py/gguf/constants.py of https://github.com/ggml-org/llama.cpp"
_BNB = (
    "bitsandbytes Linear4bit: blocks of 64, a 4-byte maximum each and a code book of 16 (QuantState.as_dict, "
    "bitsandbytes/functional.py of https://github.com/bitsandbytes-foundation/bitsandbytes)"
)
_NVFP4 = "NVIDIA NVFP4: FP8 E4M3 scale a group of 16, one FP32 scale a tensor"
_FP8 = ("fp8", *PLAIN_MATH)

#: Formats by name; ``formats.weight_format`` knows more, by patterns of names.
TABLE: tuple[Format, ...] = (
    Format(
        "fp32", 32, math=("tf32", "fp32"), source=_IEEE,
        title="32-bit float; TF32 is how it is multiplied, not how it is stored",
    ),
    Format("bf16", 16, source="Intel bfloat16 definition (2018)", title="bfloat16"),
    Format("fp16", 16, math=("fp16", "bf16", "fp32"), source=_IEEE, title="16-bit float"),
    Format("fp8", 8, (1, 0), 32, math=_FP8, source=_OCP8, title="FP8, a scale a channel"),
    Format("fp8_tensor", 8, (0, 0), 32, math=_FP8, source=_OCP8, title="FP8, one scale"),
    Format(
        "fp8_block", 8, (128, 128), 32, math=_FP8,
        source="DeepSeek-V3 checkpoint: weight_scale_inv, fp32, a 128 x 128 block", title="FP8, 128 x 128 blocks",
    ),
    Format(
        "fp8_block_e8m0", 8, (128, 128), 8, math=_FP8,
        source="DeepSeek-V4 checkpoints: scale, float8_e8m0fnu, a 128 x 128 block",
        title="FP8, 128 x 128 blocks, 8-bit scales",
    ),
    Format("int8", 8, (1, 0), 16, math=("int8", *PLAIN_MATH), source="SmoothQuant W8A8", title="INT8 W8A8"),
    Format("w8a16", 8, (1, 0), 16, source="weight-only INT8, a scale a channel", title="INT8 weights only"),
    Format("int4", 4, (1, 128), 16, 4, source=_GPTQ, title="INT4 weights only, group 128"),
    Format(
        "int4_g32", 4, (1, 32), 16,
        source="compressed-tensors checkpoints of Kimi K2 Thinking and K2.5: symmetric, 16-bit scale a group of 32",
        title="INT4 weights only, group 32, symmetric",
    ),
    Format("mxfp4", 4, (1, 32), 8, math=("fp4", *PLAIN_MATH), source=_MX, title="MXFP4, group 32"),
    Format("nvfp4", 4, (1, 16), 8, math=("fp4", *PLAIN_MATH), source=_NVFP4, title="NVFP4, group 16", tensor_bits=32),
    Format("mxfp6", 6, (1, 32), 8, math=("fp6", *PLAIN_MATH), source=_MX, title="MXFP6, group 32"),
    Format("mxfp8", 8, (1, 32), 8, math=_FP8, source=_MX, title="MXFP8, group 32"),
    Format(
        "nf4", 4, (1, 64), 32, source=_BNB, title="NF4 of bitsandbytes, blocks of 64", flat=True, tensor_bits=16 * 32,
    ),
    Format(
        "nf4_dq", 4, (1, 64), 8, source=_BNB + "; QLoRA, arXiv:2305.14314: 256 maxima share a 4-byte scale",
        title="NF4 with double quantization", flat=True, nested=(256, 32), tensor_bits=(16 + 256) * 32,
    ),
)  # fmt: skip

#: Types of ggml that weights are stored in, and those that its GPU kernels multiply as 8-bit integers.
NOT_WEIGHTS = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")
_MMQ = "multiplied with 8-bit activations: ggml/src/ggml-cuda/mmq.cu"
_ALREADY = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "MXFP4": "mxfp4", "NVFP4": "nvfp4"}


def ggml_formats() -> tuple[Format, ...]:
    """Every quantized type of ggml as a format: whole blocks along a row, scales within ``bits``."""
    return tuple(
        Format(
            t.name.casefold(), t.bits, (1, t.block), math=("int8", "fp16", "bf16", "fp32"), source=f"{_GGML}; {_MMQ}",
            title=f"GGUF {t.name}: {t.block_bytes} bytes a block of {t.block}", block=t.block,
        )
        for t in TYPES.values()
        if t.name not in NOT_WEIGHTS and t.name not in _ALREADY
    )  # fmt: skip


_CACHE_GROUPS = (
    "asymmetric, a head and token each: docs/en/quantization/kv_quant.md of https://github.com/InternLM/lmdeploy"
)
_KIVI = (
    "KIVI, arXiv:2402.02750, as its README runs it: keys a channel in groups of 32 tokens, values a token in groups of "
    "32; 16-bit scale and zero point; the newest 128 tokens at 16 bits (https://github.com/jy-yuan/KIVI)"
)

#: Formats that a KV cache can have. Scales a tensor or head that all tokens share are a few bytes and left out.
CACHES: tuple[Format, ...] = (
    Format("bf16", 16, source="Intel bfloat16 definition (2018)", title="bfloat16"),
    Format("fp16", 16, math=("fp16", "bf16", "fp32"), source=_IEEE, title="16-bit float"),
    Format("fp32", 32, math=("tf32", "fp32"), source=_IEEE, title="32-bit float"),
    Format("fp8", 8, math=_FP8, source=_OCP8, title="FP8, a scale a layer"),
    Format("int8", 8, source="engines' per-tensor INT8 cache", title="INT8, a scale a layer"),
    Format("int8_head", 8, (1, 0), 16, 16, source=_CACHE_GROUPS, title="INT8, scale and zero point a token and head"),
    Format("int4_head", 4, (1, 0), 16, 16, source=_CACHE_GROUPS, title="INT4, scale and zero point a token and head"),
    Format("kivi2", 2, (1, 32), 16, 16, source=_KIVI, title="KIVI, 2 bits, groups of 32", kept_tokens=128),
    Format("kivi4", 4, (1, 32), 16, 16, source=_KIVI, title="KIVI, 4 bits, groups of 32", kept_tokens=128),
    Format(
        "nvfp4", 4, (1, 16), 8, math=("fp8", *PLAIN_MATH), title="NVFP4, group 16",
        source=f"{_NVFP4}; as a cache: https://nvidia.github.io/TensorRT-LLM/features/quantization.html",
    ),
    *(
        Format(
            t.name.casefold(), t.bits, math=("fp16", "bf16", "fp32"), source=f"{_GGML}; llama.cpp's -ctk and -ctv",
            title=f"GGUF {t.name}",
        )
        for t in TYPES.values()
        if t.name in ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")
    ),
)  # fmt: skip
