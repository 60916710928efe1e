"""The ``quantization_config`` of each quantizer, read strictly: every key is read, known to be harmless, or refused.

The keys are those that the quantizers' own configuration classes write: transformers (fp8, mxfp4, gptq, awq), AutoGPTQ
and GPTQModel, AutoAWQ, compressed-tensors, and NVIDIA's Model Optimizer.
"""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.base.errors import PerfmodelError
from perfmodel.modelspecs.formats import weight_format
from perfmodel.modelspecs.hf.common import words
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.hf.quant_groups import group, only_group, scheme

#: Who wrote the section and with what: says nothing of what is stored.
GROUPED = "16 to 1024 or of a channel (-1)"
ORIGIN = words("quant_method producer version")
GPTQ = ORIGIN | words(
    """
    sym static_groups damp_percent damp_auto_increment true_sequential model_name_or_path model_file_base_name meta
    checkpoint_format format backend batch_size block_name_to_quantize cache_block_outputs dataset exllama_config
    max_input_length model_seqlen module_name_preceding_first_block pad_token_id tokenizer use_cuda_fp16 use_exllama
    disable_exllama hyb_act mse
    """
)
AWQ = ORIGIN | words("zero_point backend do_fuse fuse_max_seq_len modules_to_fuse exllama_config")
COMPRESSED = ORIGIN | words("global_compression_ratio")
FP8_NAMES = ("e4m3", "float8_e4m3fn")
BLOCK = [128, 128]


def fp8(q: Keys) -> str:
    """FP8 with one scale a tensor, or one a block of 128 x 128."""
    q.text("activation_scheme", ("dynamic", "static"), "dynamic")
    q.expect("fmt", *FP8_NAMES)
    q.expect("scale_fmt", "ue8m0")
    q.expect("dequantize", False)
    q.expect("weight_block_size", BLOCK)
    if q.has("weight_block_size"):
        return "fp8_block"
    q.remarks.append(f"{q.shown('weight_block_size')} is not given: FP8 with one scale a tensor")
    return "fp8_tensor"


def mxfp4(q: Keys) -> str:
    """OCP's MXFP4: an 8-bit scale a group of 32."""
    q.expect("dequantize", False)
    return "mxfp4"


def modelopt(q: Keys) -> str:
    """NVIDIA's FP8 (one scale a tensor) and NVFP4 (groups of 16)."""
    q.require("quant_algo")
    name = {"FP8": "fp8_tensor", "NVFP4": "nvfp4"}[q.text("quant_algo", ("FP8", "NVFP4"), "")]
    bits, size = (8, None) if name == "fp8_tensor" else (4, 16)
    q.expect("group_size", *([size] if size else []))
    q.expect("quantized_layers", {})
    q.expect("has_zero_point", False)
    q.expect("pre_quant_scale", False)
    if q.has("config_groups"):
        weights, activations = group(only_group(q))
        for part in (weights, activations):
            if part is not None:
                scheme(part, bits, "float", size)
    return name


def gptq(q: Keys) -> str:
    """GPTQ: 2, 3, 4 or 8 bits in groups, or a scale a channel."""
    q.expect("dynamic", {})
    q.expect("modules_in_block_to_quantize", [])
    q.expect("is_marlin_format", False)
    q.expect("pack_dtype", "int32")
    q.expect("adapter", {})
    q.flag_given("desc_act")
    q.require("bits", "group_size")
    return _grouped(q, q.dim("bits"), q.dim("group_size", least=-1), "gptq")


def awq(q: Keys) -> str:
    """AWQ: 4 bits in groups, or a scale a channel."""
    q.alias(bits="w_bit", group_size="q_group_size")
    q.text("version", ("gemm", "gemv", "gemv_fast", "exllama", "ipex", "GEMM", "GEMV"), "gemm")
    q.require("bits", "group_size")
    return _grouped(q, q.dim("bits"), q.dim("group_size", least=-1), "awq")


