"""Profiled kernels as text: bytes, operations and rates of each, and how much of the roofline it reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import engineering
from perfmodel.reports.tables import Column, render, to_json
from perfmodel.reports.words import clip, intensity, memory_name, percent, unit_name

if TYPE_CHECKING:
    from perfmodel.hwspecs.schema import Gpu
    from perfmodel.validate.ncu_work import Profile, Profiled

COLUMNS = (
    Column("kernel", "kernel", show=lambda name: clip(str(name), 48)),
    Column("launches", "launches", optional=3),
    Column("seconds", "time", "s"),
    Column("share", "of all", show=percent, optional=2),
    Column("bytes", "bytes", "B"),
    Column("flops", "FLOPs", "FLOP"),
    Column("intensity", "FLOP/byte", show=lambda value: "-" if value is None else intensity(value)),
    Column("flops_per_s", "FLOP/s", "FLOP/s"),
    Column("bytes_per_s", "B/s", "B/s"),
    Column("attained", "of roofline", show=percent),
    Column("limiter", "roof", optional=1),
)


def row(kernel: Profiled, total: float, gpu: Gpu) -> dict[str, Any]:
    """A kernel's figures in SI units; ``total`` is the time of all kernels. [s]"""
    return {
        "kernel": kernel.kernel, "launches": kernel.launches, "seconds": kernel.seconds,
        "share": kernel.seconds / total, "bytes": kernel.bytes, "flops": kernel.flops,
        "intensity": kernel.intensity if kernel.bytes else None, "flops_per_s": kernel.flops / kernel.seconds,
        "bytes_per_s": kernel.bytes / kernel.seconds, "attained": kernel.attained,
        "limiter": roof_words(kernel.limiter, gpu), "bound_s": kernel.bound,
        "flops_by_format": _by_format(kernel.tensor, kernel.vector),
    }  # fmt: skip


def _by_format(tensor: Mapping[str, float], vector: Mapping[str, float]) -> dict[str, float]:
    return {f"tensor:{k}": v for k, v in tensor.items()} | {f"vector:{k}": v for k, v in vector.items()}


def roof_words(limiter: str, gpu: Gpu) -> str:
    """A roof in words: ``HBM3 bandwidth``, ``BF16 tensor``, ``vector FP32``."""
    if limiter == "hbm":
        return f"{memory_name(gpu)} bandwidth"
    kind, fmt = limiter.split(":")
    return unit_name(fmt, gpu) if kind == "matrix" else f"vector {fmt.upper()}"


def text(found: Profile, fmt: str) -> str:
    """A profile as a table, JSON, CSV or Markdown."""
    total = sum(kernel.seconds for kernel in found.kernels)
    rows = [row(kernel, total, found.gpu) for kernel in found.kernels]
    if fmt == "json":
        return to_json({"gpu": found.gpu.name, "kernels": rows, "notes": list(found.notes)})
    heading = (
        f"{sum(k.launches for k in found.kernels):,} launches of {len(rows):,} kernels, {engineering(total, 's')}, "
        f"on the roofline of {found.gpu.title}"
    )
    return render(rows, COLUMNS, fmt, heading, found.notes)
