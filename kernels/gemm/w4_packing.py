"""The layout of 4-bit weights that our kernels read, and how GPTQ and AWQ checkpoints become it.

A tile is 128 inputs (K) of one output (N) in 32 words of 16 bits: bits 4j to 4j + 3 of word w are input 32 j + w.
Nibble j of a row of words is then a run of 32 inputs, two neighbouring words lie in one 32-bit register, and one AND
leaves nibble j of both where a pair of 16-bit floats has its low mantissa bits: the pair becomes two numbers by an OR
with an exponent. Tiles are stored tile by tile, so that what a program reads at a time is contiguous.

Scale and zero point of a group and output share 32 bits: the scale's 16-bit float in the low half, the zero point in
the high half. K is filled up to whole tiles with inputs of value 0, N to a multiple of 128 with outputs of scale 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from perfmodel.kernels.checks import KernelInputError, check_multiple, check_range, require
from perfmodel.kernels.entry import entry

from .w4_formats import INTEGERS, check_holds, check_integers, check_matrix, check_same_device, unpack_awq, unpack_gptq

TILE_K = 128
"""Inputs in a tile."""

WORDS = TILE_K // 4
"""16-bit words in a tile, and inputs in a run of one nibble."""

ALIGN_N = 128
"""N is filled up to a multiple of this: the outputs of the widest program."""

GROUPS = (32, 64, 128, -1)
"""Inputs that may share a scale; -1 for all of them."""

SCALE_DTYPES = (torch.float16, torch.bfloat16)

LONGEST_K, LONGEST_N = 65535 * 128, 65535 * 64
"""Largest K and N: a grid has at most 65535 programs in its second direction, and each takes 64 outputs or more; K is
what the dense product takes (`launch.LONGEST`)."""


@dataclass(frozen=True)
class W4Weight:
    """A 4-bit weight [K, N] in the kernels' layout.

    words: int16 [ceil(K/128), N', 32] with N' = N filled up to a multiple of 128. meta: int32 [groups', N'], scale and
    zero point; groups' = ceil(K/128) 128/group, or 1 for group -1. k, n: inputs and outputs. group: 32, 64, 128 or -1.
    scale_dtype: torch.float16 or torch.bfloat16. order: None, or int64 [K]: input i of the layout is input order[i] of
    the layer (act-order), each once (checked on a CPU, not on a GPU). K is a multiple of 8, at most LONGEST_K;
    N is 0 to LONGEST_N.
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

    def parts(self) -> Iterator[tuple[str, torch.Tensor, tuple[int, ...], torch.dtype]]:
        """Name, tensor, and the shape and type that it must have for these sizes, of each of the tensors."""
        tiles, columns = -(-self.k // TILE_K), -(-self.n // ALIGN_N) * ALIGN_N
        yield "weight.words", self.words, (tiles, columns, WORDS), torch.int16
        yield "weight.meta", self.meta, (tiles * self.groups_a_tile or 1, columns), torch.int32
        if self.order is not None:
            yield "weight.order", self.order, (self.k,), torch.int64

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
        """A weight of these sizes with unset contents, for kernels compiled or timed without a checkpoint.

        Raises KernelInputError for sizes, a group or a type of scales that no weight has.
        """
        check_sizes(k, n, group, scale_dtype)
        tiles, columns = -(-k // TILE_K), -(-n // ALIGN_N) * ALIGN_N
        groups = 1 if group == -1 else tiles * (TILE_K // group)
        words = torch.empty(tiles, columns, WORDS, dtype=torch.int16, device=device)
        meta = torch.empty(groups, columns, dtype=torch.int32, device=device)
        order = torch.arange(k, device=device) if reordered else None
        return cls(words, meta, k, n, group, scale_dtype, order)


@entry
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


@entry
def from_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, *, group: int) -> W4Weight:
    """A weight from the tensors of an AWQ checkpoint (the GEMM version).

    qweight: int32 [K, N/8]. qzeros: int32 [groups, N/8]. scales: fp16 or bf16 [groups, N]. group: its `q_group_size`.
    Raises KernelInputError for shapes that do not fit.
    """
    q, zeros = unpack_awq(qweight, qzeros)
    return from_integers(q, scales, zeros, group=group)


@entry
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
    [groups, N]; None for 8, the symmetric case. g_idx: see `from_gptq`. K must be a positive multiple of 8; N is any.
    Raises KernelInputError for what does not fit, integers and zero points outside 0 to 15 included.
    """
    check_integers("q", q)
    k, n = q.shape
    check_sizes(k, n, group, scales.dtype)
    groups = 1 if group == -1 else -(-k // group)
    zeros = torch.full((groups, n), 8, dtype=torch.uint8, device=q.device) if zeros is None else zeros
    check_matrix("scales", scales)
    check_integers("zeros", zeros)
    for name, x in (("scales", scales), ("zeros", zeros)):
        require(tuple(x.shape) == (groups, n), f"{name} has shape {tuple(x.shape)}, {(groups, n)} is needed")
        check_same_device(name, x, "q", q)
    order = None if g_idx is None else _order(g_idx, k, k if group == -1 else group, q.device)
    q = q if order is None else q[order]
    words = _words(q, zeros)
    return W4Weight(words, _meta(scales, zeros, group, words.shape), k, n, group, scales.dtype, order)


@entry
def to_integers(weight: W4Weight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The integers, scales and zero points that a weight was made from: the inverse of `from_integers`.

    Returns q uint8 [K, N] in the order of the layer's inputs, scales [groups, N] and zero points uint8 [groups, N].
    Raises KernelInputError for a weight that is not what its sizes say.
    """
    check_sizes(weight.k, weight.n, weight.group, weight.scale_dtype)
    for name, x, shape, dtype in weight.parts():
        require(tuple(x.shape) == shape, f"{name} has shape {tuple(x.shape)}, {shape} is needed")
        require(x.dtype == dtype, f"{name} is {x.dtype}, {dtype} is needed")
        check_same_device(name, x, "weight.words", weight.words)
    columns = weight.words.shape[1]
    nibbles = torch.stack([(weight.words >> 4 * j) & 0xF for j in range(4)], 1)  # tile, nibble, output, word
    q = nibbles.to(torch.uint8).transpose(2, 3).reshape(len(nibbles) * TILE_K, columns)[: weight.k, : weight.n]
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


def _order(g_idx: torch.Tensor, k: int, group: int, device: torch.device) -> torch.Tensor | None:
    """The inputs sorted by group, or None if they are; KernelInputError where groups are not of one size."""
    require(tuple(g_idx.shape) == (k,), f"g_idx has shape {tuple(g_idx.shape)}, ({k},) is needed")
    require(g_idx.dtype in INTEGERS, f"g_idx is {g_idx.dtype}, integers are needed")
    check_holds("g_idx", g_idx)
    plain = torch.arange(k, device=device) // group
    g_idx = g_idx.to(device, torch.int64)
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


def check_sizes(k: int, n: int, group: int, scale_dtype: torch.dtype) -> None:
    """Check for sizes that a weight may have. Raises KernelInputError."""
    for name, value in (("K", k), ("N", n), ("group", group)):
        require(isinstance(value, int), f"{name} is {value!r}, an integer is needed")
    check_multiple("K", k, 8)
    check_range("K", k, 8, LONGEST_K)
    check_range("N", n, 0, LONGEST_N)
    require(group in GROUPS, f"group is {group}; {', '.join(map(str, GROUPS[:-1]))} or -1 is supported")
    require(scale_dtype in SCALE_DTYPES, f"scales are {scale_dtype}, torch.float16 or torch.bfloat16 is needed")
