"""What becomes of scores before the softmax, the same in prefill, decode and tree attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from perfmodel.kernels.checks import check_number, check_tensor, require

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)

LONGEST = 2**30
"""Most tokens of a sequence, and keys of a window: positions are 32-bit, and differences of them are taken."""

_LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Scores:
    """What becomes of scores before the softmax, and the sink that joins it; scale None is 1 / sqrt(head_dim)."""

    scale: float | None
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    def factor(self, head_dim: int) -> float:
        """What scores are multiplied by."""
        return head_dim**-0.5 if self.scale is None else self.scale

    def in_log2(self, head_dim: int) -> tuple[float, float | None]:
        """Scale and cap as `softmax_blocks.capped` takes them."""
        scale = self.factor(head_dim) * _LOG2E
        return (scale, None) if self.softcap is None else (2 * scale / self.softcap, self.softcap * _LOG2E)


def check_head_dim(head_dim: int) -> None:
    """Check that the head dimension is one of HEAD_DIMS."""
    require(head_dim in HEAD_DIMS, f"head_dim is {head_dim}, {', '.join(map(str, HEAD_DIMS))} are supported")


def check_heads(heads: int, kv_heads: int, of: str, name: str = "q") -> None:
    """Check that the heads of `name` share those of `of` (keys, a cache) evenly."""
    even = kv_heads > 0 and heads % kv_heads == 0
    require(even, f"{name} has {heads} heads, a multiple of {of}'s {kv_heads} is needed")


def check_scores(q: torch.Tensor, scores: Scores) -> None:
    """Check scale, window, softcap and sinks, q being [..., heads, head_dim] with a head_dim above 0."""
    scale, window, cap = scores.factor(q.shape[-1]), scores.window, scores.softcap
    check_number("scale", scale)
    require(window is None or window >= 1, f"window is {window}, at least 1 is needed (a query sees its own key)")
    require(window is None or window <= LONGEST, f"window is {window}, up to 2^30 is supported; pass None to see all")
    if cap is not None:
        check_number("softcap", cap, other=" or None")
        check_number("scale / softcap", scale / cap)
    if scores.sinks is not None:
        check_tensor("sinks", scores.sinks, [q.shape[-2]], [torch.float32, *DTYPES], like=q, align=4)
