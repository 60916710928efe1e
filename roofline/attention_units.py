"""What attention asks of the units of an SM: matrix FLOPs, exponentials, and FP32 work around them.

The softmax does not run on the matrix units. Each score costs one exponential on the special-function units and a few
FP32 instructions, and the running maximum costs rescaling: FlashAttention-1 rescales O after every key block,
FlashAttention-2 and 3 divide once at the end. Counted in operations this is one or two percent; in time it is not: on
A100 those units are 16 (FP32) and over 100 times (exponential) slower than the matrix units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.attention_blocks import group_size, visited_blocks, whole

#: FP32 instructions a score: running maximum, scale and subtract (one FMA), row sum, conversion (two in one).
FP32_A_SCORE = 3.5


@dataclass(frozen=True)
class UnitOps:
    """Work of one attention call by unit.

    Attributes
    ----------
    matrix_flops : Num
        FLOPs of the two matrix products over the tiles computed, padding and masked corners included.
    exps : Num
        Exponentials, logarithms and reciprocals on the special-function units.
    fp32 : Num
        FP32 instructions of one lane (an FMA is one).
    rescale : Num
        The part of ``fp32`` that rescales O.
    """

    matrix_flops: Num
    exps: Num
    fp32: Num
    rescale: Num

    @property
    def flop_share(self) -> Num:
        """Share of the non-matrix operations in all, by count."""
        other = self.exps + self.fp32
        return as_num(other / (other + self.matrix_flops))


@dataclass(frozen=True)
class UnitTimes:
    """Time that each unit needs for the call if it alone were the limit. [s]"""

    matrix: Num
    exp: Num
    fp32: Num

    @property
    def serial_share(self) -> Num:
        """Share of the time outside the matrix units when nothing overlaps (one warp after the other)."""
        return as_num((self.exp + self.fp32) / (self.matrix + self.exp + self.fp32))

    @property
    def overlapped(self) -> Num:
        """Time when all units run at once: the slowest alone. [s]"""
        return as_num(np.maximum(np.maximum(self.matrix, self.exp), self.fp32))

    @property
    def exp_to_matrix(self) -> Num:
        """Time of the exponentials over that of the matrix products."""
        return as_num(self.exp / self.matrix)


def non_matmul_ops(
    batch: Num,
    heads: int,
    kv_heads: int,
    q: Num,
    kv: Num,
    head_dim: int,
    causal: bool = False,
    *,
    block_q: int = 128,
    block_kv: int = 128,
    version: int = 2,
    pack_gqa: bool = False,
) -> UnitOps:
    """Count the work of FlashAttention by unit.

    Parameters
    ----------
    batch, heads, kv_heads, q, kv, head_dim, causal, block_q, block_kv, version, pack_gqa
        As in ``attention_io.flash_traffic``.

    Notes
    -----
    A score: 2 FMA a head element (two products), one exponential, ``FP32_A_SCORE`` instructions. A row in a tile:

    - version 1 (Algorithm 1, lines 11 to 12): 2 exponentials and a reciprocal; 6 instructions for the maximum, the sum
      and the two coefficients; ``2 d`` to rescale (a multiplication and an FMA an element of O);
    - versions 2 and 3: 1 exponential; 2 instructions; ``d`` to rescale, not in the first tile. At the end of a row a
      reciprocal, a logarithm and ``d`` multiplications.

    Whole tiles are counted, as they are computed. Source: the algorithms (see ``attention_io``); the instruction counts
    are ours.

    >>> ops = non_matmul_ops(1, 1, 1, 4096, 4096, 128)
    >>> ops.matrix_flops / 4096**2    # 4 d a score
    512.0
    """
    group = group_size(heads, kv_heads)
    whole(batch=batch, head_dim=head_dim)
    if version not in (1, 2, 3):
        raise UsageError(f"FlashAttention version {version} is not known; it is 1, 2 or 3")
    blocks = visited_blocks(q, kv, block_q, block_kv, causal, packed=group if pack_gqa else 1)
    units = as_num(as_num(batch) * (kv_heads if pack_gqa else heads))
    scores, row_tiles = as_num(units * blocks.computed), as_num(units * blocks.pairs * block_q)
    rows = as_num(units * blocks.q_blocks * block_q)
    if version == 1:
        exps, fp32, rescale = 3 * row_tiles, 6 * row_tiles, 2 * head_dim * row_tiles
    else:
        exps, fp32 = row_tiles + 2 * rows, 2 * row_tiles
        rescale = head_dim * (row_tiles - rows) + head_dim * rows
    return UnitOps(
        matrix_flops=as_num(4 * head_dim * scores),
        exps=as_num(scores + exps),
        fp32=as_num(FP32_A_SCORE * scores + fp32 + rescale),
        rescale=as_num(rescale),
    )


def exp_rate(gpu: Gpu) -> float:
    """Exponentials a second of the whole GPU. [op/s]

    Raises
    ------
    UsageError
        When the spec gives neither the rate nor what it follows from (operations a clock and SM, SMs, clock).
    """
    compute = gpu.compute
    if compute.exp is not None:
        return compute.exp.value
    clock = compute.clock_tensor or compute.clock_boost
    if compute.exp_per_clock_per_sm is None or compute.sms is None or clock is None:
        raise UsageError(f"{gpu.name}: its rate of exponentials is not in the spec (compute.exp)")
    return compute.exp_per_clock_per_sm.value * compute.sms.value * clock.value


def unit_times(ops: UnitOps, gpu: Gpu, math: str = "bf16") -> UnitTimes:
    """Time of each unit at its peak rate.

    Parameters
    ----------
    ops : UnitOps
        Work by unit.
    gpu : Gpu
        Its peaks of the matrix units (``math``), the FP32 units (an FMA is 2 FLOPs: half as many instructions) and the
        special-function units.
    math : str
        Number format of the matrix products.

    Raises
    ------
    UsageError
        When a peak is not in the spec.
    """
    tensor = gpu.compute.tensor.get(math)  # type: ignore[call-overload]
    vector = gpu.compute.vector.get("fp32")
    if tensor is None or vector is None:
        raise UsageError(f"{gpu.name}: its spec has no matrix peak for {math} or no FP32 vector peak")
    return UnitTimes(
        matrix=as_num(ops.matrix_flops / tensor.value),
        exp=as_num(ops.exps / exp_rate(gpu)),
        fp32=as_num(ops.fp32 / (vector.value / 2)),
    )
