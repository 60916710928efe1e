"""What profiled kernels did: bytes, operations by format, time; and how near that is to the roofline of a GPU.

Operations of a thread's instructions are weighted as in the roofline sections that ship with Nsight Compute (files
``SpeedOfLight_Hierarchical*RooflineChart.section``, read as copied in github.com/K-Wu/sass_analyzer,
visualizer/utils/ncu_sections.md): an add or multiply is one, a fused multiply-add two, and a half-precision instruction
works on two numbers. Tensor cores are counted by ``sm__ops_path_tensor_*``, "# of math ops executed in Tensor path"
(https://forums.developer.nvidia.com/t/how-many-flops-does-one-tensor-op-hmma-instruction-do/285256): a product of m x k
by k x n counts 2 m n k (FP8, 4096 cubed: https://github.com/NVIDIA/DCGM/issues/251). Instructions of tensor cores do
not tell their work (https://forums.developer.nvidia.com/t/number-of-floating-point-operations-in-one-hmma-instruction/275450)
but on Volta and Turing, for which the sections take 512 operations each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.errors import SpecError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.validate.ncu import Launch, read

#: Instructions of a thread -> format and operations of each.
WEIGHTS = {
    f"{letter}{verb}{packed}": (fmt, (2.0 if verb == "fma" else 1.0) * width * (2.0 if packed else 1.0))
    for letter, fmt, width in (("d", "fp64", 1.0), ("f", "fp32", 1.0), ("h", "fp16", 2.0))
    for verb in ("add", "mul", "fma")
    for packed in (("", "2") if letter == "f" else ("",))
}
_FORMAT = r"(?:bf16|tf32|fp\d+|int\d+)"
_THREAD = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_TENSOR = re.compile(
    r"sm__ops_path_tensor_(?:op_(?P<op>[a-z0-9]+)_)?src_(?P<source>" + _FORMAT + "(?:_" + _FORMAT + ")*)"
    r"(?:_dst_(?P<goal>[a-z0-9]+))?(?:_sparsity_(?P<sparse>on|off))?\.sum"
)
_PIPE, _PIPE_OPS = "inst_executed_pipe_tensor.sum", 512.0
TIME = ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max")
BYTES, READ, WRITTEN = "dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
CLOCK = "smsp__cycles_elapsed.avg.per_second"

#: What to measure: works from Ampere on, for kernels in the formats of LLM inference.
METRICS = (
    TIME[0], READ, WRITTEN, *(_THREAD.format(op) for op in ("fadd", "fmul", "ffma", "hadd", "hmul", "hfma")),
    *(f"sm__ops_path_tensor_src_{s}.sum" for s in ("bf16_dst_fp32", "fp16_dst_fp32", "tf32_dst_fp32", "fp8", "int8")),
)  # fmt: skip
COMMAND = f"ncu --csv --page raw --metrics {','.join(METRICS)} PROGRAM"


@dataclass(frozen=True)
class Profiled:
    """All launches of a kernel together, on the roofline.

    Attributes
    ----------
    kernel : str
    launches : int
    seconds, bytes : float
        Sums over the launches. [s, bytes of device memory]
    tensor, vector : Mapping[str, float]
        Operations by format. [FLOP]
    bound : float
        The least time that the GPU needs for these bytes and operations. [s]
    limiter : str
        ``hbm``, ``matrix:<format>`` or ``vector:<format>``.
    """

    kernel: str
    launches: int
    seconds: float
    bytes: float
    tensor: Mapping[str, float]
    vector: Mapping[str, float]
    bound: float
    limiter: str

    @property
    def flops(self) -> float:
        """Operations of all units. [FLOP]"""
        return sum(self.tensor.values()) + sum(self.vector.values())

    @property
    def intensity(self) -> float:
        """FLOPs a byte of device memory; infinite where none was moved."""
        return self.flops / self.bytes if self.bytes else float("inf")

    @property
    def attained(self) -> float:
        """Share of the roofline that was reached: bound / time."""
        return self.bound / self.seconds


@dataclass(frozen=True)
class Profile:
    """Kernels of an export on a GPU, the longest first, and what a reader must know of them."""

    gpu: Gpu
    kernels: tuple[Profiled, ...]
    notes: tuple[str, ...]


def profile(path: Path | str, gpu: Gpu) -> Profile:
    """Read an export and place its kernels on the roofline of a GPU.

    Raises
    ------
    SpecError
        When a value that is needed is no number, negative or of an unknown unit, with its line; when time, bytes or
        every count of operations is missing, with the ``ncu --metrics`` line that measures them; or when the file is
        no export.
    """
    launches = read(path)
    _complete(path, launches)
    grouped: dict[str, list[Launch]] = {}
    for launch in launches:
        grouped.setdefault(launch.kernel, []).append(launch)
    kernels = [_profiled(path, name, found, gpu) for name, found in grouped.items()]
    notes = tuple(_notes(launches, kernels, gpu))
    return Profile(gpu, tuple(sorted(kernels, key=lambda k: (-k.seconds, k.kernel))), notes)


def _complete(path: Path | str, launches: Sequence[Launch]) -> None:
    for launch in launches:
        for name, what in launch.unread.items():
            if _needed(name):
                raise SpecError(path, "", what)
        if any(launch.metrics.get(name) == 0 for name in TIME) and not _seconds(launch):
            raise SpecError(path, TIME[0], f"is 0 for a launch of {launch.kernel[:60]!r}: a launch takes time")
    missing = []
    if not all(_seconds(one) for one in launches):
        missing.append(f"the duration ({TIME[0]})")
    if not all(_bytes(one) is not None for one in launches):
        missing.append(f"the bytes of device memory ({READ} and {WRITTEN}, or {BYTES})")
    if not any(_counts_vector(one) or _counts_tensor(one) for one in launches):
        missing.append("any count of operations")
    if any(_only_instructions(one) for one in launches):
        missing.append("the operations of tensor cores (sm__ops_path_tensor_*; their instructions differ in work)")
    if missing:
        raise SpecError(path, "", f"misses {', and '.join(missing)}; measure with: {COMMAND}")


def _needed(name: str) -> bool:
    """Whether a metric is of time, bytes of device memory or operations."""
    plain = name.removesuffix(".per_second").removesuffix(".per_cycle_elapsed")
    thread = any(_THREAD.format(op).removeprefix("smsp__").removesuffix(".sum") in name for op in WEIGHTS)
    return (
        name in (*TIME, CLOCK) or plain in (BYTES, READ, WRITTEN) or thread
        or bool(_TENSOR.fullmatch(name)) or name.endswith(f"__{_PIPE}")
    )  # fmt: skip


def _seconds(launch: Launch) -> float | None:
    return next((launch.metrics[name] for name in TIME if launch.metrics.get(name)), None)


def _bytes(launch: Launch) -> float | None:
    m = launch.metrics
    if BYTES in m:
        return m[BYTES]
    if READ in m and WRITTEN in m:
        return m[READ] + m[WRITTEN]
    rates = [f"{name}.per_second" for name in (BYTES, READ, WRITTEN)]
    seconds = _seconds(launch) or 0.0
    if rates[0] in m:
        return m[rates[0]] * seconds
    return sum(m[name] for name in rates[1:]) * seconds if all(name in m for name in rates[1:]) else None


def _instructions(launch: Launch, op: str) -> float | None:
    """Instructions of all threads: counted, or as the roofline sections give them, a cycle at a clock."""
    m, name = launch.metrics, _THREAD.format(op)
    for counted in (name, name.replace("smsp__", "sm__", 1)):
        if counted in m:
            return m[counted]
    cycles = m.get(CLOCK, 0.0) * (_seconds(launch) or 0.0)
    if f"{name}.per_cycle_elapsed" in m:
        return m[f"{name}.per_cycle_elapsed"] * cycles if cycles else None
    weight = WEIGHTS[op][1]
    derived = m.get(f"derived__{name.removesuffix('.sum')}_x{weight:g}")
    return None if derived is None or not cycles else derived / weight * cycles


def vector_ops(launch: Launch) -> dict[str, float]:
    """Operations of the threads' own instructions, by format. [FLOP]"""
    found: dict[str, float] = {}
    for op, (fmt, weight) in WEIGHTS.items():
        if (count := _instructions(launch, op)) is not None:
            found[fmt] = found.get(fmt, 0.0) + weight * count
    return found


