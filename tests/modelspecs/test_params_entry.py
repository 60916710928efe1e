"""One question, whatever the user has of a model: `params` finds the right reader."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.base.errors import SpecError
from perfmodel.cli import main
from perfmodel.modelspecs.load import model

safetensors = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A safetensors file with two small matrices and no description beside it."""
    tensors = {"a.weight": np.zeros((4, 8), np.float16), "b.weight": np.zeros((2, 8), np.float32)}
    path = tmp_path / "tiny.safetensors"
    safetensors.save_file(tensors, path)
    return path


def test_a_name_and_a_spec_give_the_same_counts():
    """A built-in by name is the spec it stands for."""
    assert pm.params("llama3-8b") == pm.params(model("llama3-8b"))


def test_a_weight_file_is_counted_by_its_header(weights):
    """4 x 8 + 2 x 8 elements in 32 x 2 + 16 x 4 bytes."""
    found = pm.params(str(weights))
    assert (found["stored_elements"], found["bytes"]) == (48, 128)
    text = CliRunner().invoke(main, ["params", str(weights)]).output
    assert "2 tensors in 1 safetensors file" in text
    assert json.loads(CliRunner().invoke(main, ["params", str(weights), "--format", "json"]).output)["bytes"] == 128


def test_a_folder_of_weights_is_read_as_such(weights):
    """A folder with safetensors files needs no config.json to be counted."""
    assert pm.params(str(weights.parent))["stored_elements"] == 48


def test_another_kind_of_file_is_refused_with_what_is_read(tmp_path):
    """A file that is no spec names what would be one."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    with pytest.raises(SpecError, match=r"give a \.yaml spec, a config\.json or a \.gguf"):
        pm.analyze(str(path), "h100")
