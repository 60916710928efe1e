"""Widths of a model's tensors under a budget: the chapter's order, measured errors, bytes that add up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import DoesNotFit, UnknownName, UsageError
from perfmodel.modelspecs.counts import total_params
from perfmodel.modelspecs.formats import weight_format
from perfmodel.modelspecs.load import model
from perfmodel.roofline.quantization.widths import (
    WIDTHS,
    from_errors,
    mixed,
    pieces,
    relative_error,
    sensitivity,
    spans,
)

SMALL = "smollm2-135m"


@pytest.mark.parametrize("name", ["llama3.1-8b", "gpt-oss-20b", "deepseek-v2-lite", "smollm2-135m", "jamba-v0.1"])
def test_every_weight_is_counted_once(name) -> None:
    """Pieces and what is kept are the model's parameters."""
    listed, _, kept = pieces(model(name))
    assert sum(p.elements for p in listed) + kept == total_params(model(name))
    assert len({p.name for p in listed}) == len(listed)


def test_bytes_add_up() -> None:
    """The total is the sum of each tensor in its format, and what stays at 16 bits."""
    found = mixed("llama3.1-8b", 5e9)
    by_hand = sum(
        p.count * weight_format(row["format"]).tensor_bytes(p.shape)
        for p, row in zip(found.pieces, found.rows(), strict=True)
    )
    assert found.bytes == pytest.approx(by_hand + found.kept_bytes, rel=1e-12)
    assert found.bytes <= 5e9
    assert sum(row["bytes"] for row in found.by_role()) == pytest.approx(by_hand)
    assert found.bits_per_weight == pytest.approx(found.bytes * 8 / 8_030_261_248)


def test_the_chapters_order_is_kept() -> None:
    """Attention output gets most bits, then Q, K and V, then FFN up, then FFN down; early layers before late ones."""
    found = mixed("llama3-70b", 24 * 2**30)
    bits = {row["role"]: row["bits_per_weight"] for row in found.by_role()}
    assert bits["o_proj"] > bits["q_proj"] >= bits["ffn_up"] > bits["ffn_down"]
    for role in ("o_proj", "ffn_down"):
        rows = [row for row in found.rows() if row["role"] == role]
        assert [row["layer"] for row in rows] == list(range(80))
        assert [row["bits"] for row in rows] == sorted((row["bits"] for row in rows), reverse=True)
    assert "order of the chapter" in found.basis
    assert found.allocation.proven


def test_order_of_sensitivities() -> None:
    """As the chapter lists them; the first layer counts twice as much as the last."""
    order = [sensitivity(role) for role in ("o_proj", "q_proj", "ffn_gate", "ffn_down")]
    assert order == sorted(order, reverse=True)
    assert sensitivity("ffn_down") == sensitivity("embedding")
    assert sensitivity("v_proj", 0, 32) == 2 * sensitivity("v_proj", 31, 32)


def test_tied_embeddings_are_as_sensitive_as_the_head() -> None:
    """An embedding that is the LM head too is not narrowed first."""
    weights = {p.role: p.weight / p.elements for p in pieces(model(SMALL))[0] if p.layer is None}
    assert weights["embedding"] == sensitivity("lm_head")


def test_errors_of_experts_count_as_often_as_they_are_chosen() -> None:
    """Of 32 experts 4 are chosen: an eighth of the weight of a dense matrix."""
    listed = pieces(model("gpt-oss-20b"))[0]
    expert = next(p for p in listed if p.role == "expert_up" and p.layer == 23)
    assert expert.weight == pytest.approx(sensitivity("expert_up", 23, 24) * expert.elements * 4 / 32)


@settings(max_examples=15)
@given(share=st.floats(0.0, 1.0))
def test_more_room_is_never_worse(share) -> None:
    """Between the narrowest and 16 bits the budget is kept, and the error falls as it grows."""
    least, most = 2.3 * 134_515_008 / 8, 16.1 * 134_515_008 / 8
    budget = least + share * (most - least)
    found, more = mixed(SMALL, budget), mixed(SMALL, budget * 1.1)
    assert found.bytes <= budget
    assert more.allocation.error <= found.allocation.error


def test_enough_room_leaves_everything_at_16_bits() -> None:
    """Then the error is 0."""
    found = mixed(SMALL, 1e9)
    assert {row["bits"] for row in found.rows()} == {16}
    assert found.allocation.error == 0


def test_too_little_room() -> None:
    """The message has the least that is needed, what of it cannot shrink, and the budget."""
    with pytest.raises(DoesNotFit, match=r"takes 18\.88 GB at the narrowest widths .* the budget is 9\.00 GB"):
        mixed("llama3-70b", 9e9)


def test_relative_errors_are_those_of_normal_weights() -> None:
    """A quarter a bit, nearly, and nothing at 16 bits."""
    assert [round(relative_error(b), 4) for b in (2, 3, 4)] == [0.27, 0.0496, 0.0108]
    assert relative_error(16) == 0


def test_measured_errors_decide() -> None:
    """Of two equal matrices the one that measures worse gets the bits; every matrix counts alike."""
    shapes = {"layers.0.a.weight": (128, 128), "layers.0.b.weight": (128, 128)}
    errors = {"layers.0.a.weight": (0.9, 0.5, 0.1, 0.01, 0.0), "layers.0.b.weight": (0.09, 0.05, 0.01, 0.001, 0.0)}
    room = sum(weight_format(WIDTHS[i]).tensor_bytes((128, 128)) for i in (2, 3))
    found = from_errors("file", shapes, errors, room, 0.0, 0, "measured")
    assert [row["bits"] for row in found.rows()] == [8, 4]
    assert (found.rows()[0]["layer"], found.rows()[0]["role"]) == (0, "layers.a")
    assert found.to_dict()["basis"] == "measured"


def test_other_widths() -> None:
    """Any weight formats can be chosen from; an unknown one is refused."""
    found = mixed(SMALL, 120e6, widths=("mxfp4", "fp8", "bf16"))
    assert {row["format"] for row in found.rows()} <= {"mxfp4", "fp8", "bf16"}
    with pytest.raises(UnknownName, match="int5x"):
        mixed(SMALL, 1e9, widths=("int5x", "bf16"))


def test_spans_of_layers() -> None:
    """Neighbours run together."""
    assert spans([]) == ""
    assert spans([5]) == "5"
    assert spans([1, 2, 3, 5, 8, 7]) == "1-3, 5, 7-8"


def test_from_the_package_itself() -> None:
    """Comparison and widths are found beside the other functions of ``import perfmodel``; budgets may be text."""
    import perfmodel as pm

    assert {"compare_formats", "mixed_precision", "quantize"} <= set(dir(pm)) & set(pm.__all__)
    found = pm.mixed_precision("llama3.2-1b", "0.6 GB")
    assert found.budget == 0.6e9
    assert found.bytes <= 0.6e9
    assert [line.format.name for line in pm.compare_formats("llama3.2-1b", "h100", ["int4", "Q4_K_M"]).lines] == [
        "int4", "Q4_K_M",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="'600' has no unit"):
        pm.mixed_precision("llama3.2-1b", "600")
