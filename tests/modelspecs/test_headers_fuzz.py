"""Hostile headers, cut off or changed anywhere: nothing but `SpecError` comes of them, in bounded time and memory."""

from __future__ import annotations

import json
import random
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.counts import unscaled_params
from perfmodel.modelspecs.stored import gguf as gguf_reader
from perfmodel.modelspecs.stored import headers

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
safetensors = pytest.importorskip("safetensors", reason="the reference implementation of safetensors is not installed")

#: A processor's time for one file, and the most memory that reading it may take; the buffer alone is 1 MiB.
SECONDS, BYTES = 0.05, 8 * 2**20
CONFIG = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 10, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
SHAPES = {
    "attn_norm": (8,), "attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8), "ffn_norm": (8,),
    "ffn_gate": (16, 8), "ffn_up": (16, 8), "ffn_down": (8, 16),
}  # fmt: skip


def gguf_bytes(order: Any, more: dict[str, Any] | None = None) -> bytes:
    """A whole small Llama in GGUF, with values of every kind."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        w = gguf.GGUFWriter(path, "llama", endianess=order)
        keys: dict[str, Any] = {
            "block_count": 1, "embedding_length": 8, "context_length": 64, "feed_forward_length": 16,
            "attention.head_count": 2, "attention.head_count_kv": 1,
        } | (more or {})  # fmt: skip
        for key, value in keys.items():
            add(w, f"llama.{key}", value)
        w.add_bool("general.flag", True)
        w.add_float64("general.ratio", 0.5)
        w.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
        w.add_array("tokenizer.ggml.token_type", [1, 2, 3])
        w.add_tensor("token_embd.weight", np.zeros((10, 8), np.float16))
        w.add_tensor("output_norm.weight", np.zeros(8, np.float32))
        for name, shape in SHAPES.items():
            w.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float16))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return path.read_bytes()


def add(w: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        w.add_bool(key, value)
    elif isinstance(value, int):
        w.add_int64(key, value) if value < 0 else w.add_uint64(key, value)
    elif isinstance(value, float):
        w.add_float64(key, value)
    elif isinstance(value, str):
        w.add_string(key, value)
    else:
        w.add_array(key, value)


def safetensors_bytes() -> bytes:
    """A whole small Llama in safetensors, by the reference implementation."""
    from safetensors.numpy import save

    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    names |= {
        f"attn_{short}": f"self_attn.{long}_proj" for short, long in zip(("q", "k", "v", "output"), "qkvo", strict=True)
    }
    names |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    tensors = {f"model.layers.0.{names[name]}.weight": np.zeros(shape, np.float16) for name, shape in SHAPES.items()}
    tensors |= {
        "model.embed_tokens.weight": np.zeros((10, 8), np.float16),
        "model.norm.weight": np.zeros(8, np.float32),
    }
    return bytes(save(tensors, {"format": "pt"}))


FILES: dict[str, tuple[str, bytes]] = {
    "safetensors": ("model.safetensors", safetensors_bytes()),
    "gguf": ("x.gguf", gguf_bytes(gguf.GGUFEndian.LITTLE)),
    "gguf, big endian": ("x.gguf", gguf_bytes(gguf.GGUFEndian.BIG)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz")
    (path / "config.json").write_text(json.dumps(CONFIG))
    for name, data in FILES.values():  # once before the clock runs: pydantic builds its validators
        (path / name).write_bytes(data)
        headers.describe(path / name)
    return path


def attempt(folder: Path, name: str, data: bytes) -> headers.StoredModel | None:
    """Describe the file; ``None`` when it is refused. Any other error, and too long a time, fail the test."""
    path = folder / name
    path.write_bytes(data)
    begin, problem = time.process_time(), f"{path}: "
    found = None
    try:
        found = headers.describe(path)
    except SpecError as error:
        problem = str(error)
    assert time.process_time() - begin < SECONDS
    assert problem.startswith(str(path))
    assert len(problem) < 4000
    return found


@pytest.mark.parametrize("kind", FILES)
def test_the_files_are_right_before_they_are_spoilt(kind: str, folder: Path) -> None:
    """The whole files describe a model that agrees with its tensors."""
    found = attempt(folder, *FILES[kind])
    assert found is not None
    assert found.agrees, (found.problem, found.comparison)


@pytest.mark.parametrize("kind", FILES)
def test_cut_off_at_every_byte(kind: str, folder: Path) -> None:
    """Every beginning of a file is refused, at whatever byte it ends (the padding after GGUF's last tensor apart)."""
    name, data = FILES[kind]
    whole = len(data) if kind == "safetensors" else len(data.rstrip(b"\0"))
    for length in range(len(data)):
        if (found := attempt(folder, name, data[:length])) is not None:
            assert kind != "safetensors"
            assert length >= whole
            assert found.agrees
    assert attempt(folder, name, data[: min(whole, len(data)) - 1]) is None or kind != "safetensors"


def check(kind: str, data: bytes, found: headers.StoredModel | None) -> None:
    """What is taken must be what the reference reads, and a model that is handed out must add up to its tensors."""
    if found is None:
        return
    if kind == "safetensors":
        theirs = {name: (info["dtype"], tuple(info["shape"])) for name, info in safetensors.deserialize(data)}
        assert {t.name: (t.dtype, t.shape) for t in found.tensors} == theirs
    if kind == "gguf":
        read = gguf.GGUFReader(found.path)
        theirs = {t.name: (t.tensor_type.name, tuple(int(n) for n in t.shape)[::-1]) for t in read.tensors}
        assert {t.name: (t.dtype, t.shape) for t in found.tensors} == theirs
    assert found.bytes <= len(data)
    if found.agrees:
        assert unscaled_params(found.require_model()) + _apart(found) == found.elements


def _apart(found: headers.StoredModel) -> int:
    assert found.comparison is not None
    return found.comparison.scales + found.comparison.buffers


EXTREMES = [0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def spoilt(data: bytes, seed: int) -> bytes:
    """A file with one to four changes: bytes, numbers, pieces cut out, repeated or moved."""
    dice, out = random.Random(seed), bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(out)) if dice.random() < 0.3 else dice.randrange(min(len(out), 700))
        kind = dice.randrange(7)
        if kind == 0:
            out[at] = dice.randrange(256)
        elif kind == 1:
            out[at] ^= 1 << dice.randrange(8)
        elif kind == 2:
            out[at : at + 8] = struct.pack(dice.choice("<>") + "Q", dice.choice(EXTREMES))
        elif kind == 3:
            out[at : at + 4] = struct.pack(dice.choice("<>") + "I", dice.choice(EXTREMES) & 0xFFFFFFFF)
        elif kind == 4:
            del out[at : at + dice.randint(1, 40)]
        elif kind == 5:
            out[at:at] = out[at : at + dice.randint(1, 60)]
        else:
            out[at:at] = dice.choice(
                [b"[", b"{", b'"', b"\xff", b"9" * 30, b"-", b"NaN", b"\\u0000", b"1e9"]
            ) * dice.randint(1, 9)
        if not out:
            break
    return bytes(out)


def mutate(kind: str, folder: Path, seeds: range) -> tuple[int, int]:
    name, data = FILES[kind]
    taken = 0
    for seed in seeds:
        changed = spoilt(data, seed)
        found = attempt(folder, name, changed)
        check(kind, changed, found)
        taken += found is not None
    return taken, len(seeds)


@pytest.mark.parametrize("kind", FILES)
def test_random_changes(kind: str, folder: Path) -> None:
    """A thousand spoilt files of each kind: refused, or read as the reference implementation reads them."""
    taken, tried = mutate(kind, folder, range(1000))
    assert 0 < taken < tried  # both outcomes are met


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_many_random_changes(kind: str, folder: Path) -> None:
    """Ten thousand more spoilt files of each kind."""
    mutate(kind, folder, range(1000, 11_000))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), kind=st.sampled_from(["model.safetensors", "x.gguf"]), start=st.booleans())
