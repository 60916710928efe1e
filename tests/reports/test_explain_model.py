"""A model's counts, explained down to their terms."""

import json

import pytest
from click.testing import CliRunner

from perfmodel.cli import main
from perfmodel.modelspecs.counts import kv_bytes, total_params
from perfmodel.modelspecs.load import model
from perfmodel.reports.explain_model import explain_model

MODELS = ["llama3-8b", "gemma3-27b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-120b", "mamba-codestral-7b"]


@pytest.mark.parametrize("name", MODELS)
def test_the_tensors_shown_add_up_to_the_parameters(name):
    """Each tensor is its shape times its count, and those counted sum to the total."""
    found = explain_model(name, "parameters", 1)
    assert sum(row["total"] for row in found["tensors"] if row["counted"]) == total_params(model(name))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("context", [1, 4096, 100_000])
def test_the_cache_formula_is_the_one_that_counts(name, context):
    """The explained bytes are those of `kv_bytes`."""
    assert explain_model(name, "kv_cache", context)["bytes"] == kv_bytes(model(name), float(context))


def test_the_cache_of_a_windowed_model_shows_its_window():
    """Gemma 3 27B: 52 layers keep 1,024 tokens, 10 keep all, 8,192 bytes each."""
    found = explain_model("gemma3-27b", "kv_cache", 32768)
    assert found["symbols"] == "52·8,192·min(context, 1,024) + 10·8,192·context"


def test_no_gpu_is_needed_for_a_model_s_own_counts():
    """parameters and kv_cache need a model alone; an operator asks for --gpu."""
    result = CliRunner().invoke(main, ["explain", "--model", "llama3-8b", "--op", "kv_cache", "--format", "json"])
    assert json.loads(result.output)["bytes"] == 2048 * 131072
    result = CliRunner().invoke(main, ["explain", "--model", "llama3-8b", "--op", "qkv_proj"])
    assert result.exit_code == 2
    assert "--gpu is missing" in result.stderr
