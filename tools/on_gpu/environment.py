"""What a measurement needs to be read later: the machine, its clocks, the versions, and the revision of this script."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
FIELDS = (
    *("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem"),
    *("power.draw", "power.limit", "temperature.gpu", "utilization.gpu", "memory.used", "memory.total"),
    *("ecc.mode.current", "mig.mode.current"),
)
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active", "pstate")  # newer, older, neither
VARIABLES = ("CUDA_", "CUBLAS", "CUDNN_", "NVIDIA_TF32", "PYTORCH_", "TORCH_", "TRITON_", "OMP_NUM_THREADS")
FORM_FACTORS = r"(?:a100|a800|h100|h800|h200|h20|b100|b200|b300)"


def gpu_slug(name: str) -> str:
    """Return the short name of a device: h100_sxm, h100_pcie, a100_sxm_40gb, rtx_4090, or its name with underscores.

    A datacentre part without PCIe or NVL in its name is an SXM (HGX) part. A MIG slice keeps its whole name.
    """
    lower = name.lower().replace("nvidia", " ").replace("geforce", " ")
    family = re.search(rf"\b{FORM_FACTORS}\b", lower)
    if family and "mig" not in lower and not re.search(r"\bg[bh]\d00\b", lower):
        form = next((form for form in ("pcie", "nvl") if form in lower), "sxm")
        small = "_40gb" if family[0] == "a100" and re.search(r"\b40\s?gb\b", lower) else ""
        return f"{family[0]}_{form}{small}"
    grace = re.search(r"\bg[bh]\d00\b", lower)
    if grace and "mig" not in lower:
        return grace[0]
    return re.sub(r"[^a-z0-9]+", "_", lower).strip("_") or "unknown"


def cpu_name() -> str:
    """Return the processor's model name as the kernel or Python reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "cpu"


def run(*command: str) -> str | None:
    """Return a command's output, or None if it is missing, fails or takes over ten seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


class Smi:
    """nvidia-smi for torch's device 0: which fields it answers is found once. Without it, snapshots are empty."""

    def __init__(self, device: torch.device) -> None:
        self.target = ""
        self.fields: tuple[str, ...] = ()
        for target in self._targets() if device.type == "cuda" else ():
            for fields in ((*FIELDS, reason) for reason in REASONS):
                if not self.fields and self.query(target, fields):
                    self.target, self.fields = target, fields

    @staticmethod
    def _targets() -> tuple[str, ...]:
        index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
        return (index,) if uuid is None else (f"GPU-{uuid}", index)

    @staticmethod
    def query(target: str, fields: tuple[str, ...]) -> dict[str, str]:
        """Return the fields' values, or nothing if nvidia-smi refuses one of them."""
        output = run("nvidia-smi", "-i", target, f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
        values = [value.strip() for value in output.splitlines()[0].split(",")] if output else []
        return dict(zip(fields, values, strict=True)) if len(values) == len(fields) else {}

    def snapshot(self, when: str) -> dict[str, str]:
        """Return clocks, power, temperature and load as they are now."""
        return {"when": when} | (self.query(self.target, self.fields) if self.fields else {})


def version(package: str) -> str | None:
    """Return a package's installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages() -> dict[str, str]:
    """Return the versions of the installed NVIDIA libraries."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.lower().startswith("nvidia-"):
            found[name.lower()] = distribution.version
    return dict(sorted(found.items()))


def script_hash() -> str:
    """Return the SHA-256 of this package's sources, in order of their names."""
    digest = hashlib.sha256()
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def revision() -> dict[str, object]:
    """Return the git revision of the checkout, and whether tracked files differ from it; None outside of one."""
    head = run("git", "-C", str(HERE), "rev-parse", "HEAD")
    changed = run("git", "-C", str(HERE), "status", "--porcelain", "--untracked-files=no") if head else None
    return {"git_revision": head, "git_changed": None if changed is None else bool(changed)}


def device_facts(device: torch.device) -> dict[str, object]:
    """Return what torch says of the device."""
    if device.type != "cuda":
        return {"device_name": cpu_name(), "cpu_threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device_name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "visible_gpus": torch.cuda.device_count(),
    }


def versions() -> dict[str, object]:
    """Return the versions of what runs."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "torch": torch.__version__,
        "triton": version("triton") or version("pytorch-triton"),
        "numpy": version("numpy"),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        "packages": packages(),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES)},
    }
