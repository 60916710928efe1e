"""What this machine's processor can do, as the raw data of a spec: what the system says, arithmetic, a timed copy.

Linux tells the most (/proc/cpuinfo, /sys); elsewhere psutil and ``platform`` fill in, and notes say what is assumed.
"""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import engineering

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: (flag, bits of a SIMD register, its name), widest first; x86 lists flags, Arm features.
_SIMD = [("avx512f", 512, "AVX-512"), ("fma", 256, "AVX2 + FMA"), ("avx", 256, "AVX without FMA")]
_ASSUMED_CLOCK = 2e9
_COPY_SECONDS = 0.12
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}


def model_name() -> str:
    """The processor's name as the system tells it."""
    return cpuinfo().get("model name") or platform.processor() or platform.machine() or "unknown processor"


def machine() -> str:
    """What tells this processor from others, whoever may use how much of it: its name and all its cores."""
    import psutil

    return f"{model_name()}, {psutil.cpu_count(logical=False) or os.cpu_count() or 1} cores"


def describe() -> dict[str, Any]:
    """Raw data of the processor's spec, to be validated as a ``Gpu``."""
    info, cores, clock = cpuinfo(), core_count(), _clock()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    name = model_name()
    vendor = info.get("vendor_id") or platform.system().lower() or "unknown"
    caches = cache_bytes(Path("/sys/devices/system/cpu"))
    notes = [] if caches else ["The system does not tell the caches, so they are left out."]
    if clock is None:
        notes.append(f"The system does not tell the clock: {_ASSUMED_CLOCK / 1e9:g} GHz is assumed.")
    memory: dict[str, Any] = {"hbm": _main_memory(cores, max(caches.values(), default=0))}
    for level in (2, 3):
        if level in caches:
            source = "/sys/devices/system/cpu/cpu*/cache, summed over the caches of all cores"
            memory[f"l{level}"] = {"capacity": {"value": _mib(caches[level]), "source": source}}
    return {
        "name": "cpu",
        "title": f"{name}, {cores} cores",
        "vendor": _VENDORS.get(vendor, vendor),
        "architecture": platform.machine() or "unknown",
        "kind": "cpu",
        "machine": machine(),
        "compute": compute(flags, cores, clock),
        "memory": memory,
        "notes": " ".join(notes),
    }


