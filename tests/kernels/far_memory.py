"""Memory of which only what is written takes room, and programs far from the first: for offsets past 2^31."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import pytest
import torch


def sparse(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros, of which only the pages that are written take room.

    2^31 elements lie before it: offsets that wrapped around in 32 bits end there, not in memory of others.
    """
    before = 2**31
    size = before + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 256
    no_reserve = 0x4000  # MAP_NORESERVE of Linux, which the module does not name
    memory = mmap.mmap(-1, size * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides, before)


def rows(count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """[count, width], packed, in such memory."""
    return sparse((count, width), (width, 1), dtype)


def far_programs(monkeypatch: pytest.MonkeyPatch, x: int = 0, y: int = 0, z: int = 0) -> None:
    """From now on the interpreter's programs are those that come x, y and z after the first of a larger grid."""
    from triton.runtime.interpreter import interpreter_builder as builder

    def place(i: int, j: int, k: int) -> None:
        builder.grid_idx = (i + x, j + y, k + z)

    monkeypatch.setattr(builder, "set_grid_idx", place)
