"""How many thread blocks of a kernel fit on a multiprocessor at once."""

from __future__ import annotations

from dataclasses import dataclass

REGISTERS = 65536
"""32-bit registers of a multiprocessor (CUDA programming guide, table of compute capabilities)."""
MOST_WARPS = {"sm_80": 64, "sm_86": 48, "sm_89": 48, "sm_90": 64, "sm_100": 64, "sm_120": 48}
MOST_BLOCKS = {"sm_80": 32, "sm_86": 16, "sm_89": 24, "sm_90": 32, "sm_100": 32, "sm_120": 24}
"""Resident warps and thread blocks of a multiprocessor (the same table)."""
SHARED = {
    arch: size * 1024
    for arch, size in {"sm_80": 164, "sm_86": 100, "sm_89": 100, "sm_90": 228, "sm_100": 228, "sm_120": 100}.items()
}
"""Bytes of shared memory of a multiprocessor (the same table)."""
RESERVED = 1024
"""Bytes of shared memory that the system keeps for each block (CUDA programming guide)."""
REGISTER_UNIT, SHARED_UNIT, PARTITIONS = 256, 128, 4
"""Registers are given to a warp, and bytes to a block, in these units; a warp lives in one of four partitions
(NVIDIA's occupancy calculator, compute capability 8.0 and later)."""


@dataclass(frozen=True)
class Occupancy:
    """Blocks that are resident on a multiprocessor, the share of its warps they hold, and what stops a further one."""

    blocks: int
    share: float
    limiter: str


def occupancy(arch: str, registers: int, shared: int, warps: int) -> Occupancy:
    """Resident blocks of a kernel with this many registers a thread, bytes of shared memory and warps a block.

    >>> occupancy("sm_90", 168, 0, 4)
    Occupancy(blocks=3, share=0.1875, limiter='registers')
    >>> occupancy("sm_90", 32, 100 * 1024, 8)
    Occupancy(blocks=2, share=0.25, limiter='shared memory')
    """
    for_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    for_block = -(-(shared + RESERVED) // SHARED_UNIT) * SHARED_UNIT
    resident_warps = REGISTERS // PARTITIONS // for_warp * PARTITIONS
    limits = {
        "registers": resident_warps // warps,
        "shared memory": SHARED[arch] // for_block,
        "warps": MOST_WARPS[arch] // warps,
        "blocks": MOST_BLOCKS[arch],
    }
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    return Occupancy(blocks, blocks * warps / MOST_WARPS[arch], limiter)
