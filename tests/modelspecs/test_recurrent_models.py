"""Models with recurrent mixers: exact totals, state and cache of a sequence, what the importer refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import SpecError, UnknownName
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.load import model
from perfmodel.modelspecs.schema import Moe
from perfmodel.modelspecs.schema_recurrent import Mamba2, NoFfn
from perfmodel.modelspecs.sizes import tensor_format, weight_bytes
from perfmodel.modelspecs.tensors import tensors

CONFIGS = sorted((Path(__file__).parent / "data" / "configs_recurrent").glob("*.json"))
GiB, MiB = 2**30, 2**20


def config(name: str) -> dict[str, Any]:
    (path,) = [path for path in CONFIGS if path.stem.partition("__")[2] == name]
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def imported(name: str, **changes: object) -> Any:
    """The spec of a configuration with keys changed; ``...`` takes a key away. Text sections are changed inside."""
    data = config(name)
    inner = data.get("text_config", data)
    changed = {key: value for key, value in (inner | changes).items() if value is not ...}
    return hf.from_config(data | {"text_config": changed} if inner is not data else changed, "config.json", "changed")


#: Hugging Face's ``safetensors.total`` as llmfit 1.1.17 records it in hf_models.json: what the checkpoint stores.
CHECKPOINTS = {
    "Qwen3-Next-80B-A3B-Instruct": 81_324_862_720, "Qwen3.5-35B-A3B": 35_951_822_704, "Qwen3.5-27B": 27_781_427_952,
    "Qwen3.5-9B": 9_653_104_368, "Qwen3.5-4B": 4_659_865_088, "Jamba-v0.1": 51_570_323_328,
    "Nemotron-H-56B-Base-8K": 56_324_350_464, "MiniMax-Text-01": 456_089_655_296,
    "Kimi-Linear-48B-A3B-Instruct": 49_122_681_728, "granite-4.0-h-small": 32_207_337_984,
    "granite-4.0-h-1b": 1_461_538_368, "Falcon-H1-7B-Base": 7_585_648_736, "Falcon-H1-Tiny-90M-Instruct": 91_131_072,
    "LFM2-1.2B": 1_170_340_608, "LFM2.5-8B-A1B": 8_467_856_832, "mamba-2.8b-hf": 2_768_345_600,
    "falcon-mamba-7b": 7_272_665_088,
}  # fmt: skip
#: Counts of the model alone, without MTP layers: keras-hub 0.32 presets, and files that leave the MTP layer out.
ALONE = {
    "Qwen3.5-35B-A3B": 35_107_181_936, "Qwen3.5-27B": 27_356_728_560, "Qwen3.5-9B": 9_409_813_744,
    "Qwen3.5-4B": 4_539_265_536,
}  # fmt: skip


@pytest.mark.parametrize(("name", "total"), CHECKPOINTS.items())
def test_exact_checkpoint(name: str, total: int) -> None:
    """All that the published checkpoint stores, to the last element."""
    assert counts.checkpoint_params(imported(name)) == total


@pytest.mark.parametrize(("name", "total"), ALONE.items())
def test_exact_model(name: str, total: int) -> None:
    """The model with its vision tower and without MTP layers, to the last element."""
    assert counts.total_params(imported(name)) == total


def test_exact_checkpoint_under_quantization() -> None:
    """The 16-bit checkpoint of Qwen3.5 397B follows from the file of its NVFP4 version, scales left out."""
    assert counts.unscaled_params(imported("Qwen3.5-397B-A17B-NVFP4")) == 403_397_928_944


@pytest.mark.parametrize(
    ("name", "total", "mtp"),
    [
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31_577_937_344, 0),
        ("NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 123_611_012_096, 2_942_325_248),
    ],
)
def test_nemotron_totals(name: str, total: int, mtp: int) -> None:
    """Published totals leave out the 32-bit score corrections, one an expert; the MTP layers were published alone."""
    spec = imported(name)
    corrections = sum(t.total for t in tensors(spec) if t.name.endswith("e_score_correction_bias"))
    assert counts.checkpoint_params(spec) - corrections == total
    assert counts.by_role(spec).get("mtp", 0) == mtp


@pytest.mark.parametrize(
    ("name", "changes", "total"),
    [
        (
            "Jamba-v0.1",  # AI21-Jamba-Large-1.6
            {"hidden_size": 8192, "num_hidden_layers": 72, "num_attention_heads": 64, "intermediate_size": 24576,
             "mamba_dt_rank": 512},
            398_555_145_696,
        ),
        (
            "Nemotron-H-56B-Base-8K",  # Nemotron-H-8B-Base-8K
            {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 21504, "mamba_num_heads": 128,
             "ssm_state_size": 128, "hybrid_override_pattern": 24 * "M-" + 4 * "*", "num_hidden_layers": 52},
            8_100_852_736,
        ),
        (
            "Nemotron-H-56B-Base-8K",  # Nemotron-H-4B-Base-8K
            {"hidden_size": 3072, "num_attention_heads": 32, "intermediate_size": 12288, "mamba_num_heads": 112,
             "ssm_state_size": 128, "hybrid_override_pattern": 24 * "M-" + 4 * "*", "num_hidden_layers": 52},
            4_489_223_040,
        ),
        (
            "Nemotron-H-56B-Base-8K",  # NVIDIA-Nemotron-Nano-9B-v2-Base
            {"hidden_size": 4480, "num_attention_heads": 40, "intermediate_size": 15680, "mamba_num_heads": 128,
             "mamba_head_dim": 80, "ssm_state_size": 128, "num_hidden_layers": 56,
             "hybrid_override_pattern": 25 * "M-" + "MM" + 4 * "*"},
            8_888_227_328,
        ),
    ],
)  # fmt: skip
def test_other_sizes_of_a_family(name: str, changes: dict[str, Any], total: int) -> None:
    """Published totals of models whose files are not at hand: the order of the layers changes no total."""
    assert counts.checkpoint_params(imported(name, **changes)) == total


def test_active_params_of_nemotron_3() -> None:
    """Of the latent experts 22 of 512 are active: 12.2 B of Super's 120.7 B, 55.0 B of Ultra's 549.3 B."""
    for name, total, active in (("super-120b-a12b", 120.67e9, 12.23e9), ("ultra-550b", 549.31e9, 54.99e9)):
        spec = model(f"nemotron-3-{name}")
        assert counts.total_params(spec) == pytest.approx(total, rel=1e-4)
        assert counts.active_params(spec) == pytest.approx(active, rel=1e-3)


def test_layers_of_nemotron_h() -> None:
    """A layer is one part alone with one norm: M, * and - of the pattern, 54, 10 and 54 of them."""
    spec = imported("Nemotron-H-56B-Base-8K")
    found = {layer.name: layer.count for layer in spec.layer_classes}
    assert found == {"mamba/none": 54, "none/mlp": 54, "full/none": 10}
    norms = [t for t in tensors(spec) if t.role == "norm" and t.layer]
    assert sum(t.count for t in norms) == 118
    assert isinstance(spec.layer_class("mamba/none").ffn, NoFfn)


def test_experts_of_nemotron_3_are_latent() -> None:
    """The experts see 1024 features between two projections, the shared expert all 4096; nothing is gated."""
    found = {t.role: t.shape for t in tensors(model("nemotron-3-super-120b-a12b")) if len(t.shape) == 2}
    assert (found["latent_in"], found["latent_out"]) == ((1024, 4096), (4096, 1024))
    assert (found["expert_up"], found["expert_down"]) == ((2688, 1024), (1024, 2688))
    assert found["shared_expert_up"] == (5376, 4096)
    assert "expert_gate" not in found


def test_state_of_mamba_2_by_hand() -> None:
    """128 heads x 64 x 128 at 32 bits, and three columns of 8192 + 2 x 8 x 128 channels at 16, in 64 layers."""
    spec = model("mamba-codestral-7b")
    scan, conv = 128 * 64 * 128, 3 * (8192 + 2 * 8 * 128)
    assert counts.state_bytes(spec) == 64 * (4 * scan + 2 * conv)
    assert counts.state_bytes(spec, state="bf16") == 64 * (2 * scan + 2 * conv)
    assert counts.state_bytes(spec, "fp32", "fp32") == 64 * 4 * (scan + conv)


def test_state_of_a_gated_delta_net_by_hand() -> None:
    """32 value heads x 128 x 128 at 32 bits, three columns of 2 x 2048 + 4096 channels, in 36 of 48 layers."""
    spec = model("qwen3-next-80b-a3b")
    assert counts.state_bytes(spec) == 36 * (4 * 32 * 128 * 128 + 2 * 3 * (2 * 2048 + 4096))


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("jamba-v0.1", 28 * (4 * 8192 * 16 + 2 * 3 * 8192)),  # a vector of 16 a channel
        ("minimax-text-01", 70 * 4 * 64 * 128 * 128),  # no convolution
        ("kimi-linear-48b-a3b", 20 * (4 * 32 * 128 * 128 + 2 * 3 * 3 * 4096)),
        ("lfm2-1.2b", 10 * 2 * 2 * 2048),  # two columns, no scan
        ("falcon-h1-7b", 44 * (4 * 24 * 128 * 256 + 2 * 3 * (3072 + 2 * 256))),
        ("llama3-8b", 0),
    ],
)
def test_state_by_hand(name: str, state: int) -> None:
    """Each kind of mixer keeps what its scan and its convolution need."""
    assert counts.state_bytes(model(name)) == state


def test_cache_is_that_of_the_attention_layers() -> None:
    """Recurrent layers hold no token: the cache of Jamba is that of 4 of 32 layers, Mamba's is none."""
    assert counts.kv_bytes_per_token(model("jamba-v0.1")) == 4 * 2 * 8 * 128 * 2
    assert counts.kv_bytes(model("jamba-v0.1"), 1000.0) == 1000 * 4 * 2 * 8 * 128 * 2
    assert counts.kv_bytes(model("mamba-codestral-7b"), 1e6) == 0
    assert counts.kv_bytes_per_token(model("falcon-h1-7b")) == 44 * 2 * 2 * 128 * 2  # heads and mixer side by side
    (layer,) = model("mamba-codestral-7b").layer_classes
    assert float(counts.held_tokens(layer, 500.0)) == 0


