"""Which way a product is computed: the configuration for its shape, then TMA or pointers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton.language as tl

from perfmodel.kernels.checks import check_range, check_tensor, require
from perfmodel.kernels.device import target
from perfmodel.kernels.table import Config, select

from .geometry import fill_percent, tma_takes
from .persistent import launch_persistent
from .pointer import launch_pointer
from .scales import NO_SCALES, Scales

LONGEST = 2**23
"""Largest K and N: offsets within a tile, of up to 256 rows, are 32-bit."""


def check_operands(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    dtypes: Sequence[torch.dtype],
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Check a [M, K], b [N, K] and out [M, N] (the type of a, or `out_dtype`); returns `out`, made if it was None.

    Raises KernelInputError.
    """
    check_tensor("a", a, (None, None), dtypes)
    m, k = a.shape
    check_range("K", k, 1, LONGEST)
    check_tensor("b", b, (None, k), [a.dtype], like=a)
    n = b.shape[0]
    check_range("N", n, 0, LONGEST)
    out_dtype = out_dtype or a.dtype
    if out is None:
        return torch.empty((m, n), dtype=out_dtype, device=a.device)
    check_tensor("out", out, (m, n), [out_dtype], like=a)
    return out


def choose(
    kernel: str,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    tile: tuple[int, int],
    config: Config | None,
    **more: int,
) -> Config:
    """The configuration: that given, or the table's.

    The table is asked by `m`; `align`, the bytes that rows of a and b are aligned to (16 at most); `tma`, whether TMA
    takes the operands; `fill`, how many tiles of `tile` rows and columns there are for every 100 multiprocessors; and
    `more`. KernelInputError if the configuration given needs TMA where it cannot be had.
    """
    tma = tma_takes(a, b, out)
    if config is None:
        m, n = out.shape
        fill = fill_percent(m, n, *tile, target(a).sm_count)
        align = math.gcd(a.shape[1] * a.element_size(), 16)
        return select(kernel, a, m=m, align=align, tma=int(tma), fill=fill, **more)
    require(
        tma or not config.meta.get("tma"),
        f"the configuration loads by TMA, which needs sm_90 or later and rows of a multiple of 16 bytes; "
        f"K is {a.shape[1]}, N {b.shape[0]}",
    )
    return config


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    config: Config,
    *,
    scales: Scales = NO_SCALES,
    acc: tl.dtype = tl.float32,
) -> torch.Tensor:
    """Write (a b^T) row_scale column_scale to `out` and return it; nothing is launched for an empty result."""
    if out.numel():
        way = launch_persistent if config.meta.get("tma") else launch_pointer
        way(a, b, out, scales, acc, config)
    return out
