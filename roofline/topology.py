"""Which link each kind of parallelism talks over, on a given system."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu, Link, System
from perfmodel.roofline.step import Plan


@dataclass(frozen=True)
class Topology:
    """Links of a plan on a system: names for costs, and their bandwidths for times.

    Attributes
    ----------
    tp, ep, pp : str
        ``scale_up`` or ``scale_out``: the farthest link that the group's traffic crosses.
    in_network : bool
        Whether the switch of the scale-up link reduces.
    bandwidth : dict[str, float]
        One-way bytes/s of a GPU, by link name.
    system : str
        Name of the system, or ``"one GPU"``.
    domain : float
        GPUs joined by the scale-up link.
    crossings : int
        Borders between pipeline stages that the network crosses; the others lie within a domain.
    """

    tp: str = "scale_up"
    ep: str = "scale_up"
    pp: str = "scale_up"
    in_network: bool = False
    bandwidth: dict[str, float] | None = None
    system: str = "one GPU"
    domain: float = inf
    crossings: int = 0

    def inside(self, kind: str, ranks: float) -> float | None:
        """Ranks of a group that share a domain; ``None`` when the group does not leave it. ``kind``: tp or ep."""
        return min(ranks, self.domain) if getattr(self, kind) == "scale_out" else None

    def link_bandwidth(self, link: str) -> float:
        """One-way bandwidth of a link. [bytes/s]"""
        return (self.bandwidth or {})[link]


def place(plan: Plan, gpu: Gpu, system: System | None) -> Topology:
    """Put tensor-parallel groups inside a domain first, then expert groups, then pipeline stages.

    Raises
    ------
    UsageError
        When several GPUs are asked for and no system says how they are joined, or there is no network to leave the
        domain by.
    """
    if plan.gpus == 1:
        return Topology()
    if system is None:
        raise UsageError(f"{plan.gpus} GPUs need a system that joins them; {gpu.name} names none: give --system")
    domain = system.domain.value
    group = plan.tp * plan.dp if plan.ep > 1 else plan.tp
    crossings = ceil(plan.pp / max(domain // group, 1)) - 1
    links: dict[str, Link | None] = {"scale_up": system.scale_up, "scale_out": system.scale_out}
    chosen = {
        "tp": "scale_up" if plan.tp <= domain else "scale_out",
        "ep": "scale_up" if group <= domain else "scale_out",
        "pp": "scale_out" if crossings else "scale_up",
    }
    degrees = {"tp": plan.tp, "ep": plan.ep, "pp": plan.pp}
    for name, link in chosen.items():
        if degrees[name] > 1 and links[link] is None:
            raise UsageError(
                f"{name} {degrees[name]} leaves the {domain:g} GPUs of {system.name}, which has no scale-out network; "
                f"stay within {domain:g} GPUs or choose another --system"
            )
    bandwidth = {name: link.bandwidth.value for name, link in links.items() if link is not None}
    in_network = system.scale_up.in_network_reduction
    return Topology(chosen["tp"], chosen["ep"], chosen["pp"], in_network, bandwidth, system.name, domain, crossings)
