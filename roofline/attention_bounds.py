"""Bounds on the traffic of attention: the IO theorem, the on-chip memory it asks for, and the paper's training figure.

The theorem counts elements, not bytes, and M is the on-chip memory in elements. It is asymptotic: for N tokens, head
dimension d and ``d <= M <= N d``, standard attention moves Theta(N d + N^2) elements and FlashAttention-1
Theta(N^2 d^2 / M), and no exact algorithm does better for every M of that range. The exact counts are in
``attention_io``.

Source: Dao et al., "FlashAttention", https://arxiv.org/abs/2205.14135: Theorem 2, Proposition 3, Algorithms 1, 3 and 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num
from perfmodel.roofline.attention_blocks import element_bytes, visited_blocks, whole
from perfmodel.roofline.attention_io import STATISTIC, Step, Traffic, flash_traffic, standard_traffic

#: Leading constant of FlashAttention-1's exact count with the paper's own tiles (``block_kv = M / 4d``): every one of
#: the ``4 N d / M`` passes reads Q and O and writes O, 3 N d elements: 12 N^2 d^2 / M.
FLASH1_CONSTANT = 12.0


def standard_bound(length: Num, head_dim: int) -> Num:
    """Growth of standard attention's traffic, ``N d + N^2``. [elements, one head]

    The exact count is four times this (``standard_traffic``).

    >>> standard_bound(1024, 64)
    1114112.0
    """
    whole(length=length, head_dim=head_dim)
    return as_num(as_num(length) * head_dim + as_num(length) ** 2)


def theorem_bound(length: Num, head_dim: int, sram_elements: Num, constant: float = 1.0) -> Num:
    """Growth of FlashAttention's traffic, ``N^2 d^2 / M``. [elements, one head]

    Parameters
    ----------
    length : Num
        Tokens N.
    head_dim : int
        Elements of a head, d.
    sram_elements : Num
        On-chip memory M in elements: bytes over bytes an element. Valid from d to N d; a larger one counts as N d,
        where the bound is N d, the size of one operand.
    constant : float
        1 for the bare growth; ``FLASH1_CONSTANT`` for the leading term of FlashAttention-1's exact count.

    Raises
    ------
    UsageError
        When M is below d: no row fits, the theorem says nothing.

    >>> theorem_bound(4096, 64, 192 * 1024 / 2) / 4096**2    # FP16 in 192 KiB: d^2 / M
    0.041666666666666664
    """
    whole(length=length, head_dim=head_dim)
    if np.any(np.asarray(sram_elements) < head_dim):
        raise UsageError(f"M is {np.min(sram_elements):g} elements; the theorem holds from d = {head_dim} to N d")
    size = np.minimum(sram_elements, as_num(length) * head_dim)
    return as_num(constant * as_num(length) ** 2 * head_dim**2 / size)


def minimal_sram_for_linear_io(length: Num, head_dim: int) -> Num:
    """On-chip memory at which the theorem's traffic falls to N d: ``M = N d``. [elements]

    It grows with the length: no fixed on-chip memory makes attention's traffic linear.

    >>> minimal_sram_for_linear_io(131072, 128) * 2 / 2**20    # FP16, MiB: the whole K
    32.0
    """
    whole(length=length, head_dim=head_dim)
    return as_num(as_num(length) * head_dim)


def linear_io_length(sram_bytes: float, head_dim: int, bytes_per_element: float) -> float:
    """Longest N for which M holds N d elements. [tokens]

    >>> linear_io_length(192 * 1024, 128, 2)
    768.0
    """
    whole(head_dim=head_dim)
    element_bytes(bytes_per_element=bytes_per_element)
    return float(math.floor(sram_bytes / (head_dim * bytes_per_element)))


def paper_tiles(sram_elements: float, head_dim: int) -> tuple[int, int]:
    """Tile of FlashAttention-1's Algorithm 1: ``block_kv = ceil(M / 4d)``, ``block_q = min(block_kv, d)``.

    Returns ``(block_q, block_kv)``.

    >>> paper_tiles(192 * 1024 / 2, 64)
    (64, 384)
    """
    block_kv = math.ceil(sram_elements / (4 * head_dim))
    return min(block_kv, head_dim), block_kv


def standard_backward(batch: Num, heads: int, length: Num, head_dim: int, bytes_per_element: float) -> Traffic:
    """Traffic of standard attention's backward pass with P stored by the forward pass (Algorithm 3): 8 N d + 7 N^2.

    Parameters as in ``attention_io.standard_traffic``, with as many KV heads as heads and ``q = kv = length``.
    """
    whole(batch=batch, heads=heads, length=length, head_dim=head_dim)
    element_bytes(bytes_per_element=bytes_per_element)
    unit = as_num(batch) * heads * bytes_per_element
    rows, scores = as_num(unit * length * head_dim), as_num(unit * as_num(length) ** 2)
    steps = (
        Step("dV", as_num(scores + rows), rows),
        Step("dP", as_num(2 * rows), scores),
        Step("dS", as_num(2 * scores), scores),
        Step("dQ", as_num(scores + rows), rows),
        Step("dK", as_num(scores + rows), rows),
    )
    total = as_num(sum((step.total for step in steps), 0.0))
    return Traffic("standard backward", steps, as_num(8 * rows), total, scores)


def flash1_backward(
    batch: Num, heads: int, length: Num, head_dim: int, bytes_per_element: float, block_q: int, block_kv: int
) -> Traffic:
    """Traffic of FlashAttention-1's backward pass (Algorithm 4), without a mask.

    Per head: K and V read once; dK and dV initialised and written once; dQ initialised; for every tile Q, O, dO and dQ
    of its rows are read, with l and m, and dQ written.
    Parameters as in ``attention_io.flash_traffic``, with as many KV heads as heads and ``q = kv = length``.
    """
    whole(batch=batch, heads=heads, head_dim=head_dim)
    element_bytes(bytes_per_element=bytes_per_element)
    blocks = visited_blocks(length, length, block_q, block_kv, causal=False)
    unit = as_num(batch) * heads * head_dim * bytes_per_element
    rows, passes = as_num(unit * length), as_num(unit * blocks.rows)
    statistics = as_num(as_num(batch) * heads * blocks.rows * 2 * STATISTIC)
    steps = (
        Step("initialise", 0.0, as_num(3 * rows)),
        Step("K, V", as_num(2 * rows), 0.0),
        Step("Q, O, dO", as_num(3 * passes), 0.0),
        Step("dQ", passes, passes),
        Step("statistics", statistics, 0.0),
        Step("dK, dV", 0.0, as_num(2 * rows)),
    )
    total = as_num(sum((step.total for step in steps), 0.0))
    return Traffic("flash1 backward", steps, as_num(8 * rows), total)


@dataclass(frozen=True)
class Training:
    """Forward and backward traffic of one attention layer, standard and FlashAttention-1. [bytes]

    Attributes
    ----------
    standard, flash : Num
        Bytes of both passes.
    pass_bytes : Num
        Bytes of one read or write of all score matrices: what each elementwise kernel more adds twice.
    """

    standard: Num
    flash: Num
    pass_bytes: Num

    @property
    def ratio(self) -> Num:
        """How many times fewer bytes FlashAttention-1 moves."""
        return as_num(self.standard / self.flash)

    def passes_in(self, total: Num) -> Num:
        """How many reads or writes of the score matrices a total standing for standard attention holds.

        The algorithms alone hold 11; every further pair is an elementwise kernel (mask, dropout) of its own.
        """
        return as_num(11 + (total - self.standard) / self.pass_bytes)


def training_traffic(
    batch: Num,
    heads: int,
    length: Num,
    head_dim: int,
    bytes_per_element: float,
    block_q: int,
    block_kv: int,
    extra_passes: float = 0.0,
) -> Training:
    """Forward and backward traffic of one layer, to set beside the paper's "up to 9x".

    Parameters
    ----------
    batch, heads, length, head_dim, bytes_per_element, block_q, block_kv
        As in ``attention_io.flash_traffic``; no mask, as many KV heads as heads.
    extra_passes : float
        Reads or writes of the score matrices by separate mask and dropout kernels, both passes together.

    >>> got = training_traffic(64, 16, 1024, 64, 2, *paper_tiles(192 * 1024 / 2, 64))   # GPT-2 medium, A100's 192 KiB
    >>> f"{got.standard / 1e9:.1f} GB, {got.flash / 1e9:.2f} GB, {got.ratio:.1f}x"
    '25.2 GB, 4.65 GB, 5.4x'
    """
    forward = standard_traffic(batch, heads, heads, length, length, head_dim, bytes_per_element)
    standard = forward.l2 + standard_backward(batch, heads, length, head_dim, bytes_per_element).l2
    shape = (batch, heads, heads, length, length, head_dim, bytes_per_element)
    there = flash_traffic(*shape, block_q=block_q, block_kv=block_kv, version=1)
    back = flash1_backward(batch, heads, length, head_dim, bytes_per_element, block_q, block_kv)
    return Training(
        as_num(standard + extra_passes * forward.scores), as_num(there.l2 + back.l2), pass_bytes=forward.scores
    )
