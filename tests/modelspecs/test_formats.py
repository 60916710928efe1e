"""Storage formats: bits with scales by hand, patterns of names, types of ggml from their one table, and caches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.modelspecs.counts import kv_bytes, kv_bytes_per_token
from perfmodel.modelspecs.format_tables import NOT_WEIGHTS
from perfmodel.modelspecs.formats import FORMATS, KV_FORMATS, OFFERED, OFFERED_KV, kv_format, names_of, weight_format
from perfmodel.modelspecs.gguf_types import TYPES
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.safetensors_size import parts

#: A matrix of 1024 x 4096.
ROWS, COLS = 1024, 4096
N = ROWS * COLS


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("gptq_g128", N // 2 + N // 128 * (2 + 0.5)),  # 16-bit scale, 4-bit zero point packed into words
        ("gptq_g32", N // 2 + N // 32 * 2.5),
        ("gptq_channel", N // 2 + ROWS * 2.5),
        ("gptq_g128_act", N // 2 + N // 128 * 2.5 + COLS * 4),  # a 32-bit group index an input feature
        ("gptq_g128_sym", N // 2 + N // 128 * 2),
        ("gptq3_g128", N * 3 // 8 + N // 128 * (2 + 3 / 8)),
        ("gptq2_g64", N // 4 + N // 64 * (2 + 2 / 8)),
        ("gptq8_channel", N + ROWS * 3),
        ("awq_g64", N // 2 + N // 64 * 2.5),
        ("int4_g64", N // 2 + N // 64 * 2),
        ("nf4", N // 2 + N // 64 * 4 + 64),  # a 4-byte maximum a block of 64, 16 levels of 4 bytes
        ("nf4_dq", N // 2 + N // 64 + N // (64 * 256) * 4 + 64 + 1024),  # 8-bit maxima, 256 to a scale, 256 levels
        ("mxfp6", N * 6 // 8 + N // 32),
        ("mxfp8", N + N // 32),
        ("nvfp4", N // 2 + N // 16 + 4),
        ("q4_k", N // 256 * 144),
        ("q8_0", N // 32 * 34),
        ("iq1_s", N // 256 * 50),
    ],
)
def test_bytes_of_a_matrix(name: str, size: float) -> None:
    """Elements, scales, zero points and indices of a 1024 x 4096 matrix, added up by hand."""
    assert weight_format(name).tensor_bytes((ROWS, COLS)) == size


def test_published_bits_of_double_quantization() -> None:
    """QLoRA (arXiv:2305.14314): 0.5 bits a parameter for the maxima, 0.127 with double quantization."""
    large = (8192, 8192)
    assert weight_format("nf4").bits_per_weight(*large) == pytest.approx(4 + 0.5, abs=1e-4)
    assert weight_format("nf4_dq").bits_per_weight(*large) == pytest.approx(4 + 0.127, abs=3e-4)


def test_metadata_of_a_group() -> None:
    """A 16-bit scale and a 4-bit zero point a group of 128 are 0.156 bits a weight, the scale alone is 0.125."""
    assert weight_format("awq_g128").bits_per_weight() - 4 == 20 / 128
    assert weight_format("int4_g128").bits_per_weight() - 4 == 16 / 128


def test_every_type_of_ggml_is_a_weight_format() -> None:
    """Block and bytes of each come from the one table; floats and the shared micro-scaling types keep their names."""
    for kind in TYPES.values():
        if kind.name in NOT_WEIGHTS:
            continue
        name = {"F32": "fp32", "F16": "fp16"}.get(kind.name, kind.name)
        fmt = weight_format(name)
        if kind.name != "NVFP4":  # NVIDIA's has a scale a matrix besides
            assert fmt.tensor_bytes((2, 1024)) == 2 * 1024 // kind.block * kind.block_bytes


def test_rows_take_whole_blocks() -> None:
    """A row of 300 elements takes two blocks of 256."""
    assert weight_format("q6_k").tensor_bytes((3, 300)) == 3 * 2 * 210


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("gptq", "gptq_g128"), ("GPTQ4_64", "gptq_g64"), ("awq_g-1", "awq_channel"), ("w4a16_g128", "int4_g128"),
     ("bnb", "nf4"), ("int4", "int4"), ("w4a16", "int4"), ("tf32", "fp32"), ("fp8_e5m2", "fp8"), ("Q4_K", "q4_k"),
     ("gptq3_g64_sym_act", "gptq3_g64_sym_act")],
)  # fmt: skip
def test_names(name: str, canonical: str) -> None:
    """Spellings of a format mean one and the same object."""
    assert weight_format(name).name == canonical
    assert weight_format(name) is weight_format(canonical)


@pytest.mark.parametrize("name", ["int5", "gptq_g7", "awq3_g128", "awq_g128_act", "w4", "int4_act", "gptqa16_g128", ""])
def test_unknown_names(name: str) -> None:
    """What no checkpoint has is no format."""
    with pytest.raises(UnknownName, match="unknown weight format"):
        weight_format(name)


def test_presets_are_no_weight_formats() -> None:
    """A preset mixes types: it is refused with the command that sizes it and the type that is nearest."""
    with pytest.raises(UsageError, match=r"Q4_K_M mixes types .*perfmodel quantize MODEL --format Q4_K_M.* take q4_k"):
        weight_format("Q4_K_M")


def test_every_format_has_a_source_and_what_is_offered_exists() -> None:
    """Sources and titles are given; what is offered as a remedy is in the tables."""
    assert all(f.source and f.title for f in (*FORMATS.values(), *KV_FORMATS.values()))
    assert set(OFFERED) <= set(FORMATS)
    assert set(OFFERED_KV) <= set(KV_FORMATS)
    assert names_of(weight_format("fp32")) == ["float", "float32", "tf32"]


@given(
    name=st.sampled_from(["gptq_g128", "gptq3_g64_act", "awq_g32", "int8_g128", "fp8", "fp8_block", "nf4", "nf4_dq",
                          "nvfp4", "mxfp4", "int4", "int4_g32", "w8a16", "mxfp6"]),
    rows=st.integers(1, 8), cols=st.integers(1, 8),
)  # fmt: skip
def test_what_a_checkpoint_stores_adds_up(name: str, rows: int, cols: int) -> None:
    """The parts of a checkpoint's matrix have as many bytes as the format says, whatever the shape."""
    shape = (256 * rows, 1024 * cols)
    fmt = weight_format(name)
    assert sum(part.bytes for part in parts("m.weight", shape, fmt) if part.loaded) == fmt.tensor_bytes(shape)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("fp8", 8), ("int8_head", 8 + 32 / 128), ("int4_head", 4 + 32 / 128), ("kivi2", 2 + 32 / 32), ("nvfp4", 4.5),
     ("q8_0", 8.5), ("q4_0", 4.5)],
)  # fmt: skip
def test_bits_of_a_cache(name: str, bits: float) -> None:
    """Bits an element with scales and zero points, head size 128."""
    assert kv_format(name).cache_bits(128) == bits


