"""Arrays of steps that no single kernel runs: each part is timed by its own, and the two are put together again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.num import Num
from perfmodel.roofline import attention
from perfmodel.roofline.calibrated.shapes import DECODE_TOKENS
from perfmodel.roofline.calibrated.times import CalibratedTime
from perfmodel.roofline.op import Input, Op

Mask = NDArray[np.bool_]


def few_tokens(op: Op) -> Mask | None:
    """Where an attention's steps have as few new tokens as decode kernels take; ``None`` unless only some have."""
    q = op.inputs.get("q")
    if op.formula is not attention.gqa or not isinstance(q, np.ndarray) or q.ndim == 0:
        return None
    few = q <= DECODE_TOKENS
    return few if few.any() and not few.all() else None


def by_parts(op: Op, few: Mask, one: Callable[[Op], CalibratedTime]) -> CalibratedTime:
    """Time of an operator whose steps are of two kinds: ``one`` is asked for each kind alone."""
    numbers = {k: np.asarray(v) for k, v in op.inputs.items() if isinstance(v, np.ndarray)}
    whole = np.broadcast_shapes(*(v.shape for v in numbers.values()))
    mask = np.broadcast_to(few, whole)
    first, rest = (one(replace(op, inputs=_taken(op, numbers, whole, m))) for m in (mask, ~mask))

    def both(a: Num, b: Num) -> Num:
        out = np.empty(whole)
        out[mask], out[~mask] = a, b
        return out

    names = [*first.parts, *(name for name in rest.parts if name not in first.parts)]
    parts: dict[str, Any] = {name: both(first.parts.get(name, 0.0), rest.parts.get(name, 0.0)) for name in names}
    main = first if np.sum(first.predicted) >= np.sum(rest.predicted) else rest
    return replace(
        main, bound=both(first.bound, rest.bound), predicted=both(first.predicted, rest.predicted),
        low=both(first.low, rest.low), high=both(first.high, rest.high), shared=both(first.shared, rest.shared),
        own=both(first.own, rest.own), parts=parts,
    )  # fmt: skip


def _taken(op: Op, numbers: dict[str, Any], whole: tuple[int, ...], mask: Mask) -> dict[str, Input]:
    return {**op.inputs, **{k: np.broadcast_to(v, whole)[mask] for k, v in numbers.items()}}
