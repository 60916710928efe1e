"""The layout of 4-bit weights that our kernels read, and how GPTQ and AWQ checkpoints become it.

A tile is 128 inputs (K) of one output (N) in 32 words of 16 bits: bits 4j to 4j + 3 of word w are input 32 j + w.
Nibble j of a row of words is then a run of 32 inputs, two neighbouring words lie in one 32-bit register, and one AND
leaves nibble j of both where a pair of 16-bit floats has its low mantissa bits: the pair becomes two numbers by an OR
with an exponent. Tiles are stored tile by tile, so that what a program reads at a time is contiguous.

Scale and zero point of a group and output share 32 bits: the scale's 16-bit float in the low half, the zero point in
the high half. K is filled up to whole tiles with inputs of value 0, N to a multiple of 128 with outputs of scale 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from perfmodel.kernels.checks import KernelInputError, require

from .w4_formats import unpack_awq, unpack_gptq

TILE_K = 128
"""Inputs in a tile."""

WORDS = TILE_K // 4
"""16-bit words in a tile, and inputs in a run of one nibble."""

ALIGN_N = 128
"""N is filled up to a multiple of this: the outputs of the widest program."""

GROUPS = (32, 64, 128, -1)
"""Inputs that may share a scale; -1 for all of them."""

SCALE_DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class W4Weight:
    """A 4-bit weight [K, N] in the kernels' layout.

    words: int16 [ceil(K/128), N', 32] with N' = N filled up to a multiple of 128. meta: int32 [groups', N'], scale and
    zero point; groups' = ceil(K/128) 128/group, or 1 for group -1. k, n: inputs and outputs. group: 32, 64, 128 or -1.
    scale_dtype: torch.float16 or torch.bfloat16. order: None, or int64 [K]: input i of the layout is input order[i] of
    the layer (act-order).
    """

    words: torch.Tensor
    meta: torch.Tensor
    k: int
    n: int
    group: int
    scale_dtype: torch.dtype = torch.float16
    order: torch.Tensor | None = None

    @property
    def groups_a_tile(self) -> int:
        """Groups in a tile of 128 inputs: 4, 2 or 1; 0 where all inputs share a scale."""
        return 0 if self.group == -1 else TILE_K // self.group

    @property
    def nbytes(self) -> int:
        """Bytes of the integers, scales and zero points, without the order."""
        return int(self.words.nbytes + self.meta.nbytes)

    @classmethod
    def empty(
        cls,
        k: int,
        n: int,
        group: int,
        *,
        device: str | torch.device,
        scale_dtype: torch.dtype = torch.float16,
        reordered: bool = False,
    ) -> W4Weight:
        """A weight of these sizes with unset contents, for kernels compiled or timed without a checkpoint."""
        _check_group(group)
        tiles, columns = -(-k // TILE_K), -(-n // ALIGN_N) * ALIGN_N
        groups = 1 if group == -1 else tiles * (TILE_K // group)
        words = torch.empty(tiles, columns, WORDS, dtype=torch.int16, device=device)
        meta = torch.empty(groups, columns, dtype=torch.int32, device=device)
        order = torch.empty(k, dtype=torch.int64, device=device) if reordered else None
        return cls(words, meta, k, n, group, scale_dtype, order)


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    group: int,
    version: int = 1,
) -> W4Weight:
    """A weight from the tensors of a GPTQ checkpoint.

    qweight: int32 [K/8, N]. qzeros: int32 [groups, N/8]. scales: fp16 or bf16 [groups, N]. g_idx: int [K], the group
    of each input, or None for k // group. group: `group_size` of its configuration. version: 2 where its
    `checkpoint_format` is `gptq_v2`, else 1.
    Act-order (`desc_act`): g_idx must be a permutation of the plain grouping, that is hold each group exactly `group`
    times (the last as often as inputs are left). The inputs are then sorted by group, and the kernel reads the columns
    of x in that order. Raises KernelInputError for any other g_idx and for shapes that do not fit.
    """
    q, zeros = unpack_gptq(qweight, qzeros, version=version)
    return from_integers(q, scales, zeros, g_idx, group=group)


def from_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, *, group: int) -> W4Weight:
    """A weight from the tensors of an AWQ checkpoint (the GEMM version).

    qweight: int32 [K, N/8]. qzeros: int32 [groups, N/8]. scales: fp16 or bf16 [groups, N]. group: its `q_group_size`.
    Raises KernelInputError for shapes that do not fit.
    """
    q, zeros = unpack_awq(qweight, qzeros)
    return from_integers(q, scales, zeros, group=group)


def from_integers(
    q: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    *,
    group: int,
) -> W4Weight:
    """A weight from integers 0 to 15.

    q: [K, N]. scales: fp16 or bf16 [groups, N] with groups = ceil(K/group), 1 for group -1. zeros: 0 to 15
    [groups, N]; None for 8, the symmetric case. g_idx: see `from_gptq`. K must be a multiple of 8; N is any.
    Raises KernelInputError for what does not fit.
    """
    _check_group(group)
    k, n = q.shape
    require(k % 8 == 0, f"K is {k}, a multiple of 8 is needed")
    groups = 1 if group == -1 else -(-k // group)
    zeros = torch.full((groups, n), 8, dtype=torch.uint8, device=q.device) if zeros is None else zeros
    for name, x in (("scales", scales), ("zeros", zeros)):
        require(tuple(x.shape) == (groups, n), f"{name} has shape {tuple(x.shape)}, {(groups, n)} is needed")
    require(scales.dtype in SCALE_DTYPES, f"scales are {scales.dtype}, torch.float16 or torch.bfloat16 is needed")
    order = None if g_idx is None or group == -1 else _order(g_idx, k, group)
    q = q if order is None else q[order]
    words = _words(q, zeros)
    return W4Weight(words, _meta(scales, zeros, group, words.shape), k, n, group, scales.dtype, order)


def to_integers(weight: W4Weight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The integers, scales and zero points that a weight was made from: the inverse of `from_integers`.

    Returns q uint8 [K, N] in the order of the layer's inputs, scales [groups, N] and zero points uint8 [groups, N].
    """
    columns = weight.words.shape[1]
    nibbles = torch.stack([(weight.words >> 4 * j) & 0xF for j in range(4)], 1)  # tile, nibble, output, word
    q = nibbles.to(torch.uint8).transpose(2, 3).reshape(-1, columns)[: weight.k, : weight.n]
    if weight.order is not None:
        q = torch.empty_like(q).index_copy_(0, weight.order, q)
    meta = weight.meta[: 1 if weight.group == -1 else -(-weight.k // weight.group), : weight.n]
    scales = meta.to(torch.int16).view(weight.scale_dtype)
    return q.contiguous(), scales.contiguous(), ((meta >> 16) & 0xF).to(torch.uint8).contiguous()


def _words(q: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Integers to int16 words [tiles, N', 32]; inputs that fill up the last tile hold the last zero point."""
    k, n = q.shape
    tiles, columns = -(-k // TILE_K), -(-n // ALIGN_N) * ALIGN_N
    full = torch.zeros(tiles * TILE_K, columns, dtype=torch.int32, device=q.device)
    full[:k, :n] = q.to(torch.int32)
    full[k:, :n] = zeros[-1].to(torch.int32)
    runs = full.view(tiles, 4, WORDS, columns)
    packed = runs[:, 0] | runs[:, 1] << 4 | runs[:, 2] << 8 | runs[:, 3] << 12
    return packed.to(torch.int16).transpose(1, 2).contiguous()


def _meta(scales: torch.Tensor, zeros: torch.Tensor, group: int, shape: torch.Size) -> torch.Tensor:
    """Scales and zero points in one word each, int32 [groups', N']."""
    groups, n = scales.shape
    rows = 1 if group == -1 else shape[0] * (TILE_K // group)
    meta = torch.zeros(rows, shape[1], dtype=torch.int32, device=scales.device)
    bits = scales.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    meta[:groups, :n] = bits | zeros.to(torch.int32) << 16
    return meta


def _order(g_idx: torch.Tensor, k: int, group: int) -> torch.Tensor | None:
    """The inputs sorted by group, or None if they are; KernelInputError where groups are not of one size."""
    require(tuple(g_idx.shape) == (k,), f"g_idx has shape {tuple(g_idx.shape)}, ({k},) is needed")
    plain = torch.arange(k, device=g_idx.device) // group
    g_idx = g_idx.to(torch.int64)
    if torch.equal(g_idx, plain):
        return None
    groups = -(-k // group)
    low, high = int(g_idx.min()), int(g_idx.max())
    require(low >= 0 and high < groups, f"g_idx holds {low} to {high}, groups are 0 to {groups - 1}")
    counts, needed = torch.bincount(g_idx, minlength=groups), torch.bincount(plain)
    for at in (counts != needed).nonzero().flatten().tolist()[:1]:
        has, right = int(counts[at]), int(needed[at])
        raise KernelInputError(f"g_idx puts {has} inputs into group {at}, {right} are needed: groups are of one size")
    return torch.argsort(g_idx, stable=True)


def _check_group(group: int) -> None:
    require(group in GROUPS, f"group is {group}; {', '.join(map(str, GROUPS[:-1]))} or -1 is supported")
