"""Checkpoint formats of 4-bit weights: GPTQ and AWQ words, packed and unpacked.

A weight maps K inputs to N outputs. Its integers q [K, N] are 0 to 15; a run of `group` inputs shares a scale and a
zero point for each output; the value is (q - zero) scale. Eight integers make a 32-bit word, the first in the low bits.

- GPTQ: a word holds eight successive inputs of one output, `qweight` [K/8, N]; zero points are packed along N,
  `qzeros` [groups, N/8]. In version 1 each word of `qzeros` is the packed zero points less 0x11111111, so that a reader
  adds 1; version 2 (`"checkpoint_format": "gptq_v2"`) stores them as they are. The subtraction is one of whole words: a
  zero point of 0 borrows from its neighbour, as in the files of GPTQModel, the only writer of such words that can be
  read back. A word without a digit of 15 holds no zero point of 0, and is read by the "+1" of every reader. The lowest
  digit of 15 is a zero point of 0 that borrowed from the next: a reader that adds 1 digit by digit would make 16 of it,
  or 0, and the next one too low.
  Sources: github.com/AutoGPTQ/AutoGPTQ auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py (`pack`);
  github.com/ModelCloud/GPTQModel gptqmodel/utils/model.py (`convert_gptq_v1_to_v2_format_module`).
- AWQ: a word holds eight outputs of one input, `qweight` [K, N/8], in the order 0, 2, 4, 6, 1, 3, 5, 7; `qzeros`
  [groups, N/8] likewise, nothing subtracted.
  Source: github.com/casper-hansen/AutoAWQ awq/modules/linear/gemm.py (`WQLinear_GEMM.from_linear`).

All of this is done once, when weights are loaded: plain torch on any device, reading the data.
"""

from __future__ import annotations

import torch

from perfmodel.kernels.checks import check_multiple, require
from perfmodel.kernels.entry import entry

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output that lies at each position of an AWQ word, from the low bits up."""

GPTQ_V1_OFFSET = 0x11111111
"""What version 1 of the GPTQ format subtracts from a word of eight zero points."""

WORD = 8
"""Integers in a 32-bit word."""

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Types that numbers to be packed may have."""


