"""Headers of GGUF files, versions 2 and 3, of either byte order: metadata and tensors, without their data.

Layout: magic, version, number of tensors, number of key-value pairs, the pairs, the tensor infos, padding, data
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). What the reference reader refuses (``ggml/src/gguf.cpp`` of
https://github.com/ggml-org/llama.cpp) is refused: version 1, keys or tensors that come twice, arrays of arrays, an
alignment that is no power of two, rows that are no whole number of blocks, data that do not follow each other.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.gguf_types import ARRAY, BOOL, SCALARS, STRING, TYPES, WITHDRAWN
from perfmodel.modelspecs.stored.tensor import MAX_TENSORS, StoredTensor, opened, unique

#: Metadata and tensor infos: the largest vocabularies and chat templates take some 20 MB. [bytes]
MAX_HEADER = 256 * 2**20
MAX_PAIRS = 65_536
#: Strings in arrays, added up: tokens and merges of the largest vocabularies are under a million.
MAX_STRINGS = 4_000_000
MAX_NAME = 64
MAX_DIMS = 4
#: Longer strings and arrays are passed over: tokens, merges, chat templates.
KEPT_TEXT, KEPT_TEXTS, KEPT_ITEMS = 4096, 1024, 10_000
CHUNK = 2**20

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class Skipped:
    """A metadata value that was passed over: what it is, and how long."""

    kind: str
    length: int


@dataclass(frozen=True)
class Gguf:
    """The header of one GGUF model, all of its shards together.

    Attributes
    ----------
    version : int
    byte_order : str
        ``"little"`` or ``"big"``.
    metadata : dict
        Key -> number, text, boolean, list of those, or ``Skipped``; of the first shard.
    tensors : tuple[StoredTensor, ...]
        Shapes outermost dimension first.
    files : tuple[str, ...]
    """

    version: int
    byte_order: str
    metadata: dict[str, Any]
    tensors: tuple[StoredTensor, ...]
    files: tuple[str, ...]


def read(path: Path) -> Gguf:
    """Read a GGUF file, or all shards of the model of which it is one.

    Raises
    ------
    SpecError
        Naming the key or tensor and what is wrong with it, or the shard that is missing.
    """
    match = _SHARD.fullmatch(path.name)
    if match is None:
        with opened(path) as (stream, size):
            return _Reader(stream, size, path).run()
    count = int(match[3])
    if not 1 <= int(match[2]) <= count:
        raise SpecError(path, "", f"is called shard {int(match[2])} of {count}")
    return _joined([path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf") for number in range(1, count + 1)])


def stem(name: str) -> str:
    """Name of a GGUF model: the file's without the ending and the shard's number.

    >>> stem("Grok-100B-v1.0-Q4_0-00003-of-00009.gguf")
    'Grok-100B-v1.0-Q4_0'
    """
    match = _SHARD.fullmatch(name)
    return match[1] if match else name.removesuffix(".gguf")


def _joined(paths: list[Path]) -> Gguf:
    shards = []
    for number, path in enumerate(paths):
        if not path.exists():
            raise SpecError(path, "", f"is missing: the model has {len(paths)} shards, and all of them are needed")
        with opened(path) as (stream, size):
            shard = _Reader(stream, size, path).run()
        for key, expected in (("split.no", number), ("split.count", len(paths))):
            if shard.metadata.get(key) != expected:
                raise SpecError(path, key, f"is {shard.metadata.get(key)!r}; the name of the file says {expected}")
        shards.append(shard)
    first = shards[0]
    tensors = unique((t for shard in shards for t in shard.tensors), paths[0])
    total = first.metadata.get("split.tensors.count")
    if total != len(tensors):
        raise SpecError(
            paths[0], "split.tensors.count", f"is {total!r}, and the {len(paths)} shards have {len(tensors)}"
        )
    return Gguf(first.version, first.byte_order, first.metadata, tensors, tuple(path.name for path in paths))


class _Reader:
    """Reads a header from left to right through a buffer that grows with it, never past its bound."""

    def __init__(self, stream: BinaryIO, size: int, path: Path) -> None:
        self.stream, self.size, self.path = stream, size, path
        self.buffer, self.at, self.order = bytearray(), 0, "<"  # grown in place
        self.strings = 0

    def run(self) -> Gguf:
        version = self._version()
        count, pairs = self._number("Q"), self._number("Q")
        # bounded before any is read: a pair takes at least 14 bytes (length, letter, type, byte), a tensor info 24
        for what, number, least, most in (("pairs", pairs, 14, MAX_PAIRS), ("tensors", count, 24, MAX_TENSORS)):
            if number > most or number * least > self.size:
                self._fail("", f"says it has {number:,} {what}; at most {most:,}, and the file has {self.size:,} bytes")
        metadata = self._metadata(pairs)
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            self._fail("general.alignment", f"{alignment!r} is not a power of two")
        tensors = tuple(self._tensors(count, alignment))
        order = "big" if self.order == ">" else "little"
        return Gguf(version, order, metadata, tensors, (self.path.name,))

    def _fail(self, key: str, problem: str) -> NoReturn:
        raise SpecError(self.path, key, problem)

    def _need(self, count: int, key: str = "") -> int:
        """Make ``count`` bytes available and step over them; where they begin."""
        begin, end = self.at, self.at + count
        if end > len(self.buffer):
            if end > self.size:
                self._fail(key, f"is cut off: {end:,} bytes are needed here, and the file has {self.size:,}")
            if end > MAX_HEADER:
                self._fail(key, f"has a header of more than {MAX_HEADER:,} bytes: is this the right file?")
            self.buffer += self.stream.read(max(end - len(self.buffer), CHUNK, len(self.buffer)))
            if end > len(self.buffer):
                self._fail(key, "became shorter while it was read")
        self.at = end
        return begin

    def _number(self, code: str, key: str = "") -> Any:
        (found,) = struct.unpack_from(self.order + code, self.buffer, self._need(struct.calcsize(code), key))
        return found

    def _version(self) -> int:
        begin = self._need(4)
        if self.buffer[begin : begin + 4] != b"GGUF":
            self._fail("", f"is not a GGUF file: it begins with {bytes(self.buffer[:4])!r}")
        version = self._number("I")
        if version and not version & 0xFFFF:  # as in the reference reader: the other byte order
            self.order, self.at = ">", 4
            version = self._number("I")
        if version not in (2, 3):
            advice = "convert it with a current llama.cpp" if version == 1 else "2 and 3 are read"
            self._fail("", f"is of GGUF version {version}; {advice}")
        return int(version)

    def _text(self, key: str, most: int) -> str:
        length = self._number("Q", key)
        if length > most:
            self._fail(key, f"is a text of {length:,} bytes; at most {most:,}")
        return self._decoded(key, self._need(length, key))

    def _decoded(self, key: str, begin: int) -> str:
        try:
            return self.buffer[begin : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise SpecError(self.path, key, "is not UTF-8 text") from error

    def _metadata(self, pairs: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for index in range(pairs):
            key = self._text(f"key {index}", 65_535)
            if not key:
                self._fail(f"key {index}", "is empty")
            if key in found:
                self._fail(key, "appears twice")
            found[key] = self._value(key, self._number("I", key))
        return found

    def _value(self, key: str, kind: int) -> Any:
        if kind == ARRAY:
            return self._array(key)
        if kind == STRING:
            length = self._number("Q", key)
            begin = self._need(length, key)
            return self._decoded(key, begin) if length <= KEPT_TEXT else Skipped("text", length)
        if kind not in SCALARS:
            self._fail(key, f"has the value type {kind}, which is not known")
        return self._scalar(key, kind, self._number(SCALARS[kind][1], key))

    def _scalar(self, key: str, kind: int, value: Any) -> Any:
        if kind != BOOL:
            return value
        if value not in (0, 1):
            self._fail(key, f"is a boolean with the value {value}")
        return bool(value)

    def _array(self, key: str) -> Any:
        kind, length = self._number("I", key), self._number("Q", key)
        if kind == STRING:
            return self._strings(key, length)
        if kind not in SCALARS:
            what = "arrays, which no reader takes" if kind == ARRAY else f"the type {kind}, which is not known"
            self._fail(key, f"is an array of {what}")
        name, code = SCALARS[kind]
        begin = self._need(length * struct.calcsize(code), key)
        if length > KEPT_ITEMS:
            return Skipped(f"array of {name}", length)
        values = struct.unpack_from(f"{self.order}{length}{code}", self.buffer, begin)
        return [self._scalar(key, kind, value) for value in values]

    def _strings(self, key: str, length: int) -> Any:
        self.strings += length
        if self.strings > MAX_STRINGS or length * 8 > self.size:
            self._fail(
                key, f"is an array of {length:,} texts; at most {MAX_STRINGS:,} in a file of {self.size:,} bytes"
            )
        if length <= KEPT_TEXTS:
            return [self._value(key, STRING) for _ in range(length)]
        unpack, code = struct.unpack_from, self.order + "Q"
        for _ in range(length):  # passed over: only the lengths are read
            (size,) = unpack(code, self.buffer, self._need(8, key))
            self._need(size, key)
        return Skipped("array of text", length)

    def _tensors(self, count: int, alignment: int) -> Iterator[StoredTensor]:
        infos, seen = [], set()
        for index in range(count):
            name = self._text(f"tensor {index}", MAX_NAME)
            if name in seen:
                self._fail(name, "appears twice")
            seen.add(name)
            infos.append((name, *self._info(name)))
        begin, expected = -(-self.at // alignment) * alignment, 0
        for name, dtype, shape, size, offset in infos:
            if offset != expected:
                self._fail(
                    name, f"has its data at {offset:,}, and {expected:,} is where they belong (aligned to {alignment})"
                )
            if begin + offset + size > self.size:
                self._fail(
                    name, f"is cut off: its data end at {begin + offset + size:,}, and the file has {self.size:,} bytes"
                )
            expected += -(-size // alignment) * alignment
            yield StoredTensor(name, dtype, shape, prod(shape), size, self.path.name)

    def _info(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        rank = self._number("I", name)
        if rank > MAX_DIMS:
            self._fail(name, f"has {rank:,} dimensions; at most {MAX_DIMS}")
        dims = struct.unpack_from(f"{self.order}{rank}Q", self.buffer, self._need(8 * rank, name))
        number, offset = self._number("I", name), self._number("Q", name)
        if prod(dims) >= 2**63:
            self._fail(name, f"has the dimensions {list(dims)}: larger than any file")
        kind = TYPES.get(number)
        if kind is None:
            known = f"is stored as {WITHDRAWN[number]}, which ggml has withdrawn" if number in WITHDRAWN else ""
            self._fail(name, known or f"has the type {number}, which is not known")
        row = dims[0] if dims else 1
        if row % kind.block:
            self._fail(
                name, f"has rows of {row:,} elements, which {kind.name} cannot store: its blocks are {kind.block}"
            )
        return kind.name, dims[::-1], prod(dims) // kind.block * kind.block_bytes, offset