def test_small_heads_pay_more_for_their_scales() -> None:
    """A scale and a zero point a head are 32 bits whatever its size; a group is never larger than the head."""
    assert kv_format("int4_head").cache_bits(64) == 4.5
    assert kv_format("kivi2").cache_bits(16) == 2 + 32 / 16


def test_cache_of_llama_with_scales() -> None:
    """Llama 3 8B: 65,536 elements a token; NVFP4 takes 4.5 bits of each, KIVI 3 once 128 tokens are past."""
    spec = model("llama3-8b")
    assert kv_bytes_per_token(spec, "nvfp4") == 65_536 * 4.5 / 8
    assert kv_bytes(spec, 1000.0, "nvfp4") == 1000 * 65_536 * 4.5 / 8
    assert kv_bytes_per_token(spec, "kivi2") == 65_536 * 3 / 8
    assert kv_bytes(spec, 100.0, "kivi2") == 100 * 65_536 * 2
    assert kv_bytes(spec, 1128.0, "kivi2") == pytest.approx(128 * 65_536 * 2 + 1000 * 65_536 * 3 / 8)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=5))
def test_residual_tokens_of_arrays(tokens: list[float]) -> None:
    """Arrays of contexts give what each context alone gives, and a cache never shrinks as it grows."""
    spec = model("gemma3-1b")
    found = kv_bytes(spec, np.array(sorted(tokens)), "kivi2")
    assert np.allclose(found, [float(kv_bytes(spec, one, "kivi2")) for one in sorted(tokens)], rtol=1e-13)
    assert (np.diff(found) >= -1e-6).all()
