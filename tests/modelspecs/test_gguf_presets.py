"""llama.cpp's presets: numbers, published sizes, and types of single tensors of real models."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.modelspecs.gguf_layout import ARCHITECTURES, layout
from perfmodel.modelspecs.gguf_presets import LARGER, PRESETS, SMALL, is_preset, preset
from perfmodel.modelspecs.gguf_rules import BY_NAME, facts_of, kind_of, tensor_types
from perfmodel.modelspecs.gguf_size import tensor_bytes
from perfmodel.modelspecs.load import model

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")


def types(name: str, kind: str, **facts: object) -> dict[str, str]:
    """Tensor -> type of a built-in model under a preset."""
    spec = model(name)
    found = layout(spec, latent=str(facts.get("latent", "split")))
    return dict(zip((t.name for t in found),
                    (t.name for t in tensor_types(found, preset(kind), facts_of(spec, **facts))), strict=True))  # type: ignore[arg-type]  # fmt: skip


def test_same_numbers_as_the_gguf_package() -> None:
    """Every file type that the `gguf` package knows is a preset of that number."""
    theirs = {kind.name.removeprefix("MOSTLY_").removeprefix("ALL_"): int(kind) for kind in gguf.LlamaFileType}
    del theirs["GUESSED"]
    assert {name: one.number for name, one in PRESETS.items()} == theirs
    assert all(one.base in BY_NAME for one in PRESETS.values())


#: Bits a weight of Llama 3.1 8B. Source: tools/quantize/README.md of https://github.com/ggml-org/llama.cpp.
LLAMA31_8B = {
    "IQ1_S": 2.0042, "IQ1_M": 2.1460, "IQ2_XXS": 2.3824, "IQ2_XS": 2.5882, "IQ2_S": 2.7403, "IQ2_M": 2.9294,
    "IQ3_XXS": 3.2548, "IQ3_XS": 3.4977, "IQ3_S": 3.6606, "IQ3_M": 3.7628, "IQ4_XS": 4.4597, "IQ4_NL": 4.6818,
    "Q2_K_S": 2.9697, "Q2_K": 3.1593, "Q3_K_S": 3.6429, "Q3_K_L": 4.2979, "Q4_K_S": 4.6672, "Q4_K_M": 4.8944,
    "Q5_K_S": 5.5704, "Q5_K_M": 5.7036, "Q6_K": 6.5633, "Q8_0": 8.5008, "F16": 16.0005,
}  # fmt: skip


@pytest.mark.parametrize(("name", "bits"), LLAMA31_8B.items())
def test_published_bits_of_llama_31_8b(name: str, bits: float) -> None:
    """All 23 presets of llama.cpp's table have the bits a weight that it prints, to its last digit."""
    spec = model("llama3.1-8b")
    found = layout(spec)
    kinds = tensor_types(found, preset(name), facts_of(spec, matrix=name in (*SMALL, "IQ3_XXS", "Q2_K_S")))
    size = sum(tensor_bytes(t, kind) for t, kind in zip(found, kinds, strict=True))
    assert round(8 * size / sum(t.elements for t in found), 4) == bits


#: The same of Llama 2 13B by quantizers of 2023. Source: examples/quantize/README.md of that repository, 2023 to 2025.
LLAMA2_13B = {"Q2_K": 3.34, "Q3_K_S": 3.48, "Q3_K_M": 3.89, "Q3_K_L": 4.26, "Q4_K_S": 4.56, "Q4_K_M": 4.83,
              "Q5_K_S": 5.51, "Q5_K_M": 5.67, "Q6_K": 6.56}  # fmt: skip


@pytest.mark.parametrize(("name", "bits"), LLAMA2_13B.items())
def test_published_bits_of_2023(name: str, bits: float) -> None:
    """Old mixes had a larger Q2_K; the others are today's to two digits."""
    spec = model("llama2-13b")
    found = layout(spec)
    kinds = tensor_types(found, preset(name), facts_of(spec, version="2023-09"))
    size = sum(tensor_bytes(t, kind) for t, kind in zip(found, kinds, strict=True))
    assert 8 * size / sum(t.elements for t in found) == pytest.approx(bits, abs=0.0051)


