"""Ways of counting a model's elements: each difference between published counts of one model has a cause."""

import pytest

from perfmodel.modelspecs.load import model
from perfmodel.validate import counting
from perfmodel.validate.counting import Parts, choose
from perfmodel.validate.rows import Comparison, Printed, Skip
from perfmodel.validate.table_param_counts import count, remark, rounded


def way(name: str, ways: str, number: float, half: float = 0.5) -> counting.Way:
    return choose(getattr(counting, ways)(Parts(model(name))), Printed(number, half))[0]


@pytest.mark.parametrize(
    ("name", "ways", "number", "expected"),
    [
        # 32 layers x 64 rotary frequencies = 2,048 beside 6,738,415,616 parameters
        ("llama2-7b", "stored", 6738417664, "all that is stored"),
        ("llama2-7b", "modules", 6738415616, "parameters"),
        # the hub counted this upload before it had its scales: 684,531,386,000 - 41,540,496
        ("deepseek-r1", "stored", 684489845504, "all that is stored but scales"),
        ("deepseek-r1", "stored", 684531386000, "all that is stored"),
        # an MXFP4 checkpoint of 116.83 B elements has 3.58 B scales beside them
        ("gpt-oss-120b", "stored", 116829156672, "all that is stored but scales"),
        # the base model is stored without a second copy of the tied head, 151,936 x 1,024
        ("qwen3-0.6b", "stored", 751632384, "all that is stored"),
        ("qwen3-0.6b", "stored", 596049920, "all that is stored but stored buffers"),
        # GLM-4.5: 352,797,829,024 and one MTP layer of 5,539,962,272
        ("glm4.5", "stored", 358337791296, "all that is stored"),
        ("glm4.5", "stored", 352797829024, "all that is stored but MTP layers"),
        # a scale a row: 32 x (2 x 11,008 + 5 x 4,096) + 2 x 32,000 = 1,423,872
        ("llama2-7b", "presets", 6739839488, "parameters and a scale a row (INT8)"),
        # 128,256 x 2,048 = 262,668,288 more
        ("llama3.2-1b", "presets", 1498482688, "parameters, tied head stored twice"),
    ],
)
def test_exact_totals_name_what_they_count(name: str, ways: str, number: int, expected: str) -> None:
    """The way that gives the total to the last digit is chosen and named."""
    found = way(name, ways, number)
    assert (found.name, found.value) == (expected, number)


def test_gguf_files_of_one_model_differ_by_kv_b_proj() -> None:
    """DeepSeek R1 prints 671.026 B, or 672.050 B with kv_b_proj stored a second time: 61 x 512 x 128 x 256 elements."""
    once, twice = way("deepseek-r1", "gguf", 671.026e9, 5e5), way("deepseek-r1", "gguf", 672.050e9, 5e5)
    assert twice.value - once.value == 61 * 512 * 128 * (128 + 128)
    assert "kv_b_proj" in twice.name


def test_gguf_counts_no_vision() -> None:
    """llama.cpp's file of Gemma 3 27B holds the text model: 27.009 B of 27.432 B."""
    found = way("gemma3-27b", "gguf", 27.009e9, 5e5)
    assert found.name == "text model"
    assert found.value == 27432406640 - Parts(model("gemma3-27b")).vision


def test_a_wrong_total_is_compared_with_the_plain_way() -> None:
    """A total that no way gives is not brought near by another way: it stays as wrong as it is."""
    found = way("llama2-7b", "stored", 7e9)
    assert found.name == "all that is stored"
    assert found.value == 6738417664


def test_packed_checkpoints_are_skipped() -> None:
    """Stored words of a 4-bit checkpoint are not its parameters, and hubs differ in counting them."""
    packed = model("llama2-7b").model_copy(update={"native_format": "int4"})
    with pytest.raises(Skip, match="packs elements"):
        list(counting.stored(Parts(packed)))


def test_formula_adds_up() -> None:
    """The numbers in a way's formula are its sum."""
    formula = way("deepseek-v3", "stored", 684531386000).formula
    left, _, total = formula.partition(" = ")
    numbers = [int(word.replace(",", "")) for word in left.split() if word[0].isdigit()]
    assert sum(numbers) == int(total.replace(",", "")) == 684531386000


def test_active_by_maker() -> None:
    """Qwen and Mistral AI count the input embedding as active, DeepSeek does not, and a dense model is all active."""
    assert way("deepseek-v3", "active", 37e9, 0.5e9).name == "active"
    assert way("qwen3-235b-a22b", "active", 22.19e9, 0.01e9).name == "active with embedding"
    assert way("llama3-8b", "active", 8030261248).value == 8030261248


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [("671B", 671e9, 0.5e9), ("589.568 M", 589.568e6, 500), ("1.027 T", 1.027e12, 5e8), ("235,741 B", 235.741e9, 5e5),
     ("6738417664", 6738417664, 0.5)],
)  # fmt: skip
def test_counts_as_printed(text: str, value: float, half: float) -> None:
    """A count has its unit, its rounding, and a decimal comma before a unit."""
    found = count(text)
    assert found is not None
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.half_unit == pytest.approx(half)


def test_closing_zeros_are_no_digits_of_a_rounded_count() -> None:
    """6700000000 stands for 6.65 to 6.75 billion, 14000000000 for 13.5 to 14.5."""
    for text, half in (("6700000000", 5e7), ("14000000000", 5e8)):
        found = rounded(text)
        assert found is not None
        assert found.half_unit == half


def test_what_was_chosen_by_the_measurement_is_said() -> None:
    """One of two counts needed a look at the printed number; without it the errors are 0 and 10 %, in the mean 5 %."""
    chosen = Comparison("total_params", 100.0, 100.0, "", plain=110.0)
    first = Comparison("total_params", 100.0, 100.0, "", plain=100.0)
    assert "1 of 2 counts" in remark([chosen, first], {})
    assert "mean error is 5 %" in remark([chosen, first], {})
    assert remark([first], {}) == ""
