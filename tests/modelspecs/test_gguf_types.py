"""The table of ggml's storage types: equal to the one of the `gguf` package, and to published bits a weight."""

from __future__ import annotations

import pytest

from perfmodel.modelspecs.gguf_types import SCALARS, TYPES, WITHDRAWN

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")


def test_same_types_as_the_gguf_package() -> None:
    """Numbers, names, elements and bytes a block are those of the `gguf` package, for every type it has."""
    theirs = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    ours = {number: (kind.name, kind.block, kind.block_bytes) for number, kind in TYPES.items()}
    assert {number: ours.get(number) for number in theirs} == theirs
    assert len(ours) >= 34


def test_layouts_add_up() -> None:
    """The parts of a block that are written down add up to its bytes."""
    import re

    for kind in TYPES.values():
        if kind.block == 1:
            continue
        parts = [int(number) for number in re.findall(r"(?:^|: |\+ )(\d+)", kind.layout)]
        assert sum(parts) == kind.block_bytes, kind


def test_withdrawn_types_are_not_in_the_table() -> None:
    """Numbers that ggml has withdrawn are refused by name, so they have no size."""
    assert not set(WITHDRAWN) & set(TYPES)
    assert not {kind.value for kind in gguf.GGMLQuantizationType} & set(WITHDRAWN)


def test_same_value_types_as_the_gguf_package() -> None:
    """Metadata scalars have the numbers and names of the `gguf` package."""
    theirs = {kind.value: kind.name.lower() for kind in gguf.GGUFValueType if kind.name not in ("STRING", "ARRAY")}
    assert {number: name for number, (name, _) in SCALARS.items()} == theirs


@pytest.mark.parametrize(
    ("name", "bits"),
    [("Q4_0", 4.5), ("Q4_1", 5.0), ("Q5_0", 5.5), ("Q5_1", 6.0), ("Q8_0", 8.5), ("Q2_K", 2.625), ("Q3_K", 3.4375),
     ("Q4_K", 4.5), ("Q5_K", 5.5), ("Q6_K", 6.5625), ("IQ2_XXS", 2.0625), ("IQ2_XS", 2.3125), ("IQ3_XXS", 3.0625),
     ("IQ1_S", 1.5625), ("IQ1_M", 1.75), ("IQ4_XS", 4.25), ("TQ1_0", 1.6875), ("TQ2_0", 2.0625), ("MXFP4", 4.25),
     ("NVFP4", 4.5)],
)  # fmt: skip
def test_published_bits(name: str, bits: float) -> None:
    """Bits an element as llama.cpp's documents print them (tensor encoding schemes, pull requests of the i-quants)."""
    assert next(kind for kind in TYPES.values() if kind.name == name).bits == bits