def _counts_vector(launch: Launch) -> bool:
    return any(_instructions(launch, op) is not None for op in WEIGHTS)


def tensor_ops(launch: Launch) -> dict[str, float]:
    """Operations of the tensor cores by source format, each counted once. [FLOP]

    The counters overlap: ``src_bf16_dst_fp32`` is the sum of its ``_sparsity_on`` and ``_off``, ``src_fp16`` that of
    its destinations, ``op_hgmma_src_...`` a part by instruction, and one of several formats (``src_fp4_fp6_fp8``) may
    hold those of each. Of a whole and its parts the larger is taken.
    """
    split: dict[tuple[str, str, str], dict[str, float]] = {}
    for name, value in launch.metrics.items():
        if found := _TENSOR.fullmatch(name):
            key = (found["source"], found["op"] or "", found["goal"] or "")
            split.setdefault(key, {})[found["sparse"] or ""] = value
    if not split and launch.capability.startswith("7.") and (count := _pipe(launch)) is not None:
        return {"fp16": _PIPE_OPS * count}
    goals = {key: _whole(parts) for key, parts in split.items()}
    instructions = {key[:2]: _whole(_under(goals, key[:2])) for key in goals}
    sources = {key[0]: _whole(_under(instructions, key[:1])) for key in instructions}
    return _distinct(sources)


def _whole(parts: Mapping[str, float]) -> float:
    """The counter of the whole, or the sum of its parts, whichever is more."""
    return max(parts.get("", 0.0), sum(value for name, value in parts.items() if name))


