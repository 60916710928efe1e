"""What a reader of the numbers is told: class defaults, assumptions, what is left out, all that is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.base.errors import SpecError
from perfmodel.cli import main
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.hf.keys import Keys
from perfmodel.modelspecs.load import MODELS, model

CONFIGS = Path(__file__).parent / "data" / "configs"
FALCON = {
    "model_type": "falcon", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 64, "vocab_size": 1000,
}  # fmt: skip


def read(config: dict[str, Any]) -> Any:
    """The spec of a configuration."""
    return hf.from_config(config, "config.json", "here")


def test_notes_are_printed_and_in_json(tmp_path: Path) -> None:
    """Class defaults and the assumed dtype of a configuration reach the reader of text and of JSON."""
    config = json.loads((CONFIGS / "meta-llama__Llama-3.1-8B.json").read_text())
    config = {key: value for key, value in config.items() if key not in ("torch_dtype", "tie_word_embeddings")}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    text = " ".join(CliRunner().invoke(main, ["params", str(path)]).output.split())
    found = json.loads(CliRunner().invoke(main, ["params", str(path), "--format", "json"]).output)["notes"]
    assert any("tie_word_embeddings = false" in note for note in found)
    assert "no torch_dtype: bf16 is assumed" in found
    for note in found:
        assert note in text
    row = CliRunner().invoke(main, ["params", str(path), "--format", "csv"]).output
    assert "; ".join(found) in row


@pytest.mark.parametrize("name", MODELS.names)
def test_what_is_counted_is_said(name: str) -> None:
    """Vision parts, prediction layers and scales are spoken of where the model has them, and nowhere else."""
    spec = model(name)
    text, roles = counts.counted(spec), counts.by_role(spec)
    assert ("vision parts" in text) == bool({"vision", "projector"} & set(roles))
    assert ("MTP" in text) == ("mtp" in roles)
    assert ("stored buffers" in text) == ("buffer" in roles)
    assert ("scales" in text) == (counts.checkpoint_params(spec) > counts.unscaled_params(spec))
    assert (f"{counts.unscaled_params(spec):,}" in text) == ("same number" not in text)


def test_prediction_layers_left_out_are_said() -> None:
    """MiMo-V2-Flash is counted without its prediction layers, and says so."""
    assert any("prediction layers, which are left out" in note for note in counts.notes(model("mimo-v2-flash")))


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (
            {"model_type": "llama"},
            "hidden_size num_hidden_layers num_attention_heads vocab_size max_position_embeddings",
        ),
        ({"model_type": "deepseek_v3"}, "hidden_size kv_lora_rank n_shared_experts max_position_embeddings"),
        ({"model_type": "qwen3_moe", "hidden_size": 2048}, "num_key_value_heads moe_intermediate_size num_experts"),
        ({"model_type": "gemma3"}, "text_config text_config.hidden_size text_config.sliding_window"),
        ({"model_type": "falcon"}, "new_decoder_architecture multi_query vocab_size"),
    ],
)
def test_all_missing_keys_are_named_at_once(config: dict[str, Any], names: str) -> None:
    """One message names the keys of every group that the reader asks for."""
    before = json.dumps(config)
    with pytest.raises(SpecError, match="is missing, and so are") as raised:
        read(config)
    for name in names.split():
        assert name in str(raised.value)
    assert json.dumps(config) == before


def test_falcon_needs_its_architecture() -> None:
    """A bare minimum of Falcon is refused: the class would make a 40B model one of a single KV head."""
    with pytest.raises(SpecError, match="new_decoder_architecture: is missing"):
        read(FALCON)
    with pytest.raises(SpecError, match="new_decoder_architecture: is missing"):
        read(FALCON | {"num_kv_heads": 8})
    grouped = read(FALCON | {"num_kv_heads": 8, "new_decoder_architecture": True})
    assert grouped.attention["full"].kv_heads == 8
    single = read(FALCON | {"multi_query": True})
    assert single.attention["full"].kv_heads == 1
    for default in ("new_decoder_architecture = false", "bias = false", "alibi = false", "parallel_attn = true"):
        assert default in single.notes


@pytest.mark.parametrize("allowed", [[0] * 5000, list(range(5000)), ["x" * 5000]])
def test_errors_are_short(allowed: list[object]) -> None:
    """Whatever stands in a file or is expected there, a message is at most some hundred characters."""
    with pytest.raises(SpecError) as raised:
        Keys({"layer_types": ["odd"] * 9000}, "config.json", "p" * 5000).expect("layer_types", allowed)
    assert len(str(raised.value)) < 600


def test_weights_beside_a_configuration_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder named without a slash is counted by its files, and a difference from config.json is said."""
    numpy, safetensors = pytest.importorskip("numpy"), pytest.importorskip("safetensors.numpy")
    folder = tmp_path / "tiny"
    folder.mkdir()
    shutil.copy(CONFIGS / "meta-llama__Llama-3.1-8B.json", folder / "config.json")
    safetensors.save_file({"model.norm.weight": numpy.zeros((8,), numpy.float16)}, folder / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "tiny/", "./tiny", str(folder)):
        found = pm.params(name).to_dict()
        assert found["agrees"] is False
        assert found["stored_elements"] == 8
        assert any("none stored" in one for one in found["differences"])
    text = CliRunner().invoke(main, ["params", "tiny"]).output
    assert "the files store another model than the description" in " ".join(text.split())
