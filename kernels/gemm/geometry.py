"""How a product is divided: output tiles over multiprocessors, K over programs; what TMA can take."""

from __future__ import annotations

import math

import torch

from perfmodel.kernels.device import has_tma, target
from perfmodel.kernels.table import Config

FILL_TILES = 1.0
"""What starting a program costs, in K tiles: the first load of its pipeline is waited for."""

MERGE_TILES = 2.0
"""What the launch of the merging kernel costs, in K tiles (a tile takes a slot about 1 us, a graph node about 2)."""

MOST_SPLITS, MOST_PARTIAL = 32, 64 * 2**20
"""Limits of the parts of K: how many, and the bytes of all their partial results."""


def constants(config: Config, **defaults: int | bool) -> dict[str, int | str | bool]:
    """What a launch passes by keyword: the configuration's compile-time constants (upper case), warps and stages."""
    named = {**defaults, **config.meta}
    upper = {name: value for name, value in named.items() if name.isupper()}
    return {**upper, "num_warps": config.num_warps, "num_stages": config.num_stages}


CONFIG_LIMITS = {
    **{f"BLOCK_{axis}": (16, 256) for axis in "MNK"}, "GROUP_M": (1, 1024), "splits": (0, MOST_SPLITS),
    "per_sm": (1, 32),
}  # fmt: skip
"""Limits of a configuration that is given by hand (`table.check_given`)."""


def ceil_div(a: int, b: int) -> int:
    """The quotient rounded up."""
    return -(-a // b)


def fill_percent(m: int, n: int, block_m: int, block_n: int, sm_count: int) -> int:
    """Output tiles of block_m x block_n for every 100 multiprocessors: below 100 some have nothing to do."""
    return 100 * ceil_div(m, block_m) * ceil_div(n, block_n) // sm_count


def tma_takes(*tensors: torch.Tensor) -> bool:
    """Whether TMA can load and store these contiguous matrices: rows of a multiple of 16 bytes, on sm_90 or later."""
    return has_tma(tensors[0]) and all(t.shape[-1] * t.element_size() % 16 == 0 for t in tensors)


def alignment(k: int) -> int:
    """The largest power of two up to 16 that divides K: where it is 16 bytes or more, loads are as wide as they get."""
    return math.gcd(k, 16)


def tile_count(m: int, n: int, config: Config) -> int:
    """Tiles of the result [M, N]."""
    return ceil_div(m, int(config.meta["BLOCK_M"])) * ceil_div(n, int(config.meta["BLOCK_N"]))


def persistent_grid(out: torch.Tensor, config: Config) -> tuple[int]:
    """Persistent programs that walk over the result: one a multiprocessor, no more than there are tiles."""
    m, n = out.shape
    return (min(target(out).sm_count, tile_count(m, n, config)),)


def split_count(tiles: int, k_tiles: int, slots: int, partial_tiles: float, most: int = MOST_SPLITS) -> int:
    """Into how many parts to split K: the cheapest count, the smallest of equals.

    tiles: output tiles. k_tiles: tiles along K. slots: programs that run at once. partial_tiles: bytes of a partial
    result over the bytes of the operands of one K tile. With s parts the cost in K tiles is

        waves (ceil(k_tiles / s) + FILL_TILES + w) + w s tiles / slots + m,    waves = ceil(tiles s / slots)

    where the partial results and their merging cost w = partial_tiles and m = MERGE_TILES, nothing for s = 1. No part
    is empty: only counts that ceil(k_tiles / parts) K tiles each produce are looked at.
    """

    def cost(s: int) -> float:
        write, merge = (partial_tiles, MERGE_TILES) if s > 1 else (0.0, 0.0)
        waves = ceil_div(tiles * s, slots)
        return waves * (ceil_div(k_tiles, s) + FILL_TILES + write) + write * s * tiles / slots + merge

    counts = sorted({ceil_div(k_tiles, ceil_div(k_tiles, s)) for s in range(1, min(most, k_tiles) + 1)})
    return min(counts, key=cost)


def per_split(m: int, n: int, k: int, element_size: int, sm_count: int, config: Config) -> int:
    """K tiles a split takes: by `splits` of the configuration if it names that, else as `split_count` has it.

    Only a configuration with `per_sm` (programs that fit on a multiprocessor at once) splits K of its own accord.
    """
    block_m, block_n, block_k = (int(config.meta[f"BLOCK_{axis}"]) for axis in "MNK")
    k_tiles = ceil_div(k, block_k)
    splits = int(config.meta.get("splits", 0))
    if not splits and "per_sm" in config.meta:
        tiles = tile_count(m, n, config)
        partial_tiles = block_m * block_n * 4 / ((block_m + block_n) * block_k * element_size)
        most = min(MOST_SPLITS, MOST_PARTIAL // max(1, 4 * m * n))
        splits = split_count(tiles, k_tiles, sm_count * int(config.meta["per_sm"]), partial_tiles, max(1, most))
    return ceil_div(k_tiles, max(1, min(splits, k_tiles)))
