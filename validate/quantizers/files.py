"""Matrices of safetensors files, some rows at a time: what is read is bounded whatever the file's size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs.stored.safetensors_file import read, read_folder
from perfmodel.modelspecs.stored.tensor import StoredTensor, opened

#: Floats that are read as they are. Packed integers (``I32``, ``U8``) are already quantized.
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
#: Bytes of float32 that are worked on at a time, but for at least 128 rows.
BLOCK_BYTES = 16 * 2**20
#: Rows come in multiples of this, so that blocks of 128 x 128 stay whole.
ROWS = 128
#: Tables that are looked up, not multiplied; recipes leave them alone.
TABLES = re.compile(r"embed|\bwte\b|\bwpe\b|token_type|rotary|position", re.IGNORECASE)


@dataclass(frozen=True)
class Matrix:
    """A stored matrix ``(out, in)``; further dimensions (experts) are rows.

    Attributes
    ----------
    name : str
    path : Path
        Of the file.
    dtype : str
        As the file names it.
    shape : tuple[int, ...]
    offset : int
        Where its data begin. [bytes]
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def rows(self) -> int:
        """Outputs, of all experts."""
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Inputs."""
        return self.shape[-1]

    @property
    def elements(self) -> int:
        """Number of weights."""
        return self.rows * self.columns

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Rows as float32.

        Raises
        ------
        SpecError
            When the file became shorter, or a weight is not finite.
        """
        dtype = DTYPES[self.dtype]
        width = self.columns * dtype.itemsize
        with opened(self.path) as (stream, _):
            stream.seek(self.offset + start * width)
            data = bytearray(stream.read((stop - start) * width))
        if len(data) < (stop - start) * width:
            raise SpecError(self.path, self.name, "became shorter while it was read")
        found = torch.frombuffer(data, dtype=dtype).reshape(stop - start, self.columns).to(torch.float32)
        if not bool(torch.isfinite(found).all()):
            raise SpecError(self.path, self.name, "has values that are not finite")
        return found

    def blocks(self) -> Iterator[torch.Tensor]:
        """All rows, a bounded number at a time."""
        step = max(BLOCK_BYTES // (4 * self.columns) // ROWS * ROWS, ROWS)
        for start in range(0, self.rows, step):
            yield self.read(start, min(start + step, self.rows))


@dataclass(frozen=True)
class Stored:
    """Matrices of a file or folder, and the elements and bytes of what is none.

    Attributes
    ----------
    matrices : tuple[Matrix, ...]
    others : tuple[StoredTensor, ...]
        Vectors, tables, and what is stored in a form that is not read.
    skipped : dict[str, int]
        Reason -> tensors.
    """

    matrices: tuple[Matrix, ...]
    others: tuple[StoredTensor, ...]
    skipped: dict[str, int]

    def find(self, name: str) -> Matrix | None:
        """The matrix of a name."""
        return next((m for m in self.matrices if m.name == name), None)

    def only(self, names: Iterable[str], reason: str) -> Stored:
        """What has one of the names; matrices that have not are counted under a reason."""
        kept = set(names)
        matrices = tuple(m for m in self.matrices if m.name in kept)
        left = len(self.matrices) - len(matrices)
        return Stored(
            matrices, tuple(t for t in self.others if t.name in kept),
            self.skipped | ({reason: left} if left else {}),
        )  # fmt: skip


def stored(path: Path | str, tables: bool = False) -> Stored:
    """Read the headers of a ``.safetensors`` file, or of a folder of them.

    Parameters
    ----------
    tables : bool
        Whether tensors with the names of tables are matrices too, and vectors are rows of one: a file of activations.

    Raises
    ------
    SpecError
        As ``modelspecs.stored.safetensors_file.read``; nothing but headers is read.
    """
    place = Path(path)
    files = sorted({t.file for t in read_folder(place)[0]}) if place.is_dir() else [""]
    matrices: list[Matrix] = []
    others: list[StoredTensor] = []
    skipped: dict[str, int] = {}
    for file in files:
        full = place / file if file else place
        for t, offset in _placed(full):
            reason = _reason(t, tables)
            if reason:
                others.append(t)
                skipped[reason] = skipped.get(reason, 0) + 1
            else:
                matrices.append(Matrix(t.name, full, t.dtype, t.shape, offset))
    return Stored(tuple(matrices), tuple(others), skipped)


def _placed(path: Path) -> Iterator[tuple[StoredTensor, int]]:
    """Tensors with where their data begin: they cover the file without gaps, in this order."""
    found, _ = read(path)
    with opened(path) as (_, size):
        offset = size - sum(t.bytes for t in found)
    for t in found:
        yield t, offset
        offset += t.bytes


def _reason(t: StoredTensor, tables: bool) -> str:
    """Why a tensor is no matrix to quantize; empty where it is one."""
    if t.dtype not in DTYPES:
        return f"stored as {t.dtype}, which is no float that is read here"
    if t.elements == 0 or len(t.shape) < 2:
        return "vectors (norms, biases)"
    if not tables and TABLES.search(t.name):
        return "tables that are looked up (embeddings, positions)"
    return ""
