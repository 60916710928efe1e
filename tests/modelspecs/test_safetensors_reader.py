"""Headers of single safetensors files: the same as the reference implementation reads, and clear refusals."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.stored import json_scan, safetensors_file
from perfmodel.modelspecs.stored.tensor import Sum, by_dtype

safetensors = pytest.importorskip("safetensors", reason="the reference implementation of safetensors is not installed")
torch = pytest.importorskip("torch")


def packed(header: object, data: bytes = b"") -> bytes:
    """A file: header length, header, data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def read(data: bytes, folder: Path) -> Any:
    path = folder / "model.safetensors"
    path.write_bytes(data)
    return safetensors_file.read(path)


def reference(data: bytes) -> dict[str, tuple[str, list[int], int]]:
    """What the reference implementation reads: type, shape and bytes by name."""
    return {name: (info["dtype"], info["shape"], len(info["data"])) for name, info in safetensors.deserialize(data)}


TORCH_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "C64": "complex64",
}  # fmt: skip


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_every_type_that_torch_saves(dtype: str, tmp_path: Path) -> None:
    """A tensor saved by the reference implementation is read back with its type, shape and bytes."""
    from safetensors.torch import save_file

    tensor = torch.zeros(3, 5, dtype=getattr(torch, TORCH_TYPES[dtype]))
    save_file({"w": tensor}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    (stored,), metadata = safetensors_file.read(tmp_path / "x.safetensors")
    assert (stored.name, stored.dtype, stored.shape, stored.elements) == ("w", dtype, (3, 5), 15)
    assert stored.bytes == tensor.numel() * tensor.element_size() == 15 * safetensors_file.BITS[dtype] // 8
    assert metadata == {"format": "pt"}


@pytest.mark.parametrize("dtype", sorted(safetensors_file.BITS))
def test_every_type_is_one_of_the_reference(dtype: str, tmp_path: Path) -> None:
    """Eight elements of every type take as many bytes as the reference implementation wants, and no other number."""
    size = safetensors_file.BITS[dtype]  # eight elements: bits each = bytes together
    data = packed({"w": entry(dtype, [2, 4], 0, size)}, bytes(size))
    (stored,), _ = read(data, tmp_path)
    assert reference(data) == {"w": (dtype, [2, 4], size)}
    assert stored.bytes == size
    wrong = packed({"w": entry(dtype, [2, 4], 0, size + 1)}, bytes(size + 1))
    with pytest.raises(safetensors.SafetensorError):
        reference(wrong)
    with pytest.raises(SpecError, match=rf"w: takes {size + 1} bytes, and {dtype} \[2, 4\] needs {size}"):
        read(wrong, tmp_path)


names = st.text(min_size=0, max_size=12).filter(lambda s: s != "__metadata__" and s.isprintable())
shapes = st.lists(st.integers(0, 4), max_size=4)
kinds = st.sampled_from(["float64", "float32", "float16", "int64", "int32", "uint8", "bool"])


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(names, st.tuples(kinds, shapes), max_size=6),
    st.dictionaries(names, st.text(max_size=20), max_size=3),
)
def test_same_as_the_reference(tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str]) -> None:
    """Whatever the reference implementation writes is read as the reference implementation reads it, metadata too."""
    from safetensors.numpy import save

    data = save({name: np.zeros(shape, kind) for name, (kind, shape) in tensors.items()}, metadata or None)
    with tempfile.TemporaryDirectory() as folder:
        stored, found = read(data, Path(folder))
    assert {t.name: (t.dtype, list(t.shape), t.bytes) for t in stored} == reference(data)
    assert found == metadata


def test_totals_by_type(tmp_path: Path) -> None:
    """Tensors, elements and bytes of each type add up, the largest type first."""
    header = {"a": entry("F32", [4], 0, 16), "b": entry("F16", [3], 16, 22), "c": entry("F32", [1], 22, 26)}
    stored, _ = read(packed(header, bytes(26)), tmp_path)
    assert by_dtype(stored) == {"F32": Sum(2, 5, 20), "F16": Sum(1, 3, 6)}
    assert list(by_dtype(stored)) == ["F32", "F16"]


