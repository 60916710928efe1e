"""Cost of every operator kind, each formula once.

Arguments are ``Num`` (scalars or arrays that broadcast); formats enter as bytes an element. Traffic is compulsory
traffic with a cold cache: every input is read once from device memory and every output written once; what a tile
re-reads comes from L2 and is reported apart (``Cost.l2``). One multiply-add is two FLOPs; causal attention counts the
pairs that are needed, not the full square.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.base.trace import Traced
from perfmodel.roofline.cost import EXP, ISSUE, VECTOR, Cost, matrix
from perfmodel.roofline.dequantize import LEAST

#: Tile of a library GEMM for the L2 estimate (CUTLASS and Triton default for large shapes on sm_80 and later).
TILE_M, TILE_N = 128.0, 128.0


def unpacked(weights: Num, dequant: float) -> dict[str, Num]:
    """Instructions that unpack so many weights, at most ``LEAST`` each; nothing where none are needed."""
    return {ISSUE: np.minimum(dequant, LEAST) * weights} if float(dequant) else {}


def gemm(
    m: Num, n: Num, k: Num, weight_bytes: Num, act_bytes: float, out_bytes: float, math: str, dequant: float = 0.0
) -> Cost:
    """Matrix product ``[m, k] x [k, n]`` with the ``[n, k]`` weights read once.

    ``FLOPs = 2 m n k``; ``bytes = weights + m k act + m n out``.

    Parameters
    ----------
    m, n, k : Num
        Tokens, output and input features.
    weight_bytes : Num
        Bytes of the weights with scales and bias, from the inventory.
    act_bytes, out_bytes : float
        Bytes an element of input and output.
    math : str
        Number format of the matrix unit.
    dequant : float
        Instructions a weight that a kernel unpacks narrow weights with (``dequantize``); 0: it multiplies them as they
        are stored.
    """
    reads = np.ceil(m / TILE_M) * weight_bytes + np.ceil(n / TILE_N) * m * k * act_bytes
    return Cost(
        {matrix(math): 2 * m * n * k, **unpacked(n * k, dequant)},
        {"weights": weight_bytes, "act_read": m * k * act_bytes, "act_write": m * n * out_bytes},
        reads + m * n * out_bytes,
    )


def any_of(chance: Num, times: Num) -> Num:
    """Chance of at least one success: ``1 - (1 - chance)^times``, without losing digits where it is small.

    >>> float(any_of(0.5, 2.0)), float(any_of(1.0, 1.0)), float(any_of(1.0, 0.0))
    (0.75, 1.0, 0.0)
    """
    if isinstance(chance, Traced) or isinstance(times, Traced):  # to be read: as it is written above
        shown = 1 - (1 - chance) ** times
        return Traced(shown.op, shown.args, float(any_of(float(chance), float(times))))
    small = -np.expm1(times * np.log1p(-np.minimum(chance, 0.1)))
    return np.where(chance > 0.1, 1 - np.power(1 - chance, times), small)


def distinct_experts(experts: Num, chosen: Num, tokens: Num, local: Num) -> Num:
    """Expected number of distinct experts, of the ``local`` ones, that ``tokens`` tokens choose.

    ``local (1 - (1 - chosen/experts)^tokens)``: exact for uniform and independent routing of tokens (one token takes
    ``chosen`` different experts). It is an expectation: skewed routing touches fewer.

    >>> float(distinct_experts(8.0, 2.0, 1.0, 8.0))
    2.0
    """
    return local * any_of(chosen / experts, tokens)


def grouped_gemm(
    tokens: Num, n: Num, k: Num, experts: Num, chosen: Num, local: Num, expert_bytes: Num,
    act_bytes: float, out_bytes: float, math: str, dequant: float = 0.0,
) -> Cost:  # fmt: skip
    """Expert GEMMs of one rank: each token's row meets ``chosen`` experts, of which ``local/experts`` live here.

    ``rows = tokens x chosen x local/experts``; ``FLOPs = 2 rows n k``; weights of the expected distinct experts.

    Parameters
    ----------
    tokens : Num
        Tokens routed over all ranks of the expert group.
    n, k : Num
        Output and input features of an expert on this rank.
    experts, chosen, local : Num
        Experts in all, a token, and on this rank.
    expert_bytes : Num
        Bytes of one expert's matrix on this rank.
    dequant : float
        As of ``gemm``.
    """
    rows = tokens * chosen * (local / experts)
    touched = distinct_experts(experts, chosen, tokens, local)
    weights = touched * expert_bytes
    tiles = np.ceil(rows / (local * TILE_M))
    return Cost(
        {matrix(math): 2 * rows * n * k, **unpacked(touched * n * k, dequant)},
        {"weights": weights, "act_read": rows * k * act_bytes, "act_write": rows * n * out_bytes},
        tiles * weights + np.ceil(n / TILE_N) * rows * k * act_bytes + rows * n * out_bytes,
    )


def combine(tokens: Num, chosen: Num, d: Num, act_bytes: float) -> Cost:
    """Weighted sum of the experts' outputs: ``chosen`` rows read and one written, for each token."""
    return Cost(
        {VECTOR: 2 * tokens * chosen * d},
        {"act_read": tokens * chosen * d * act_bytes, "act_write": tokens * d * act_bytes},
        tokens * d * (chosen + 1) * act_bytes,
    )


def elementwise(elements: Num, reads: float, writes: float, act_bytes: float, flops: float, exps: float = 0.0) -> Cost:
    """A kernel that passes over ``elements``, reading and writing so many streams of them.

    Norm with residual: 2 reads, 2 writes, 5 FLOPs (add, square-accumulate, scale twice). SwiGLU: 2 reads, 1 write, 4
    FLOPs and an exponential. Rotary: 1 read, 1 write, 3 FLOPs an element.
    """
    ops = {VECTOR: flops * elements} | ({EXP: exps * elements} if exps else {})
    read, write = reads * elements * act_bytes, writes * elements * act_bytes
    return Cost(ops, {"act_read": read, "act_write": write}, read + write)


def embedding(tokens: Num, d: Num, weight_bytes: float, act_bytes: float) -> Cost:
    """Row gather: ``tokens`` rows read and written; no FLOPs."""
    read, write = tokens * d * weight_bytes, tokens * d * act_bytes
    return Cost({}, {"weights": read, "act_write": write}, read + write)


def kv_write(tokens: Num, elements: Num, kv_bytes: float, act_bytes: float) -> Cost:
    """Store the new tokens' keys and values in the cache (read in the activation format, written in the cache's)."""
    read, write = tokens * elements * act_bytes, tokens * elements * kv_bytes
    return Cost({}, {"act_read": read, "kv_write": write}, read + write)


def sampling(rows: Num, vocab: Num, act_bytes: float) -> Cost:
    """Softmax over the logits and one draw: the logits read once, an exponential each, 3 FLOPs each."""
    logits = rows * vocab
    return Cost({VECTOR: 3 * logits, EXP: logits}, {"act_read": logits * act_bytes}, logits * act_bytes)
