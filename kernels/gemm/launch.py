"""Which way a product is computed: the configuration for its shape, then TMA or pointers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton.language as tl

from perfmodel.kernels.checks import check_apart, check_range, check_tensor, require
from perfmodel.kernels.device import target
from perfmodel.kernels.table import Config, check_given, select

from .geometry import CONFIG_LIMITS, fill_percent, tile_count, tma_takes
from .persistent import launch_persistent
from .pointer import launch_pointer
from .scales import NO_SCALES, Scales

LONGEST = 65535 * 128
"""Largest K and N: offsets within a tile, of up to 256 rows, are 32-bit (2^31 / 256 = 2^23); and a grid has at most
65535 programs in its second direction, in which the merging kernel walks along N by 128 or more."""

MOST_ROWS, MOST_TILES = 2**30, 2**30
"""Largest M, and most tiles of the result: both are counted in 32 bits, past the last tile and row."""


def check_operands(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    dtypes: Sequence[torch.dtype],
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Check a [M, K], b [N, K] and out [M, N] (the type of a, or `out_dtype`); returns `out`, made if it was None.

    M is at most MOST_ROWS, K and N are at most LONGEST; M and N may be 0.
    Raises KernelInputError.
    """
    check_tensor("a", a, (None, None), dtypes)
    m, k = a.shape
    check_range("M", m, 0, MOST_ROWS)
    check_range("K", k, 1, LONGEST)
    check_tensor("b", b, (None, k), [a.dtype], like=a)
    n = b.shape[0]
    check_range("N", n, 0, LONGEST)
    out_dtype = out_dtype or a.dtype
    if out is None:
        return torch.empty((m, n), dtype=out_dtype, device=a.device)
    check_tensor("out", out, (m, n), [out_dtype], like=a)
    check_apart("out", out, {"a": a, "b": b})
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
    `more`. KernelInputError if the configuration given makes no sense or needs TMA where it cannot be had, and if the
    result has more than MOST_TILES tiles.
    """
    tma = tma_takes(a, b, out)
    m, n = out.shape
    if config is None:
        fill = fill_percent(m, n, *tile, target(a).sm_count)
        align = math.gcd(a.shape[1] * a.element_size(), 16)
        config = select(kernel, a, m=m, align=align, tma=int(tma), fill=fill, **more)
    else:
        check_given(kernel, config, limits=CONFIG_LIMITS)
        require(
            tma or not config.meta.get("tma"),
            f"the configuration loads by TMA, which needs sm_90 or later and rows of a multiple of 16 bytes; "
            f"K is {a.shape[1]}, N {b.shape[0]}",
        )
    tiles = tile_count(m, n, config)
    require(tiles <= MOST_TILES, f"the result has {tiles} tiles, at most {MOST_TILES} are supported; multiply in parts")
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
