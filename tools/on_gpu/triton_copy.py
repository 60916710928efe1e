"""The one Triton kernel of the suite: a masked copy."""

import triton
import triton.language as tl


@triton.jit
def copy_kernel(source, target, count, BLOCK: tl.constexpr):
    """Copy ``count`` elements, ``BLOCK`` of them a program."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)
