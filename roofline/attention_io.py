"""Memory traffic of prefill attention: the standard algorithm and FlashAttention 1, 2 and 3, from their tiles.

All figures are bytes of one call over the whole batch, forward pass, exact to the byte under the algorithm named.
Two levels are kept apart: what the SMs ask of the memory system (``l2``: every read and write that leaves an SM) and
what of it reaches device memory (``dram``). The asymptotic bounds stand in ``attention_bounds``, decoding in
``attention_decode``, tile sizes that fit a GPU in ``attention_tiles``.

Sources: Dao et al., "FlashAttention", https://arxiv.org/abs/2205.14135 (Algorithms 0 and 1); Dao, "FlashAttention-2",
https://arxiv.org/abs/2307.08691 (Algorithm 1); Shah et al., "FlashAttention-3", https://arxiv.org/abs/2407.08608.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.attention_blocks import Blocks, element_bytes, group_size, visited_blocks, whole

#: Row statistics (maximum, sum, log-sum-exp) are kept in FP32 by every implementation. [bytes]
STATISTIC = 4.0

#: Share of L2 that a working set read by all SMs may fill. The L2 of A100 and its successors has two partitions, each
#: caching data for the SMs next to it, so data that all SMs read is held twice. NVIDIA A100 Tensor Core GPU
#: Architecture whitepaper (2020); https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/
L2_USABLE = 0.5


@dataclass(frozen=True)
class Step:
    """One stage of an algorithm, or one operand of a fused kernel. [bytes]"""

    name: str
    read: Num
    written: Num

    @property
    def total(self) -> Num:
        """Bytes read and written."""
        return as_num(self.read + self.written)


@dataclass(frozen=True)
class Traffic:
    """Bytes that an attention call moves.

    Attributes
    ----------
    algorithm : str
        What was counted.
    steps : tuple of Step
        The parts of ``l2``.
    compulsory : Num
        Q, K and V read once and O written once: no algorithm moves less.
    dram : Num
        Bytes between L2 and device memory. Equal to ``l2`` where no reuse in L2 was asked for.
    scores : Num
        Bytes of the score matrix S if the algorithm stores it (one copy, all heads and sequences), else 0.
    working_set : Num or None
        Bytes that must stay in L2 for the reuse; None where no reuse was asked for.
    """

    algorithm: str
    steps: tuple[Step, ...]
    compulsory: Num
    dram: Num
    scores: Num = 0.0
    working_set: Num | None = None

    @property
    def read(self) -> Num:
        """Bytes that the SMs read."""
        return as_num(sum((step.read for step in self.steps), 0.0))

    @property
    def written(self) -> Num:
        """Bytes that the SMs write."""
        return as_num(sum((step.written for step in self.steps), 0.0))

    @property
    def l2(self) -> Num:
        """Bytes that the SMs read and write."""
        return as_num(self.read + self.written)

    def step(self, name: str) -> Step:
        """Return one step by its name.

        Raises
        ------
        UsageError
            When there is none of that name.
        """
        for step in self.steps:
            if step.name == name:
                return step
        raise UsageError(f"{self.algorithm} has no step {name!r}; it has {', '.join(s.name for s in self.steps)}")


def compulsory_bytes(
    batch: Num, heads: int, kv_heads: int, q: Num, kv: Num, head_dim: int, size: float, kv_size: float
) -> Num:
    """Q read, K and V read, O written, each once. [bytes]

    >>> compulsory_bytes(1, 1, 1, 1024, 1024, 128, 2, 2) == 4 * 1024 * 128 * 2
    True
    """
    return as_num(as_num(batch) * head_dim * (2 * heads * as_num(q) * size + 2 * kv_heads * as_num(kv) * kv_size))


def standard_traffic(
    batch: Num,
    heads: int,
    kv_heads: int,
    q: Num,
    kv: Num,
    head_dim: int,
    bytes_per_element: float,
    causal: bool = False,
    *,
    extra_passes: float = 0.0,
) -> Traffic:
    """Traffic of standard attention, which stores S and P in device memory.

    Per head and sequence, in elements: read Q and K and write S; read S and write P; read P and V and write O: together
    ``2 (q + kv) d + 4 q kv``.

    Parameters
    ----------
    batch : Num
        Sequences.
    heads, kv_heads : int
        Query and KV heads. An unfused implementation either expands K and V to every query head or runs a matrix
        product a query head, so K and V are read once a query head; what the expansion itself writes is not counted.
    q, kv : Num
        Query tokens and keys of a sequence.
    head_dim : int
        Elements of a head.
    bytes_per_element : float
        Bytes of an element of Q, K, V, S, P and O.
    causal : bool
        The mask saves nothing here: matrix products and softmax run over the whole rectangle. It rides on the softmax;
        a mask kernel of its own is two more passes.
    extra_passes : float
        Further reads or writes of a whole score matrix by elementwise kernels (mask 2, dropout 2).

    Returns
    -------
    Traffic
        Steps ``scores``, ``softmax``, ``output`` and, with extra passes, ``elementwise``; ``scores`` is the size of S.

    Notes
    -----
    Valid where S is larger than L2 (a smaller one is partly served from it). Source: FlashAttention, Algorithm 0.

    >>> one = standard_traffic(1, 1, 1, 131072, 131072, 128, 2)
    >>> one.scores / 1e9, one.scores / 2**30    # GB, GiB
    (34.359738368, 32.0)
    """
    group_size(heads, kv_heads)
    whole(batch=batch, q=q, kv=kv, head_dim=head_dim)
    element_bytes(bytes_per_element=bytes_per_element)
    if not 0 <= extra_passes < 1e6:
        raise UsageError(f"extra_passes is {extra_passes:g}; it must be at least 0 and below 1e6")
    if causal and np.any(np.asarray(q) > np.asarray(kv)):
        raise UsageError("a causal mask needs at least as many keys as queries: the keys include the queries' own")
    unit = as_num(batch) * heads * bytes_per_element
    rows, keys, scores = as_num(unit * q * head_dim), as_num(unit * kv * head_dim), as_num(unit * q * kv)
    steps = [
        Step("scores", as_num(rows + keys), scores),
        Step("softmax", scores, scores),
        Step("output", as_num(scores + keys), rows),
    ]
    if extra_passes:
        steps.append(Step("elementwise", as_num(scores * extra_passes / 2), as_num(scores * extra_passes / 2)))
    total = as_num(sum((step.total for step in steps), 0.0))
    least = compulsory_bytes(batch, heads, kv_heads, q, kv, head_dim, bytes_per_element, bytes_per_element)
    return Traffic("standard", tuple(steps), least, total, scores)


def flash_traffic(
    batch: Num,
    heads: int,
    kv_heads: int,
    q: Num,
    kv: Num,
    head_dim: int,
    bytes_per_element: float,
    causal: bool = False,
    *,
    block_q: int = 128,
    block_kv: int = 128,
    version: int = 2,
    pack_gqa: bool = False,
    kv_bytes_per_element: float | None = None,
    l2_reuse: Gpu | None = None,
) -> Traffic:
    """Traffic of FlashAttention from its tiles.

    Version 1 (K/V outside, Q inside), per head: K and V once; for every visited tile Q, O and the statistics l and m of
    its rows are read, O, l and m written; O, l and m are initialised in memory first. Causal tiles are skipped.
    Versions 2 and 3 (Q outside), per head: Q once, the visible keys of K and V once a query block, O and the
    log-sum-exp written once. Versions 2 and 3 move the same bytes for the same tile.

    Parameters
    ----------
    batch, heads, kv_heads, q, kv, head_dim, bytes_per_element, causal
        As in ``standard_traffic``. The causal mask is aligned to the bottom right corner.
    block_q, block_kv : int
        Rows and keys of a tile; ``attention_tiles.plan_tiles`` lists those that fit a GPU.
    version : int
        1, 2 or 3.
    pack_gqa : bool
        False: every query head has tiles of its own, and K/V are read once a query head and block (FlashAttention-2,
        and FlashAttention-3 in long prefill). True: the heads of a group share the rows of a tile, and K/V are read
        once a KV head and block (FlashAttention-3's PackGQA). Not in version 1.
    kv_bytes_per_element : float, optional
        Bytes of an element of K and V if they are stored in another format.
    l2_reuse : Gpu, optional
        Count in ``dram`` what its L2 does not keep; see the notes. Without it ``dram`` equals ``l2``.

    Notes
    -----
    Reuse in L2, a simple model: thread blocks start in order, one on each SM, those of one KV head side by side, and
    those in flight run in step. In versions 2 and 3, K and V of the heads in flight are the working set. If it fits
    ``L2_USABLE`` of the capacity, each K and V is read from device memory once. If not, blocks in flight still share
    a tile as it passes, and K and V are read once a wave: ``heads + waves - 1`` sweeps, as the end of a wave cuts at
    most one head. In version 1 the working set is Q, O and the statistics of the heads in flight; if it fits, all
    moves once; if not, everything reaches device memory, for a block shares nothing with its neighbours.

    Range of validity: a single kernel on an otherwise idle GPU. The truth lies between ``compulsory`` and ``l2``;
    blocks that drift apart by more than L2 holds share less than this, and a grid that runs the batch inside the head
    (FlashAttention-2's) shares within a group only at batch 1.

    Raises
    ------
    UsageError
        On a version that is not known, packing in version 1, or a GPU whose L2 or SM count is not.

    >>> flash_traffic(1, 1, 1, 4096, 4096, 128, 2, version=2).step("K, V").read / 2**20    # 32 query blocks x 2 MiB
    64.0
    """
    group = group_size(heads, kv_heads)
    whole(batch=batch, head_dim=head_dim)
    if version not in (1, 2, 3):
        raise UsageError(f"FlashAttention version {version} is not known; it is 1, 2 or 3")
    if version == 1 and pack_gqa:
        raise UsageError("FlashAttention-1 has no packing of grouped heads; use version 2 or 3")
    kv_size = bytes_per_element if kv_bytes_per_element is None else kv_bytes_per_element
    element_bytes(bytes_per_element=bytes_per_element, kv_bytes_per_element=kv_size)
    blocks = visited_blocks(q, kv, block_q, block_kv, causal, packed=group if pack_gqa else 1)
    shape = _Shape(as_num(batch), heads, kv_heads, as_num(q), as_num(kv), head_dim, bytes_per_element, kv_size)
    steps = _flash1_steps(shape, blocks) if version == 1 else _flash2_steps(shape, blocks, pack_gqa)
    total = as_num(sum((step.total for step in steps), 0.0))
    least = compulsory_bytes(batch, heads, kv_heads, q, kv, head_dim, bytes_per_element, kv_size)
    name = f"flash{version}{'-packed' if pack_gqa else ''}"
    if l2_reuse is None:
        return Traffic(name, steps, least, total)
    capacity, sms = _l2_of(l2_reuse)
    statistics = STATISTIC * (2 if version == 1 else 1)
    once = as_num(least + shape.batch * heads * shape.q * statistics)
    if version == 1:
        working, spilled = _flash1_working_set(shape, sms), total
    else:
        each = as_num(blocks.q_blocks * (1 if pack_gqa else group))
        working = _flash2_working_set(shape, each, sms)
        spilled = as_num(np.minimum(total, once + _flash2_sweeps(shape, each, sms)))
    dram = as_num(np.where(np.asarray(working) <= L2_USABLE * capacity, once, spilled))
    return Traffic(name, steps, least, dram, working_set=working)


@dataclass(frozen=True)
class _Shape:
    batch: Num
    heads: int
    kv_heads: int
    q: Num
    kv: Num
    head_dim: int
    size: float
    kv_size: float


def _flash1_steps(shape: _Shape, blocks: Blocks) -> tuple[Step, ...]:
    heads = shape.batch * shape.heads
    passes = as_num(heads * blocks.rows * shape.head_dim * shape.size)
    statistics = as_num(heads * blocks.rows * 2 * STATISTIC)
    start = as_num(heads * shape.q * (shape.head_dim * shape.size + 2 * STATISTIC))
    return (
        Step("initialise", 0.0, start),
        Step("K, V", as_num(heads * 2 * shape.kv * shape.head_dim * shape.kv_size), 0.0),
        Step("Q", passes, 0.0),
        Step("O", passes, passes),
        Step("statistics", statistics, statistics),
    )


def _flash2_steps(shape: _Shape, blocks: Blocks, packed: bool) -> tuple[Step, ...]:
    rows = as_num(shape.batch * shape.heads * shape.q)
    readers = shape.batch * (shape.kv_heads if packed else shape.heads)
    return (
        Step("Q", as_num(rows * shape.head_dim * shape.size), 0.0),
        Step("K, V", as_num(readers * 2 * blocks.keys * shape.head_dim * shape.kv_size), 0.0),
        Step("O", 0.0, as_num(rows * shape.head_dim * shape.size)),
        Step("statistics", 0.0, as_num(rows * STATISTIC)),
    )


def _l2_of(gpu: Gpu) -> tuple[float, float]:
    if gpu.memory.l2 is None or gpu.compute.sms is None:
        raise UsageError(f"{gpu.name}: its L2 capacity or SM count is not in the spec; leave out the reuse in L2")
    return gpu.memory.l2.capacity.value, gpu.compute.sms.value


def _flash1_working_set(shape: _Shape, sms: float) -> Num:
    """One thread block a head: Q, O, l and m of the heads in flight."""
    flying = np.minimum(shape.batch * shape.heads, sms)
    return as_num(flying * shape.q * (2 * shape.head_dim * shape.size + 2 * STATISTIC))


def _flash2_working_set(shape: _Shape, each: Num, sms: float) -> Num:
    """K and V of the heads in flight: a row of ``sms`` blocks touches ``ceil((sms - 1) / each) + 1`` heads. [bytes]"""
    flying = np.minimum(shape.batch * shape.kv_heads, np.ceil((sms - 1) / each) + 1)
    return as_num(flying * 2 * shape.kv * shape.head_dim * shape.kv_size)


def _flash2_sweeps(shape: _Shape, each: Num, sms: float) -> Num:
    """Bytes of K and V read beyond the first sweep of each head when L2 keeps none: one sweep at each end of a wave."""
    waves = np.ceil(shape.batch * shape.kv_heads * each / sms)
    return as_num((waves - 1) * 2 * shape.kv * shape.head_dim * shape.kv_size)
