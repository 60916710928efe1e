"""Figures of a compiled kernel: registers, spills, shared memory, instructions, warnings of ptxas."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import triton
from triton.backends.nvidia.compiler import get_ptxas

from kernel_aot.driver import Launch
from kernel_aot.occupancy import occupancy

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

COUNTS = {
    "wgmma": r"wgmma\.mma_async",
    "mma_sync": r"\bmma\.sync",
    "tcgen05": r"tcgen05\.mma",
    "tma_load": r"cp\.async\.bulk\.tensor\.\dd\.shared",
    "tma_store": r"cp\.async\.bulk\.tensor\.\dd\.global",
    "cp_async": r"cp\.async\.c[ag]\.",
    "cp_async16": r"cp\.async\.c[ag]\.[^;]*?,\s*(?:0x10|16)\b",
    "setmaxnreg": r"setmaxnreg",
    "ldmatrix": r"\bldmatrix",
    "ex2": r"\bex2\.approx",
    "atomics": r"\b(?:atom|red)\.(?:relaxed|acq_rel|acquire|release|global|gpu)",
    "load_v4": r"\bld\.global[\w.:]*\.v4\.b32",
}
"""Names of what is counted in the PTX, with the expression that finds it."""

MMA_SHAPE = re.compile(r"(?:wgmma\.mma_async|\bmma)\.sync\.aligned\.(m\d+n\d+k\d+)")
INSTRUCTION = re.compile(r"^\s+/\*\w+\*/\s+(?:@!?\w+\s+)?([A-Z][A-Za-z0-9_.]+)")
LABEL = re.compile(r"^(\.L_x_\d+):")
BRANCH = re.compile(r"\bBRA\b.*?(\.L_x_\d+)")


def ptxas_report(ptx: str, folder: Path) -> str:
    """What ptxas says about a kernel with `-v`."""
    target = re.search(r"\.target (sm_\d+a?)", ptx)
    assert target is not None, "the PTX names no target"
    capability = int(re.sub(r"\D", "", target[1]))
    source = folder / "kernel.ptx"
    source.write_text(ptx)
    command = [get_ptxas(capability).path, "-v", f"--gpu-name={target[1]}", str(source), "-o", str(folder / "out")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def read_report(report: str) -> dict[str, Any]:
    """Registers, spilled bytes, stack and performance warnings in a report of ptxas."""
    numbers = {
        "registers": r"Used (\d+) registers",
        "spill_stores": r"(\d+) bytes spill stores",
        "spill_loads": r"(\d+) bytes spill loads",
        "stack": r"(\d+) bytes stack frame",
    }
    found: dict[str, Any] = {}
    for name, pattern in numbers.items():
        hits = re.findall(pattern, report)
        if not hits:
            raise ValueError(f"ptxas does not say {name}: {report[-300:]!r}")
        found[name] = max(int(hit) for hit in hits)
    lines = [line for line in report.splitlines() if "Performance Loss" in line or re.search(r"\(C7\d+\)", line)]
    found["warnings"] = sorted({re.sub(r"^.*?(?=Potential|\(C7)", "", line).strip()[:160] for line in lines})
    return found


def longest_loop(sass: str) -> list[str]:
    """Opcodes between the target of the longest backward branch and the branch: the main loop."""
    lines = sass.splitlines()
    labels = {match[1]: i for i, line in enumerate(lines) if (match := LABEL.match(line))}
    spans = [
        (i - labels[match[1]], labels[match[1]], i)
        for i, line in enumerate(lines)
        if (match := BRANCH.search(line)) and labels.get(match[1], i) < i
    ]
    if not spans:
        return []
    _, start, end = max(spans)
    return [match[1] for line in lines[start : end + 1] if (match := INSTRUCTION.match(line))]


def _disassembled(cubin: bytes, folder: Path) -> str:
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    return subprocess.run([str(BIN / "nvdisasm"), "-c", str(path)], capture_output=True, text=True, check=True).stdout


def _loop_cost(cubin: bytes, folder: Path, threads: int, weights: int) -> dict[str, Any]:
    loop = longest_loop(_disassembled(cubin, folder))
    kinds = Counter(opcode.split(".")[0] for opcode in loop)
    return {
        "instructions_per_weight": round(len(loop) * threads / weights, 2),
        "loop": dict(kinds.most_common(8)),
    }


def read(launch: Launch, arch: str, loop_weights: int = 0) -> dict[str, Any]:
    """The figures of one compiled launch; with `loop_weights`, the SASS instructions its main loop spends on each."""
    kernel = launch.compiled
    ptx = kernel.asm["ptx"]
    threads = re.search(r"\.reqntid (\d+)", ptx) or re.search(r"\.maxntid (\d+)", ptx)
    warps = int(threads[1]) // 32 if threads else kernel.metadata.num_warps
    figures: dict[str, Any] = {
        "kernel": launch.function.fn.__name__,
        "caller": launch.caller,
        "programs": list(launch.grid),
        "warps": warps,
        "stages": launch.options.get("num_stages", kernel.metadata.num_stages),
        "shared": kernel.metadata.shared,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures |= read_report(ptxas_report(ptx, folder))
        counts = {name: len(re.findall(pattern, ptx)) for name, pattern in COUNTS.items()}
        figures["counts"] = {name: count for name, count in counts.items() if count}
        figures["shapes"] = sorted(set(MMA_SHAPE.findall(ptx)))
        if loop_weights and any(counts[name] for name in ("wgmma", "mma_sync", "tcgen05")):
            figures |= _loop_cost(kernel.asm["cubin"], folder, warps * 32, loop_weights)
    fits = occupancy(arch, figures["registers"], figures["shared"], warps)
    return figures | {"blocks_per_sm": fits.blocks, "occupancy": round(fits.share, 4), "limiter": fits.limiter}