def cpuinfo(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """The first processor's block of /proc/cpuinfo; empty where there is none."""
    try:
        block = path.read_text(errors="replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def core_count() -> int:
    """Physical cores that this process may use (its affinity bounds them)."""
    import psutil

    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return max(1, min(cores, allowed))


def _clock() -> float | None:
    """The highest clock that the system tells, else the present one. [Hz]"""
    import psutil

    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        frequency = None
    megahertz = (frequency.max or frequency.current) if frequency else 0.0
    return megahertz * 1e6 if megahertz > 0 else None


def simd(flags: set[str]) -> tuple[int, int, str]:
    """Bits of a SIMD register, FLOP of a lane and instruction (2 with a fused multiply-add), and its name.

    >>> simd({"avx", "avx2", "fma"})
    (256, 2, 'AVX2 + FMA')
    >>> simd({"asimd", "sve"})
    (128, 2, 'NEON')
    """
    for flag, bits, name in _SIMD:
        if flag in flags:
            return bits, 1 if flag == "avx" else 2, name
    if "asimd" in flags or platform.machine().lower() in ("arm64", "aarch64"):
        return 128, 2, "NEON"
    return 128, 1, "SSE2"


def compute(flags: set[str], cores: int, clock: float | None) -> dict[str, Any]:
    """Peaks: cores x 2 ports x lanes x FLOP of a lane x clock, for each format that the instructions name.

    Parameters
    ----------
    flags : set of str
        Features as /proc/cpuinfo names them.
    cores : int
    clock : float or None
        [Hz]; ``None`` is unknown, and 2 GHz is assumed.

    Returns
    -------
    dict
        Raw ``compute`` of a spec. Assumed: two ports of full width, which server cores have and small ones do not, at
        the highest clock, which wide instructions lower. BF16, FP16 and INT8 dot products at 2, 2 and 4 times the FP32
        rate; AMX at 1024 BF16 and 2048 INT8 operations a clock and core.
    """
    bits, flop, name = simd(flags)
    hertz = clock or _ASSUMED_CLOCK
    how = f"{cores} cores x 2 ports x {{lanes}} lanes x {flop} x {hertz / 1e9:g} GHz ({name}; two full ports assumed)"

    def rate(width: int, factor: int, unit: str = "FLOP/s") -> dict[str, str]:
        lanes = bits // width
        more = f" x {factor}" if factor > 1 else ""
        return {
            "value": engineering(cores * 2 * lanes * flop * factor * hertz, unit, 4),
            "source": "derived: " + how.format(lanes=lanes) + more,
        }

    vector = {"fp32": rate(32, 1), "fp64": rate(64, 1)}
    if flags & {"avx512_bf16", "bf16"}:
        vector["bf16"] = rate(32, 2)
    if flags & {"avx512_fp16", "fphp", "asimdhp"}:
        vector["fp16"] = rate(32, 2)
    if flags & {"avx512_vnni", "avx_vnni", "asimddp"}:
        vector["int8"] = rate(32, 4, "OP/s")
    tensor = {}
    for flag, math, per_clock, unit in [("amx_bf16", "bf16", 1024, "FLOP/s"), ("amx_int8", "int8", 2048, "OP/s")]:
        if flag in flags:
            source = f"derived: {cores} cores x {per_clock} a clock (AMX) x {hertz / 1e9:g} GHz"
            tensor[math] = {"value": engineering(cores * per_clock * hertz, unit, 4), "source": source}
    told = (
        {"source": "psutil.cpu_freq on this machine"} if clock else {"source": "assumption: the system does not tell"}
    )
    return {
        "sms": {"value": cores, "source": "psutil and the affinity of this process: physical cores"},
        "clock_boost": {"value": engineering(hertz, "Hz", 4), **told},
        "tensor": tensor,
        "vector": vector,
    }


def cache_bytes(root: Path) -> dict[int, int]:
    """Sum of the data caches of each level over all cores, from Linux's /sys. [bytes]

    A cache that several cores share is counted once. Empty where the system does not tell.
    """
    found: dict[tuple[int, str], int] = {}
    for index in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, kind, size, shared = (
                (index / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")
            )
            scale = {"K": 2**10, "M": 2**20}.get(size[-1:], 1)
            if kind in ("Data", "Unified"):
                found[int(level), shared] = int(size.rstrip("KM")) * scale
        except (OSError, ValueError):
            continue
    totals: dict[int, int] = {}
    for (number, _), size_bytes in found.items():
        totals[number] = totals.get(number, 0) + size_bytes
    return totals


def _main_memory(cores: int, cache: int) -> dict[str, Any]:
    import psutil

    memory = psutil.virtual_memory()
    threads = min(cores, 16)
    rate, size = copy_rate(threads, int(memory.available))
    return {
        "capacity": {"value": _mib(memory.total), "source": "psutil.virtual_memory on this machine: total"},
        "usable": available_memory(),
        "bandwidth": {
            "value": engineering(rate, "B/s", 4),
            "source": f"measured here: numpy copy of {size / 2**20:.0f} MiB by {threads} threads, best pass, "
            "bytes read plus bytes written",
            "note": "measured, where a GPU's spec has its datasheet's number; write-allocate traffic is not counted"
            + (", and the last-level cache is large enough to help" if size < cache else ""),
        },
    }


def available_memory() -> dict[str, str]:
    """Memory that a process can be given now, as the raw data of a spec."""
    import psutil

    free = min(psutil.virtual_memory().available, _cgroup_limit())
    return {"value": _mib(free), "source": "psutil.virtual_memory: available"}


def _mib(size: float) -> str:
    return f"{size / 2**20:.6g} MiB"


def _cgroup_limit(path: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return 2**63


def copy_rate(threads: int, available: int, seconds: float = _COPY_SECONDS) -> tuple[float, int]:
    """Rate of copying memory with numpy, and the size copied. [bytes/s, bytes]

    Parameters
    ----------
    threads : int
        Each copies a part of its own; numpy lets go of the interpreter lock meanwhile.
    available : int
        Free memory [bytes]; at most an eighth of it is used, and at most 64 MiB are copied.
    seconds : float
        Passes are repeated for about this long; the best counts.
    """
    import numpy as np

    count = max(2**20, min(64 * 2**20, available // 16)) // threads // 8

    def pair(_: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.ones(count), np.ones(count)  # ones, not zeros: the pages are there before the clock runs

    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(pair, range(threads)))
        start = time.perf_counter()
        while True:
            begin = time.perf_counter()
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))
            now = time.perf_counter()
            best = min(best, now - begin)
            if now - start > seconds:
                break
    moved = sum(source.nbytes + target.nbytes for source, target in parts)
    return moved / max(best, 1e-9), moved // 2
