"""Words for what the analyses hold: limiters, settings, and a summary that a person can act on."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.text import printable
from perfmodel.base.units import engineering

if TYPE_CHECKING:
    from perfmodel.hwspecs.schema import Gpu, System
    from perfmodel.roofline.analysis import Analysis
    from perfmodel.roofline.phases import Phase
    from perfmodel.roofline.setup import Setup


def one_line(text: str) -> str:
    r"""Text made safe for a terminal, and without line breaks.

    >>> one_line("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    return printable(text).replace("\n", "\\n")


def percent(share: float) -> str:
    """A fraction as a percentage; what is small stays visible as small.

    >>> percent(0.5378), percent(0.0031), percent(2e-5), percent(0.0), percent(1.0)
    ('53.8 %', '0.3 %', '< 0.1 %', '0 %', '100 %')
    """
    if share == 0 or share >= 0.9995:
        return f"{share * 100:.3g} %"
    return "< 0.1 %" if share < 0.0005 else f"{share * 100:.1f} %"


def intensity(value: float) -> str:
    """An arithmetic intensity to three digits. [FLOP/byte]

    >>> intensity(0.625), intensity(1412.4)
    ('0.625', '1,412')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def share_list(shares: Mapping[str, float]) -> str:
    """Names with their shares; those that are next to nothing run together at the end.

    >>> share_list({"all_reduce": 0.067, "kv_write": 1e-5, "embedding": 0.0})
    'all_reduce 6.7 %, kv_write and embedding < 0.1 %'
    """
    small = [name for name, share in shares.items() if share < 0.0005]
    parts = [f"{name} {percent(share)}" for name, share in shares.items() if name not in small]
    if small:
        parts.append(" and ".join(filter(None, [", ".join(small[:-1]), small[-1]])) + " < 0.1 %")
    return ", ".join(parts)


def clip(text: str, limit: int = 100) -> str:
    """A name on one line, shortened where it is absurdly long."""
    safe = one_line(text)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def memory_name(gpu: Gpu) -> str:
    """What the device memory is called: its kind where the spec names it (HBM3, GDDR6X), else ``memory``."""
    return one_line(gpu.memory.hbm.technology or "memory")


def format_name(math: str) -> str:
    """A number format as documents write it.

    >>> format_name("bf16")
    'BF16'
    """
    return math.upper()


def unit_name(math: str, gpu: Gpu) -> str:
    """The unit that computes in a number format: matrix units if they can, else the vector units."""
    if math not in gpu.compute.tensor:
        return f"vector {format_name(math)}"
    return f"{format_name(math)} {'tensor' if gpu.vendor.casefold() == 'nvidia' else 'matrix'}"


def vector_format(gpu: Gpu) -> str | None:
    """The number format that vector work is counted in: FP32, else FP16, as ``roofline.times`` takes it."""
    return next((math for math in ("fp32", "fp16") if math in gpu.compute.vector), None)


def system_of(setup: Setup) -> System | None:
    """The system that joins the GPUs of a setup, where it is a built-in one."""
    return None if setup.plan.gpus == 1 else _system(setup.topology.system)


@functools.cache
def _system(name: str) -> System | None:
    from perfmodel.hwspecs.load import system

    try:
        return system(name)
    except PerfmodelError:  # a file of the user's: its name says no more than the topology does
        return None


def limiter_words(limiter: str, setup: Setup) -> str:
    """A limiter in words: ``HBM3 bandwidth``, ``BF16 tensor``, ``NVLink4``, ``exp (SFU)``, ``vector FP32``."""
    if limiter == "hbm":
        return f"{memory_name(setup.gpu)} bandwidth"
    if limiter.startswith("matrix:"):
        return unit_name(limiter.removeprefix("matrix:"), setup.gpu)
    if limiter == "vector":
        return f"vector {format_name(vector_format(setup.gpu) or '')}".strip()
    if limiter == "exp":
        return "exp (SFU)"
    if limiter == "issue":
        return "instruction issue (unpacking weights)"
    if limiter in ("scale_up", "scale_out"):
        system = system_of(setup)
        link = getattr(system, limiter) if system is not None else None
        return one_line(link.kind) if link is not None else limiter.replace("_", "-") + " link"
    return one_line(limiter)


def parallelism(setup: Setup) -> str:
    """``TP 4, EP 8``, or nothing on one GPU."""
    degrees = ((name, getattr(setup.plan, name)) for name in ("tp", "pp", "ep", "dp"))
    return ", ".join(f"{name.upper()} {value}" for name, value in degrees if value > 1)


def settings(analysis: Analysis) -> dict[str, str]:
    """What defines an analysis, each part in words and in the order in which it is shown."""
    setup = analysis.setup
    count = f"{setup.plan.gpus} × " if setup.plan.gpus > 1 else ""
    return {
        "model": clip(setup.model.title),
        "gpu": count + clip(setup.gpu.title),
        "parallelism": parallelism(setup),
        "weights": f"weights {setup.plan.weights.name}",
        "kv": f"KV cache {setup.plan.kv.name}",
        "batch": f"batch {analysis.batch:,}",
        "input": f"{analysis.input_tokens:,} tokens in",
        "output": f"{analysis.output_tokens:,} out",
    }


def keys(analyses: Sequence[Analysis]) -> list[str]:
    """What tells each analysis from the others, in a few words: short names, or numbers; ``""`` for a single one."""
    if len(analyses) == 1:
        return [""]
    listed = [{**settings(a), **_short(a)} for a in analyses]
    differ = [part for part in listed[0] if len({s[part] for s in listed}) > 1]
    names = [", ".join(s[part] for part in differ if s[part]) for s in listed]
    return [name if name and names.count(name) == 1 else f"{i}: {name}" for i, name in enumerate(names, 1)]


def _short(analysis: Analysis) -> dict[str, str]:
    setup = analysis.setup
    count = f"{setup.plan.gpus} × " if setup.plan.gpus > 1 else ""
    return {
        "model": clip(setup.model.name, 40), "gpu": count + clip(setup.gpu.name, 40), "fidelity": analysis.fidelity,
    }  # fmt: skip


#: Fidelities in words.
_FIDELITIES = {
    "bound": "bound (roofline)", "calibrated": "calibrated (fitted to measured kernels)",
    "measured": "measured (a recorded table; calibrated beyond it)",
}  # fmt: skip


def fidelity(analyses: Sequence[Analysis]) -> str:
    """What kind of times the analyses have, in words."""
    return ", ".join(dict.fromkeys(_FIDELITIES[a.fidelity] for a in analyses))


def bounds_only(analyses: Sequence[Analysis]) -> bool:
    """Whether all times are roofline bounds."""
    return all(a.fidelity == "bound" for a in analyses)


def origin_words(a: Analysis) -> list[str]:
    """Where the times come from, each with its share; nothing for bounds."""
    lead = "parameters " if a.fidelity == "calibrated" else ""
    return [f"{percent(share)} of the time: {lead}{clip(origin, 200)}" for origin, share in a.origins.items()]


def title(analyses: Sequence[Analysis]) -> str:
    """Models on GPUs, each named once."""
    listed = [settings(a) for a in analyses]
    models, gpus = (list(dict.fromkeys(s[part] for s in listed)) for part in ("model", "gpu"))
    return f"{', '.join(models)} on {', '.join(gpus)}"


def common_settings(analyses: Sequence[Analysis]) -> str:
    """The settings beside model and GPU that all analyses share."""
    listed = [settings(a) for a in analyses]
    parts = [part for part in listed[0] if part not in ("model", "gpu") and len({s[part] for s in listed}) == 1]
    return ", ".join(listed[0][part] for part in parts if listed[0][part])


def by_limiter(phase: Phase, setup: Setup) -> dict[str, float]:
    """Share of a phase's time that each resource limits, largest first."""
    shares: dict[str, float] = {}
    for result in phase.ops:
        name = limiter_words(result.time.limiter, setup)
        shares[name] = shares.get(name, 0.0) + result.share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def seconds(value: float) -> str:
    """A time with an SI prefix, to three digits."""
    return engineering(value, "s")


def between(ends: Sequence[float]) -> str:
    """An 80 % interval of a time.

    >>> between((1e-3, 2e-3))
    '80 %: 1 ms to 2 ms'
    """
    return f"80 %: {seconds(ends[0])} to {seconds(ends[1])}"