@entry
def pack_gptq(q: torch.Tensor, zeros: torch.Tensor, *, version: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Words of the GPTQ format.

    q: integers 0 to 15 [K, N], inputs in the order of the checkpoint. zeros: zero points 0 to 15 [groups, N].
    version: 1 or 2, the convention for zero points. Returns `qweight` int32 [K/8, N] and `qzeros` int32 [groups, N/8].
    Raises KernelInputError unless K and N are positive multiples of 8, there is a group, and all numbers are 0 to 15.
    """
    _check_pair(q, zeros)
    check_multiple("K", q.shape[0], WORD)
    qweight = _to_words(q.t().reshape(q.shape[1], -1, WORD)).t().contiguous()
    return qweight, _shift_zeros(_to_words(zeros.reshape(zeros.shape[0], -1, WORD)), -_offset(version))


@entry
def unpack_gptq(qweight: torch.Tensor, qzeros: torch.Tensor, *, version: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers of the GPTQ format: the inverse of `pack_gptq`.

    Returns q uint8 [K, N] and zero points uint8 [groups, N]. Raises KernelInputError for tensors that are not int32
    matrices of matching N, or empty.
    """
    _check_packed(qweight, qzeros)
    n = qweight.shape[1]
    require(qzeros.shape[1] * WORD == n, f"qzeros has {qzeros.shape[1]} columns, N/8 = {n / WORD:g} are needed")
    q = _from_words(qweight.t()).reshape(n, -1).t().contiguous()
    return q, _from_words(_shift_zeros(qzeros, _offset(version))).reshape(qzeros.shape[0], n)


@entry
def pack_awq(q: torch.Tensor, zeros: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Words of the AWQ format.

    q: integers 0 to 15 [K, N]. zeros: zero points 0 to 15 [groups, N]. Returns `qweight` int32 [K, N/8] and `qzeros`
    int32 [groups, N/8]. Raises KernelInputError unless N is a positive multiple of 8, there are an input and a group,
    and all numbers are 0 to 15.
    """
    _check_pair(q, zeros)
    require(len(q) > 0, "q has no input; K is 0")
    order = list(AWQ_ORDER)
    qweight, qzeros = (_to_words(x.reshape(x.shape[0], -1, WORD)[:, :, order]) for x in (q, zeros))
    return qweight, qzeros


@entry
def unpack_awq(qweight: torch.Tensor, qzeros: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers of the AWQ format: the inverse of `pack_awq`.

    Returns q uint8 [K, N] and zero points uint8 [groups, N]. Raises KernelInputError for tensors that are not int32
    matrices of as many columns, or empty.
    """
    _check_packed(qweight, qzeros)
    words = qweight.shape[1]
    require(qzeros.shape[1] == words, f"qzeros has {qzeros.shape[1]} columns, qweight has {words}; they must agree")
    place = [AWQ_ORDER.index(i) for i in range(WORD)]
    q, zeros = (_from_words(x)[:, :, place].reshape(x.shape[0], -1) for x in (qweight, qzeros))
    return q, zeros


def _to_words(integers: torch.Tensor) -> torch.Tensor:
    """[..., 8] integers to [...] int32 words, the first in the low bits."""
    words = torch.zeros(integers.shape[:-1], dtype=torch.int64, device=integers.device)
    for i in range(WORD):
        words |= integers[..., i].to(torch.int64) << 4 * i
    return _wrap(words)


def _from_words(words: torch.Tensor) -> torch.Tensor:
    """[...] int32 words to [..., 8] uint8 integers."""
    return torch.stack([((words >> 4 * i) & 0xF).to(torch.uint8) for i in range(WORD)], -1)


def _shift_zeros(words: torch.Tensor, offset: int) -> torch.Tensor:
    """Words plus an offset, modulo 2^32."""
    return _wrap(words.to(torch.int64) + offset)


def _wrap(words: torch.Tensor) -> torch.Tensor:
    """The low 32 bits of int64 numbers, as int32."""
    return ((words + 2**31) % 2**32 - 2**31).to(torch.int32)


def _offset(version: int) -> int:
    require(version in (1, 2), f"version is {version!r}; the GPTQ format has 1 and 2")
    return GPTQ_V1_OFFSET if version == 1 else 0


def check_integers(name: str, x: torch.Tensor) -> None:
    """Check a matrix of integers 0 to 15, reading it: another would change its neighbours in the same word.

    Raises KernelInputError.
    """
    check_matrix(name, x)
    require(x.dtype in INTEGERS, f"{name} is {x.dtype}, integers are needed; round it, then .to(torch.uint8)")
    low, high = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
    require(low >= 0 and high <= 15, f"{name} holds {low} to {high}, 4-bit integers are 0 to 15; clamp or requantize")


def check_matrix(name: str, x: torch.Tensor) -> None:
    """Check for a matrix with contents, on any device. Raises KernelInputError."""
    require(x.dim() == 2, f"{name} has shape {tuple(x.shape)}, a matrix is needed")
    check_holds(name, x)


def check_holds(name: str, x: torch.Tensor) -> None:
    """Check that a tensor has numbers, laid out by strides. Raises KernelInputError."""
    require(x.layout == torch.strided, f"{name} is {x.layout}; call .to_dense()")
    require(x.device.type != "meta", f"{name} is on the meta device, which holds nothing; weights are packed from data")


def _check_pair(q: torch.Tensor, zeros: torch.Tensor) -> None:
    check_integers("q", q)
    check_integers("zeros", zeros)
    n = q.shape[1]
    check_multiple("N", n, WORD)
    fits = zeros.shape[1] == n and len(zeros) > 0
    require(fits, f"zeros has shape {tuple(zeros.shape)}, a row a group of N = {n} is needed")
    check_same_device("zeros", zeros, "q", q)


def check_same_device(name: str, x: torch.Tensor, other: str, y: torch.Tensor) -> None:
    """Check that two tensors are on one device. Raises KernelInputError."""
    require(x.device == y.device, f"{name} is on {x.device}, {other} on {y.device}; move one with .to()")


def _check_packed(qweight: torch.Tensor, qzeros: torch.Tensor) -> None:
    for name, x in (("qweight", qweight), ("qzeros", qzeros)):
        check_matrix(name, x)
        require(x.dtype == torch.int32, f"{name} is {x.dtype}, torch.int32 is needed")
        require(x.numel() > 0, f"{name} has shape {tuple(x.shape)}: it holds nothing")
    check_same_device("qzeros", qzeros, "qweight", qweight)
