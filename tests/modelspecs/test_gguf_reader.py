"""Headers of GGUF files: the same as the `gguf` package writes, of both byte orders, and clear refusals."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.stored import gguf as reader
from perfmodel.modelspecs.stored.gguf import Skipped

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")

LITTLE, BIG = gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG


def write(path: Path, order: Any = LITTLE, alignment: int | None = None, **split: int) -> Path:
    """A file with every kind of metadata value and a few tensors, by the `gguf` package."""
    w = gguf.GGUFWriter(path, "llama", endianess=order, **split)
    w.add_uint8("a.uint8", 200)
    w.add_int8("a.int8", -100)
    w.add_uint16("a.uint16", 60_000)
    w.add_int16("a.int16", -30_000)
    w.add_uint32("a.uint32", 4_000_000_000)
    w.add_int32("a.int32", -2_000_000_000)
    w.add_float32("a.float32", 0.5)
    w.add_uint64("a.uint64", 2**63 + 1)
    w.add_int64("a.int64", -(2**62))
    w.add_float64("a.float64", 1e300)
    w.add_bool("a.bool", True)
    w.add_string("a.text", "Grüße, 世界")
    w.add_string("a.template", "x" * 5000)
    w.add_array("a.numbers", [1, 2, -3])
    w.add_array("a.flags", [True, False])
    w.add_array("a.words", ["one", "zwei", ""])
    w.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(2000)])
    w.add_array("tokenizer.ggml.scores", [0.5] * 20_000)
    if alignment:
        w.add_custom_alignment(alignment)
    w.add_tensor("token_embd.weight", np.zeros((10, 64), np.float16))
    w.add_tensor("vector", np.zeros(7, np.float32))
    w.add_tensor("cube", np.zeros((2, 3, 4), np.int32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


VALUES = {
    "general.architecture": "llama", "a.uint8": 200, "a.int8": -100, "a.uint16": 60_000, "a.int16": -30_000,
    "a.uint32": 4_000_000_000, "a.int32": -2_000_000_000, "a.float32": 0.5, "a.uint64": 2**63 + 1, "a.int64": -(2**62),
    "a.float64": 1e300, "a.bool": True, "a.text": "Grüße, 世界", "a.template": Skipped("text", 5000),
    "a.numbers": [1, 2, -3], "a.flags": [True, False], "a.words": ["one", "zwei", ""],
    "tokenizer.ggml.tokens": Skipped("array of text", 2000),
    "tokenizer.ggml.scores": Skipped("array of float32", 20_000),
}  # fmt: skip


@pytest.mark.parametrize(("order", "word"), [(LITTLE, "little"), (BIG, "big")])
def test_same_as_the_gguf_package_writes(order: Any, word: str, tmp_path: Path) -> None:
    """All kinds of values and tensors written by the `gguf` package are read back, in both byte orders."""
    found = reader.read(write(tmp_path / "x.gguf", order))
    assert (found.version, found.byte_order, found.files) == (3, word, ("x.gguf",))
    assert found.metadata == VALUES
    assert [(t.name, t.dtype, t.shape, t.elements, t.bytes) for t in found.tensors] == [
        ("token_embd.weight", "F16", (10, 64), 640, 1280),
        ("vector", "F32", (7,), 7, 28),
        ("cube", "I32", (2, 3, 4), 24, 96),
    ]


def test_version_2_is_the_same_layout(tmp_path: Path) -> None:
    """Version 2 differs from 3 in its number alone, and is read."""
    path = write(tmp_path / "x.gguf")
    path.write_bytes(b"GGUF\x02" + path.read_bytes()[5:])
    assert reader.read(path).version == 2
    assert reader.read(path).metadata == VALUES


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment(alignment: int, tmp_path: Path) -> None:
    """A file's own alignment places its tensors, as the `gguf` package reads it too."""
    path = write(tmp_path / "x.gguf", alignment=alignment)
    assert reader.read(path).metadata["general.alignment"] == alignment
    theirs = gguf.GGUFReader(path)
    assert [t.bytes for t in reader.read(path).tensors] == [int(t.n_bytes) for t in theirs.tensors]