def test_lmstudio_1862() -> None:
    """Qwen3.6-27B at 262,144 tokens: 16 of 64 layers have a cache, 16 GiB at 16 bits where all 64 would make 64.

    The 598.5 MiB of recurrent state beside it are those of four sequences, all at 32 bits as llama.cpp keeps them.
    """
    spec = model("Qwen/Qwen3.6-27B")
    assert counts.kv_bytes(spec, 262_144.0, "fp16") == 16 * GiB
    assert 4 * counts.state_bytes(spec, "fp32", "fp32") == 598.5 * MiB


def test_atom_1959() -> None:
    """Kimi K3 has 24 latent layers of 512 + 64 values in 93: 27 KiB a token and not 309 KB; SGLang came to 26 KB."""
    data = config("Kimi-Linear-48B-A3B-Instruct")
    full = [*range(4, 93, 4), 93]
    linear = [layer for layer in range(1, 94) if layer not in full]
    section = data["linear_attn_config"] | {"full_attn_layers": full, "kda_layers": linear}
    spec = imported("Kimi-Linear-48B-A3B-Instruct", num_hidden_layers=93, linear_attn_config=section)
    assert counts.kv_bytes_per_token(spec) == 24 * (512 + 64) * 2
    assert counts.kv_bytes_per_token(spec) == pytest.approx(26 * 1024, rel=0.05)


