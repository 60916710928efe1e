"""The hardware of this machine: its NVIDIA GPU by NVML, its processor by what the system says and a short copy."""

from __future__ import annotations

import functools
from typing import Any

from perfmodel.base.errors import NoGpu, UnknownName
from perfmodel.base.text import printable
from perfmodel.base.units import gib, parse
from perfmodel.base.validation import build
from perfmodel.hwspecs import kept, processor
from perfmodel.hwspecs.schema import Gpu, Quantity

_ELSE = "name the GPU to model instead, such as --gpu h100 (`perfmodel list gpus` shows all), or --gpu cpu"


def local_gpu(index: int = 0) -> Gpu:
    """The spec of this machine's GPU: the built-in of that name, with the memory that its driver reports.

    Parameters
    ----------
    index : int
        Which GPU, in NVML's order.

    Raises
    ------
    NoGpu
        Without the NVML bindings, a driver or a GPU, or for a GPU that is not built in: what was found, what to do.
    """
    try:
        import pynvml
    except ImportError as error:
        raise NoGpu(f"no NVML bindings: install the extra perfmodel[gpu] (nvidia-ml-py), or {_ELSE}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGpu(f"no NVIDIA driver answers ({error}): install one, or {_ELSE}") from error
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        if not 0 <= index < count:
            raise NoGpu(f"GPU {index} was asked for and the driver knows {count}: {_ELSE}")
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        total = float(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        raise NoGpu(f"the NVIDIA driver does not describe GPU {index} ({error}): {_ELSE}") from error
    finally:
        pynvml.nvmlShutdown()
    return match(_text(name), total, _text(driver))


def match(name: str, total: float, driver: str, teller: str = "NVML") -> Gpu:
    """The built-in spec of a GPU as NVML, or another teller, describes it.

    Parameters
    ----------
    name : str
        NVML's device name, such as ``"NVIDIA H100 80GB HBM3"``; a built-in has it as its name or an alias.
    total : float
        Its memory as the driver reports it [bytes]; it takes the place of the spec's.
    driver : str
        The driver's version, for the source of that number; empty where the teller does not say.
    teller : str
        Who described it, for that source too.

    Raises
    ------
    NoGpu
        When no built-in has that name: the nearest, and how to write a spec.

    >>> match("NVIDIA A10G", 24e9, "580.82").usable_memory
    24000000000.0
    """
    from perfmodel.hwspecs.load import GPUS, gpu

    bare = name.removeprefix("NVIDIA ").removeprefix("Tesla ").removeprefix("GeForce ")
    for candidate in (name, bare):
        try:
            spec = gpu(GPUS.resolve(candidate))
            break
        except UnknownName as error:
            unknown = error
    else:
        if (measured := kept.of_machine(name)) is not None:
            return measured
        near = unknown.suggestions
        start = f"copy the nearest ({', '.join(near)})" if near else "copy a built-in"
        raise NoGpu(
            f"found the GPU '{printable(name, limit=80)}' with {gib(total)}, which is not built in: {start} from "
            f"perfmodel/hwspecs/data/gpus to a file of your own, change its numbers and use --gpu FILE.yaml; or "
            f"measure it: perfmodel validate"
        )
    usable = Quantity(
        value=total,
        text=gib(total),
        source=f"{teller} on this machine" + (f", driver {printable(driver, limit=40)}" if driver else ""),
        note=f"the spec has {spec.memory.hbm.usable.text}" if spec.memory.hbm.usable else "",
    )
    hbm = spec.memory.hbm.model_copy(update={"usable": usable})
    return spec.model_copy(update={"memory": spec.memory.model_copy(update={"hbm": hbm}), "machine": name})


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def cpu() -> Gpu:
    """The spec of this machine's processor: as `perfmodel validate` measured it last, else ``detected_cpu``."""
    measured = kept.of_machine(processor.machine())
    if measured is None:
        return detected_cpu()
    hbm = measured.memory.hbm.model_copy(update={"usable": _available()})
    return measured.model_copy(update={"memory": measured.memory.model_copy(update={"hbm": hbm})})


@functools.cache
def _available() -> Quantity:
    """Memory that is free; asked once a process."""
    text = processor.available_memory()
    return Quantity(value=parse(text["value"], "bytes"), text=text["value"], source=text["source"])


@functools.cache
def detected_cpu() -> Gpu:
    """The spec of this machine's processor (``kind: cpu``); asked once a process, since it measures for about 0.2 s.

    Peaks are derived from cores, SIMD width and clock, with the assumptions in each source; the memory bandwidth is
    measured; memory and caches are what the system reports. What the system does not say (a clock, caches) is named in
    the notes and left out, or replaced by a stated assumption.
    """
    return build(Gpu, processor.describe(), "cpu")
