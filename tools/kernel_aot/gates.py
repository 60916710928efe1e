"""What the figures of a case must satisfy."""

from __future__ import annotations

from typing import Any

from kernel_cases.case import AT_LEAST, AT_MOST, COUNTED, Case

from kernel_aot.occupancy import REGISTERS
from perfmodel.kernels.device import SHARED_LIMIT

Figures = dict[str, Any]


def failures(case: Case, launches: list[Figures]) -> list[str]:
    """Each gate that the launches of a case fail, in words; empty if it may be shipped."""
    found = [] if launches else [f"{case.name}: launches no kernel"]
    for launch in launches:
        found += [f"{case.name}: {launch['kernel']} {fault}" for fault in _faults(case, launch)]
    return found + [f"{case.name}: {fault}" for fault in _unmet(case, launches)]


def _faults(case: Case, figures: Figures) -> list[str]:
    limit = SHARED_LIMIT[case.arch]
    spilled = max(figures["spill_stores"], figures["spill_loads"])
    held = figures["registers"] * figures["warps"] * 32 * max(figures["blocks_per_sm"], 1)
    found = []
    if figures["shared"] > limit:
        found.append(f"asks for {figures['shared']} bytes of shared memory, the limit is {limit}")
    if spilled > case.max_spill:
        found.append(f"spills {spilled} bytes of registers, {case.max_spill} are allowed")
    if figures["warnings"]:
        found.append(f"is warned of by ptxas: {'; '.join(figures['warnings'])}")
    if held > REGISTERS or figures["blocks_per_sm"] < 1:
        found.append(f"does not fit on a multiprocessor: {figures['registers']} registers, {figures['warps']} warps")
    return found


def _unmet(case: Case, launches: list[Figures]) -> list[str]:
    found = []
    for name, wanted in case.expects.items():
        values = [value for launch in launches if (value := _value(name, launch)) is not None]
        if name in COUNTED:
            met = any(values) if wanted else not any(values)
        elif name in AT_MOST:
            met = bool(values) and max(values) <= wanted
        elif name in AT_LEAST:
            met = bool(values) and max(values) >= wanted
        else:
            met = any(wanted in value if isinstance(value, list) else wanted == value for value in values)
        if not met:
            found.append(f"expects {name} {wanted}, has {values}")
    return found


def _value(name: str, launch: Figures) -> Any:
    if name in COUNTED:
        return launch["counts"].get(name, 0)
    return launch["shapes"] if name == "shape" else launch.get(name)
