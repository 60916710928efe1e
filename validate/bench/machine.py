"""The machine that is measured: what it is, what runs on it, and how the process is placed."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from perfmodel.base.errors import NoGpu, UsageError

DEVICES = ("cpu", "cuda")


def choose(device: str | None) -> str:
    """The device to measure: the one asked for, else the GPU where torch sees one, else the processor.

    Raises
    ------
    NoGpu
        For ``cuda`` without one.
    UsageError
        For another name, or without torch.
    """
    torch = import_torch()
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in DEVICES:
        raise UsageError(f"--device is {' or '.join(DEVICES)}, not {device[:40]!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise NoGpu("torch sees no CUDA device: --device cpu measures this processor instead")
    return device


def import_torch() -> Any:
    """The torch module; raises UsageError with the remedy where it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise UsageError("measuring needs torch: install the extra perfmodel[gpu], or torch by itself") from error
    return torch


def processors() -> list[int]:
    """Logical processors to run on: one of each physical core that this process may use, in order."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    chosen: dict[str, int] = {}
    for cpu in allowed:
        chosen.setdefault(_siblings(cpu), cpu)
    return sorted(chosen.values())


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def idle_first(cpus: Sequence[int], seconds: float = 0.1) -> list[int]:
    """Processors by how idle they are now, the idlest first, as far as the system tells."""
    first = _idle()
    if not first:
        return list(cpus)
    time.sleep(seconds)
    later = _idle()
    return sorted(cpus, key=lambda cpu: first.get(cpu, 0.0) - later.get(cpu, 0.0))


def _idle(path: Path = Path("/proc/stat")) -> dict[int, float]:
    """Time that each processor was idle since the system started, in ticks."""
    try:
        rows = [line.split() for line in path.read_text().splitlines() if re.match(r"cpu\d", line)]
    except OSError:
        return {}
    return {int(row[0][3:]): float(row[4]) + float(row[5]) for row in rows}


@contextmanager
def pinned(cpus: Sequence[int] | None = None) -> Iterator[list[int]]:
    """Run on one logical processor a core, with as many torch threads, and give everything back afterwards.

    Parameters
    ----------
    cpus : sequence of int, optional
        Which, instead of all of ``processors``.
    """
    torch = import_torch()
    chosen, threads = list(cpus or processors()), torch.get_num_threads()
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        if before is not None:
            os.sched_setaffinity(0, chosen)
        torch.set_num_threads(len(chosen))
        yield chosen
    finally:
        torch.set_num_threads(threads)
        if before is not None:
            os.sched_setaffinity(0, before)


def versions() -> dict[str, str]:
    """Versions of what the measurement depends on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "os": f"{platform.system()} {platform.release()}"}
    for name in ("perfmodel", "torch", "triton", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def revision() -> str:
    """Git revision of the checkout that runs, ``+`` where it has changes; empty where there is none."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return ""
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def describe(device: str, threads: int = 0) -> dict[str, Any]:
    """What is fixed for a run: hardware, versions and revision. The same machine in the same state says the same.

    Parameters
    ----------
    threads : int
        That a processor is measured with.
    """
    common: dict[str, Any] = {"versions": versions(), "revision": revision()}
    if device == "cuda":
        return {**common, **_gpu()}
    from perfmodel.hwspecs.processor import machine

    return {
        **common, "device": f"{machine()}, {threads} thread{'s' * (threads != 1)}", "kind": "cpu", "threads": threads,
        "processors": processors(), "memory_bytes": psutil.virtual_memory().total,
    }  # fmt: skip


def _gpu() -> dict[str, Any]:
    torch = import_torch()
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name, "kind": "cuda", "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count, "memory_bytes": properties.total_memory,
        "cuda": str(torch.version.cuda), "driver": gpu_state().get("driver", ""),
    }  # fmt: skip


@functools.cache
def _nvml() -> tuple[Any, Any] | None:
    """NVML, begun once a process, and its handle of the GPU that torch calls the first; ``None`` without an answer."""
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return None
    uuid = getattr(import_torch().cuda.get_device_properties(0), "uuid", "")
    for name, argument in (("UUID", f"GPU-{uuid}"), ("Index", 0)):
        with suppress(nvml.NVMLError):
            return nvml, getattr(nvml, f"nvmlDeviceGetHandleBy{name}")(argument)
    return None


def gpu_state() -> dict[str, Any]:
    """Clocks, power and temperature of the GPU by NVML at this moment, without those that it does not tell."""
    found = _nvml()
    if found is None:
        return {}
    nvml, gpu = found
    fields: dict[str, Callable[[], Any]] = {
        "driver": lambda: str(nvml.nvmlSystemGetDriverVersion()),
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    }
    told = {}
    for name, ask in fields.items():
        with suppress(nvml.NVMLError):
            told[name] = ask()
    return told


def cpu_state() -> dict[str, Any]:
    """Clock and load of the processor at this moment, as far as the system says."""
    clock = psutil.cpu_freq()
    return {"clock_mhz": round(clock.current) if clock else None, "load": round(os.getloadavg()[0], 2)}


def state(device: str) -> dict[str, Any]:
    """Clocks and load at this moment; they are recorded, never changed."""
    return gpu_state() if device == "cuda" else cpu_state()
