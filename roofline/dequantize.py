"""What it takes to turn narrow weights into numbers that the matrix units multiply: instructions a weight.

A GPU multiplies 4-bit integers, and FP8 or FP4 where it has no unit for them, in 16 bits: each weight is unpacked in
registers first. Those instructions share the SMs' issue slots with all others, so that a weight-only product has a
third limit beside memory and matrix units:

    issue time = instructions a weight x n x k / (SMs x 128 threads a clock x clock)

The roofline counts at most ``LEAST`` of them, which no kernel does without; calibrated times count all that a kernel
issues, once for each tile of rows.
"""

from __future__ import annotations

from math import isfinite

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.formats import Format

#: Threads that an SM issues an instruction for in a clock: four schedulers of a warp of 32. Source: NVIDIA CUDA C++
#: Programming Guide 12, compute capabilities 8.x and 9.0: "4 warp schedulers", one instruction each a clock.
THREADS_PER_CLOCK = 128.0
#: Instructions a weight that no kernel does without: an instruction on a register holds two 16-bit numbers, and a pair
#: needs one to be brought into place (``lop3`` or ``prmt``) and one to lose its offset.
LEAST = 1.0
#: All instructions of the inner loop, a weight and a group. From the SASS of this project's 4-bit product for up to 16
#: rows on sm_80 and sm_90 (docs/kernels.md): 2.1 and 2.3 with a scale a channel, 2.5 and 2.6 for groups of 128, 2.8 and
#: 2.9 for 64, 3.4 and 3.6 for 32. The same is assumed of other widths, of which no kernel was counted.
PER_WEIGHT, PER_GROUP = 2.2, 42.0
#: More than this is a slip of the pen.
MOST = 1000.0
#: Bits from which a format is multiplied as it is stored.
PLAIN_BITS = 16
#: Math of narrow formats: what is multiplied in it is not unpacked.
NARROW = ("fp8", "fp6", "fp4", "int8", "int4")


def needs_dequantization(fmt: Format, math: str) -> bool:
    """Whether weights of a format are unpacked before they are multiplied in ``math``.

    >>> from perfmodel.modelspecs.formats import FORMATS
    >>> needs_dequantization(FORMATS["int4"], "bf16"), needs_dequantization(FORMATS["fp8"], "fp8")
    (True, False)
    """
    return fmt.bits < PLAIN_BITS and math not in NARROW


def instructions(fmt: Format, math: str, given: float | None = None) -> float:
    """Instructions a weight of a format's dequantization; 0 where the units multiply it as it is stored.

    ``2.2 + 42 / group``: within 8 % of the counted kernels for groups of 32 and more.

    Parameters
    ----------
    given : float, optional
        Of the user's own kernel, instead.

    >>> from perfmodel.modelspecs.formats import FORMATS
    >>> round(instructions(FORMATS["int4"], "bf16"), 2), instructions(FORMATS["bf16"], "bf16")
    (2.53, 0.0)
    """
    if not needs_dequantization(fmt, math):
        return 0.0
    if given is not None:
        return given
    group = fmt.group[1] if fmt.group else 0
    return PER_WEIGHT + (PER_GROUP / group if group else 0.0)


def check_instructions(value: float | None) -> float | None:
    """Refuse instructions a weight that cannot be.

    Raises
    ------
    UsageError
    """
    if value is not None and not (isfinite(value) and 0 < value <= MOST):
        raise UsageError(f"dequantization takes {value:g} instructions a weight; give more than 0 and at most {MOST:g}")
    return value


def issue_rate(gpu: Gpu) -> float | None:
    """Instructions of one thread that all SMs issue a second; ``None`` where the spec lacks SMs or clock, or is no GPU.

    >>> from perfmodel.hwspecs.load import gpu
    >>> round(issue_rate(gpu("a100")) / 1e12, 1)  # 108 SMs x 128 x 1.41 GHz
    19.5
    """
    clock = gpu.compute.clock_tensor or gpu.compute.clock_boost
    if gpu.kind != "gpu" or gpu.compute.sms is None or clock is None:
        return None
    return gpu.compute.sms.value * THREADS_PER_CLOCK * clock.value
