"""The built-in models: found by every name, complete, and exact to the last parameter."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from perfmodel.base.catalogue import normalise
from perfmodel.base.errors import UnknownName
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.load import DATA, MODELS, model
from perfmodel.modelspecs.schema import Gqa, Mla, ModelSpec, Moe
from perfmodel.modelspecs.tensors import Tensor, tensors

HERE = Path(__file__).parent / "data"
with (HERE / "param_counts.csv").open() as stream:
    ROWS = list(csv.DictReader(stream))
IDS = [row for row in ROWS if "/" in row["published_as"] and " " not in row["published_as"]]
BUILT_IN = {alias: name for name in MODELS.names for alias in model(name).aliases}
CONFIGS = {
    path: BUILT_IN[path.stem.replace("__", "/")]
    for path in sorted((HERE / "configs").glob("*.json"))
    if path.stem.replace("__", "/") in BUILT_IN
}
COUNTED = {
    "total": counts.total_params,
    "checkpoint": counts.checkpoint_params,
    "unscaled": counts.unscaled_params,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['published_as']}")
def test_exact_total(row: dict[str, str]) -> None:
    """A published exact count equals ours: of the parameters, or of all that the checkpoint stores."""
    assert COUNTED[row["counts"]](model(row["model"])) == int(row["params"])


def test_most_models_have_a_published_total() -> None:
    """At least 70 built-ins are checked against at least 150 published totals, each with its source."""
    assert len({row["model"] for row in ROWS}) >= 70
    assert len(ROWS) >= 150
    assert all(row["source"] for row in ROWS)


@pytest.mark.parametrize("row", IDS, ids=lambda row: row["published_as"])
def test_hugging_face_id_is_an_alias(row: dict[str, str]) -> None:
    """The id under which a count was published finds the model."""
    assert MODELS.resolve(row["published_as"]) == row["model"]


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("qwen3-coder-480b", 480.155e9),  # printed by llama.cpp, ik_llama.cpp issue 649
        ("llama3.3-70b", 70.55e9),  # ollama pull request 6279
        ("qwen2.5-14b", 14.77e9),  # 48 x 275.3 M a layer + 2 x 152064 x 5120
        ("llama4-scout", 108.64e9),  # 107.77 B of text and 0.87 B of vision; printed 109B
        ("llama4-maverick", 401.58e9),  # printed 400B
        ("command-r-plus", 103.8e9),  # printed 104B
        ("gemma2-27b", 27.2e9),  # printed 27B
    ],
)
def test_rounded_total(name: str, total: float) -> None:
    """Totals that were printed rounded, to the digits printed."""
    assert counts.total_params(model(name)) == pytest.approx(total, rel=1e-3)


def test_parts_of_deepseek_v3() -> None:
    """671 B and the MTP layer apart; with it and the FP8 block scales, the count that Hugging Face shows."""
    v3 = model("deepseek-v3")
    assert counts.total_params(v3) == 671_026_419_200
    assert counts.unscaled_params(v3) == 684_489_845_504  # DeepSeek-R1's file list counts no scales
    assert counts.checkpoint_params(v3) == 684_531_386_000
    assert counts.by_role(v3)["mtp"] == 684_489_845_504 - 671_026_419_200


def test_gpt_oss_leaves_attention_alone() -> None:
    """MXFP4 scales are counted for the experts only: one a group of 32 of 114.7 B, 3.58 B."""
    oss = model("gpt-oss-120b")
    experts = sum(n for role, n in counts.by_role(oss).items() if role.startswith("expert_"))
    matrices = 36 * 128 * 3 * 2880 * 2880
    assert experts == matrices + 36 * 128 * 3 * 2880  # and a bias of 2880 a matrix
    assert counts.checkpoint_params(oss) - counts.total_params(oss) == matrices // 32


@pytest.mark.parametrize("name", MODELS.names)
def test_complete(name: str) -> None:
    """Every built-in loads, names its source, and has a context, an id of an organisation and consistent layers."""
    spec = model(name)
    assert spec.source.startswith("https://huggingface.co/")
    assert "/blob/main/config.json" in spec.source
    assert spec.max_context >= 1024
    assert sum(layer.count for layer in spec.layer_classes) == spec.num_layers
    assert counts.active_params(spec) <= counts.total_params(spec)
    if name != "llama2-7b-streaming":  # a way to run Llama 2, no checkpoint of its own
        assert any("/" in alias for alias in spec.aliases)


def test_enough_models() -> None:
    """There are 80 built-ins, and every name, title and alias is one model's only."""
    assert len(MODELS.names) >= 80
    owners: dict[str, str] = {}
    for name in MODELS.names:
        for known in {normalise(name), *map(normalise, model(name).aliases)}:
            assert owners.setdefault(known, name) == name, f"{known} is both {owners[known]} and {name}"
    assert len({model(name).title for name in MODELS.names}) == len(MODELS.names)