@pytest.mark.parametrize("kind", [kind.name for kind in gguf.GGMLQuantizationType])
def test_every_storage_type(kind: str, tmp_path: Path) -> None:
    """A tensor of every storage type has the shape and bytes that the `gguf` package gives it."""
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    w = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    w.add_tensor("w", np.zeros((3, 2 * size), np.uint8), raw_dtype=number)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    (stored,) = reader.read(tmp_path / "x.gguf").tensors
    (theirs,) = gguf.GGUFReader(tmp_path / "x.gguf").tensors
    assert (stored.dtype, stored.shape, stored.bytes) == (kind, (3, 2 * block), 6 * size)
    assert (stored.shape[::-1], stored.bytes) == (tuple(int(n) for n in theirs.shape), int(theirs.n_bytes))


def test_shards_are_one_model(tmp_path: Path) -> None:
    """Any shard stands for the whole model: metadata of the first, tensors of all; a missing one is named."""
    write(tmp_path / "m.gguf", split_max_tensors=1)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    for name in names:
        found = reader.read(tmp_path / name)
        assert found.files == tuple(names)
        assert [t.name for t in found.tensors] == ["token_embd.weight", "vector", "cube"]
        assert found.metadata["a.uint8"] == 200
    (tmp_path / names[1]).rename(tmp_path / "away")
    with pytest.raises(SpecError, match=r"m-00002-of-00003.gguf: is missing: the model has 3 shards"):
        reader.read(tmp_path / names[0])


def test_shards_that_do_not_belong_together(tmp_path: Path) -> None:
    """A shard under another number, a tensor in two of them and a wrong total are refused."""
    write(tmp_path / "m.gguf", split_max_tensors=2)
    first, second = sorted(tmp_path.iterdir())
    saved = second.read_bytes()
    second.write_bytes(first.read_bytes())
    with pytest.raises(SpecError, match=r"split.no: is 0; the name of the file says 1"):
        reader.read(first)
    second.write_bytes(
        saved.replace(b"\x04\x00\x00\x00\x00\x00\x00\x00cube", b"\x06\x00\x00\x00\x00\x00\x00\x00vector")
    )
    with pytest.raises(SpecError, match=r"vector: is stored twice: in m-00001-of-00002.gguf and in m-00002"):
        reader.read(first)
    second.write_bytes(saved)
    key = b"split.tensors.count" + struct.pack("<I", 5)
    first.write_bytes(first.read_bytes().replace(key + struct.pack("<i", 3), key + struct.pack("<i", 4)))
    with pytest.raises(SpecError, match=r"split.tensors.count: is 4, and the 2 shards have 3"):
        reader.read(first)
    first.rename(tmp_path / "m-00003-of-00002.gguf")
    with pytest.raises(SpecError, match="is called shard 3 of 2"):
        reader.read(tmp_path / "m-00003-of-00002.gguf")


def text(word: bytes) -> bytes:
    return struct.pack("<Q", len(word)) + word


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: bytes = b"w", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file(*parts: bytes, tensors: int = 0, pairs: int = 0, version: int = 3, data: int = 0) -> bytes:
    body = b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + b"".join(parts)
    return body + bytes(-len(body) % 32 + data) if tensors else body


