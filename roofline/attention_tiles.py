"""Tile sizes of attention kernels that fit a GPU: shared memory, registers and the matrix instruction decide.

Four kernel designs, each with its own account of where a tile lives:

``textbook``
    Everything in shared memory: Q, K, V, S, P and O tiles and two row statistics. No kernel is written so; the account
    is the one that lecture notes give, and ``textbook_bytes`` shows where it does not fit.
``fa2``
    FlashAttention-2: 4 or 8 warps, Q and ``stages`` K/V tiles in shared memory, S, P and O in registers (P takes over
    the registers of S).
``fa3``
    FlashAttention-3 on Hopper: a producer warpgroup and one consumer warpgroup for each 64 rows, registers moved from
    the producer to the consumers; S of the next tile is computed while P of this one is still in use, so both are live.
    P lies in registers or (``p_in_shared``) in shared memory.
``triton``
    The shape of the Triton fused-attention tutorial: 4 or 8 warps, Q and ``stages`` K/V tiles in shared memory.

Sources: Dao-AILab/flash-attention: csrc/flash_attn/src/kernel_traits.h and flash_fwd_launch_template.h (fa2),
hopper/tile_size.h and hopper/flash_fwd_kernel_sm90.h (fa3). Registers: 255 a thread, 65,536 an SM (CUDA C++
Programming Guide, compute capability 8.0 to 9.0). CUDA keeps 1 KiB of shared memory a block for itself (Ampere Tuning
Guide).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.attention_blocks import element_bytes, whole

KIB = 1024.0
WARP = 32

#: What a block takes from the SM's shared memory beside its own. [bytes]
RESERVED = 1 * KIB
#: Barriers and alignment of a design with a producer. [bytes]
BARRIERS = 1 * KIB
#: Registers a thread for addresses, statistics and the loop. An assumption: it separates the tiles that
#: FlashAttention's authors ship from those they note as spilling. [registers]
OVERHEAD_REGISTERS = 24
MAX_REGISTERS = 255
REGISTER_FILE = 65536.0
#: Registers of a consumer thread by consumer warpgroups (hopper/flash_fwd_kernel_sm90.h; 256 is cut to what exists).
CONSUMER_REGISTERS = {1: 255, 2: 240, 3: 160}

BLOCKS_Q = (16, 32, 64, 128, 192, 256)
BLOCKS_KV = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)


@dataclass(frozen=True)
class Design:
    """How a kernel uses an SM; see the module.

    Attributes
    ----------
    name : str
        Its name.
    warps : tuple of int
        Warps of a block that may compute; empty: four for each 64 rows.
    stages : tuple of int
        K/V tiles in flight.
    producer : bool
        Whether a warpgroup of its own loads.
    overlap : bool
        Whether S of the next tile and P of this one are live together.
    rows_a_warp : int
        Query rows of one matrix instruction.
    """

    name: str
    warps: tuple[int, ...]
    stages: tuple[int, ...]
    producer: bool = False
    overlap: bool = False
    rows_a_warp: int = 16


DESIGNS = {
    "textbook": Design("textbook", (4,), (1,)),
    "fa2": Design("fa2", (4, 8), (1,)),
    "fa3": Design("fa3", (), (2,), producer=True, overlap=True),
    "triton": Design("triton", (4, 8), (2, 3, 4)),
}


@dataclass(frozen=True)
class Tile:
    """A tile and what it takes.

    Attributes
    ----------
    design : str
        Kernel design.
    block_q, block_kv, stages, warps : int
        Query rows, keys, K/V tiles in flight, computing warps.
    p_in_shared : bool
        Whether P passes through shared memory.
    shared_bytes, shared_limit : float
        Shared memory of a block: taken, and the most it can have. [bytes]
    registers, register_limit : float
        Registers of a computing thread: accumulators plus ``OVERHEAD_REGISTERS`` (an estimate from below: compilers
        need some more), and the most it can have.
    blocks_per_sm : int
        Blocks that shared memory and registers let an SM hold; 0 if it does not fit.
    why : str
        Why it does not fit; empty if it does.
    """

    design: str
    block_q: int
    block_kv: int
    stages: int
    warps: int
    p_in_shared: bool
    shared_bytes: float
    shared_limit: float
    registers: float
    register_limit: float
    blocks_per_sm: int
    why: str

    @property
    def fits(self) -> bool:
        """Whether a block of the GPU can hold it."""
        return not self.why


def textbook_bytes(block_q: int, block_kv: int, head_dim: int, bytes_per_element: float) -> float:
    """Shared memory if all six tiles (Q, K, V, S, P, O) and the statistics m and l (FP32) lay in it. [bytes]

    >>> textbook_bytes(128, 128, 128, 2) / 1024    # KiB: six tiles of 32 and 1 of statistics
    193.0
    """
    whole(block_q=block_q, block_kv=block_kv, head_dim=head_dim)
    operands = (2 * block_q + 2 * block_kv) * head_dim + 2 * block_q * block_kv
    return float(operands * bytes_per_element + 2 * block_q * 4)


def kernel_bytes(
    design: str,
    block_q: int,
    block_kv: int,
    head_dim: int,
    bytes_per_element: float,
    stages: int,
    p_in_shared: bool = False,
) -> float:
    """Shared memory of a block. [bytes]

    ``Q + stages (K + V)``; with ``p_in_shared`` also P; the ``fa3`` design adds its barriers and, at one byte an
    element, a second V tile a stage (the FP8 matrix instruction takes V transposed only).

    Raises
    ------
    UsageError
        On a design that is not known.

    >>> kernel_bytes("fa2", 128, 64, 128, 2, 1) / 1024, kernel_bytes("triton", 128, 128, 128, 2, 2) / 1024
    (64.0, 160.0)
    """
    plan = _design(design)
    whole(block_q=block_q, block_kv=block_kv, head_dim=head_dim, stages=stages)
    element_bytes(bytes_per_element=bytes_per_element)
    if design == "textbook":
        return textbook_bytes(block_q, block_kv, head_dim, bytes_per_element)
    tiles_a_stage = 3 if plan.producer and bytes_per_element <= 1 else 2
    elements = block_q * head_dim + stages * tiles_a_stage * block_kv * head_dim
    if p_in_shared:
        elements += block_q * block_kv
    return float(elements * bytes_per_element + (BARRIERS if plan.producer else 0.0))


def accumulator_registers(
    design: str,
    block_q: int,
    block_kv: int,
    head_dim: int,
    bytes_per_element: float,
    warps: int,
    p_in_shared: bool = False,
) -> float:
    """Registers of a computing thread for O, S and P, FP32 accumulators. [registers of 32 bits]

    O and S take ``block_q (head_dim + block_kv) / threads``. P takes over the registers of S, save in a design that
    computes the next S meanwhile: there it adds ``block_q block_kv bytes_per_element / 4`` unless it lies in shared
    memory. Textbook: none.

    >>> accumulator_registers("fa2", 128, 64, 128, 2, 4), accumulator_registers("fa3", 128, 176, 128, 2, 8)
    (192.0, 196.0)
    """
    plan = _design(design)
    whole(block_q=block_q, block_kv=block_kv, head_dim=head_dim, warps=warps)
    if design == "textbook":
        return 0.0
    threads = warps * WARP
    registers = block_q * (head_dim + block_kv) / threads
    if plan.overlap and not p_in_shared:
        registers += block_q * block_kv * bytes_per_element / 4 / threads
    return registers


def tile(
    gpu: Gpu,
    head_dim: int,
    bytes_per_element: float,
    design: str,
    block_q: int,
    block_kv: int,
    *,
    stages: int | None = None,
    warps: int | None = None,
    p_in_shared: bool = False,
) -> Tile:
    """Account for one tile on one GPU.

    Parameters
    ----------
    gpu : Gpu
        Its shared memory limits of a block and of an SM are used.
    head_dim : int
        Elements of a head.
    bytes_per_element : float
        Bytes of an element of Q, K and V.
    design : str
        ``"textbook"``, ``"fa2"``, ``"fa3"`` or ``"triton"``.
    block_q, block_kv : int
        Query rows and keys of a tile.
    stages, warps : int, optional
        By default the design's fewest.
    p_in_shared : bool
        Whether P passes through shared memory (``fa3``).

    Raises
    ------
    UsageError
        When the design is not known or the GPU's spec has no shared memory.

    >>> from perfmodel.hwspecs.load import gpu
    >>> tile(gpu("h100"), 128, 2, "fa3", 128, 176).why
    ''
    >>> tile(gpu("h100"), 128, 2, "fa3", 128, 208).why
    'shared memory: 241.0 KiB of at most 227.0 KiB a block'
    """
    plan = _design(design)
    if gpu.memory.shared is None:
        raise UsageError(f"{gpu.name}: its shared memory is not in the spec; tiles cannot be planned")
    stages = plan.stages[0] if stages is None else stages
    default = plan.warps[0] if plan.warps else max(4 * (block_q // 64), 4)
    warps = default if warps is None else warps
    shared = kernel_bytes(design, block_q, block_kv, head_dim, bytes_per_element, stages, p_in_shared)
    registers = accumulator_registers(design, block_q, block_kv, head_dim, bytes_per_element, warps, p_in_shared)
    registers += OVERHEAD_REGISTERS
    limit = CONSUMER_REGISTERS.get(warps // 4, 0) if plan.producer else MAX_REGISTERS
    most = gpu.memory.shared.per_block.value
    why = _why(plan, block_q, warps, shared, most, registers, limit)
    return Tile(
        design=design,
        block_q=block_q,
        block_kv=block_kv,
        stages=stages,
        warps=warps,
        p_in_shared=p_in_shared,
        shared_bytes=shared,
        shared_limit=most,
        registers=registers,
        register_limit=limit,
        blocks_per_sm=0 if why else _resident(gpu, plan, warps, shared, registers),
        why=why,
    )


def plan_tiles(
    gpu: Gpu, head_dim: int, bytes_per_element: float, design: str = "fa2", num_stages: int | None = None
) -> tuple[Tile, ...]:
    """List the tiles of a design on a GPU: those that fit first, largest ``block_q`` (fewest K/V reads) first.

    Parameters
    ----------
    gpu, head_dim, bytes_per_element, design
        As in ``tile``.
    num_stages : int, optional
        K/V tiles in flight; by default each that the design uses.

    Returns
    -------
    tuple of Tile
        All candidates, those that do not fit with the reason. The order is that of traffic, not of speed: a smaller
        tile that leaves room for a second block on the SM is often faster.

    >>> from perfmodel.hwspecs.load import gpu
    >>> [(t.block_q, t.block_kv, t.blocks_per_sm) for t in plan_tiles(gpu("a100"), 128, 2)[:3]]
    [(256, 96, 1), (256, 80, 1), (256, 64, 1)]
    """
    plan = _design(design)
    stages = plan.stages if num_stages is None else (num_stages,)
    shared_p = (False, True) if plan.overlap else (False,)
    found = [
        tile(gpu, head_dim, bytes_per_element, design, rows, keys, stages=stage, warps=warps, p_in_shared=in_shared)
        for rows, keys, stage, in_shared in itertools.product(BLOCKS_Q, BLOCKS_KV, stages, shared_p)
        for warps in (plan.warps or (max(4 * (rows // 64), 4),))
    ]
    return tuple(sorted(found, key=lambda t: (not t.fits, -t.block_q, -t.block_kv, -t.stages, t.warps, t.p_in_shared)))


def _design(name: str) -> Design:
    if name not in DESIGNS:
        raise UsageError(f"kernel design {name!r} is not known; it is one of {', '.join(DESIGNS)}")
    return DESIGNS[name]


def _why(plan: Design, block_q: int, warps: int, shared: float, most: float, registers: float, limit: float) -> str:
    if plan.producer and (block_q % 64 or warps // 4 not in CONSUMER_REGISTERS):
        return f"{block_q} rows: consumer warpgroups take 64 rows each, and there are 1 to 3"
    if not plan.producer and block_q % (plan.rows_a_warp * warps):
        return f"{block_q} rows: {warps} warps take {plan.rows_a_warp} rows each"
    if shared > most:
        return f"shared memory: {shared / KIB:.1f} KiB of at most {most / KIB:.1f} KiB a block"
    if registers > limit:
        return f"registers: about {registers:.0f} of at most {limit:.0f} a thread"
    return ""


def _resident(gpu: Gpu, plan: Design, warps: int, shared: float, registers: float) -> int:
    assert gpu.memory.shared is not None
    by_shared = gpu.memory.shared.per_sm.value // (shared + RESERVED)
    file = gpu.memory.registers_per_sm.value / 4 if gpu.memory.registers_per_sm else REGISTER_FILE
    by_registers = 1 if plan.producer else file // (warps * WARP * registers)
    return int(min(by_shared, by_registers))