@example(data=b"", kind="x.gguf", start=True)
@example(data=b'{"a":' * 50, kind="model.safetensors", start=True)
def test_random_bytes(data: bytes, kind: str, start: bool, folder: Path) -> None:
    """Bytes without any sense, with or without a right beginning, are refused."""
    if start:
        data = (b"GGUF\x03\0\0\0" if kind == "x.gguf" else struct.pack("<Q", len(data))) + data
    attempt(folder, kind, data)


values = st.one_of(
    st.sampled_from(EXTREMES), st.integers(-(2**63), -1), st.floats(), st.booleans(), st.text(max_size=8),
    st.lists(st.integers(-5, 2**31 - 1), min_size=1, max_size=4), st.lists(st.text(max_size=3), min_size=1, max_size=3),
)  # fmt: skip
keys = st.sampled_from(
    ["block_count", "embedding_length", "context_length", "feed_forward_length", "attention.head_count", "vocab_size",
     "attention.head_count_kv", "attention.key_length", "attention.value_length", "expert_count", "expert_used_count",
     "nextn_predict_layers", "attention.sliding_window", "rope.dimension_count", "anything"],
)  # fmt: skip


def metadata_attempt(more: dict[str, Any], folder: Path) -> None:
    data = gguf_bytes(gguf.GGUFEndian.LITTLE, more)
    found = attempt(folder, "x.gguf", data)
    assert found is not None  # the container is right: sizes are told, whatever the metadata say
    assert found.total_params == 10 * 8 + 8 + sum(prod(shape) for shape in SHAPES.values())
    check("gguf", data, found)
    json.dumps(headers.summary(folder / "x.gguf"), allow_nan=False)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(more=st.dictionaries(keys, values, min_size=1, max_size=3))
def test_absurd_metadata(more: dict[str, Any], folder: Path) -> None:
    """Any value of any key: the model is refused by name or adds up to its tensors; sizes are right all the same."""
    metadata_attempt(more, folder)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(more=st.dictionaries(keys, values, min_size=1, max_size=3))
def test_more_absurd_metadata(more: dict[str, Any], folder: Path) -> None:
    """The same, three thousand times."""
    metadata_attempt(more, folder)


