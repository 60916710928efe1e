"""An analysis in words: how fast at best, what limits it, does it fit, what would help."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from perfmodel.base.units import engineering, gb, gib
from perfmodel.modelspecs.schema import Moe
from perfmodel.reports.words import (
    between,
    by_limiter,
    format_name,
    intensity,
    limiter_words,
    memory_name,
    one_line,
    percent,
    seconds,
    share_list,
    unit_name,
)
from perfmodel.roofline.critical import linear_batch

if TYPE_CHECKING:
    from perfmodel.roofline.analysis import Analysis
    from perfmodel.roofline.phases import Phase

#: A resource or a stream that takes more than this share is worth a remark.
NOTABLE = 0.1

#: Byte streams of ``Cost.hbm`` in words.
_STREAMS = {
    "weights": "weights", "kv_read": "the KV cache (read)", "kv_write": "the KV cache (written)",
    "act_read": "activations (read)", "act_write": "activations (written)",
}  # fmt: skip


#: What the times are, and what could still be faster.
BOUND_WORDS = (
    "Times are roofline bounds of operators that run one after another, each from cold memory, as engines run them: no "
    "such run is faster, most are slower. The floor is what remains when communication is overlapped and activations "
    "never leave the chip: nothing at all is faster."
)


#: What the times are at the other fidelities.
TIME_WORDS = {
    "bound": BOUND_WORDS,
    "calibrated": (
        "Times are calibrated: physics with few parameters, fitted to measured kernels of operators that run one after "
        "another, with 80 % intervals. The bound is what no such run beats; an engine's own host time between steps is "
        "not in them unless its steps were fitted."
    ),
    "measured": (
        "Times are those of a recorded table where it has an operator's shape, interpolated between its rows, and "
        "calibrated beyond them, with 80 % intervals. The bound is what no such run beats."
    ),
}


def headline(a: Analysis) -> list[dict[str, str]]:
    """The times and rates of a request, each with its definition: ``name``, ``value``, ``meaning``."""
    at = "" if a.fits else "hypothetical: "
    least, most = ("≥ ", "≤ ") if a.fidelity == "bound" else ("", "")
    ttft, tpot, rate = _ends(a)
    return [
        {"name": "Time to first token (TTFT)", "value": f"{at}{least}{seconds(a.ttft_s)}",
         "meaning": f"prefill of the whole batch, without queueing; {ttft}"},
        {"name": "Time per output token (TPOT)", "value": f"{at}{least}{seconds(a.tpot_s)}",
         "meaning": f"the mean decode step, for every token after the first; {tpot}"},
        {"name": "Throughput", "value": f"{at}{most}{a.tokens_per_s:,.4g} tokens/s",
         "meaning": "output tokens of all GPUs over the whole request: batch × output / (TTFT + (output − 1) × TPOT); "
                    f"{rate}"},
    ]  # fmt: skip


def _ends(a: Analysis) -> tuple[str, str, str]:
    """What limits the headline's numbers: floors and ceiling of bounds, else intervals beside the bounds."""
    if a.fidelity == "bound":
        ceiling = f"ceiling {a.tokens_ceiling_per_s:,.4g}"
        return f"floor {seconds(a.ttft_floor_s)}", f"floor {seconds(a.tpot_floor_s)}", ceiling
    ttft = f"{between(a.ttft_interval)}; bound {seconds(a.ttft_bound_s)}"
    tpot = f"{between(a.tpot_interval)}; bound {seconds(float(a.decode.time.bound))}"
    return ttft, tpot, f"ceiling {a.tokens_ceiling_per_s:,.4g}"


def sentences(a: Analysis) -> list[str]:
    """What limits, whether it fits, and what would help."""
    found = [fit_words(a), *a.warnings, TIME_WORDS[a.fidelity]]
    found += [phase_words(a, phase) for phase in (a.prefill, a.decode)]
    found += [batch_words(a), *advice(a)]
    return [one_line(sentence) for sentence in found if sentence]


def fit_words(a: Analysis) -> str:
    """Memory needed of memory usable, in GiB and GB."""
    m = a.memory
    if not a.fits:
        return (
            f"It does not fit: {gib(m.needed)} ({gb(m.needed)}) are needed on each GPU, {gib(m.usable)} "
            f"({gb(m.usable)}) are usable. All times below are hypothetical."
        )
    return (
        f"It fits: weights, KV cache and activations need {gib(m.needed)} ({gb(m.needed)}) of the {gib(m.usable)} "
        f"({gb(m.usable)}) that a process can use on each GPU."
    )


