"""From packed integers to 16-bit floats in registers: one AND-OR makes two numbers, one FMA takes off the zero point.

A 32-bit register holds two 16-bit words. Masked to nibble j of both and joined with the bits of a power of two whose
last mantissa bit is worth 1 (1024 = 0x6400 in fp16, 128 = 0x4300 in bf16), each half reads as that power plus the
integer. fp16 has mantissa bits to spare: nibbles 1 and 3 stay four bits up, worth 16 each, and the FMA multiplies by
1/16; bf16 shifts every nibble down. All of it is exact, as is the difference from the zero point (-15 to 15).
Source: Kim et al., "Who Says Elephants Can't Run", arXiv:2211.10017, as FasterTransformer's
interleaved_numeric_conversion.h applies it.

The same in plain operations is what the interpreter runs, which has no inline assembly.
"""

from __future__ import annotations

import triton
import triton.language as tl

REGISTERS = tl.constexpr("=r,r,r")

TEMPLATE = """{{
    .reg .b32 t, c;
    mov.b32 c, {one};
    shr.b32 t, $1, {shift};
    lop3.b32 t, t, {mask}, {power}, 0xea;
    fma.rn.{kind} $0, t, c, $2;
}}"""
"""$0: two floats. $1: two words. $2: the bias of each (`bias_of`). 0xea is (a AND b) OR c."""


def _fp16(nibble: int) -> str:
    """nibble 0 or 2: (1024 + q) 1 + bias. 1 or 3: (1024 + 16 q) 1/16 + bias."""
    high = nibble % 2
    return TEMPLATE.format(
        one="0x2c002c00" if high else "0x3c003c00",
        shift=8 * (nibble // 2),
        mask="0x00f000f0" if high else "0x000f000f",
        power="0x64006400",
        kind="f16x2",
    )


def _bf16(nibble: int) -> str:
    """(128 + q) 1 + bias; sm_80 has no addition in bf16, but this."""
    return TEMPLATE.format(one="0x3f803f80", shift=4 * nibble, mask="0x000f000f", power="0x43004300", kind="bf16x2")


FP16_ASM = tl.constexpr(tuple(_fp16(nibble) for nibble in range(4)))
BF16_ASM = tl.constexpr(tuple(_bf16(nibble) for nibble in range(4)))
"""For each nibble what turns two words and their biases into two floats."""


@triton.jit
def scale_of(meta, SCALE: tl.constexpr):
    """The scale in the low half of a word, in fp32. SCALE: its 16-bit type."""
    return meta.to(tl.int16).to(SCALE, bitcast=True).to(tl.float32)


@triton.jit
def bias_of(meta, NIBBLE: tl.constexpr, dtype: tl.constexpr):
    """What the FMA adds for the zero point z in a word of `meta`, as the int16 bits of a 16-bit float.

    It takes off what the power of two became, too. bf16: -(128 + z). fp16: -(1024 + z), for nibbles 1 and 3 -(64 + z).
    """
    zero = (meta >> 16) & 0xF
    if dtype == tl.bfloat16:
        half = zero | 0xC300
    elif NIBBLE % 2 == 0:
        half = zero | 0xE400
    else:
        half = zero << 4 | 0xD400
    return half.to(tl.int16)


@triton.jit
def integers_less_zero(words, meta, NIBBLE: tl.constexpr, dtype: tl.constexpr, USE_ASM: tl.constexpr):
    """q - z of one nibble: words int16 [N, 32] and meta int32 [N] to dtype (fp16 or bf16) [N, 32], exact."""
    if not USE_ASM:
        q = (words.to(tl.int32) >> 4 * NIBBLE) & 0xF
        return (q - ((meta >> 16) & 0xF)[:, None]).to(dtype)
    pair = [words, bias_of(meta, NIBBLE, dtype)[:, None]]
    if dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(BF16_ASM[NIBBLE], REGISTERS, pair, tl.bfloat16, is_pure=True, pack=2)
    else:
        return tl.inline_asm_elementwise(FP16_ASM[NIBBLE], REGISTERS, pair, tl.float16, is_pure=True, pack=2)