def _under(values: Mapping[Any, float], start: tuple[str, ...]) -> dict[str, float]:
    return {key[-1]: value for key, value in values.items() if key[:-1] == start}


def _distinct(sources: dict[str, float]) -> dict[str, float]:
    """Sources of which none holds another: several formats together, or each by itself."""
    for several in sorted((s for s in sources if "_" in s), key=lambda s: s.count("_")):
        held = [one for one in sources if set(one.split("_")) < set(several.split("_"))]
        lost = [several] if sum(sources[one] for one in held) >= sources[several] else held
        sources = {name: value for name, value in sources.items() if name not in lost}
    return sources


def _pipe(launch: Launch) -> float | None:
    names = (f"{place}__{_PIPE}" for place in ("sm", "smsp"))
    return next((launch.metrics[name] for name in names if name in launch.metrics), None)


def _counts_tensor(launch: Launch) -> bool:
    return any(map(_TENSOR.fullmatch, launch.metrics)) or _pipe(launch) is not None


def _only_instructions(launch: Launch) -> bool:
    """Whether tensor cores worked and nothing says how much."""
    old = launch.capability.startswith("7.")
    return not old and bool(_pipe(launch)) and not any(map(_TENSOR.fullmatch, launch.metrics))


def _profiled(path: Path | str, name: str, launches: Sequence[Launch], gpu: Gpu) -> Profiled:
    seconds = sum((_seconds(one) or 0.0) * one.times for one in launches)
    moved = sum((_bytes(one) or 0.0) * one.times for one in launches)
    tensor = _sum((tensor_ops(one), one.times) for one in launches)
    vector = _sum((vector_ops(one), one.times) for one in launches)
    terms = {"hbm": moved / gpu.bandwidth, **_matrix(tensor, gpu), **_vector(vector, gpu)}
    matrix = sum(v for k, v in terms.items() if k.startswith("matrix:"))
    bound = max(matrix, *(v for k, v in terms.items() if not k.startswith("matrix:")))
    if not bound:
        raise SpecError(path, name[:80], "moved no byte and made no operation: it has no place on a roofline")
    limiter = max(terms, key=lambda key: terms[key])
    if matrix == bound:
        limiter = max((k for k in terms if k.startswith("matrix:")), key=lambda key: terms[key])
    return Profiled(name, sum(one.times for one in launches), seconds, moved, tensor, vector, bound, limiter)


def _sum(parts: Iterable[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for ops, times in parts:
        for fmt, value in ops.items():
            total[fmt] = total.get(fmt, 0.0) + value * times
    return {fmt: value for fmt, value in total.items() if value > 0}


def peak_of(source: str, gpu: Gpu) -> tuple[str, float] | None:
    """Format and peak of the tensor cores for a source; of a counter of several formats the fastest."""
    rates = {fmt: rate.value for fmt, rate in gpu.compute.tensor.items() if fmt in source.split("_")}
    return max(rates.items(), key=lambda item: item[1]) if rates else None


def _matrix(tensor: Mapping[str, float], gpu: Gpu) -> dict[str, float]:
    """Seconds of the tensor cores by format; they share the units, so that they add up."""
    found: dict[str, float] = {}
    for source, flops in tensor.items():
        if peak := peak_of(source, gpu):
            found[f"matrix:{peak[0]}"] = found.get(f"matrix:{peak[0]}", 0.0) + flops / peak[1]
    return found


def _vector(vector: Mapping[str, float], gpu: Gpu) -> dict[str, float]:
    """Seconds of the threads' own instructions. Where no peak is given, halves run at twice the rate of FP32."""
    peaks: dict[str, float] = {fmt: rate.value for fmt, rate in gpu.compute.vector.items()}
    if "fp32" in peaks:
        peaks.setdefault("fp16", 2 * peaks["fp32"])
    return {f"vector:{fmt}": flops / peaks[fmt] for fmt, flops in vector.items() if fmt in peaks}


def _notes(launches: Sequence[Launch], kernels: Sequence[Profiled], gpu: Gpu) -> Iterable[str]:
    if not any(_counts_tensor(one) for one in launches):
        yield "tensor cores were not counted (sm__ops_path_tensor_*): kernels that use them did more than is shown"
    if not any(_counts_vector(one) for one in launches):
        yield "only tensor cores were counted: other FLOPs (smsp__sass_thread_inst_executed_op_*) are not in it"
    unknown = sorted({fmt for k in kernels for fmt in k.tensor if peak_of(fmt, gpu) is None})
    if unknown:
        yield f"{gpu.title} has no peak for {', '.join(unknown)} in its spec: it does not limit these kernels here"
    found = sorted({one.capability for one in launches if one.capability})
    if gpu.compute_capability and found and found != [gpu.compute_capability]:
        yield f"measured on compute capability {', '.join(found)}; {gpu.title} has {gpu.compute_capability}"
    if any(k.attained > 1.05 for k in kernels):
        yield "a kernel is above the roofline: is --gpu the GPU that was profiled? The profiler fixes its clocks"
