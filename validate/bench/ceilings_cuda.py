"""Ceilings of a GPU by our Triton loops and the vendor's library: memory, L2, matrix units, exponentials, launches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.validate.bench.case import draw, torch_type
from perfmodel.validate.bench.ceilings import Ceiling, Ceilings, best, latency, memory_items, rate
from perfmodel.validate.bench.machine import import_torch, state
from perfmodel.validate.bench.streams import Stream, sizes
from perfmodel.validate.bench.timing import Stopwatch, Timing, interleaved, summary

#: Time for each number. [s]
EACH = 0.3
#: Formats of the matrix units.
FORMATS = ("bf16", "fp16", "fp8", "int8")


@dataclass(frozen=True)
class Extent:
    """How large the loops are; tiny ones serve to try them where Triton interprets them.

    Attributes
    ----------
    sides : tuple[int, ...]
        Of the library's square products.
    cached : int
        Numbers of the buffer that stays in the L2 cache.
    cached_passes, mma_passes, register_passes : int
        Rounds of the loops.
    """

    sides: tuple[int, ...] = (4096, 8192)
    cached: int = 1 << 22
    cached_passes: int = 8
    mma_passes: int = 4096
    register_passes: int = 2048


def measure(
    watch: Stopwatch, cache: float, memory: float, where: str, each: float = EACH, most: float = 2**30,
    extent: Extent | None = None, device: str = "cuda", tell: Callable[[str], object] = lambda line: None,
) -> Ceilings:  # fmt: skip
    """Measure a GPU. A loop that fails leaves its ceiling out, all but that of the memory, and the others go on.

    Parameters
    ----------
    cache : float
        Its L2 cache. [bytes]
    memory : float
        What buffers may take. [bytes]
    where : str
        Library, for the methods.
    each : float
        Time for each number. [s]
    most : float
        Largest buffer of the sweep. [bytes]
    tell : Callable
        Is told what fails.
    """
    torch, size, before = import_torch(), extent or Extent(), state(device)
    parts: dict[str, Callable[[], dict[str, Ceiling]]] = {
        "L2": lambda: {"l2": _l2(watch, size, where, each, device)},
        **{fmt: functools.partial(_peak, watch, fmt, size, where, each, device, tell) for fmt in FORMATS},
        "exponentials": lambda: _registers(watch, "exp", size, where, each, device),
        "multiply-adds": lambda: _registers(watch, "fma", size, where, each, device),
        "launches": lambda: _launches(watch, where, each, device),
    }
    with torch.inference_mode():
        points = sweep(watch, min(most, memory / 4), each, device)
        items = memory_items(points, {"l2": cache}, where)
        for name, part in parts.items():
            items |= _attempt(name, part, tell)
    return Ceilings(items, tuple(points), (before, state(device)))


def _attempt(name: str, part: Callable[[], dict[str, Ceiling]], tell: Callable[[str], object]) -> dict[str, Ceiling]:
    try:
        return part()
    except Exception as error:  # whatever a compiler or a library says
        tell(f"no ceiling of {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return {}


def _time(watch: Stopwatch, calls: Sequence[Callable[[], object]], budget: float) -> Timing:
    found = interleaved(watch, {"": calls}, budget=budget)[""]
    getattr(watch, "forget", lambda: None)()
    return found


def sweep(watch: Stopwatch, most: float, each: float, device: str) -> list[Stream]:
    """Copy, read and triad of buffers from 64 KiB up to ``most`` bytes, by our kernels."""
    from perfmodel.kernels.support.ceilings import copy, read_sum, triad

    torch, listed = import_torch(), sizes(most)
    a, b, c = (torch.randn(max(listed) // 4, device=device) for _ in range(3))
    points = []
    for size in listed:
        x, y, z = (one[: size // 4] for one in (a, b, c))
        calls: Mapping[str, tuple[Callable[[], object], int]] = {
            "copy": (functools.partial(copy, x, y), 2), "read": (functools.partial(read_sum, x), 1),
            "triad": (functools.partial(triad, x, y, 3.0, z), 3),
        }  # fmt: skip
        for op, (call, buffers) in calls.items():
            t = _time(watch, [call], each / 2)
            points.append(Stream(op, float(buffers * size), float(buffers * size), t.median, t.p20, t.noise))
    return points


def _l2(watch: Stopwatch, size: Extent, where: str, each: float, device: str) -> Ceiling:
    from perfmodel.kernels.support.ceilings import cached_read_sum

    x = import_torch().randn(size.cached, device=device)
    programs = len(cached_read_sum(x, 1))
    work = 4.0 * programs * size.cached_passes * size.cached
    t = _time(watch, [lambda: cached_read_sum(x, size.cached_passes)], each)
    return rate(work, t, "B/s", f"every block reads {4 * size.cached / 2**20:g} MiB past L1 (our loop)", where)


def _peak(
    watch: Stopwatch, fmt: str, size: Extent, where: str, each: float, device: str, tell: Callable[[str], object]
) -> dict[str, Ceiling]:  # fmt: skip
    """The best of the library's square products and of our loop of matrix instructions; nothing where neither runs."""

    def library(side: int) -> dict[str, Ceiling]:
        call = _product(fmt, side, device)
        if call is None:
            return {}
        unit = "OP/s" if fmt == "int8" else "FLOP/s"
        return {"": rate(2.0 * side**3, _time(watch, [call], 2 * each), unit, f"library {side}^3 {fmt}", where)}

    def own() -> dict[str, Ceiling]:
        loop = _loop(watch, fmt, size, where, each, device)
        return {} if loop is None else {"": loop}

    tried = [_attempt(f"{fmt} by the library", functools.partial(library, side), tell) for side in size.sides]
    found = [one[""] for one in (*tried, _attempt(f"{fmt} by our loop", own, tell)) if one]
    return {f"peak:{fmt}": best(found)} if found else {}


