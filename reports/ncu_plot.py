"""Profiled kernels on the roofline of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.units import engineering
from perfmodel.reports import measured_plot
from perfmodel.reports.words import intensity, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfmodel.validate.ncu_work import Profile, Profiled

_ROOFS = {"hbm": "memory", "matrix": "matrix", "vector": "vector"}


def draw(found: Profile, theme: str = "light") -> Figure:
    """Draw a profile: a point a kernel, its launches together.

    Raises
    ------
    UsageError
        When no kernel made operations and moved bytes.
    """
    from perfmodel.validate.ncu_work import peak_of

    total = sum(kernel.seconds for kernel in found.kernels)
    used = {peak[0] for k in found.kernels for source in k.tensor if (peak := peak_of(source, found.gpu))}
    used |= {fmt for k in found.kernels for fmt in k.vector if k.limiter == f"vector:{fmt}"}
    points = [_point(k, k.seconds / total) for k in found.kernels if k.bytes > 0]
    return measured_plot.draw(found.gpu, points, used, f"Profiled kernels on {found.gpu.title}", theme)


def undrawn(found: Profile) -> int:
    """Kernels that have no place on the picture's log scales: they made no operation, or moved no byte."""
    return sum(1 for k in found.kernels if not (k.flops > 0 and k.bytes > 0))


def _point(k: Profiled, share: float) -> measured_plot.Point:
    text = (
        f"{percent(share)} of the time, {engineering(k.flops / k.seconds, 'FLOP/s')} at {intensity(k.intensity)}, "
        f"{percent(k.attained)} of its roof"
    )
    roof = _ROOFS[k.limiter.split(":")[0]]
    return measured_plot.Point(
        k.kernel, text, k.intensity, k.flops / k.seconds, k.flops / k.bound, roof, share
    )  # fmt: skip
