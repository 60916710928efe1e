"""Outputs that a kernel's public function allocates itself: poisoned, and between guard bands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from numeric import Guarded, guarded


@contextlib.contextmanager
def guarded_allocations() -> Iterator[list[Guarded]]:
    """Within it torch.empty and torch.empty_like give tensors full of NaN (integers: 0x7f7f...), between guard bands.

    On leaving, fails if anything was allocated on the way and written outside. Intermediate results are guarded too.
    """
    made: list[Guarded] = []

    def empty(*size: Any, dtype: torch.dtype = torch.float32, device: Any = "cpu") -> torch.Tensor:
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        poison = torch.zeros(tuple(shape), dtype=dtype, device=device)
        poison.view(torch.uint8).fill_(0xFF if dtype.is_floating_point else 0x7F)
        made.append(guarded(poison))
        return made[-1].tensor

    def empty_like(x: torch.Tensor) -> torch.Tensor:
        return empty(x.shape, dtype=x.dtype, device=x.device)

    with mock.patch("torch.empty", empty), mock.patch("torch.empty_like", empty_like):
        yield made
    assert made, "nothing was allocated"
    for one in made:
        one.check()
