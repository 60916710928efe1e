"""Words: limiters, settings and names as people say them."""

import pytest

from perfmodel.hwspecs.load import GPUS, gpu
from perfmodel.reports import words
from perfmodel.reports.theme import DARK, LIGHT, Theme, contrast, theme
from perfmodel.roofline.analysis import Analysis, analyze


@pytest.mark.parametrize(
    ("limiter", "said"),
    [
        ("hbm", "HBM3 bandwidth"),
        ("matrix:bf16", "BF16 tensor"),
        ("matrix:fp8", "FP8 tensor"),
        ("vector", "vector FP32"),
        ("exp", "exp (SFU)"),
        ("scale_up", "NVLink4"),
    ],
)
def test_limiters_in_words(limiter: str, said: str, sharded: Analysis) -> None:
    """Each resource that can limit has a name that people use, links by their kind."""
    assert words.limiter_words(limiter, sharded.setup) == said


def test_memory_is_called_what_it_is() -> None:
    """GDDR is not called HBM: the name comes from the notes of the spec, and without one it is plain memory."""
    assert words.memory_name(gpu("rtx-4090")) == "GDDR6X"
    assert words.memory_name(gpu("h100-pcie")) == "HBM2e"
    assert words.memory_name(gpu("m2-ultra")) == "LPDDR5"
    for name in GPUS.names:
        assert words.memory_name(gpu(name)).startswith(("HBM", "GDDR", "LPDDR", "DDR", "memory"))


def test_matrix_units_are_tensor_cores_of_one_maker_only() -> None:
    """BF16 runs on tensor cores at one maker, matrix cores at another, and vector units where there are neither."""
    assert words.unit_name("bf16", gpu("h100")) == "BF16 tensor"
    assert words.unit_name("bf16", gpu("mi300x")) == "BF16 matrix"
    assert words.unit_name("fp16", gpu("m2-ultra")) == "vector FP16"


def test_keys_say_what_differs() -> None:
    """Analyses are told apart by what differs, and two equal ones by a number."""
    batches = [analyze("llama3-8b", "h100", batch=batch) for batch in (1, 8)]
    assert words.keys(batches) == ["batch 1", "batch 8"]
    gpus = [analyze("llama3-8b", name) for name in ("h100", "h200")]
    assert words.keys(gpus) == ["h100-sxm", "h200"]
    assert len(set(words.keys([*gpus, *gpus]))) == 4
    assert words.keys(gpus[:1]) == [""]


def test_settings_are_shared_or_differ() -> None:
    """The subtitle names what all analyses share, and leaves out what differs."""
    pair = [analyze("llama3-8b", "h100", batch=batch) for batch in (1, 8)]
    assert "batch" not in words.common_settings(pair)
    assert "2,048 tokens in" in words.common_settings(pair)
    assert words.title(pair) == "Llama 3 8B on NVIDIA H100 SXM5 80 GB"


def test_shares_by_limiter_add_up(sharded: Analysis) -> None:
    """The shares of the limiters are those of all operators: together 1."""
    for phase in (sharded.prefill, sharded.decode):
        shares = words.by_limiter(phase, sharded.setup)
        assert sum(shares.values()) == pytest.approx(1.0)
        assert list(shares.values()) == sorted(shares.values(), reverse=True)


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_text_is_readable(colours: Theme) -> None:
    """All text reaches the 4.5:1 of WCAG on what it stands on, and points and lines the 3:1 of graphics."""
    for name in ("text", "muted", "prefill_text", "decode_text"):
        for ground in (colours.background, colours.surface):
            assert contrast(getattr(colours, name), ground) >= 4.5
    assert contrast(colours.notice, colours.notice_surface) >= 4.5
    for name in ("prefill", "decode", "line"):
        assert contrast(getattr(colours, name), colours.background) >= 3.0


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_a_colour_names_its_use(colours: Theme) -> None:
    """No colour of a theme is used for two things, so that it can be replaced by its name."""
    values = list(vars(colours).values())
    assert len(set(values)) == len(values)


def test_phases_differ_without_colour() -> None:
    """Prefill and decode never share a shape: those who see no hue can tell them apart."""
    from perfmodel.reports.roofline_draw import SHAPES

    assert set(SHAPES["prefill"]).isdisjoint(SHAPES["decode"])


def test_unknown_theme_is_refused() -> None:
    """There are two themes; another is named in the error."""
    with pytest.raises(Exception, match="unknown theme 'blue'; choose light or dark"):
        theme("blue")