def phase_words(a: Analysis, phase: Phase) -> str:
    """Which resources limit a phase, and its intensity against the ridge."""
    shares = {name: share for name, share in by_limiter(phase, a.setup).items() if share >= 0.005}
    cost, gpu, math_ = phase.cost, a.setup.gpu, a.setup.plan.linear_math
    part = f" of one micro-batch of {a.microbatch}" if a.microbatch < a.batch else ""
    work, time = f"{phase.name.capitalize()}{part} takes {seconds(float(phase.time.predicted))}", phase.time
    if a.fidelity == "bound":
        words = f"{work}; its time is limited by {share_list(shares)}."
    else:
        work = f"{work} ({between((float(time.low), float(time.high)))}), its bound is {seconds(float(time.bound))}"
        words = f"{work}; by what limits its operators' bounds, its time is {share_list(shares)}."
    if not float(cost.bytes):
        return words
    value, ridge = float(cost.flops) / float(cost.bytes), gpu.ridge(math_)
    return (
        f"{words} As a whole it does {intensity(value)} FLOP a byte of device memory; the ridge of "
        f"{unit_name(math_, gpu)} over {memory_name(gpu)} is {intensity(ridge)}."
    )


def batch_words(a: Analysis) -> str:
    """The critical batch of the linear layers, all of them together."""
    batch, weights = linear_batch(a.setup), a.setup.plan.weights.name
    if not math.isfinite(batch):
        return ""
    words = f"In decode the linear layers turn compute-bound at {batch:,.0f} tokens a step with {weights} weights"
    if any(isinstance(f, Moe) for f in a.setup.model.ffn.values()):
        return f"{words}; until all experts are chosen, more tokens in a step also read more experts."
    return f"{words}: below that, more tokens in a step cost them almost nothing."


def advice(a: Analysis) -> list[str]:
    """What would make each phase faster, as far as its limiters say."""
    prefill, decode = (_resources(phase) for phase in (a.prefill, a.decode))
    found = []
    if decode.get("hbm", 0.0) > 0.5:
        streams = {name: float(v) for name, v in a.decode.cost.hbm.items()}
        total = sum(streams.values())
        shares = {
            _STREAMS.get(k, k): v / total for k, v in sorted(streams.items(), key=lambda s: -s[1]) if v > 0.005 * total
        }
        found.append(
            f"Of the bytes that a decode step moves, {share_list(shares)}. {_cheaper_bytes(a, streams, total)}"
        )
    if (share := prefill.get("matrix", 0.0)) > 0.5:
        found.append(f"Prefill waits for the matrix units for {percent(share)} of its time. {_cheaper_flops(a)}")
    for phase, resources in ((a.prefill, prefill), (a.decode, decode)):
        share = resources.get("scale_up", 0.0) + resources.get("scale_out", 0.0)
        if share > NOTABLE:
            name = limiter_words("scale_up" if resources.get("scale_up") else "scale_out", a.setup)
            found.append(
                f"Collectives over {name} take {percent(share)} of {phase.name}: a smaller tensor-parallel group, or "
                f"overlapping them with compute (not assumed here), would help."
            )
    return found


def _resources(phase: Phase) -> dict[str, float]:
    """Share of the time that each kind of resource limits; all formats of the matrix units together."""
    shares: dict[str, float] = {}
    for result in phase.ops:
        name = result.time.limiter.split(":")[0]
        shares[name] = shares.get(name, 0.0) + result.share
    return shares


def _cheaper_bytes(a: Analysis, streams: dict[str, float], total: float) -> str:
    weights = streams.get("weights", 0.0) / total
    cache = (streams.get("kv_read", 0.0) + streams.get("kv_write", 0.0)) / total
    options = []
    if weights > NOTABLE and a.setup.plan.weights.bits > 4:
        options.append("fewer bits a weight")
    if weights > NOTABLE:
        options += ["more GPUs to share the weights", "more sequences or speculated tokens a step to share each read"]
    if cache > NOTABLE:
        options.append("fewer bits in the KV cache" if a.setup.plan.kv.bits > 8 else "shorter contexts")
    return f"What helps decode: {'; '.join(options)}." if options else ""


def _cheaper_flops(a: Analysis) -> str:
    gpu, now = a.setup.gpu, a.setup.plan.linear_math
    faster = [
        m for m, rate in gpu.compute.tensor.items() if rate.value > 1.2 * gpu.peak(now) and m in ("fp8", "int8", "fp4")
    ]
    if not faster:
        return "What helps: more GPUs, or a GPU with a higher peak."
    best = max(faster, key=gpu.peak)
    return (
        f"What helps: {format_name(best)} arithmetic, whose peak is {gpu.peak(best) / gpu.peak(now):.3g} times that of "
        f"{format_name(now)} here ({engineering(gpu.peak(best), 'FLOP/s')}); or more GPUs."
    )


def memory_rows(a: Analysis) -> list[dict[str, object]]:
    """Memory of one GPU: part, bytes, share of what is usable."""
    m = a.memory
    parts = [("weights", m.weights), ("KV cache, all sequences at full length", m.kv), ("activations", m.activations)]
    rows: list[dict[str, object]] = [{"part": name, "bytes": value, "share": value / m.usable} for name, value in parts]
    rows.append({"part": "needed", "bytes": m.needed, "share": m.needed / m.usable, "_total": True})
    rows.append({"part": "usable, as the driver reports it", "bytes": m.usable, "share": 1.0, "_total": True})
    return [row for row in rows if not (isinstance(row["bytes"], float) and math.isnan(row["bytes"]))]
