"""``perfmodel memory`` and ``pm.memory``: the contract's keys, exit codes, and inverse questions."""

import json

import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.cli import main

BASE = ["memory", "--gpu", "h100", "--model", "llama3.1-8b"]


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    found = CliRunner().invoke(main, list(arguments))
    return found.exit_code, found.stdout, found.stderr


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llamacpp"])
def test_the_keys_of_the_contract(engine: str) -> None:
    """Every engine answers with weights a GPU, KV tokens and concurrency, and every term has formula and source."""
    code, out, _ = run(*BASE, "--engine", engine, "--context", "8192", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["weights_bytes_per_gpu"] > 13e9
    assert found["kv_tokens"] >= 8192
    assert found["max_concurrency"] >= 1
    assert found["fits"] is True
    assert all(term["formula"] and term["source"] for term in found["terms"])


def test_a_table_names_every_term() -> None:
    """The table for people has the terms in GiB, the sentence, and says what the interval is."""
    code, out, _ = run(*BASE, "--context", "8192")
    assert code == 0
    for word in ("usable", "weights", "activations", "non_torch", "kv_pool", "GiB", "80 % interval"):
        assert word in out


def test_what_does_not_fit_exits_with_4_and_says_what_would() -> None:
    """The terms are printed all the same; the message names the remedies."""
    code, out, err = run("memory", "--gpu", "h100", "--model", "llama3-70b")
    assert code == 4
    assert "131.42 GiB" in out
    assert "--tp 2" in err
    assert "would fit" in err


def test_longest_context_largest_batch_fewest_gpus() -> None:
    """The three inverse questions, each with the answer first."""
    code, out, _ = run(
        "memory", "--gpu", "rtx-4090", "--model", "llama3.1-8b", "--solve", "context", "--format", "json"
    )
    assert code == 0
    assert 10_000 < json.loads(out)["value"] < 131_072
    code, out, _ = run(*BASE, "--solve", "batch", "--context", "8192", "--format", "json")
    assert json.loads(out)["value"] > 40
    code, out, _ = run("memory", "--gpu", "h100", "--model", "llama3-70b", "--solve", "gpus", "--format", "json")
    assert json.loads(out)["value"] == 2


def test_no_answer_exits_with_4() -> None:
    """A model that no context saves: the answer is 0."""
    code, out, err = run(
        "memory", "--gpu", "rtx-4090", "--model", "llama3-70b", "--solve", "context", "--format", "json"
    )
    assert code == 4
    assert json.loads(out)["value"] == 0
    assert "not even" in err


def test_a_batch_needs_a_length() -> None:
    """How many requests fit depends on how long each is."""
    code, _, err = run(*BASE, "--solve", "batch")
    assert code == 2
    assert "--context" in err


def test_options_of_an_engine_are_passed_on() -> None:
    """``-O`` takes numbers, words and switches; a wrong one is refused with those that there are."""
    code, out, _ = run(*BASE, "--engine", "llamacpp", "--context", "8192", "-O", "swa_full=true", "--ngl", "8",
                       "--format", "json")  # fmt: skip
    assert code == 0
    assert json.loads(out)["settings"]["ngl"] == 8
    code, _, err = run(*BASE, "-O", "swa_full=true")
    assert code == 2
    assert "vllm has no option 'swa_full'" in err
    code, _, err = run(*BASE, "-O", "enforce_eager")
    assert code == 2
    assert "NAME=VALUE" in err


@pytest.mark.parametrize("form", ["csv", "md"])
def test_other_forms_carry_sources(form: str) -> None:
    """CSV and Markdown have a column with the source of each term."""
    code, out, _ = run(*BASE, "--context", "8192", "--format", form)
    assert code == 0
    assert "source" in out
    assert "arg_utils" in out or "cache.py" in out


def test_the_facade_answers_alike() -> None:
    """``pm.memory`` gives the same numbers, a frame and a page of HTML."""
    found = pm.memory("llama3.1-8b", "h100", max_model_len=8192)
    _, out, _ = run(*BASE, "--context", "8192", "--format", "json")
    assert json.loads(out)["kv_tokens"] == found.kv_tokens
    assert set(found.frame["term"]) >= {"usable", "weights", "kv_pool"}
    assert "<table" in found._repr_html_()
    with pytest.raises(KeyError):
        found.term("no such term")


def test_impossible_memory_is_refused() -> None:
    """No A10 has 80 GiB: the number is refused rather than believed."""
    code, _, err = run("memory", "--gpu", "a10", "--model", "llama2-7b", "--usable", "80 GiB")
    assert code == 2
    assert "a a10 has" in err
