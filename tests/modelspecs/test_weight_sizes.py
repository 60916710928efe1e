"""Bytes of weights in storage formats, by hand."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import UnknownName
from perfmodel.modelspecs.counts import total_params
from perfmodel.modelspecs.formats import FORMATS, KV_FORMATS, kv_format, weight_format
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.sizes import tensor_bytes, tensor_format, weight_bytes
from perfmodel.modelspecs.tensors import Tensor, tensors

LINEAR = Tensor("w", "q_proj", (256, 512), quantizable=True)
#: Elements of Llama 3 70B's linear layers: 80 x (2 x 8192^2 + 2 x 1024 x 8192 + 3 x 28672 x 8192).
LLAMA_LINEAR = 80 * (2 * 8192**2 + 2 * 1024 * 8192 + 3 * 28672 * 8192)


@pytest.mark.parametrize(
    ("fmt", "size"),
    [
        ("fp32", 256 * 512 * 4),
        ("bf16", 256 * 512 * 2),
        ("fp8", 256 * 512 + 256 * 4),  # a scale a row
        ("fp8_tensor", 256 * 512 + 4),
        ("fp8_block", 256 * 512 + 2 * 4 * 4),  # 2 x 4 blocks of 128 x 128
        ("int8", 256 * 512 + 256 * 2),
        ("int4", 256 * 512 / 2 + 256 * 4 * 2.5),  # 4 groups a row, 20 bits each
        ("mxfp4", 256 * 512 / 2 + 256 * 16),  # 16 groups a row, 8 bits each
        ("nvfp4", 256 * 512 / 2 + 256 * 32 + 4),  # 32 groups a row, and one scale for the matrix
    ],
)
def test_one_matrix(fmt: str, size: float) -> None:
    """Elements and scales of a 256 x 512 matrix."""
    assert tensor_bytes(LINEAR, fmt) == size


def test_odd_shapes_round_groups_up() -> None:
    """A last group that is not full has a scale all the same."""
    assert tensor_bytes(Tensor("w", "q_proj", (130, 130), quantizable=True), "fp8_block") == 130 * 130 + 4 * 4
    assert tensor_bytes(Tensor("w", "q_proj", (1, 129), quantizable=True), "int4") == 129 / 2 + 2 * 2.5


def test_what_stays_at_16_bits() -> None:
    """Embedding, head, norms, router and biases stay; a plain format takes them all."""
    for name in ("llama3-8b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v3", "gemma3-4b"):
        for t in tensors(model(name)):
            left = t.role in ("embedding", "lm_head", "norm", "router", "vision", "projector", "qk_norm", "sinks")
            if left or t.name.endswith(".bias"):
                assert tensor_format(t, "fp8").name == "bf16"
            assert tensor_format(t, "fp32").name == "fp32"


def test_llama_70b() -> None:
    """141.1 GB at 16 bits; 39.8 GB at 4.156 bits with embedding and head at 16 bits: 3.55 times less, not 4."""
    spec = model("llama3-70b")
    assert weight_bytes(spec) == 2 * 70_553_706_496
    small = LLAMA_LINEAR * (4 + 20 / 128) / 8 + 2 * (70_553_706_496 - LLAMA_LINEAR)
    assert weight_bytes(spec, "int4") == small
    assert small / 1e9 == pytest.approx(39.8, abs=0.05)
    assert weight_bytes(spec) / small == pytest.approx(3.55, abs=0.005)


def test_native_deepseek() -> None:
    """DeepSeek-V3 in its own FP8 is 1 byte a linear weight and 4 a block of 128 x 128, without the MTP layer."""
    spec = model("deepseek-v3")
    linear = [t for t in tensors(spec) if t.quantizable and t.role != "mtp"]
    elements, scales = sum(t.total for t in linear), sum(t.count * FORMATS["fp8_block"].scales(t.shape) for t in linear)
    assert weight_bytes(spec, spec.native_format) == elements + 4 * scales + 2 * (total_params(spec) - elements)


def test_mtp_is_not_loaded() -> None:
    """Bytes of the MTP layer are not among the weights that generate text."""
    assert weight_bytes(model("deepseek-v3")) == 2 * 671_026_419_200


def test_format_names() -> None:
    """Aliases, objects and unknown names."""
    assert weight_format("BFloat16").name == "bf16"
    assert weight_format(FORMATS["int4"]) is FORMATS["int4"]
    assert kv_format("fp8_e4m3") is KV_FORMATS["fp8"]
    with pytest.raises(UnknownName, match=r"unknown weight format 'int5'; did you mean .*int4"):
        weight_format("int5")
    with pytest.raises(UnknownName, match="unknown KV-cache format 'nothing'"):
        kv_format("nothing")
