"""Storage formats as quantizers: narrow floats value by value, scales by hand, blocks, and what is refused."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.validate.quantizers.floats import E2M1, E2M3, E3M2, E4M3, E5M2, NF4, nearest_nf4, power_of_two
from perfmodel.validate.quantizers.formats import grid_of, has_quantizer, round_to
from perfmodel.validate.quantizers.grid import Grid, round_to_nearest

FORMATS = [
    "bf16", "fp16", "fp32", "fp8", "fp8_tensor", "fp8_block", "fp8_block_e8m0", "int8", "w8a16", "int4", "int4_g32",
    "gptq3_g128", "gptq2_g128", "awq_g64", "nf4", "nf4_dq", "mxfp4", "mxfp6", "mxfp8", "nvfp4",
]  # fmt: skip


def values_of(mantissa: int, exponents: range) -> set[float]:
    """All values of a float by enumeration: subnormals below the lowest binade, then binade by binade."""
    low = exponents[0]
    found = {2.0**low * m / 2**mantissa for m in range(2**mantissa)}
    found |= {2.0**e * (1 + m / 2**mantissa) for e, m in itertools.product(exponents, range(2**mantissa))}
    return found | {-v for v in found}


@pytest.mark.parametrize(
    ("element", "values"),
    [
        (E2M1, values_of(1, range(0, 3))),
        (E2M3, values_of(3, range(0, 3))),
        (E3M2, values_of(2, range(-2, 5))),
        (E4M3, {v for v in values_of(3, range(-6, 9)) if abs(v) <= 448}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_floats_have_the_values_of_the_standard(element, values) -> None:
    """Rounding a fine ruler gives each value of the format and no other, and each number goes to the nearest."""
    ruler = torch.linspace(-element.largest, element.largest, 200_001, dtype=torch.float64)
    got = element.round(ruler)
    wanted = torch.tensor(sorted(values), dtype=torch.float64)
    if element is not E4M3:  # its subnormals are finer than the ruler
        assert set(got.tolist()) == values
    nearest = (ruler[::97, None] - wanted).abs().amin(dim=1)
    assert torch.equal((got[::97] - ruler[::97]).abs(), nearest)


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=50))
def test_fp8_is_what_torch_casts_to(numbers) -> None:
    """E4M3 and E5M2 agree with PyTorch's types bit by bit within their range, ties and subnormals too."""
    x = torch.tensor(numbers, dtype=torch.float32)
    for element, dtype in ((E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)):
        inside = x.clamp(-element.largest, element.largest)
        assert torch.equal(element.round(inside), inside.to(dtype).to(torch.float32))
        assert torch.equal(element.round(x), element.round(inside))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50))
def test_nf4_takes_the_nearest_code(numbers) -> None:
    """The nearest of the sixteen values, by comparison with all of them."""
    x = torch.tensor(numbers, dtype=torch.float64)
    codes = torch.tensor(NF4, dtype=torch.float64)
    assert torch.equal((nearest_nf4(x) - x).abs(), (x[:, None] - codes).abs().amin(dim=1))


def test_powers_of_two() -> None:
    """At or below, and at or above; 0 has the scale 1."""
    x = torch.tensor([0.0, 1.0, 3.0, 4.0, 0.3])
    assert power_of_two(x).tolist() == [1.0, 1.0, 2.0, 4.0, 0.25]
    assert power_of_two(x, up=True).tolist() == [1.0, 1.0, 4.0, 4.0, 0.5]


def test_mxfp4_by_hand() -> None:
    """Largest 5: 2^(floor(log2 5) - 2) = 1, so 5 ties to 4; largest 7: also 1, so 7 is clipped to 6."""
    w = torch.zeros(1, 64)
    w[0, 0], w[0, 1], w[0, 32], w[0, 33] = 5.0, 1.3, 7.0, -0.2
    assert round_to(w, "mxfp4").values[0, [0, 1, 32, 33]].tolist() == [4.0, 1.5, 6.0, 0.0]