#: Layers of 28 whose values and down projections are raised. Source: tests/snapshots/qwen3-0.6b.schema of
#: https://github.com/ggml-org/llama.cpp; the types of single tensors below are from there and from
#: meta-llama-3.1-70b-instruct.schema and deepseek-v3.1.schema, but where a row is no whole number of blocks.
RAISED_28 = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27}


@pytest.mark.parametrize(("kind", "base"), [("Q4_K_M", "Q4_K"), ("Q5_K_M", "Q5_K")])
def test_layers_with_more_bits(kind: str, base: str) -> None:
    """Qwen3 0.6B: values and down projections of the outer eighths and of every third layer are Q6_K."""
    found = types("qwen3-0.6b", kind)
    for layer in range(28):
        for part in ("attn_v", "ffn_down"):
            assert found[f"blk.{layer}.{part}.weight"] == ("Q6_K" if layer in RAISED_28 else base)
        assert found[f"blk.{layer}.ffn_up.weight"] == base
    assert found["output.weight"] == "Q6_K"


def test_types_of_a_model_with_few_shared_heads() -> None:
    """Qwen3 0.6B has two query heads a KV head: values get what unshared ones do."""
    q2, q3, small = types("qwen3-0.6b", "Q2_K"), types("qwen3-0.6b", "Q3_K_M"), types("qwen3-0.6b", "IQ2_XXS")
    assert {q2[f"blk.{n}.{part}.weight"] for n in range(28) for part in ("attn_v", "attn_output", "ffn_down")} == {
        "Q3_K"
    }
    assert [q3[f"blk.{n}.attn_v.weight"] for n in range(3)] == ["Q5_K", "Q5_K", "Q4_K"]
    assert [q3[f"blk.{n}.ffn_down.weight"] for n in range(2)] == ["Q5_K", "Q4_K"]
    assert (small["output.weight"], small["token_embd.weight"]) == ("Q5_K", "Q2_K")
    assert [small[f"blk.{n}.ffn_down.weight"] for n in range(4)] == ["Q2_K"] * 3 + ["IQ2_XXS"]
    assert small["blk.27.attn_v.weight"] == "Q2_K"
    middle = types("qwen3-0.6b", "IQ3_XS")
    assert [n for n in range(28) if middle[f"blk.{n}.ffn_gate.weight"] == "IQ3_XXS"] == list(range(3, 24))
    assert middle["blk.0.attn_q.weight"] == "IQ3_XXS"
    plain = types("qwen3-0.6b", "IQ3_XXS")
    assert plain["blk.0.attn_v.weight"] == "IQ3_S"
    assert [plain[f"blk.{n}.ffn_down.weight"] for n in (2, 3)] == ["Q4_K", "Q3_K"]


def test_a_70b_has_finer_values() -> None:
    """Llama 3.1 70B: values are never below Q5_K; five of 80 layers have a finer down projection in Q3_K_M."""
    for kind in ("Q2_K", "Q3_K_S", "Q3_K_M"):
        found = types("llama3.1-70b", kind)
        assert {found[f"blk.{n}.attn_v.weight"] for n in range(80)} == {"Q5_K"}
    assert [found[f"blk.{n}.ffn_down.weight"] for n in range(4, 6)] == ["Q5_K", "Q4_K"]
    assert types("llama2-13b", "Q3_K_S")["blk.0.attn_v.weight"] == "Q3_K"


def test_types_of_a_mixture_with_a_latent() -> None:
    """DeepSeek-V3.1: shared and routed experts alike by their layer; the latent's matrices have no rules."""
    found = types("deepseek-v3.1", "Q3_K_M")
    assert [found[f"blk.{n}.ffn_down.weight"] for n in range(3)] == ["Q5_K"] * 3
    assert {found[f"blk.{n}.ffn_down_{part}.weight"] for n in range(3, 61) for part in ("exps", "shexp")} == {"Q4_K"}
    assert found["blk.7.attn_output.weight"] == "Q4_K"
    assert found["blk.7.attn_q_b.weight"] == "Q3_K"
    assert found["blk.7.attn_k_b.weight"] == "Q4_0"  # rows of 128, no whole block of 256
    assert found["blk.7.ffn_gate_inp.weight"] == "F32"