def test_header_holds_the_aliases() -> None:
    """The catalogue reads the header up to the first blank line: title and aliases are there in every file."""
    for path in DATA.glob("*.yaml"):
        header = path.read_text().split("\n\n", 1)[0]
        assert "title:" in header
        assert "aliases: [" in header


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("Llama-3-70B", "llama3-70b"), ("llama-3.1-8b", "llama3.1-8b"), ("deepseek-r1", "deepseek-r1"),
        ("qwen3-235b", "qwen3-235b-a22b"), ("Gemma-3-27B-it", "gemma3-27b"), ("mixtral-8x7b", "mixtral-8x7b"),
        ("gpt_oss_120b", "gpt-oss-120b"), ("meta-llama/Llama-3.1-405B-Instruct", "llama3.1-405b"),
        ("Qwen2.5-72B-Instruct", "qwen2.5-72b"), ("scout", "llama4-scout"), ("Mistral-7B", "mistral-7b-v0.1"),
        ("phi-4", "phi4"), ("kimi-k2", "kimi-k2"), ("GLM-4.5", "glm4.5"),
    ],
)  # fmt: skip
def test_names_that_people_type(typed: str, name: str) -> None:
    """Case, dashes and dots do not matter, and short names work."""
    assert model(typed).name == name


def test_unknown_name() -> None:
    """A slip of the pen is answered with near matches."""
    with pytest.raises(UnknownName, match=r"did you mean .*llama3-70b"):
        model("lama3-70b")


def test_enough_configurations() -> None:
    """Fifty real configurations belong to built-ins."""
    assert len(CONFIGS) >= 50


@pytest.mark.parametrize(("path", "name"), CONFIGS.items(), ids=[path.stem for path in CONFIGS])
def test_import_equals_built_in(path: Path, name: str) -> None:
    """The importer makes of a real config.json the same tensors and layers as the built-in that has its id."""
    built_in, imported = model(name), hf.load(path)
    assert plain(imported) == [t for t in plain(built_in) if keep(t, imported)]
    assert imported.layer_classes == built_in.layer_classes
    assert imported.mtp == built_in.mtp
    assert imported.norm == built_in.norm


def keep(t: Tensor, imported: ModelSpec) -> bool:
    """A file without vision section is compared without vision parts; stored buffers are in no configuration."""
    return bool(imported.extra_tensors) or t.role not in ("vision", "projector")


def plain(spec: ModelSpec) -> list[Tensor]:
    return [t for t in tensors(spec) if t.role != "buffer"]


def test_kinds_of_attention() -> None:
    """The schedules hold what each family is known for."""
    oss = model("gpt-oss-20b")
    assert [(layer.name, layer.count) for layer in oss.layer_classes] == [("sliding/moe", 12), ("full/moe", 12)]
    gemma = model("gemma3-27b")
    assert [(layer.attention_name, layer.count) for layer in gemma.layer_classes] == [("sliding", 52), ("full", 10)]
    assert gemma.layer_classes[1].indices == tuple(range(5, 62, 6))
    v3 = model("deepseek-v3")
    assert [(layer.name, layer.count) for layer in v3.layer_classes] == [("mla/dense", 3), ("mla/moe", 58)]
    maverick = model("llama4-maverick")
    assert [(layer.name, layer.count) for layer in maverick.layer_classes] == [
        ("chunked/dense", 24), ("chunked/moe", 12), ("full/moe", 12),
    ]  # fmt: skip
    v32 = model("deepseek-v3.2").attention["mla"]
    assert isinstance(v32, Mla)
    assert v32.indexer is not None
    assert v32.indexer.topk == 2048
    streaming = model("llama2-7b-streaming").attention["streaming"]
    assert isinstance(streaming, Gqa)
    assert (streaming.window, streaming.sink_tokens) == (2044, 4)
    scout = model("llama4-scout").ffn["moe"]
    assert isinstance(scout, Moe)
    assert (scout.experts, scout.experts_per_token, scout.shared_intermediate_size) == (16, 1, 8192)