def _product(fmt: str, side: int, device: str) -> Callable[[], object] | None:
    """A square product by the library; ``None`` where it refuses."""
    torch = import_torch()
    a, b = draw((side, side), fmt, device), draw((side, side), fmt, device)
    one = torch.ones((), device=device)

    def call() -> object:
        if fmt == "fp8":
            return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
        return torch._int_mm(a, b.t()) if fmt == "int8" else torch.mm(a, b.t())

    try:
        call()
    except (RuntimeError, ValueError):
        return None
    return call


def _loop(watch: Stopwatch, fmt: str, size: Extent, where: str, each: float, device: str) -> Ceiling | None:
    """Matrix instructions one after another on operands that stay in shared memory."""
    from perfmodel.kernels.checks import KernelInputError
    from perfmodel.kernels.support.mma import mma_loop, mma_tile

    like = import_torch().empty(1, device=device)
    try:
        m, n, k = mma_tile(torch_type(fmt), like)
        a, b = draw((m, k), fmt, device), draw((n, k), fmt, device)
        programs = len(mma_loop(a, b, 1))
    except (KernelInputError, ValueError):
        return None
    t = _time(watch, [lambda: mma_loop(a, b, size.mma_passes)], each)
    unit = "OP/s" if fmt == "int8" else "FLOP/s"
    return rate(2.0 * m * n * k * programs * size.mma_passes, t, unit, f"our loop of {fmt} matrix instructions", where)


def _registers(
    watch: Stopwatch, name: str, size: Extent, where: str, each: float, device: str
) -> dict[str, Ceiling]:  # fmt: skip
    """Exponentials or FP32 multiply-adds on registers."""
    from perfmodel.kernels.support.ceilings import UNROLL, exp2_loop, fma_loop
    from perfmodel.kernels.table import select

    torch = import_torch()
    loops: Mapping[str, tuple[str, Callable[..., Any], int, str]] = {
        "exp": ("support_exp2", exp2_loop, 1, "OP/s"), "fma": ("support_fma", fma_loop, 2, "FLOP/s"),
    }  # fmt: skip
    table, loop, work, unit = loops[name]
    x = torch.rand(int(select(table, torch.empty(1, device=device)).meta["BLOCK"]), device=device)
    results = loop(x, 1).numel()
    t = _time(watch, [functools.partial(loop, x, size.register_passes)], each)
    done = float(work * results * UNROLL * size.register_passes)
    return {name: rate(done, t, unit, f"our loop of {table.removeprefix('support_')} on registers", where)}


def _launches(watch: Stopwatch, where: str, each: float, device: str) -> dict[str, Ceiling]:
    """An empty kernel: issued by the host, and as a node of a graph."""
    from perfmodel.kernels.support.ceilings import empty

    like = import_torch().empty(1, device=device)
    node = _time(watch, [lambda: empty(like)], each)
    found = {"launch:graph": latency(node, "an empty kernel in a graph", where)}
    issue = getattr(watch, "launch", None)
    if issue is not None:
        samples = [issue(lambda: empty(like)) for _ in range(15)]
        found["launch"] = latency(summary(samples, 200, "host"), "an empty kernel issued by the host", where)
    else:
        found["launch"] = found["launch:graph"]
    return found
