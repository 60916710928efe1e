"""What an operator costs: operations by unit, device-memory bytes by stream, bytes sent by link.

A ``Cost`` adds and scales. All fields are ``Num``: a float, or an array over a sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.num import Num

#: Device-memory streams, in the order in which they are shown.
STREAMS = ("weights", "kv_read", "kv_write", "act_read", "act_write")


def matrix(math: str) -> str:
    """Name of the matrix unit of a number format, as the key of ``Cost.ops``."""
    return f"matrix:{math}"


#: The other units: FP32 FMA pipes, and the special-function units (exp2).
VECTOR, EXP = "vector", "exp"
#: The schedulers: instructions of one thread that unpack narrow weights.
ISSUE = "issue"


@dataclass(frozen=True)
class Cost:
    """Work of one operator, or a sum of them.

    Attributes
    ----------
    ops : Mapping[str, Num]
        Operations by unit: ``matrix:<format>`` and ``vector`` in FLOPs (one multiply-add is two), ``exp`` in
        exponentials, ``issue`` in instructions of one thread.
    hbm : Mapping[str, Num]
        Bytes moved between the device memory and the chip, by stream (``STREAMS``).
    l2 : Num
        Bytes that the SMs take from L2, estimated from tile sizes. Informative: not part of any bound.
    comm : Mapping[str, Num]
        Bytes that one GPU sends, by link (``scale_up``, ``scale_out``).
    """

    ops: Mapping[str, Num] = field(default_factory=dict)
    hbm: Mapping[str, Num] = field(default_factory=dict)
    l2: Num = 0.0
    comm: Mapping[str, Num] = field(default_factory=dict)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            _add(self.ops, other.ops), _add(self.hbm, other.hbm), self.l2 + other.l2, _add(self.comm, other.comm)
        )

    def __mul__(self, n: Num) -> Cost:
        return Cost(_scale(self.ops, n), _scale(self.hbm, n), self.l2 * n, _scale(self.comm, n))

    __rmul__ = __mul__

    @property
    def flops(self) -> Num:
        """Floating-point operations of the matrix and vector units."""
        return _sum(v for k, v in self.ops.items() if k not in (EXP, ISSUE))

    @property
    def matrix_flops(self) -> Num:
        """Operations of the matrix units alone: what a FLOP counter counts."""
        return _sum(v for k, v in self.ops.items() if k.startswith("matrix:"))

    @property
    def bytes(self) -> Num:
        """Bytes between the device memory and the chip."""
        return _sum(self.hbm.values())

    @property
    def sent(self) -> Num:
        """Bytes that one GPU sends over all links."""
        return _sum(self.comm.values())

    @property
    def intensity(self) -> Num:
        """Arithmetic intensity: FLOPs / device-memory bytes. [FLOP/byte]"""
        return self.flops / self.bytes


def _sum(values: Any) -> Num:
    total: Num = 0.0
    for value in values:
        total = total + value
    return total


def _add(a: Mapping[str, Num], b: Mapping[str, Num]) -> Mapping[str, Num]:
    if not a or not b:
        return a or b
    return {key: a.get(key, 0.0) + b.get(key, 0.0) for key in dict.fromkeys((*a, *b))}


def _scale(a: Mapping[str, Num], n: Num) -> Mapping[str, Num]:
    return {key: value * n for key, value in a.items()}
