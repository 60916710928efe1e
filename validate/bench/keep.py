"""What outlives a run: the measured spec of the device, and the fit that belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfmodel.base.errors import NoGpu, SpecError, UsageError
from perfmodel.base.userdata import keep
from perfmodel.base.validation import build
from perfmodel.hwspecs import detect, kept
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.efficiency_kept import kept_fits
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
    """The GPU as it is built in, by NVML's name or else torch's; one that is not, as torch describes it and as it was
    measured."""
    with suppress(NoGpu):
        return detect.local_gpu()
    torch = machine.import_torch()
    p = torch.cuda.get_device_properties(0)
    try:
        return detect.match(p.name, float(p.total_memory), "", "torch.cuda.get_device_properties")
    except NoGpu:
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
    try:
        older = kept.named(str(data["name"]))
    except SpecError:  # damaged: what was measured now takes its place
        older = None
    if older is not None and not renew and kept_fits(older, engine):
        return path, False
    return kept.write(str(data["name"]), data), True


def check_rows(fit: DeviceFit, spec: Gpu, left: Sequence[str]) -> None:
    """Refuse to replace a fit by one of fewer cases, made in too short a time.

    Parameters
    ----------
    left : sequence of str
        What was not measured.

    Raises
    ------
    UsageError
        Saying how many cases each rests on.
    """
    try:
        older = kept_fits(spec, str(fit.content["engine"]))
    except SpecError:  # damaged: any fit is better
        return
    before = max((sum(k.regimes[-1].rows for k in one.kernels.values() if k.regimes) for one in older), default=0)
    rows = sum(line["rows"] for line in fit.lines)
    if left and rows < before:
        raise UsageError(
            f"the kept fit of {spec.name} rests on {before} rows, this one would on {rows}: it stays; give more "
            f"--budget, with --resume the cases so far count ({left[-1]})"
        )


def keep_fit(fit: DeviceFit) -> Path:
    """Keep a fit where `--gpu cpu` and `--gpu local` find it."""
    path = kept.fit_folder() / f"{fit.content['gpu']}-{fit.content['engine']}.yaml"
    keep(path, text(fit.content, "perfmodel validate --calibrate"))
    return path
