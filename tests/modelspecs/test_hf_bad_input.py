"""Hostile and broken files: one clear line and exit code 3, never a traceback, never a long wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.base.errors import PerfmodelError, SpecError
from perfmodel.modelspecs import hf
from perfmodel.modelspecs.load import from_file, model

LLAMA = json.loads((Path(__file__).parent / "data" / "configs" / "meta-llama__Llama-3.1-8B.json").read_text())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a valid JSON configuration"),
        (b"{", "is not a valid JSON configuration"),
        (b"[]", "must be a mapping of keys to values, not list"),
        (b"null", "must be a mapping of keys to values, not NoneType"),
        (b"\x00\x01\x02\x03", "contains NUL bytes"),
        (b"\xff\xfe\x80", "is not UTF-8 text"),
        (b"\x7fELF\x80\x81", "is not UTF-8 text"),
        (b"\xef\xbb\xbf{}", "is not a valid JSON configuration"),
        (b"{}", "model_type: is missing"),
        (b'{"model_type": "llama", "model_type": "qwen2"}', "duplicate key 'model_type'"),
        (b'{"a": {"b": 1, "b": 2}}', "duplicate key 'b'"),
        (b'{"model_type": ' + b"9" * 5000 + b"}", "has 5000 digits"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "is nested too deeply"),
    ],
)
def test_broken_file(tmp_path: Path, content: bytes, message: str) -> None:
    """A file that is no configuration says why."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=message) as raised:
        hf.load(path)
    assert raised.value.exit_code == 3
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e30", "1e999", "-1", "0", "1.5", "true"])
def test_numbers_that_are_no_size(tmp_path: Path, number: str) -> None:
    """NaN, infinities, floats, 0 and negative numbers are refused by the key that holds them."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA).replace('"hidden_size": 4096', f'"hidden_size": {number}'))
    with pytest.raises(SpecError, match="hidden_size: must be a whole number"):
        hf.load(path)


def test_huge_file(tmp_path: Path) -> None:
    """A file of 100 MB is refused by its size, unread."""
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.truncate(100 * 2**20)
    with pytest.raises(SpecError, match="104,857,600 bytes"):
        hf.load(path)


def test_missing_file(tmp_path: Path) -> None:
    """A missing file, a folder without config.json and a strange suffix each say what to give."""
    with pytest.raises(SpecError, match="No such file"):
        hf.load(tmp_path / "config.json")
    with pytest.raises(SpecError, match=r"folder without config\.json"):
        from_file(tmp_path)
    with pytest.raises(SpecError, match="not a kind of model file"):
        from_file(tmp_path / "model.txt")


def test_escape_sequences_are_printed_harmlessly(tmp_path: Path) -> None:
    """Control characters of a hostile name or key do not reach the terminal."""
    path = tmp_path / "evil\x1b[31m.json"
    path.write_text('{"model_type": "\\u001b]0;owned\\u0007"}')
    with pytest.raises(SpecError) as raised:
        hf.load(path)
    assert "\x1b" not in str(raised.value)
    assert "\x07" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hidden_size: -1", r"hidden_size: input should be greater than 0, not '-1'"),
        ("hidden_size: 1.0e+30", "hidden_size: input should be a valid integer"),
        ("hidden_size: .nan", "hidden_size: input should be a valid integer"),
        ("mystery: 1", "mystery: is not a known key"),
        ("native_format: fp3", "native_format: is not a weight format"),
        ("layers: [{repeat: 1, pattern: [nothing/dense]}]", "'nothing/dense' must be attention/ffn"),
        ("layers: [{repeat: 999999, pattern: [full/dense]}]", "999999 layers; at most 10000"),
        ("layers: []", "layers: tuple should have at least 1 item"),
        ("attention: {full: {kind: gqa, heads: 7, kv_heads: 2, head_dim: 8}}", r"heads \(7\) must be a multiple"),
        (
            "attention: {full: {kind: gqa, heads: 8, kv_heads: 2, head_dim: 8, sink_tokens: 4}}",
            "sink_tokens needs a window",
        ),
        ("ffn: {dense: {kind: moe, experts: 2, experts_per_token: 3, intermediate_size: 8}}", "is above experts"),
    ],
)
def test_bad_yaml_spec(tmp_path: Path, text: str, message: str) -> None:
    """A YAML spec with a wrong key or value names the key, the value and the limit."""
    lines = {
        "title": "title: T", "source": "source: a test", "hidden_size": "hidden_size: 64",
        "vocab_size": "vocab_size: 64",
        "max_context": "max_context: 64",
        "attention": "attention: {full: {kind: gqa, heads: 8, kv_heads: 2, head_dim: 8}}",
        "ffn": "ffn: {dense: {kind: dense, intermediate_size: 8}}",
        "layers": "layers: [{repeat: 1, pattern: [full/dense]}]",
    }  # fmt: skip
    path = tmp_path / "bad.yaml"
    path.write_text("\n".join((lines | {text.split(":")[0]: text}).values()))
    with pytest.raises(SpecError, match=message):
        model(str(path))


def test_spec_without_source(tmp_path: Path) -> None:
    """A spec without a source is refused."""
    path = tmp_path / "bad.yaml"
    path.write_text("title: T\n")
    with pytest.raises(PerfmodelError, match="source: is missing"):
        model(str(path))
