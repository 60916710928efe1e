"""From measured ceilings to a spec: what was measured takes the place of what was assumed, which stays beside it."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

from perfmodel.base.units import engineering
from perfmodel.base.validation import build
from perfmodel.hwspecs import kept
from perfmodel.hwspecs.schema import Gpu
from perfmodel.validate.bench.ceilings import Ceiling, Ceilings

#: Why a number that was measured stands before another.
WHY = "not measured on this device"


def slug(text: str) -> str:
    """A name for a file: ``amd-epyc-7763``.

    >>> slug("AMD EPYC 7763 64-Core Processor (R)")
    'amd-epyc-7763-64-core-processor'
    """
    plain = re.sub(r"\((r|tm|c)\)", " ", text.casefold())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:48].strip("-") or "device"


def quantity(ceiling: Ceiling, before: Any = None) -> dict[str, Any]:
    """A measured number as a spec has it; ``before`` is what the spec said, as plain data."""
    found: dict[str, Any] = {"value": ceiling.text, "source": ceiling.method}
    if ceiling.noise:
        found["note"] = f"batches spread by {ceiling.noise:.1%} (p80 - p20 over the median)"
    if before and str(before["value"]) != found["value"]:
        found["alternatives"] = [{"value": before["value"], "source": before["source"], "why": WHY}]
    return found


def measured_spec(base: Gpu, found: Ceilings, name: str, title: str, notes: str, **changed: Any) -> dict[str, Any]:
    """The spec of a device with its measured ceilings, as plain data.

    Parameters
    ----------
    base : Gpu
        As it was detected, or its datasheet's.
    name, title, notes : str
    changed : Any
        Further keys of ``compute``, as plain data: the threads that were used.
    """
    data = {**kept.raw(base), "name": name, "title": title, "notes": notes}
    data.pop("aliases", None)
    data.pop("sources", None)
    compute, memory = dict(data["compute"]), dict(data["memory"])
    compute |= changed
    tables = {"tensor": dict(compute.get("tensor", {})), "vector": dict(compute.get("vector", {}))}
    for fmt in found.formats:
        table = tables["tensor" if fmt in tables["tensor"] or base.kind != "cpu" else "vector"]
        table[fmt] = quantity(found.items[f"peak:{fmt}"], table.get(fmt))
    if base.kind != "cpu" and "fma" in found.items:
        tables["vector"]["fp32"] = quantity(found.items["fma"], tables["vector"].get("fp32"))
    compute |= {key: table for key, table in tables.items() if table}
    if "exp" in found.items:
        compute["exp"] = quantity(found.items["exp"], compute.get("exp"))
    hbm = dict(memory["hbm"])
    memory["hbm"] = {**hbm, "bandwidth": quantity(found.items["memory"], hbm.get("bandwidth"))}
    for level in ("l2", "l3"):
        if level in memory and level in found.items:
            memory[level] = {**memory[level], "bandwidth": quantity(found.items[level], memory[level].get("bandwidth"))}
    data |= {"compute": compute, "memory": memory}
    build(Gpu, data, name)
    return data


def processor_spec(base: Gpu, found: Ceilings, threads: int, versions: str) -> dict[str, Any]:
    """The spec of a processor by so many threads; named after it, so that tables can name it."""
    plain, _, cores = base.machine.rpartition(", ")
    count = {"value": threads, "source": "threads of this measurement, one a physical core"}
    title = f"{plain}, {threads} of {cores}, as measured"
    notes = (
        f"Measured on {date.today().isoformat()} by perfmodel validate ({versions}), one pinned thread on each core."
    )
    return measured_spec(base, found, f"{slug(plain)}-{threads}t", title, notes, sms=count)


def gpu_spec(base: Gpu, found: Ceilings, versions: str) -> dict[str, Any]:
    """The spec of a GPU beside its datasheet's: ``h200-measured``."""
    notes = f"Measured on {date.today().isoformat()} by perfmodel validate ({versions}). Fits refer to the datasheet's."
    plain = base.name.removesuffix("-measured")
    return measured_spec(base, found, f"{plain}-measured", f"{base.title}, as measured", notes)


def unknown_gpu(properties: dict[str, Any], found: Ceilings) -> Gpu:
    """A spec for a GPU that is not built in, from what torch says of it and what was measured.

    Parameters
    ----------
    properties : dict
        ``name``, ``capability``, ``multiprocessors``, ``memory_bytes``, ``l2_bytes`` and ``clock_hz``.
    """
    told = "torch.cuda.get_device_properties on this machine"
    tensor = {fmt: quantity(found.items[f"peak:{fmt}"]) for fmt in found.formats}
    memory = f"{properties['memory_bytes'] / 2**20:.6g} MiB"
    data: dict[str, Any] = {
        "name": slug(properties["name"]), "title": properties["name"], "vendor": "nvidia",
        "architecture": architecture(str(properties["capability"])), "kind": "gpu",
        "compute_capability": str(properties["capability"]), "machine": properties["name"],
        "compute": {"sms": {"value": properties["multiprocessors"], "source": told}, "tensor": tensor},
        "memory": {"hbm": {
            "capacity": {"value": memory, "source": told}, "bandwidth": quantity(found.items["memory"]),
        }},
    }  # fmt: skip
    if properties.get("clock_hz"):
        data["compute"]["clock_boost"] = {"value": engineering(properties["clock_hz"], "Hz", 4), "source": told}
    if properties.get("l2_bytes"):
        data["memory"]["l2"] = {"capacity": {"value": f"{properties['l2_bytes'] / 2**20:.6g} MiB", "source": told}}
    return build(Gpu, data, data["name"])


#: Compute capability -> architecture as the specs name it. Source: NVIDIA, CUDA GPUs (developer.nvidia.com/cuda-gpus).
_ARCHITECTURES = {"7.0": "volta", "7.5": "turing", "8.0": "ampere", "8.6": "ampere", "8.9": "ada", "9.0": "hopper"}


def architecture(capability: str) -> str:
    """Architecture of a compute capability; those from 10 on are Blackwell.

    >>> architecture("9.0"), architecture("12.0")
    ('hopper', 'blackwell')
    """
    return _ARCHITECTURES.get(capability, "blackwell" if float(capability) >= 10 else "unknown")