def test_nvfp4_by_hand() -> None:
    """The tensor's largest weight is exact: its group's scale is 448 of the tensor's; another group's is rounded."""
    w = torch.zeros(1, 32)
    w[0, 0], w[0, 16], w[0, 17] = 6.0, 3.1, 1.0
    got = round_to(w, "nvfp4").values[0]
    assert got[0] == pytest.approx(6.0)
    scale = round(3.1 / 6 / (6 / (448 * 6)) / 16) * 16 * 6 / (448 * 6)  # 231.5 is between 224 and 240
    assert got[16] == pytest.approx(6 * scale)
    assert got[17] == pytest.approx(2 * scale)


def test_fp8_blocks_have_their_own_scales() -> None:
    """A block of 128 x 128 with large weights does not coarsen the next one, and edges are blocks too."""
    w = torch.full((130, 200), 0.01)
    w[0, 0] = 448.0
    got = round_to(w, "fp8_block").values
    assert torch.equal(got[128:], w[128:])  # the largest of a block is exact
    assert torch.equal(got[:128, 128:], w[:128, 128:])
    assert float((got[1, 1] - 0.01).abs()) > 1e-5


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_may_be_taken_apart(fmt) -> None:
    """Rounding some rows at a time gives what rounding all of them gives."""
    w = torch.randn(256, 256, generator=torch.Generator().manual_seed(3))
    whole, top = round_to(w, fmt), float(w.abs().max())
    parts = torch.cat([round_to(w[:128], fmt, top).values, round_to(w[128:], fmt, top).values])
    if fmt == "nf4_dq":  # the mean that is taken off the scales is that of the rows at hand
        assert float(((parts - whole.values) ** 2).mean()) < 1e-3
    else:
        assert torch.equal(parts, whole.values)


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_is_scale_free_and_odd(fmt) -> None:
    """Weights four times as large round to four times the values (where exponents do not end); signs do not matter."""
    w = torch.randn(128, 256, generator=torch.Generator().manual_seed(4))
    got = round_to(w, fmt).values
    assert torch.allclose(round_to(4 * w, fmt).values, 4 * got, rtol=1e-5)
    grid = grid_of(fmt)
    if fmt[:3] != "nf4" and (grid is None or grid.symmetric):  # NF4 has seven negative codes and eight positive ones
        assert torch.equal(round_to(-w, fmt).values, -got)
    assert bool((round_to(torch.zeros(128, 128), fmt).values == 0).all())


def test_wider_formats_lose_less() -> None:
    """On normal weights: 16 bits, 8, 6, 4, 3, 2, and of 4 bits smaller groups before larger ones."""
    w = torch.randn(512, 512, generator=torch.Generator().manual_seed(5))
    order = ["fp32", "fp16", "bf16", "w8a16", "fp8", "mxfp6", "int4_g32", "int4", "gptq3_g128", "gptq2_g128"]
    errors = [float(((w - round_to(w, f).values) ** 2).mean()) for f in order]
    assert errors == sorted(errors)


def test_integer_formats_are_grids() -> None:
    """int4 of GPTQ and AWQ checkpoints is asymmetric in groups; compressed-tensors' and 8-bit ones are symmetric."""
    assert grid_of("int4") == Grid(4, False, 128)
    assert grid_of("int4_g32") == Grid(4, True, 32)
    assert grid_of("gptq3_channel") == Grid(3, False, 0)
    assert grid_of("fp8") is None
    w = torch.randn(8, 256, generator=torch.Generator().manual_seed(6))
    assert torch.equal(round_to(w, "int4").values, round_to_nearest(w, Grid(4, False, 128)).values())


def test_formats_without_a_quantizer_are_refused() -> None:
    """GGUF's block types are llama.cpp's to make; the message names what there is."""
    assert not has_quantizer("q4_k")
    assert all(has_quantizer(fmt) for fmt in FORMATS)
    with pytest.raises(UsageError, match="q4_k has no quantizer here; there are int, gptq, awq"):
        round_to(torch.ones(1, 256), "q4_k")
