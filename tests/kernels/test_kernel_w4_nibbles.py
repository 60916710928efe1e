"""The assembly that turns packed integers into floats, executed here instruction by instruction.

The interpreter has no inline assembly and runs plain operations in its place; this shows that the text the GPU runs
computes the same, for every word and zero point.
"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from perfmodel.kernels.gemm.w4_nibbles import BF16_ASM, FP16_ASM, bias_of, integers_less_zero

TYPES = {"fp16": (torch.float16, FP16_ASM.value), "bf16": (torch.bfloat16, BF16_ASM.value)}


def number(text: str) -> int:
    return int(text, 0)


def lop3(a: torch.Tensor, b: int, c: int, table: int) -> torch.Tensor:
    """Each bit is that of `table` at 4 a + 2 b + c (PTX ISA, lop3)."""
    out = torch.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            of_a = a if row & 4 else ~a
            out |= of_a & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return out


def halves(register: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The two 16-bit floats of 32-bit numbers, low half first, in float64."""
    both = torch.stack([register & 0xFFFF, register >> 16 & 0xFFFF], -1)
    return (both ^ 0x8000).sub(0x8000).to(torch.int16).view(dtype).double()


def execute(text: str, words: torch.Tensor, biases: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Run the instructions on registers of two words ($1) and two biases ($2); returns the floats of $0."""
    at: dict[str, torch.Tensor] = {"$1": words, "$2": biases}
    for line in filter(None, (part.strip(" \n{}") for part in text.split(";"))):
        opcode, _, rest = line.partition(" ")
        to, *given = (operand.strip() for operand in rest.split(","))
        if opcode == "mov.b32":
            at[to] = torch.tensor(number(given[0]))
        elif opcode == "shr.b32":
            at[to] = at[given[0]] >> number(given[1])
        elif opcode == "lop3.b32":
            at[to] = lop3(at[given[0]], number(given[1]), number(given[2]), number(given[3]))
        elif opcode in ("fma.rn.f16x2", "fma.rn.bf16x2"):
            assert opcode == ("fma.rn.f16x2" if dtype == torch.float16 else "fma.rn.bf16x2")
            a, b, c = (halves(at[name], dtype) for name in given)
            at[to] = (a * b + c).to(dtype)
        else:
            assert opcode == ".reg", f"no such instruction here: {line}"
    return at["$0"].double()


@triton.jit
def _bias_kernel(meta, out, NIBBLE: tl.constexpr, TYPE: tl.constexpr):
    at = tl.arange(0, 16)
    tl.store(out + at, bias_of(tl.load(meta + at), NIBBLE, TYPE))


@triton.jit
def _plain_kernel(words, meta, out, NIBBLE: tl.constexpr, USE_ASM: tl.constexpr):
    rows, run = tl.arange(0, 16), tl.arange(0, 32)
    at = rows[:, None] * 32 + run[None, :]
    value = integers_less_zero(tl.load(words + at), tl.load(meta + rows), NIBBLE, out.dtype.element_ty, USE_ASM)
    tl.store(out + at, value)


def biases(nibble: int, dtype: torch.dtype) -> torch.Tensor:
    """The bias of zero points 0 to 15, the scale's bits being noise."""
    meta = (torch.arange(16) << 16 | 0xBEEF).to(torch.int32)
    out = torch.empty(16, dtype=torch.int16)
    _bias_kernel[(1,)](meta, out, nibble, tl.float16 if dtype == torch.float16 else tl.bfloat16)
    return out.long() & 0xFFFF


@pytest.mark.interpreter
@pytest.mark.parametrize("nibble", range(4))
@pytest.mark.parametrize("kind", TYPES)
def test_assembly_decodes_every_word(kind: str, nibble: int) -> None:
    """For all 65536 words in either half it gives q - z; the zero points are the words' next nibbles, so each q meets
    each z, and they differ between the halves."""
    dtype, texts = TYPES[kind]
    low = torch.arange(65536)
    high = low.flip(0)
    zeros = [word >> 4 * ((nibble + 1) % 4) & 15 for word in (low, high)]
    bias = biases(nibble, dtype)
    got = execute(texts[nibble], low | high << 16, bias[zeros[0]] | bias[zeros[1]] << 16, dtype)
    for half, word in enumerate((low, high)):
        assert torch.equal(got[:, half], ((word >> 4 * nibble & 15) - zeros[half]).double())


@pytest.mark.interpreter
def test_assembly_of_another_nibble_is_seen() -> None:
    """The text of nibble 1 in the place of nibble 3 decodes something else (planted fault)."""
    words = torch.arange(65536)
    got = execute(TYPES["fp16"][1][1], words, biases(1, torch.float16)[0], torch.float16)
    assert not torch.equal(got[:, 0], (words >> 12 & 15).double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("nibble", range(4))
def test_kernels_decode(device: str, nibble: int, dtype: torch.dtype) -> None:
    """In a kernel, by plain operations in the interpreter and by assembly on a GPU, it gives q - z."""
    words = torch.randint(-32768, 32768, (16, 32), generator=torch.Generator().manual_seed(nibble)).to(torch.int16)
    out = torch.empty(16, 32, dtype=dtype, device=device)
    meta = (torch.arange(16) << 16 | 0xBEEF).to(torch.int32)
    _plain_kernel[(1,)](words.to(device), meta.to(device), out, nibble, device == "cuda")
    assert torch.equal(out.cpu().double(), ((words.long() >> 4 * nibble & 15) - torch.arange(16)[:, None]).double())