HEAD = b"GGUF\x03\0\0\0"


def bombs() -> Iterator[tuple[str, str, bytes]]:
    """Small files that ask for much: depth, counts, lengths, repetition."""
    head = HEAD
    for count in EXTREMES:
        yield f"tensors {count}", "x.gguf", head + struct.pack("<QQ", count, 0) + bytes(64)
        yield f"pairs {count}", "x.gguf", head + struct.pack("<QQ", 0, count) + bytes(64)
        key = struct.pack("<Q", 1) + b"k"
        for kind in (0, 8, 9, 12):
            array = struct.pack("<IIQ", 9, kind, count)
            yield (
                f"array of {count} of kind {kind}",
                "x.gguf",
                head + struct.pack("<QQ", 0, 1) + key + array + bytes(64),
            )
        yield (
            f"text of {count}",
            "x.gguf",
            head + struct.pack("<QQ", 0, 1) + key + struct.pack("<IQ", 8, count) + bytes(64),
        )
        yield f"header of {count}", "model.safetensors", struct.pack("<Q", count) + b"{}" + bytes(64)
        shape = b'{"w":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,%d]}}' % (count, count, count)
        yield f"shape of {count}", "model.safetensors", struct.pack("<Q", len(shape)) + shape
    nested = head + struct.pack("<QQ", 0, 1) + key + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 10_000
    yield "arrays in arrays", "x.gguf", nested
    zeros = 30_000
    array = struct.pack("<IIQ", 9, 8, zeros) + bytes(8 * zeros)
    yield "empty texts", "x.gguf", head + struct.pack("<QQ", 0, 1) + key + array
    for word in (b"[", b'{"a":', b'"', b"\\", b"9", b" ", b'"a":{},', b'{"w":{"shape":[', b"\xf0\x9f\x98\x80"):
        text = b"{" + word * (60_000 // len(word))
        yield f"many {word!r}", "model.safetensors", struct.pack("<Q", len(text)) + text
        text = b'{"w":' + word * (60_000 // len(word))
        yield f"many {word!r} in a value", "model.safetensors", struct.pack("<Q", len(text)) + text
    text = b'{"w":{"dtype":"F32","shape":[' + b"1," * 30_000 + b'1],"data_offsets":[0,4]}}'
    yield "long shape", "model.safetensors", struct.pack("<Q", len(text)) + text + bytes(4)
    text = b'{"__metadata__":{"a":"' + b"x" * 60_000 + b'"}}'
    yield "long text", "model.safetensors", struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(("case", "name", "data"), list(bombs()), ids=[case for case, _, _ in bombs()])
def test_bombs(case: str, name: str, data: bytes, folder: Path) -> None:
    """Absurd counts, lengths, depths and repetitions cost neither time nor memory."""
    attempt(folder, name, data)
    tracemalloc.start()
    try:
        attempt_again(folder, name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BYTES


def attempt_again(folder: Path, name: str) -> None:
    try:
        headers.describe(folder / name)
    except SpecError:
        return


def sparse(path: Path, start: bytes, size: int) -> Path:
    path.write_bytes(start)
    with path.open("r+b") as stream:
        stream.truncate(size)
    return path


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("gguf", HEAD + struct.pack("<QQ", 499_999, 0)),
        ("gguf", HEAD + struct.pack("<QQ", 0, 60_000)),
        ("gguf", HEAD + struct.pack("<QQQ", 0, 1, 2**39)),
        ("gguf", HEAD + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 12, 2**36)),
        ("safetensors", struct.pack("<Q", 90_000_000)),
        ("safetensors", struct.pack("<Q", 2**39)),
    ],
)
def test_files_of_a_tebibyte(kind: str, start: bytes, tmp_path: Path) -> None:
    """A file that really is large does not make its header's claims true: refused within a second and 260 MiB."""
    path = sparse(tmp_path / f"z.{kind}", start, 2**40)
    tracemalloc.start()
    begin = time.process_time()
    try:
        with pytest.raises(SpecError):
            headers.describe(path)
        assert time.process_time() - begin < 1
        assert tracemalloc.get_traced_memory()[1] < 260 * 2**20
    finally:
        tracemalloc.stop()


def test_the_bound_of_texts_holds(tmp_path: Path) -> None:
    """As many texts as a header may have are passed over in seconds; one more is refused at once."""
    most = gguf_reader.MAX_STRINGS
    start = HEAD + struct.pack("<QQQ", 0, 1, 1) + b"k"
    path = sparse(tmp_path / "z.gguf", start + struct.pack("<IIQ", 9, 8, most), 8 * most + 2**20)
    begin = time.process_time()
    assert gguf_reader.read(path).metadata["k"] == gguf_reader.Skipped("array of text", most)
    assert time.process_time() - begin < 10
    path = sparse(tmp_path / "z.gguf", start + struct.pack("<IIQ", 9, 8, most + 1), 8 * most + 2**20)
    with pytest.raises(SpecError, match="texts; at most 4,000,000"):
        gguf_reader.read(path)