def test_state_format_is_that_of_the_file() -> None:
    """A format that the configuration names is the default; one that it leaves out is 32 bits."""
    spec = imported("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", mamba_ssm_cache_dtype="bfloat16")
    mixer = spec.attention["mamba"]
    assert isinstance(mixer, Mamba2)
    assert mixer.state_format == "bf16"
    assert counts.state_bytes(spec) == counts.state_bytes(model("nemotron-3-nano-30b-a3b"), state="bf16")
    assert imported("Nemotron-H-56B-Base-8K").attention["mamba"].state_format is None


def test_nvfp4_leaves_all_but_the_experts_alone() -> None:
    """Qwen3.5's NVFP4 files quantize the routed experts: 4 bits, 8 a group of 16 and 32 a matrix; the rest has 16."""
    spec = imported("Qwen3.5-397B-A17B-NVFP4")
    experts = 60 * 512 * 3 * 1024 * 4096
    assert spec.native_format == "nvfp4"
    matrices = 60 * 512 * 3
    rest = 2 * (counts.total_params(spec) - experts)
    assert weight_bytes(spec, "nvfp4") == experts * 4.5 / 8 + 4 * matrices + rest
    mtp = [t for t in tensors(spec) if t.role == "mtp"]
    assert {tensor_format(t, "nvfp4").name for t in mtp} == {"bf16"}