NUMBER = pair(b"k", 4, struct.pack("<I", 1))
REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is cut off: 4 bytes are needed here, and the file has 0"),
    "other magic": (b"GGJT" + bytes(30), "is not a GGUF file: it begins with b'GGJT'"),
    "version 1": (b"GGUF" + struct.pack("<III", 1, 0, 0), "is of GGUF version 1; convert it"),
    "version 0": (file(version=0), "is of GGUF version 0; 2 and 3 are read"),
    "version 4": (file(version=4), "is of GGUF version 4; 2 and 3 are read"),
    "version 1 of the other order": (b"GGUF" + struct.pack(">I", 1) + bytes(16), "is of GGUF version 1; convert it"),
    "no counts": (b"GGUF\x03\x00\x00\x00", "is cut off: 16 bytes are needed"),
    "tensors": (file(tensors=2**60), "says it has 1,152,921,504,606,846,976 tensors; at most 500,000"),
    "negative tensors": (file(tensors=2**64 - 1), "tensors; at most 500,000"),
    "tensors beyond the file": (file(tensors=100_000),
     "says it has 100,000 tensors; at most 500,000, and the file has"),
    "pairs": (file(pairs=2**63), "pairs; at most 65,536"),
    "pairs beyond the file": (file(pairs=1000), "says it has 1,000 pairs"),
    "long key": (file(text(b"k" * 65_536), bytes(100_000), pairs=1),
     "key 0: is a text of 65,536 bytes; at most 65,535"),
    "key of 2^64": (file(struct.pack("<Q", 2**64 - 1), bytes(50), pairs=1),
     "key 0: is a text of 18,446,744,073,709,551,615"),
    "empty key": (file(pair(b"", 4, bytes(4)), bytes(9), pairs=1), "key 0: is empty"),
    "key not UTF-8": (file(pair(b"\xff", 4, bytes(4)), bytes(9), pairs=1), "key 0: is not UTF-8"),
    "duplicate key": (file(NUMBER, NUMBER, pairs=2), "k: appears twice"),
    "value type": (file(pair(b"k", 99, bytes(9)), pairs=1), "k: has the value type 99"),
    "boolean": (file(pair(b"k", 7, b"\x02"), pairs=1), "k: is a boolean with the value 2"),
    "text cut off": (file(pair(b"k", 8, struct.pack("<Q", 10**12)), pairs=1), "k: is cut off: 1,000,000,000,045 bytes"),
    "text not UTF-8": (file(pair(b"k", 8, text(b"\xff\xfe")), pairs=1), "k: is not UTF-8"),
    "array of arrays": (file(pair(b"k", 9, struct.pack("<IQ", 9, 1)), pairs=1), "k: is an array of arrays"),
    "array of unknown": (file(pair(b"k", 9, struct.pack("<IQ", 77, 1)), pairs=1), "k: is an array of the type 77"),
    "array cut off": (file(pair(b"k", 9, struct.pack("<IQ", 4, 10**15)), pairs=1), "k: is cut off"),
    "array of 2^64": (file(pair(b"k", 9, struct.pack("<IQ", 12, 2**64 - 1)), pairs=1), "k: is cut off"),
    "texts": (file(pair(b"k", 9, struct.pack("<IQ", 8, 10**9)), pairs=1),
     "k: is an array of 1,000,000,000 texts; at most"),
    "texts cut off": (file(pair(b"k", 9, struct.pack("<IQ", 8, 3) + bytes(16)), pairs=1), "k: is cut off"),
    "array of booleans": (file(pair(b"k", 9, struct.pack("<IQ", 7, 2) + b"\x01\x05"), pairs=1),
     "k: is a boolean with the"),
    "alignment 0": (file(pair(b"general.alignment", 4, bytes(4)), pairs=1),
     "general.alignment: 0 is not a power of two"),
    "alignment 3": (file(pair(b"general.alignment", 4, b"\x03\0\0\0"), pairs=1), "general.alignment: 3 is not a power"),
    "alignment text": (file(pair(b"general.alignment", 8, text(b"32")), pairs=1),
     "general.alignment: '32' is not a power"),
    "alignment huge": (
        file(pair(b"general.alignment", 4, struct.pack("<I", 2**31)), info(), tensors=1, pairs=1, data=128),
        "w: is cut off: its data end at 2,147,483,776",
    ),
    "tensor name": (file(info(b"n" * 65), tensors=1, data=128), "tensor 0: is a text of 65 bytes; at most 64"),
    "tensor twice": (file(info(), info(offset=128), tensors=2, data=256), "w: appears twice"),
    "dimensions": (file(info(dims=(1, 1, 1, 1, 1)), tensors=1, data=128), "w: has 5 dimensions; at most 4"),
    "dimensions of 2^32": (file(text(b"w") + b"\xff" * 20, tensors=1), "w: has 4,294,967,295 dimensions; at most 4"),
    "overflow": (file(info(dims=(2**32, 2**31)), tensors=1, data=128), "w: has the dimensions .* larger than any file"),
    "billions": (file(info(dims=(10**9, 10**3)), tensors=1, data=128),
     "w: is cut off: its data end at 4,000,000,000,0"),
    "type": (file(info(kind=1000), tensors=1, data=128), "w: has the type 1000, which is not known"),
    "withdrawn": (file(info(kind=31), tensors=1, data=128), "w: is stored as Q4_0_4_4, which ggml has withdrawn"),
    "row": (file(info(dims=(33,), kind=2), tensors=1, data=128), "w: has rows of 33 elements, which Q4_0 cannot store"),
    "scalar": (file(info(dims=(), kind=12), tensors=1, data=144), "w: has rows of 1 elements, which Q4_K cannot store"),
    "offset": (file(info(offset=32), tensors=1, data=256), "w: has its data at 32, and 0 is where they belong"),
    "overlap": (file(info(), info(b"v"), tensors=2, data=256), "v: has its data at 0, and 128 is where they belong"),
    "gap": (file(info(), info(b"v", offset=160), tensors=2, data=512), "v: has its data at 160, and 128 is where"),
    "unaligned": (file(info(dims=(7,)), info(b"v", offset=28), tensors=2, data=512),
     "v: has its data at 28, and 32 is"),
    "data cut off": (file(info(), tensors=1, data=127), "w: is cut off: its data end at"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_files_are_refused(case: str, tmp_path: Path) -> None:
    """Each fault is named, with the key or tensor; and the file is the first word of the message."""
    data, message = REFUSED[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(SpecError, match=message) as caught:
        reader.read(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 3000


def test_hand_made_files_are_right_but_for_their_fault(tmp_path: Path) -> None:
    """The pieces from which the wrong files are made give a file that both readers take."""
    path = tmp_path / "x.gguf"
    path.write_bytes(file(NUMBER, info(), info(b"v", (64, 2), 8, 128), tensors=2, pairs=1, data=128 + 2 * 68))
    ours, theirs = reader.read(path), gguf.GGUFReader(path)
    assert ours.metadata == {"k": 1}
    assert [(t.name, t.dtype, t.bytes) for t in ours.tensors] == [("w", "F32", 128), ("v", "Q8_0", 136)]
    assert [(t.name, t.tensor_type.name, int(t.n_bytes)) for t in theirs.tensors] == [
        ("w", "F32", 128),
        ("v", "Q8_0", 136),
    ]


def test_a_file_without_tensors(tmp_path: Path) -> None:
    """A vocabulary alone is a valid file: no tensors and no data."""
    path = tmp_path / "x.gguf"
    path.write_bytes(file(NUMBER, pairs=1))
    assert reader.read(path).tensors == ()


def test_headers_longer_than_one_read(tmp_path: Path) -> None:
    """A header of several megabytes is read through its bounds: values after it are right."""
    path = tmp_path / "x.gguf"
    words = text(b"w" * 100) * 40_000  # 4.3 MB of texts
    path.write_bytes(
        file(pair(b"words", 9, struct.pack("<IQ", 8, 40_000) + words), NUMBER, info(), tensors=1, pairs=2, data=128)
    )
    found = reader.read(path)
    assert found.metadata == {"words": Skipped("array of text", 40_000), "k": 1}
    assert found.tensors[0].bytes == 128
