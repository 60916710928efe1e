"""llama.cpp's presets as formats of a model: the bytes of the file, by role, wherever weights are named."""

import json

import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.cli import main
from perfmodel.modelspecs.formats import weight_format
from perfmodel.modelspecs.gguf_presets import PRESETS, preset
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.mixes import chosen_format, meaning, preset_format, stored_format
from perfmodel.modelspecs.quant_sizes import quantize
from perfmodel.modelspecs.sizes import NOT_LOADED, tensor_format, weight_bytes
from perfmodel.modelspecs.tensors import tensors

#: Untied, tied, fused Q, K and V, experts, latent attention.
MODELS = ("llama3.1-8b", "llama3.2-1b", "phi3-mini", "mixtral-8x7b", "deepseek-v3")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chosen", ["Q4_K_M", "Q3_K_L", "IQ2_XS", "Q8_0", "F16", "Q4_K_L"])
def test_roles_add_up_to_the_file(name, chosen) -> None:
    """The bytes of a preset's roles are the bytes of its tensors, tensors that engines do not load apart."""
    spec = model(name)
    file = sum(t.bytes for t in quantize(spec, f"gguf:{chosen}").tensors if t.role not in NOT_LOADED)
    assert weight_bytes(spec, preset_format(spec, preset(chosen))) == pytest.approx(file, rel=1e-6)


def test_each_role_has_its_own_bits() -> None:
    """Q4_K_M of Llama 3.1 8B: the head in Q6_K, half of the values and down projections too, norms in 32 bits."""
    spec = model("llama3.1-8b")
    fmt = preset_format(spec, preset("Q4_K_M"))
    bits = {t.role: tensor_format(t, fmt).bits for t in tensors(spec)}
    assert bits["q_proj"] == bits["ffn_up"] == bits["embedding"] == 4.5
    assert bits["lm_head"] == 6.5625
    assert bits["v_proj"] == bits["ffn_down"] == (4.5 + 6.5625) / 2
    assert bits["norm"] == 32


def test_a_tied_head_has_the_embedding_s_type() -> None:
    """Llama 3.2 1B stores one matrix for both, in Q6_K, and a decode step reads it."""
    ops = {op.op.name: op for op in pm.analyze("llama3.2-1b", "h100", weights="Q4_K_M").decode.ops}
    spec = model("llama3.2-1b")
    assert ops["lm_head"].op.inputs["weight_bytes"] == spec.vocab_size * spec.hidden_size * 6.5625 / 8


def test_a_step_reads_the_file() -> None:
    """Without embedding and cache, the weights that a decode step reads are the file's tensors."""
    a = pm.analyze("llama3.1-8b", "h100", weights="Q4_K_M", batch=1)
    file = {t.name: t.bytes for t in quantize("llama3.1-8b", "Q4_K_M").tensors}
    matrices = sum(size for name, size in file.items() if name != "token_embd.weight" and "norm" not in name)
    assert float(a.decode.cost.hbm["weights"]) == pytest.approx(matrices, rel=1e-3)
    assert {op.op.inputs["math"] for op in a.decode.ops if op.op.kind == "gemm"} == {"int8"}


def test_a_preset_is_multiplied_as_ggml_does() -> None:
    """MXFP4 in a GGUF file meets 8-bit activations, as every type of ggml, not the FP4 units or vLLM's fallback."""
    a = pm.analyze("gpt-oss-20b", "h100", weights="MXFP4_MOE")
    assert a.setup.plan.linear_math == "int8"
    assert len(a.warnings) == 1
    assert a.warnings[0].startswith("MXFP4_MOE: llama.cpp's preset, tensor by tensor (MXFP4")


def test_one_name_everywhere() -> None:
    """Presets are weights of estimate, memory, roofline and sweeps, and what they mean is said."""
    for command in (("estimate",), ("memory", "--engine", "llamacpp"), ("roofline",)):
        done = CliRunner().invoke(main, [*command, "--gpu", "h100", "--model", "llama3.1-8b", "--weights", "q4_k_m"])
        assert done.exit_code == 0, done.stderr
        assert "Q4_K_M: llama.cpp's preset, tensor by tensor (Q4_K 74 %, Q6_K 26 % of its bytes)" in done.stdout
    frame = pm.sweep("llama3.1-8b", "h100", weights=["Q4_K_M", "q4_k", "type:q4_k", "gguf:q8_0"])
    assert list(frame["weights"]) == ["Q4_K_M", "q4_k", "q4_k", "Q8_0"]
    done = CliRunner().invoke(main, ["estimate", "--gpu", "h100", "--model", "llama3.1-8b", "--weights", "q8_0"])
    assert "every linear layer in this type of ggml, embedding and head at 16 bits" in done.stdout
    assert "llama.cpp's preset is gguf:Q8_0" in done.stdout


@pytest.mark.parametrize("name", [*PRESETS, "type:q4_k", "gguf:bf16", "int4", "q4_k", "Q4_K_L"])
def test_sizes_and_comparison_mean_the_same(name) -> None:
    """A name of --format and of --compare is one thing: equal bytes, equal names."""
    spec = model("llama3.2-1b")
    sized, compared = quantize(spec, name), chosen_format(spec, name)
    assert compared.name == sized.format
    loaded = sum(t.bytes for t in sized.tensors if t.role not in NOT_LOADED)
    assert weight_bytes(spec, compared) == pytest.approx(loaded, rel=1e-6)


def test_names_that_are_two_things() -> None:
    """--weights takes the type where there is one, ``gguf:`` the preset; both say what the other is called."""
    spec = model("llama3.1-8b")
    assert stored_format(spec, "Q6_K") is weight_format("type:q6_k")
    assert stored_format(spec, "gguf:Q6_K").roles
    assert meaning(weight_format("q4_k")).endswith("llama.cpp's preset is Q4_K_M")
    assert meaning(weight_format("q6_k")).endswith("llama.cpp's preset is gguf:Q6_K")
    assert meaning(weight_format("fp8")) == ""


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("kivi2", UsageError, "kivi2 is a format of the KV cache only: give it as --kv kivi2"),
        ("KIVI", UsageError, "KIVI is a format of the KV cache only: give it as --kv kivi2"),
        ("gguf:Q4_K_N", UnknownName, "did you mean"),
        ("type:Q4_K_M", UnknownName, "did you mean q4_k"),
        ("q4_k_n", UnknownName, "unknown weight format"),
    ],
)
def test_what_is_no_weight(name, error, message) -> None:
    """Refused with the value and what to write."""
    with pytest.raises(error, match=message):
        stored_format(model("llama3.1-8b"), name)


def test_a_model_without_gguf_files() -> None:
    """A preset of a model that llama.cpp does not have is refused as for its size."""
    done = CliRunner().invoke(main, ["estimate", "--gpu", "h100", "--model", "opt-6.7b", "--weights", "Q4_K_M"])
    assert done.exit_code == 2
    assert "opt-6.7b" in done.stderr


def test_types_of_ggml_have_a_size_of_their_own() -> None:
    """``type:`` sizes every linear layer in whole blocks, the rest at 16 bits, and says so."""
    found = json.loads(
        CliRunner().invoke(main, ["quantize", "llama3.1-8b", "--format", "type:q4_k", "--format", "json"]).stdout
    )
    spec = model("llama3.1-8b")
    linear = sum(t.total for t in tensors(spec) if t.quantizable)
    rest = sum(t.total for t in tensors(spec) if not t.quantizable)
    assert found["total_bytes"] == linear * 4.5 / 8 + rest * 2
    assert any("llama.cpp's files mix types: name a preset" in note for note in found["notes"])
