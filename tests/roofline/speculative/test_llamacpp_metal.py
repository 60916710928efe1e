"""Steps of llama.cpp on Apple GPUs: hand arithmetic, published kernel times, laws and refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.modelspecs.gguf_types import TYPES
from perfmodel.modelspecs.load import model
from perfmodel.roofline.speculative.gguf_mix import Stored
from perfmodel.roofline.speculative.llamacpp_metal import METAL, matrix_seconds, step_seconds, vector_peak

M4 = gpu("m4-max")
BY_NAME = {t.name: t for t in TYPES.values()}


def matrix(name: str, rows: int = 4096, columns: int = 14336, count: int = 1) -> Stored:
    """A matrix of a type."""
    return Stored(BY_NAME[name], rows, columns, count)


def test_one_token_by_hand() -> None:
    """F16 is bound by reading: 4096 x 14336 x 2 bytes at 92.5 % of 546 GB/s are 232.5 us."""
    assert matrix_seconds(matrix("F16"), M4, 1) == pytest.approx(4096 * 14336 * 2 / (0.925 * 546e9))


def test_published_small_batches() -> None:
    """Q4_0, 4096 x 14336, on an M4 Pro (half an M4 Max): 250, 526 and 1023 us at 2, 4 and 8 tokens, within 8 %."""
    for tokens, published in ((2, 249.7e-6), (4, 526e-6), (8, 1023e-6)):
        assert 2 * matrix_seconds(matrix("Q4_0"), M4, tokens) == pytest.approx(published, rel=0.08)


def test_published_plain_speeds() -> None:
    """Qwen2.5 7B on an M4 Max in five file types, tokens/s within 3 % (what the constants were fitted on)."""
    for mix, published in (("FP16", 33.63), ("Q8_0", 58.7), ("Q4_0", 91.44), ("Q4_K_M", 88.44), ("Q3_K_M", 69.5)):
        assert 1 / step_seconds(model("qwen2.5-7b"), mix, M4, context=600) == pytest.approx(published, rel=0.03)


@given(st.sampled_from(sorted(METAL.types)), st.integers(1, 40), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_laws(name: str, tokens: int, count: int) -> None:
    """Time is in proportion to the matrices, never below reading them, and grows with the tokens of a kernel."""
    one = matrix_seconds(matrix(name), M4, tokens)
    assert matrix_seconds(matrix(name, count=count), M4, tokens) == pytest.approx(count * one)
    assert one >= matrix(name).bytes / M4.memory.hbm.bandwidth.value
    assert one >= 0.999 * matrix_seconds(matrix(name), M4, 1)
    if not (tokens < 9 <= tokens + 1 or tokens in (3, 5)):  # where another kernel begins it may be cheaper
        assert matrix_seconds(matrix(name), M4, tokens + 1) >= 0.999 * one


def test_nine_tokens_pay_for_a_tile() -> None:
    """The matrix-matrix kernel has tiles of 32 tokens: 9 cost as much as 32, 33 twice as much."""
    nine, full, over = (matrix_seconds(matrix("Q4_0", 5120, 5120), M4, n) for n in (9, 32, 33))
    assert nine == full
    assert over == pytest.approx(2 * full, rel=0.25)  # the same tiles over the cores, filled better


def test_verification_is_dear_where_quantized() -> None:
    """Verifying 4 tokens costs hardly more than a step in 16 bits and some three steps in 4 bits."""

    def four(mix: str) -> float:
        m = model("qwen2.5-7b")
        return step_seconds(m, mix, M4, 4, sampled=0) / step_seconds(m, mix, M4, 1, sampled=0)

    assert four("FP16") < 1.1
    assert 2.4 < four("Q4_0") < 3.2


def test_refusals() -> None:
    """Other vendors' GPUs, unmeasured types and impossible token numbers are refused."""
    with pytest.raises(UsageError, match="no Apple GPU"):
        vector_peak(gpu("a100-sxm"))
    with pytest.raises(UsageError, match="IQ2_XS"):
        matrix_seconds(matrix("IQ2_XS"), M4, 1)
    with pytest.raises(UsageError, match="0 tokens"):
        matrix_seconds(matrix("Q4_0"), M4, 0)