@pytest.mark.parametrize(
    "text",
    [
        b'{"w":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}',
        b'{ "w" : { "dtype" : "F32" , "shape" : [ 2 ] , "data_offsets" : [ 0 , 8 ] } }  \n\t ',
        rb'{"\u0077":{"dtype":"F\u00332","shape":[2],"data_offsets":[0,8]}}',
        b'{"__metadata__":{},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    ],
)
def test_other_ways_to_write_the_same_header(text: bytes, tmp_path: Path) -> None:
    """Other orders, spaces and escapes mean the same, here and in the reference implementation."""
    data = packed(text, bytes(8))
    (stored,), _ = read(data, tmp_path)
    assert (stored.name, stored.dtype, stored.shape, stored.bytes) == ("w", "F32", (2,), 8)
    assert reference(data) == {"w": ("F32", [2], 8)}


W = entry("F32", [2], 0, 8)
REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes; a safetensors file begins with 8 bytes"),
    "short": (b"1234567", "7 bytes; a safetensors file begins with 8 bytes"),
    "header too long": (struct.pack("<Q", 100_000_001), "100,000,001 bytes; at most 100,000,000"),
    "header of 2^64": (b"\xff" * 8 + b"{}", "18,446,744,073,709,551,615 bytes; at most"),
    "header cut off": (packed({"w": W})[:-5], "is cut off: a header of"),
    "no JSON": (packed(b"hello world"), "'h' at byte 0 of its JSON, where '{' belongs"),
    "empty header": (packed(b""), "the end at byte 0 of its JSON"),
    "list": (packed([1, 2]), "where '{' belongs"),
    "not closed": (packed(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}', bytes(8)), "the end at byte"),
    "more after it": (packed(b"{}{}"), "has 2 bytes after the last brace"),
    "not UTF-8": (packed(b'{"\xff":{}}'), "not UTF-8"),
    "lone surrogate": (packed(rb'{"\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "not UTF-8"),
    "control character": (packed(b'{"a\x00":{}}'), "no string at byte 1"),
    "duplicate": (packed(b'{"w":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"w":{}}', b"0"), "w: appears twice"),
    "duplicate metadata": (packed(b'{"__metadata__":{},"__metadata__":{}}'), "__metadata__: appears twice"),
    "duplicate field": (packed(b'{"w":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}', b"0"),
     "a key appears twice"),
    "metadata no text": (packed({"__metadata__": {"a": 1}}), "__metadata__.a: is not a string"),
    "unknown type": (packed({"w": entry("F128", [2], 0, 32)}, bytes(32)),
     "w: has the dtype 'F128', which is not known"),
    "unknown key": (packed({"w": {**W, "strides": [1]}}, bytes(8)), "w: must be a mapping with dtype, shape"),
    "missing key": (packed({"w": {"dtype": "F32", "shape": [2]}}, bytes(8)), "w: must be a mapping with dtype, shape"),
    "no mapping": (packed({"w": None}), "w: must be a mapping with dtype, shape"),
    "negative offset": (packed({"w": entry("F32", [2], -8, 0)}, bytes(8)),
     "w: has data_offsets that are not a list of whole"),
    "three offsets": (packed({"w": {**W, "data_offsets": [0, 8, 8]}}, bytes(8)), "w: has 3 data_offsets"),
    "fractions": (packed({"w": {**W, "shape": [2.0]}}, bytes(8)), "w: has shape that are not a list of whole"),
    "truth": (packed({"w": {**W, "shape": [True, 2]}}, bytes(8)), "w: has shape that are not a list of whole"),
    "NaN": (packed(b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', bytes(8)),
     "NaN is not a number that JSON has"),
    "infinity": (packed(b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,8]}}', bytes(8)),
     "w: has shape that are"),
    "leading zero": (packed(b'{"w":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}', bytes(8)),
     "w: is not a valid value"),
    "deep": (packed(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "w: is not a valid value within 4096 bytes"),
    "long shape": (packed(b'{"w":{"dtype":"F32","shape":[' + b"1," * 40 + b'1],"data_offsets":[0,4]}}', bytes(4)),
     "41 dimensions"),
    "overflow": (packed({"w": entry("F32", [2**40, 2**40], 0, 8)}, bytes(8)), "larger than any file"),
    "overflow of one": (packed({"w": entry("F32", [2**63], 0, 8)}, bytes(8)), "larger than any file"),
    "half a byte": (packed({"w": entry("F4", [3], 0, 2)}, bytes(2)),
     "w: takes 12 bits, which is no whole number of bytes"),
    "overlap": (
        packed({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
        "b: overlaps the tensor before it: its data begin at 4, and 8",
    ),
    "all the same place": (packed({f"w{i}": W for i in range(10)}, bytes(8)), "overlaps the tensor before it"),
    "gap": (packed({"a": W, "b": entry("F32", [2], 16, 24)}, bytes(24)),
     "b: leaves a gap: its data begin at 16, and 8"),
    "begin after end": (packed({"w": entry("F32", [2], 8, 0)}, bytes(8)), "w: leaves a gap"),
    "size": (packed({"w": entry("F32", [3], 0, 8)}, bytes(8)), r"w: takes 8 bytes, and F32 \[3\] needs 12"),
    "data cut off": (packed({"w": W}, bytes(7)), "is cut off: its tensors take 8 bytes, and 7 follow the header"),
    "data without owner": (packed({"w": W}, bytes(9)), "has data that no tensor owns"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_files_are_refused(case: str, tmp_path: Path) -> None:
    """Each fault is named, with the tensor; and the file is the first word of the message."""
    data, message = REFUSED[case]
    with pytest.raises(SpecError, match=message) as caught:
        read(data, tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "model.safetensors"))
    assert len(str(caught.value)) < 3000


def test_not_a_file(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe and an impossible name are refused without waiting."""
    import os

    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    cases = {"missing": "No such file", "pipe": "not a regular file", "folder": "not a regular file", "a\x00b": "null"}
    for name, message in cases.items():
        with pytest.raises(SpecError, match=message):
            safetensors_file.read(tmp_path / f"{name}.safetensors")


def test_a_mapping_of_too_many_keys_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header with more tensors than any checkpoint has is refused (with a smaller bound, to be quick)."""
    monkeypatch.setattr(json_scan, "MOST_KEYS", 100)
    header = {f"w{i}": entry("U8", [], i, i + 1) for i in range(101)}
    with pytest.raises(SpecError, match="a mapping of more than 100 keys"):
        read(packed(header, bytes(101)), tmp_path)
