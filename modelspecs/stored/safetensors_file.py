"""Headers of safetensors files and folders: names, types, shapes and bytes of the tensors, without their data.

A file is eight bytes of header length, a header in JSON, and the data. Everything that the reference implementation
refuses is refused (https://github.com/huggingface/safetensors, ``safetensors/src/tensor.rs``): a header over 100 MB,
data that the tensors do not cover without gap or overlap, shapes that do not multiply to their bytes; and duplicate
names, too.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.stored.json_scan import SPACE, Scanner
from perfmodel.modelspecs.stored.tensor import MAX_FILES, StoredTensor, files_in, opened, unique

#: As in the reference implementation. [bytes]
MAX_HEADER = 100_000_000
MAX_RANK = 32
MAX_BITS = 2**63
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"

#: Bits an element. Source: ``Dtype::bitsize`` of the safetensors crate 0.8 (``safetensors/src/tensor.rs``).
BITS: dict[str, int] = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

_NUMBER = rb"(?:0|[1-9]\d{0,18})"
#: A tensor's description as the reference implementation writes it; one in another order is parsed the slow way.
_INFO = re.compile(
    rb'\{W"dtype"W:W"(\w{1,16})"W,W"shape"W:W\[W((?:NW(?:,WNW){0,31}+)?+)\]W,W"data_offsets"W:W\[W(N)W,W(N)W\]W\}'
    .replace(b"W", SPACE).replace(b"N", _NUMBER)
)  # fmt: skip

#: Type, shape, begin and end of the data.
Info = tuple[str, tuple[int, ...], int, int]


def read(path: Path) -> tuple[tuple[StoredTensor, ...], dict[str, str]]:
    """Read the header of one file.

    Returns
    -------
    tensors : tuple[StoredTensor, ...]
        In the order of their data.
    metadata : dict[str, str]
        The file's ``__metadata__``.

    Raises
    ------
    SpecError
        Naming the tensor and what is wrong with it.
    """
    with opened(path) as (stream, size):
        start = stream.read(8)
        if len(start) < 8:
            raise SpecError(path, "", f"{size} bytes; a safetensors file begins with 8 bytes of header length")
        (length,) = struct.unpack("<Q", start)
        if length > MAX_HEADER:
            raise SpecError(
                path, "", f"a header of {length:,} bytes; at most {MAX_HEADER:,}: is it a safetensors file?"
            )
        if 8 + length > size:
            raise SpecError(path, "", f"is cut off: a header of {length:,} bytes, and {size - 8:,} follow its length")
        header = stream.read(length)
    if len(header) < length:
        raise SpecError(path, "", "became shorter while it was read")
    found, metadata = _parse(Scanner(header, path))
    return _placed(path, found, size - 8 - length), metadata


def read_folder(folder: Path) -> tuple[tuple[StoredTensor, ...], dict[str, str], list[str]]:
    """Read the headers of a model's files.

    Which files: those that ``model.safetensors.index.json`` names; without one, ``model.safetensors``; without that,
    every ``*.safetensors`` of the folder.

    Returns
    -------
    tensors, metadata, notes
        ``notes`` say what the index leaves out.

    Raises
    ------
    SpecError
        When a file is missing or wrong, when two of them have the same tensor, or when one lacks a tensor that the
        index says it has.
    """
    weight_map = read_index(folder / INDEX) if (folder / INDEX).exists() else None
    if weight_map is not None:
        names = sorted(set(weight_map.values()))
    elif (folder / WHOLE).exists():
        names = [WHOLE]
    else:
        names = files_in(folder, ".safetensors")
    if not names:
        raise SpecError(folder, "", "has no .safetensors file")
    metadata: dict[str, str] = {}

    def headers() -> Iterator[StoredTensor]:
        for name in names:
            stored, more = read(folder / name)
            metadata.update(more)
            yield from stored

    tensors = unique(headers(), folder)
    return tensors, metadata, [] if weight_map is None else _compared(folder, weight_map, tensors)


def read_index(path: Path) -> dict[str, str]:
    """The map from tensor to file of an index; its files must lie beside it."""
    with opened(path) as (stream, size):
        if size > MAX_HEADER:
            raise SpecError(path, "", f"{size:,} bytes; an index has at most {MAX_HEADER:,}: is this the right file?")
        scan = Scanner(stream.read(MAX_HEADER), path)
    found: dict[str, str] = {}
    known: dict[str, str] = {}
    for key in scan.fields():
        if key != "weight_map":
            scan.value(key)
            continue
        for name in scan.fields():
            file = scan.text()
            if Path(file).name != file or not file.endswith(".safetensors"):
                scan.fail(name, f"is in {file[:80]!r}, which is not the name of a .safetensors file beside the index")
            found[name] = known.setdefault(file, file)
            if len(known) > MAX_FILES:
                scan.fail("weight_map", f"names more than {MAX_FILES:,} files")
    scan.end()
    if not found:
        scan.fail("weight_map", "is missing or empty")
    return found


def _compared(folder: Path, weight_map: dict[str, str], tensors: tuple[StoredTensor, ...]) -> list[str]:
    places = {t.name: t.file for t in tensors}
    for name, file in weight_map.items():
        if places.get(name) != file:
            where = f"is in {places[name]}" if name in places else "is in none of the files"
            raise SpecError(folder / INDEX, name, f"should be in {file} and {where}")
    extra = [name for name in places if name not in weight_map]
    shown = ", ".join(extra[:3]) + (", ..." if len(extra) > 3 else "")
    return [f"{len(extra)} stored tensors are not in {INDEX}: {shown}"] if extra else []


def _parse(scan: Scanner) -> tuple[dict[str, Info], dict[str, str]]:
    found: dict[str, Info] = {}
    metadata: dict[str, str] = {}
    for name in scan.fields():
        if name == "__metadata__":
            for key in scan.fields():
                if scan.peek() != b'"':
                    scan.fail(f"__metadata__.{key}", "is not a string; the format allows nothing else")
                metadata[key] = scan.text()
            continue
        found[name] = _info(scan, name)
    scan.end()
    return found, metadata


def _info(scan: Scanner, name: str) -> Info:
    scan.peek()
    match = _INFO.match(scan.data, scan.at)
    if match is None:
        return _checked(scan, name, scan.value(name))
    scan.at = match.end()
    shape = tuple(int(dim) for dim in match[2].split(b",")) if match[2] else ()
    return match[1].decode(), shape, int(match[3]), int(match[4])


def _checked(scan: Scanner, name: str, info: Any) -> Info:
    if not isinstance(info, dict) or set(info) != {"dtype", "shape", "data_offsets"}:
        scan.fail(name, "must be a mapping with dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(dtype, str):
        scan.fail(name, "has a dtype that is not a string")
    for key, value in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 2**64 for n in value):
            scan.fail(name, f"has {key} that are not a list of whole numbers from 0 to 2^64")
    if len(offsets) != 2:
        scan.fail(name, f"has {len(offsets)} data_offsets; begin and end belong there")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _placed(path: Path, found: dict[str, Info], data_bytes: int) -> tuple[StoredTensor, ...]:
    """Check type, size and place of every tensor: together they must cover the data without gap or overlap."""
    tensors, covered, file = [], 0, path.name
    for name, (dtype, shape, begin, end) in sorted(found.items(), key=lambda item: item[1][2:]):
        size = _bytes(path, name, dtype, shape)
        if begin != covered:
            kind = "overlaps the tensor before it" if begin < covered else "leaves a gap"
            raise SpecError(path, name, f"{kind}: its data begin at {begin:,}, and {covered:,} is where they belong")
        if end - begin != size:
            raise SpecError(path, name, f"takes {end - begin:,} bytes, and {dtype} {list(shape)} needs {size:,}")
        covered = end
        tensors.append(StoredTensor(name, dtype, shape, prod(shape), size, file))
    if covered != data_bytes:
        kind = "is cut off" if covered > data_bytes else "has data that no tensor owns"
        raise SpecError(path, "", f"{kind}: its tensors take {covered:,} bytes, and {data_bytes:,} follow the header")
    return tuple(tensors)


def _bytes(path: Path, name: str, dtype: str, shape: tuple[int, ...]) -> int:
    if dtype not in BITS:
        raise SpecError(path, name, f"has the dtype {dtype[:40]!r}, which is not known; one of {', '.join(BITS)}")
    if len(shape) > MAX_RANK:
        raise SpecError(path, name, f"has {len(shape)} dimensions; at most {MAX_RANK}")
    bits = prod(shape) * BITS[dtype]
    if bits >= MAX_BITS:
        raise SpecError(path, name, f"has the shape {list(shape)}: larger than any file")
    if bits % 8:
        raise SpecError(path, name, f"takes {bits} bits, which is no whole number of bytes")
    return bits // 8