def test_eight_experts() -> None:
    """Mixtral's keys and values are Q8_0, its output projections Q5_K."""
    found = types("mixtral-8x7b", "Q4_K_S")
    assert {found[f"blk.3.attn_{part}.weight"] for part in "kv"} == {"Q8_0"}
    assert found["blk.3.attn_output.weight"] == "Q5_K"


def test_rows_that_are_no_whole_blocks() -> None:
    """Falcon 7B is 4544 wide, 17.75 blocks of 256: types of 32 stand in, and its head is Q8_0."""
    found = types("falcon-7b", "Q4_K_S")
    assert found["blk.0.attn_qkv.weight"] == "Q5_1"  # of the first four values: Q5_K otherwise
    assert found["blk.9.attn_qkv.weight"] == "Q5_0"
    assert found["blk.0.ffn_down.weight"] == "Q4_K"
    assert (found["output.weight"], found["token_embd.weight"]) == ("Q8_0", "Q5_0")
    assert types("falcon-7b", "Q4_K_M", version="2024")["blk.9.attn_qkv.weight"] == "Q5_1"


def test_types_that_nothing_stands_in_for() -> None:
    """Where llama.cpp gives up, so do we, by name."""
    spec = model("gpt2").model_copy(update={"hidden_size": 24})
    with pytest.raises(UsageError, match=r"cannot store rows of 24 elements as Q\d_0"):
        tensor_types(layout(spec), preset("Q4_0"), facts_of(spec))


def test_mxfp4_for_experts_alone() -> None:
    """gpt-oss: experts in MXFP4, everything else in Q8_0, biases, sinks, norms and routers in 32 bits."""
    found = types("gpt-oss-20b", "MXFP4_MOE")
    kinds: dict[str, set[str]] = {}
    for name, kind in found.items():
        kinds.setdefault(kind, set()).add(name.split(".", 2)[-1])
    assert kinds["MXFP4"] == {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"}
    assert "ffn_gate_exps.bias" in kinds["F32"]
    assert set(kinds) == {"MXFP4", "Q8_0", "F32"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [("q4_k_m", "Q4_K_M"), ("Q4_K - Medium", "Q4_K_M"), ("Q2_K - Medium", "Q2_K"), ("IQ4_XS - 4.25 bpw", "IQ4_XS"),
     ("mostly Q4_0", "Q4_0"), ("Q5_K", "Q5_K_M"), ("MXFP4 MoE", "MXFP4_MOE"), ("Q3_K_XL", "Q3_K_L")],
)  # fmt: skip
def test_names_of_presets(name: str, meant: str) -> None:
    """Presets by the words of the quantizer, of its logs, and of people who publish files."""
    assert preset(name).name == meant
    assert is_preset(name)


def test_unknown_presets() -> None:
    """Types of forks are no presets."""
    for name in ("IQ4_K", "Q4_K_R4", "Q9_0"):
        assert not is_preset(name)
        with pytest.raises(UnknownName):
            preset(name)


def test_kinds_by_name() -> None:
    """Tensors are told by their names, as the quantizer does it."""
    assert kind_of("blk.0.attn_v_b.weight") == "other"
    assert kind_of("blk.0.attn_kv_b.weight") == "kv_b"
    assert kind_of("per_layer_token_embd.weight") == "embedding"


def test_every_layout_is_complete() -> None:
    """Whatever the architecture, the file's tensors have the elements of the text model, and no name comes twice."""
    from perfmodel.modelspecs.counts import by_role, total_params
    from perfmodel.modelspecs.load import MODELS

    seen = set()
    for name in MODELS.names:
        spec = model(name)
        if spec.family not in ARCHITECTURES or ARCHITECTURES[spec.family].mtp:
            continue
        seen.add(spec.family)
        found, roles = layout(spec), by_role(spec)
        added = [t for t in found if t.name.endswith("tid2eid.weight") or t.role == "rope"]  # no weights
        again = sum(t.elements for t in added)
        again += sum(t.elements for t in found if t.name == "output.weight") if spec.tied_embeddings else 0
        text = total_params(spec) - roles.get("vision", 0) - roles.get("projector", 0)
        assert sum(t.elements for t in found) == text + again
        assert len({t.name for t in found}) == len(found)
    assert len(seen) > 45
    assert set(LARGER.values()) <= set(PRESETS)
