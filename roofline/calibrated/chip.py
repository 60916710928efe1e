"""The datasheet numbers of a GPU that the forms use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu, System

#: Bytes that one SM takes from L2 in a clock. Source: Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via
#: Microbenchmarking" (arXiv:1804.06826), L2 load throughput of 64 B/clk; the fitted shares ``l2`` are relative to it.
L2_BYTES_PER_CLOCK = 64.0


@dataclass(frozen=True)
class Chip:
    """What the forms need to know about a GPU. Nothing here is fitted.

    Attributes
    ----------
    name, architecture : str
    peaks : Mapping[str, float]
        Dense peak by number format. [FLOP/s]
    bandwidth : float
        Of the device memory. [bytes/s]
    sms : float
        Streaming multiprocessors (compute units, cores).
    l2 : float
        Capacity of the L2 cache. [bytes]
    clock : float
        The clock of the matrix peak. [Hz]
    link : float
        One-way bandwidth of the scale-up link; 0 where there is none. [bytes/s]
    """

    name: str
    architecture: str
    peaks: Mapping[str, float]
    bandwidth: float
    sms: float
    l2: float
    clock: float
    link: float = 0.0

    def peak(self, math: str) -> float:
        """Dense peak of a number format. [FLOP/s]

        Raises
        ------
        UsageError
            When the chip does not compute in it.
        """
        if math not in self.peaks:
            raise UsageError(f"{self.name} does not compute in {math}; it does in {', '.join(self.peaks)}")
        return self.peaks[math]

    @property
    def l2_per_sm(self) -> float:
        """L2-to-SM rate at 64 B a clock. [bytes/s]"""
        return L2_BYTES_PER_CLOCK * self.clock


def chip(gpu: Gpu, system: System | None = None, link: float = 0.0) -> Chip | None:
    """The chip of a GPU spec; ``None`` when the spec lacks the SM count, the clock or the L2 that the forms need.

    >>> from perfmodel.hwspecs.load import gpu
    >>> chip(gpu("h100")).sms
    132.0
    """
    compute, l2 = gpu.compute, gpu.memory.l2
    clock = compute.clock_tensor or compute.clock_boost
    if compute.sms is None or clock is None or l2 is None:
        return None
    peaks: dict[str, float] = {m: q.value for m, q in (*compute.vector.items(), *compute.tensor.items())}
    rate = system.scale_up.bandwidth.value if system else link
    return Chip(
        gpu.name, gpu.architecture, peaks, gpu.bandwidth, compute.sms.value, l2.capacity.value, clock.value, rate
    )