def _grouped(q: Keys, bits: int, size: int, kind: str) -> str:
    """The format of a quantizer's bits and group; what engines usually serve has a name without the quantizer."""
    q.expect("lm_head", False)
    if bits == 4 and size == 128:
        return "int4"
    if kind == "gptq" and bits == 8 and size in (-1, 128):
        if size > 0:
            q.remarks.append(
                "8-bit weights in groups of 128 are counted with one scale a channel: 1 to 3 % fewer bytes"
            )
        return "w8a16"
    try:
        return weight_format(f"{kind}{bits}_g{size}").name
    except PerfmodelError:
        said = "2, 3, 4 and 8 bits" if kind == "gptq" else "4 bits"
        raise q.error(
            "group_size", f"{bits} bits in groups of {size} are not understood; {said} in groups of {GROUPED} are"
        ) from None


def compressed(q: Keys) -> str:
    """compressed-tensors with one group for all linear layers."""
    q.expect("sparsity_config", {})
    q.expect("transform_config", {})
    q.text("quantization_status", ("compressed", "frozen"), "compressed")
    inner = only_group(q)
    weights, activations = group(inner)
    if weights is None:
        raise q.error("config_groups", "has no weights")
    kind, bits = weights.text("type", ("float", "int"), "int"), weights.dim("num_bits")
    strategy = weights.text("strategy", ("tensor", "channel", "group", "block", "tensor_group"), "")
    if activations is not None:
        scheme(activations, bits, kind, 16 if strategy == "tensor_group" else None)
    name = _named(q, weights, (kind, bits, strategy), activations is not None)
    for part in (q, inner):
        part.text("format", LAYOUTS.get(name, LAYOUTS["int4"]), "")
    return name


#: How compressed-tensors may lay out what it stores in a format.
_EIGHT = ("float-quantized", "naive-quantized")
LAYOUTS: dict[str, tuple[str, ...]] = {
    "fp8": _EIGHT, "fp8_tensor": _EIGHT, "fp8_block": _EIGHT,
    "int8": ("int-quantized", "naive-quantized"), "w8a16": ("pack-quantized", "int-quantized", "naive-quantized"),
    "int4": ("pack-quantized",), "int4_g32": ("pack-quantized",), "nvfp4": ("nvfp4-pack-quantized",),
}  # fmt: skip


def _named(q: Keys, weights: Keys, kind: tuple[str, int, str], activations: bool) -> str:
    """The format of weights of a type, bits and strategy."""
    names = {
        ("float", 8, "channel"): "fp8", ("float", 8, "tensor"): "fp8_tensor", ("float", 8, "block"): "fp8_block",
        ("int", 8, "channel"): "int8" if activations else "w8a16", ("float", 4, "tensor_group"): "nvfp4",
    }  # fmt: skip
    if kind == ("int", 4, "group") and not activations:
        sizes = {32: "int4_g32", 128: "int4"}
        size, symmetric = weights.dim("group_size"), weights.flag_given("symmetric")
        if symmetric is not False and size in (16, 64, 256):
            scheme(weights, 4, "int", size)
            return weight_format(f"int4_g{size}").name
        if size not in sizes or (size == 32 and symmetric is False):
            raise q.error("config_groups", f"4 bits in groups of {size}, symmetric {symmetric}, are not understood")
        if size == 128 and symmetric is not False:
            q.remarks.append("symmetric 4-bit weights are counted with 4-bit zero points: under 1 % too many bytes")
        scheme(weights, 4, "int", size)
        return sizes[size]
    if kind not in names:
        raise q.error("config_groups", f"weights of type, bits and strategy {kind!r} are not understood")
    name = names[kind]
    if name == "fp8_block":
        weights.require("block_structure")
    weights.expect("block_structure", *([BLOCK, "128x128"] if name == "fp8_block" else []))
    weights.expect("symmetric", True)
    scheme(weights, kind[1], kind[0], 16 if name == "nvfp4" else None)
    if kind[0] == "float" and not activations:
        q.remarks.append(
            f"activations stay at 16 bits: products are 16-bit ones, where {name} counts those of its own width"
        )
    return name


#: Reader and harmless keys of each ``quant_method``.
METHODS: dict[str, tuple[Callable[[Keys], str], frozenset[str]]] = {
    "fp8": (fp8, ORIGIN),
    "mxfp4": (mxfp4, ORIGIN),
    "modelopt": (modelopt, ORIGIN),
    "gptq": (gptq, GPTQ),
    "awq": (awq, AWQ),
    "compressed-tensors": (compressed, COMPRESSED),
}
