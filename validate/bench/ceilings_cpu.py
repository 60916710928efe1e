"""Ceilings of a processor, by torch: STREAM-like sweeps, matrix products, exponentials, multiply-adds, calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.validate.bench.case import draw, torch_type
from perfmodel.validate.bench.ceilings import Ceiling, Ceilings, best, latency, memory_items, rate
from perfmodel.validate.bench.machine import import_torch, state
from perfmodel.validate.bench.streams import Stream, sizes
from perfmodel.validate.bench.timing import Stopwatch, Timing, interleaved

#: Sides of the square products: the best one counts.
SIDES = {"fp32": (512, 1024), "bf16": (1024, 1536), "fp16": (512,), "int8": (1024, 1536)}
#: A product that would take longer is left out. [s]
LONGEST = 0.25
#: Elements that stay in a core's nearest caches; and those of each thread from which on torch uses several.
NEAR, SHARED = 1 << 14, 1 << 16
#: Time for each number. [s]
EACH = 0.15


def measure(
    watch: Stopwatch, caches: Mapping[str, float], memory: float, where: str, each: float = EACH, most: float = 2**28
) -> Ceilings:
    """Measure a processor.

    Parameters
    ----------
    caches : Mapping
        Name -> capacity of the caches, the smallest first. [bytes]
    memory : float
        What buffers may take. [bytes]
    where : str
        Threads and library, for the methods.
    each : float
        Time for each number. [s]
    most : float
        Largest buffer of the sweep. [bytes]
    """
    torch, before = import_torch(), state("cpu")
    with torch.inference_mode():
        points = sweep(watch, min(most, memory / 4), each)
        items = memory_items(points, caches, where)
        for fmt in SIDES:
            if (found := _peak(watch, fmt, where, each)) is not None:
                items[f"peak:{fmt}"] = found
        items |= _elementwise(watch, where, each)
    return Ceilings(items, tuple(points), (before, state("cpu")))


def sweep(watch: Stopwatch, most: float, each: float) -> list[Stream]:
    """Copy, read and triad of buffers from 64 KiB up to ``most`` bytes."""
    torch = import_torch()
    listed = sizes(most)
    a, b, c = (torch.randn(max(listed) // 4) for _ in range(3))
    points = []
    for size in listed:
        n = size // 4
        x, y, z = a[:n], b[:n], c[:n]
        calls: dict[str, tuple[Callable[[], object], int]] = {
            "copy": (functools.partial(y.copy_, x), 2), "read": (x.sum, 1),
            "triad": (functools.partial(torch.add, x, y, alpha=3.0, out=z), 3),
        }  # fmt: skip
        for op, (call, buffers) in calls.items():
            t = _time(watch, [call], each / 2)
            points.append(Stream(op, float(buffers * size), float(buffers * size), t.median, t.p20, t.noise))
    return points


def _time(watch: Stopwatch, calls: Sequence[Callable[[], object]], budget: float) -> Timing:
    return interleaved(watch, {"": calls}, budget=budget)[""]


def _peak(watch: Stopwatch, fmt: str, where: str, each: float) -> Ceiling | None:
    """The best square product of a format; ``None`` where torch has none."""
    torch = import_torch()
    found: list[Ceiling] = []
    out = torch.int32 if fmt == "int8" else torch_type(fmt)
    product = torch._int_mm if fmt == "int8" else torch.mm
    name = "torch._int_mm" if fmt == "int8" else "torch.mm"
    for side in SIDES[fmt]:
        a, b, result = draw((side, side), fmt), draw((side, side), fmt), torch.empty((side, side), dtype=out)

        def call(a: Any = a, b: Any = b, result: Any = result) -> object:
            return product(a, b.t(), out=result)

        try:
            call()
        except RuntimeError:
            break
        work = 2.0 * side**3
        if found and work / found[-1].value > LONGEST:
            break
        unit = "OP/s" if fmt == "int8" else "FLOP/s"
        found.append(rate(work, _time(watch, [call], 2 * each), unit, f"{name} {side}^3 {fmt}", where))
    return best(found) if found else None


def _elementwise(watch: Stopwatch, where: str, each: float) -> dict[str, Ceiling]:
    torch = import_torch()
    threads = torch.get_num_threads()
    n = NEAR if threads == 1 else SHARED * threads
    x, y, one = torch.randn(n), torch.empty(n), torch.zeros(1)
    rows, soft = torch.randn(n // 256, 256), torch.empty(n // 256, 256)

    def softmax() -> object:
        return torch.softmax(rows, -1, out=soft)

    exps = [
        rate(n, _time(watch, [lambda: torch.exp(x, out=y)], each), "OP/s", "torch.exp in cache", where),
        rate(n, _time(watch, [softmax], each), "OP/s", "torch.softmax in cache, an exponential each", where),
    ]
    fma = _time(watch, [lambda: torch.addcmul(x, x, x, out=y)], each)
    call = _time(watch, [lambda: torch.add(one, one, out=one)], each)
    return {
        "exp": best(exps),
        "fma": rate(2 * n, fma, "FLOP/s", "torch.addcmul in cache", where),
        "launch": latency(call, "a call of torch.add on one number", where),
    }
