"""What outlives a run: the measured spec of the device, and the fit that belongs to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfmodel.base.errors import NoGpu
from perfmodel.base.userdata import keep
from perfmodel.base.validation import build
from perfmodel.hwspecs import detect, kept
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.efficiency_kept import fit_folder, kept_fits
from perfmodel.validate.bench import machine
from perfmodel.validate.bench.ceilings import Ceilings
from perfmodel.validate.bench.fit import DeviceFit
from perfmodel.validate.bench.spec import gpu_spec, processor_spec, unknown_gpu
from perfmodel.validate.fit_store import text


def measured(device: str, found: Ceilings, threads: int) -> dict[str, Any]:
    """The spec of the device with the ceilings of a run, as plain data."""
    versions = ", ".join(f"{n} {v}" for n, v in machine.versions().items() if n in ("torch", "triton"))
    if device == "cpu":
        return processor_spec(detect.detected_cpu(), found, threads, versions)
    return gpu_spec(datasheet(found), found, versions)


def datasheet(found: Ceilings) -> Gpu:
    """The GPU as it is built in; one that is not, as its driver describes it and as it was measured."""
    try:
        return detect.local_gpu()
    except NoGpu:
        torch = machine.import_torch()
        p = torch.cuda.get_device_properties(0)
        told = {
            "name": p.name, "capability": f"{p.major}.{p.minor}", "multiprocessors": p.multi_processor_count,
            "memory_bytes": p.total_memory, "l2_bytes": getattr(p, "L2_cache_size", 0),
            "clock_hz": getattr(p, "clock_rate", 0) * 1e3,
        }  # fmt: skip
        return unknown_gpu(told, found)


def as_gpu(data: dict[str, Any]) -> Gpu:
    """Plain data as a spec."""
    return build(Gpu, data, data.get("name", "device"))


def reference(device: str, spec: Gpu, found: Ceilings) -> Gpu:
    """The spec that a fit of this device refers to: of a processor the measured one as it is kept, of a GPU that which
    ``local`` gives."""
    if device == "cpu":
        return kept.named(spec.name) or spec
    return datasheet(found)


def keep_spec(data: dict[str, Any], engine: str, renew: bool = False) -> tuple[Path, bool]:
    """Keep the measured spec, unless a fit refers to an older one.

    Parameters
    ----------
    renew : bool
        Write it although there is a fit: a new fit follows.

    Returns
    -------
    Path, bool
        The file, and whether it was written.
    """
    path = kept.path_of(str(data["name"]))
    older = kept.named(str(data["name"]))
    if older is not None and not renew and kept_fits(older, engine):
        return path, False
    return kept.write(str(data["name"]), data), True


def keep_fit(fit: DeviceFit) -> Path:
    """Keep a fit where `--gpu cpu` and `--gpu local` find it."""
    path = fit_folder() / f"{fit.content['gpu']}-{fit.content['engine']}.yaml"
    keep(path, text(fit.content, "perfmodel validate --calibrate"))
    return path