def test_heads_are_said_in_words() -> None:
    """Recurrent layers are described by what they are, not by a head count that means something else."""
    assert counts.summary(model("qwen3-next-80b-a3b"))["heads"] == (
        "gated_delta: 32 value heads, state 16384 each; 16/2 heads"
    )
    assert "no mixer" in str(counts.summary(model("nemotron-h-56b"))["heads"])


def test_built_ins_are_the_imported_ones() -> None:
    """Each configuration that belongs to a built-in gives its tensors, its layers and its MTP layers."""
    found = 0
    for path in CONFIGS:
        try:
            built_in = model(path.stem.replace("__", "/"))
        except UnknownName:
            continue
        spec = hf.load(path)
        assert tensors(spec) == tensors(built_in)
        assert spec.layer_classes == built_in.layer_classes
        assert spec.mtp == built_in.mtp
        found += 1
    assert found >= 15


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Mamba-Codestral-7B-v0.1", {"num_heads": 100}, "num_heads: 100 heads of 64 are not expand x hidden_size"),
        ("Mamba-Codestral-7B-v0.1", {"n_groups": 7}, "n_groups: 7 does not divide the 128 heads"),
        ("Mamba-Codestral-7B-v0.1", {"intermediate_size": 9000}, "intermediate_size: 9000 is not understood"),
        ("Mamba-Codestral-7B-v0.1", {"rms_norm": False}, "rms_norm: False is not understood"),
        ("Mamba-Codestral-7B-v0.1", {"state_size": ...}, "state_size: is missing"),
        ("mamba-2.8b-hf", {"d_model": 4096}, r"hidden_size|d_model"),
        ("mamba-2.8b-hf", {"time_step_rank": "half"}, "time_step_rank: must be a whole number"),
        ("Jamba-v0.1", {"attn_layer_offset": 8}, r"attn_layer_offset: 8 must be below attn_layer_period \(8\)"),
        ("Jamba-v0.1", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms: False is not understood"),
        ("Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": "MXM"}, "must be a string of M"),
        ("Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": ...}, "layers_block_type: is missing"),
        ("Nemotron-H-56B-Base-8K", {"num_hidden_layers": 64}, "num_hidden_layers: 64 is not understood; only 118"),
        ("NVIDIA-Nemotron-3-Super-120B-A12B-FP8", {"n_shared_experts": 2}, "n_shared_experts: 2 is not understood"),
        ("NVIDIA-Nemotron-3-Super-120B-A12B-FP8", {"mtp_hybrid_override_pattern": "*Q"}, "must be a string of M"),
        ("NVIDIA-Nemotron-3-Super-120B-A12B-FP8", {"mamba_ssm_cache_dtype": "int8"}, "'int8' is not understood"),
        ("NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", {"layers_block_type": ["mamba", "swamp"]}, "'swamp' is not"),
        ("Qwen3-Next-80B-A3B-Instruct", {"linear_num_value_heads": 24}, "24 is not a multiple of linear_num_key_heads"),
        ("Qwen3-Next-80B-A3B-Instruct", {"linear_num_key_heads": ...}, "linear_num_key_heads: is missing"),
        ("Qwen3-Next-80B-A3B-Instruct", {"layer_types": ["sliding_attention"] * 48}, "'sliding_attention' is not"),
        ("Qwen3.5-35B-A3B", {"attn_output_gate": False}, "attn_output_gate: False is not understood"),
        ("Qwen3.5-35B-A3B", {"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings: True"),
        ("Qwen3.5-35B-A3B", {"mlp_only_layers": [0]}, "mlp_only_layers: .* is not understood"),
        ("MiniMax-Text-01", {"shared_intermediate_size": 512}, "shared_intermediate_size: 512 is not understood"),
        ("MiniMax-Text-01", {"attn_type_list": [2] * 80}, "must be zeros"),
        ("Kimi-Linear-48B-A3B-Instruct", {"mla_use_nope": False}, "mla_use_nope: False is not understood"),
        ("Kimi-Linear-48B-A3B-Instruct", {"routed_expert_hidden_size": 3584}, "routed_expert_hidden_size: not"),
        ("Kimi-Linear-48B-A3B-Instruct", {"hidden_act": "situ"}, "hidden_act: 'situ' is not understood"),
        ("granite-4.0-h-small", {"mamba_d_head": 100}, "mamba_n_heads: 128 heads of 100 are not the 8192 channels"),
        ("Falcon-H1-7B-Base", {"projectors_bias": True}, "projectors_bias: True is not understood"),
        ("LFM2-1.2B", {"full_attn_idxs": ...}, "layer_types: is missing, as is full_attn_idxs"),
    ],
)
def test_refused(name: str, changes: dict[str, Any], message: str) -> None:
    """What the formulas do not hold for is refused by its name."""
    with pytest.raises(SpecError, match=message):
        imported(name, **changes)


