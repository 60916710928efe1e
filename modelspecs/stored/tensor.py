"""Stored tensors: what the header of a weight file says of each, and how such a file is opened with care."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from perfmodel.base.errors import SpecError

#: More tensors than any checkpoint has: 10^12 parameters with a scale beside each expert's matrix are some 200,000.
MAX_TENSORS = 500_000
MAX_FILES = 10_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a file stores it.

    Attributes
    ----------
    name : str
        As in the file.
    dtype : str
        The format's own word: ``"BF16"``, ``"F8_E4M3"``, ``"Q4_K"``.
    shape : tuple[int, ...]
        Outermost dimension first: ``(out, in)`` of a matrix. GGUF stores the reverse.
    elements : int
        Product of the shape. Packed formats of safetensors (two nibbles in a ``U8``) count the stored words.
    bytes : int
        Of its data, padding apart.
    file : str
        Name of the file that holds it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    bytes: int
    file: str


@dataclass(frozen=True)
class Sum:
    """Tensors of one type added up."""

    tensors: int
    elements: int
    bytes: int


def by_dtype(tensors: Iterable[StoredTensor]) -> dict[str, Sum]:
    """Number of tensors, elements and bytes by storage type, the largest first."""
    found: dict[str, Sum] = {}
    for t in tensors:
        old = found.get(t.dtype, Sum(0, 0, 0))
        found[t.dtype] = Sum(old.tensors + 1, old.elements + t.elements, old.bytes + t.bytes)
    return dict(sorted(found.items(), key=lambda item: -item[1].bytes))


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file; yields the stream and its size. [bytes]

    Raises
    ------
    SpecError
        When it is missing, unreadable or not a regular file (a pipe has no size and may never end). Errors of reading
        within the block become one too.
    """
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise SpecError(path, "", f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not regular:
        raise SpecError(path, "", "is not a regular file")
    try:
        with path.open("rb") as stream:
            yield stream, os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise SpecError(path, "", f"cannot be read: {error.strerror or error}") from error


def unique(tensors: Iterable[StoredTensor], file: object) -> tuple[StoredTensor, ...]:
    """All the tensors of several files, refusing a name that two of them have."""
    seen: dict[str, str] = {}
    found: list[StoredTensor] = []
    for t in tensors:
        if t.name in seen:
            raise SpecError(file, t.name, f"is stored twice: in {seen[t.name]} and in {t.file}; remove one file")
        if len(found) >= MAX_TENSORS:
            raise SpecError(file, "", f"more than {MAX_TENSORS:,} tensors: is this the right folder?")
        seen[t.name] = t.file
        found.append(t)
    return tuple(found)


def files_in(folder: Path, suffix: str) -> list[str]:
    """Names of the regular files of a folder that end in ``suffix``, sorted; at most ``MAX_FILES``."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in entries if entry.name.endswith(suffix) and entry.is_file()]
    except OSError as error:
        raise SpecError(folder, "", f"cannot be read: {error.strerror or error}") from error
    if len(found) > MAX_FILES:
        raise SpecError(folder, "", f"has {len(found):,} {suffix} files; at most {MAX_FILES:,}")
    return sorted(found)