def test_partly_quantized_layers_are_refused() -> None:
    """A list that leaves the mixers of some layers alone only has no one format a role."""
    data = config("Qwen3.5-397B-A17B-NVFP4")
    quantization = data["quantization_config"]
    some = [entry for entry in quantization["ignore"] if "layers.0.linear_attn" not in entry]
    data["quantization_config"] = quantization | {"ignore": some}
    with pytest.raises(SpecError, match="leaves mixer_in alone in 44 of 45 layers only"):
        hf.from_config(data, "config.json", "some")


def test_fp8_of_a_hybrid() -> None:
    """Qwen3-Next in FP8 leaves gates, convolutions and routers alone, which no recipe touches: 32 bits a block."""
    alone = ["lm_head", "model.embed_tokens", "mtp.fc", "mtp.layers.0.mlp.gate"]
    alone += [f"model.layers.0.linear_attn.{part}" for part in ("conv1d", "in_proj_ba")]
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": alone}
    spec = imported("Qwen3-Next-80B-A3B-Instruct", quantization_config=quantization)
    assert (spec.native_format, spec.native_16bit) == ("fp8_block", ())
    found = {t.role: tensor_format(t, "fp8_block").name for t in tensors(spec)}
    assert {found[role] for role in ("mixer_in", "mixer_out", "expert_up", "q_proj")} == {"fp8_block"}
    assert {found[role] for role in ("mixer_gates", "conv", "state", "router", "embedding")} == {"bf16"}
    quantization["modules_to_not_convert"] = ["mtp.layers.0.self_attn.q_proj"]
    with pytest.raises(SpecError, match="leaves a part of the MTP layers alone"):
        imported("Qwen3-Next-80B-A3B-Instruct", quantization_config=quantization)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("value", [..., None, 0, -1, 10**12, 1.5, "8", True, [], {}], ids=str)
def test_any_number_may_be_wrong(path: Path, value: object) -> None:
    """A number that is missing or wrong is refused by name or changes nothing of the kind: never a crash."""
    name = path.stem.partition("__")[2]
    inner = config(name).get("text_config", config(name))
    numbers = [key for key, old in inner.items() if isinstance(old, int) and not isinstance(old, bool)]
    refused = 0
    for key in numbers:
        try:
            spec = imported(name, **{key: value})
        except SpecError:
            refused += 1
        else:
            assert counts.total_params(spec) > 0
    assert refused >= 3


def test_latent_experts_need_a_size() -> None:
    """A schema file may leave the latent out, and then the experts see the whole width."""
    spec = imported("NVIDIA-Nemotron-3-Super-120B-A12B-FP8", moe_latent_size=None)
    experts = spec.ffn["moe"]
    assert isinstance(experts, Moe)
    assert experts.latent_size is None
    assert ("expert_up", (2688, 4096)) in {(t.role, t.shape) for t in tensors(spec)}
