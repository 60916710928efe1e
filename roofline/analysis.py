"""Answers for people: the operators of a request on a roofline, and an estimate of its times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DoesNotFit
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.clock import clock
from perfmodel.roofline.memory import Memory, memory, remedies
from perfmodel.roofline.phases import OpResult, Phase, decode_phase, pipeline_factor, prefill_phase
from perfmodel.roofline.quantization.units import remarks
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import check_whole
from perfmodel.roofline.times import OpTime

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.roofline.measured.record import Recorded


@dataclass(frozen=True, repr=False)
class Analysis:
    """Every operator of a request's prefill and decode on a GPU.

    Attributes
    ----------
    setup : Setup
    batch, input_tokens, output_tokens : int
        Sequences of the whole deployment; prompt and output tokens of each.
    prefill, decode : Phase
    memory : Memory
    remedies : tuple[str, ...]
        Options that would make it fit, when it does not.
    unused : tuple[str, ...]
        What was given and is not used, and why.
    """

    setup: Setup
    batch: int
    input_tokens: int
    output_tokens: int
    prefill: Phase
    decode: Phase
    memory: Memory
    remedies: tuple[str, ...]
    unused: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether weights, KV cache and activations are within the usable memory."""
        return self.memory.fits

    @property
    def title(self) -> str:
        """Model, GPU and settings in one line."""
        return (
            f"{self.setup.model.title} on {self.setup.words()}, batch {self.batch}, {self.input_tokens} tokens in, "
            f"{self.output_tokens} out"
        )

    @property
    def notice(self) -> str:
        """What to say when it does not fit; empty when it does."""
        if self.fits:
            return ""
        hints = f"; {' or '.join(self.remedies)} would fit" if self.remedies else "; no option tried would fit"
        return f"{self.setup.model.title} {self.memory.sentence()}: its times are hypothetical{hints}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the question itself doubtful, what of it is not used, and weights that the GPU has no unit for."""
        ready = self.setup
        longest, asked = ready.model.max_context, self.input_tokens + self.output_tokens
        long = f"{asked:,} tokens are more than the {longest:,} that {ready.model.title} is made for"
        said = [long] if asked > longest else []
        return (*said, *self.unused, *remarks(ready.model, ready.plan, ready.gpu))

    @property
    def microbatch(self) -> int:
        """Sequences that one pass of a rank takes: the batch over data-parallel ranks and pipeline micro-batches."""
        return ceil(self.batch / (self.setup.plan.dp * self.setup.plan.pp))

    @property
    def ttft_s(self) -> float:
        """Time to first token: prefill of the whole batch through all pipeline stages. [s]"""
        return float(self.prefill.time.predicted) * pipeline_factor(self.setup, self.batch)

    @property
    def ttft_bound_s(self) -> float:
        """Its roofline bound: operators one after another. [s]"""
        return float(self.prefill.time.bound) * pipeline_factor(self.setup, self.batch)

    @property
    def ttft_floor_s(self) -> float:
        """The same with everything overlapped and fused: nothing can be faster. [s]"""
        return self.prefill.floor * pipeline_factor(self.setup, self.batch)

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first: the mean decode step. [s]"""
        return float(self.decode.time.predicted)

    @property
    def tpot_floor_s(self) -> float:
        """The same with everything overlapped and fused: nothing can be faster. [s]"""
        return self.decode.floor

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of the deployment a second: ``batch x output / (ttft + (output - 1) tpot)``."""
        return self._rate(self.ttft_s, self.tpot_s)

    @property
    def fidelity(self) -> str:
        """``bound``, ``calibrated`` or ``measured``."""
        return self.prefill.time.source

    @property
    def ttft_interval(self) -> tuple[float, float]:
        """80 % interval of the time to first token; at bound fidelity from the floor to infinity. [s]"""
        return self._interval(self.prefill, pipeline_factor(self.setup, self.batch))

    @property
    def tpot_interval(self) -> tuple[float, float]:
        """80 % interval of the time per output token; at bound fidelity from the floor to infinity. [s]"""
        return self._interval(self.decode, 1.0)

    @property
    def tokens_interval(self) -> tuple[float, float]:
        """``tokens_per_s`` at the slow and at the fast ends of both times; at bound fidelity from 0 to the ceiling."""
        (ttft_low, ttft_high), (tpot_low, tpot_high) = self.ttft_interval, self.tpot_interval
        return self._rate(ttft_high, tpot_high), self._rate(ttft_low, tpot_low)

    def _interval(self, phase: Phase, factor: float) -> tuple[float, float]:
        low = phase.floor if self.fidelity == "bound" else float(phase.time.low)
        return low * factor, float(phase.time.high) * factor

    @property
    def origins(self) -> dict[str, float]:
        """Where times other than bounds come from, each with its share of a request's time; largest first."""
        seconds: dict[str, float] = {}
        weights = ((self.prefill, self.ttft_s), (self.decode, (self.output_tokens - 1) * self.tpot_s))
        for phase, whole in weights:
            for result in phase.ops:
                for origin, part in origins(result.time).items():
                    seconds[origin] = seconds.get(origin, 0.0) + result.share * whole * part
        total = sum(seconds.values())
        return {name: value / total for name, value in sorted(seconds.items(), key=lambda item: -item[1])}

    @property
    def tokens_ceiling_per_s(self) -> float:
        """The same at the floors: no run of this batch makes more."""
        return self._rate(self.ttft_floor_s, self.tpot_floor_s)

    def _rate(self, ttft: float, tpot: float) -> float:
        decoding = (self.output_tokens - 1) * tpot if self.output_tokens > 1 else 0.0
        return self.batch * self.output_tokens / (ttft + decoding)

    def __repr__(self) -> str:
        return f"<Analysis: {self.title}>"

    def rows(self) -> list[dict[str, Any]]:
        """One row an operator and phase, in SI units."""
        return [_row(phase.name, r) for phase in (self.prefill, self.decode) for r in phase.ops]

    @property
    def frame(self) -> pd.DataFrame:
        """``rows`` as a frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "model": self.setup.model.name, "gpu": self.setup.gpu.name, "settings": self.setup.words(),
            "system": self.setup.topology.system, "batch": self.batch, "input": self.input_tokens,
            "output": self.output_tokens, "fidelity": self.fidelity, "fits": self.fits, "notice": self.notice,
            "warnings": list(self.warnings), "origins": self.origins,
            "memory": memory_dict(self.memory), "ops": self.rows(),
        }  # fmt: skip

    def plot(self, **options: Any) -> Any:
        """The roofline picture: a matplotlib figure (``perfmodel.reports.roofline_plot.draw``)."""
        from importlib import import_module  # reports sit above this floor: looked up, not imported

        return import_module("perfmodel.reports.roofline_plot").draw([self], **options)

    def _repr_html_(self) -> str:
        return f"<p>{_escape(self.title)}</p>" + str(self.frame.to_html(index=False))


def origins(t: OpTime) -> Mapping[str, float]:
    """Where an operator's time comes from, with the shares of it; empty for a bound."""
    single = getattr(t, "origin", "")
    return getattr(t, "origins", None) or ({single: 1.0} if single else {})


def _escape(text: str) -> str:
    import html

    return html.escape(text)


def memory_dict(m: Memory) -> dict[str, Any]:
    """Memory of a rank, ready for JSON."""
    return {
        "weights_bytes": m.weights, "kv_bytes": m.kv, "activation_bytes": m.activations, "needed_bytes": m.needed,
        "usable_bytes": m.usable,
    }  # fmt: skip


def finite(value: float) -> float | None:
    """A number, or ``None`` where it is infinite: JSON has no infinity."""
    return value if math.isfinite(value) else None


def _row(phase: str, r: OpResult) -> dict[str, Any]:
    intensity = float(r.cost.flops / r.cost.bytes) if r.cost.bytes else 0.0
    return {
        "phase": phase, "op": r.op.name, "layer": r.op.layer, "kind": r.op.kind, "count": r.op.count,
        "flops": float(r.cost.flops), "bytes": float(r.cost.bytes), "sent_bytes": float(r.cost.sent),
        "l2_bytes": float(r.cost.l2), "intensity": intensity, "limiter": r.time.limiter,
        "bound_s": float(r.time.bound), "time_s": float(r.time.predicted), "low_s": float(r.time.low),
        "high_s": finite(float(r.time.high)),
        "share": r.share, "source": r.time.source,
    }  # fmt: skip


def analyze(
    model: str | ModelSpec, gpu: str | Gpu, *, batch: int = 1, input: int = 2048, output: int = 256,
    fidelity: str = "bound", engine: str | None = None, efficiency: Sequence[str] = (),
    measured: Sequence[Recorded] = (), **plan: Any,
) -> Analysis:  # fmt: skip
    """Put every operator of a request on the roofline of a GPU.

    Parameters
    ----------
    model, gpu
        Names, files or specs.
    batch : int
        Sequences of the whole deployment, 1 to 10^7.
    input, output : int
        Prompt tokens and generated tokens of each, 1 to 10^8.
    fidelity : str
        ``bound`` (the roofline), ``calibrated`` (fitted to measurements, with intervals) or ``measured`` (recorded
        tables, interpolated, and calibrated beyond them).
    engine, efficiency
        Of calibrated times: whose kernels, and files of the user's own fits.
    measured
        Tables of this GPU's operator times, as ``perfmodel.measured`` reads them.
    **plan
        ``tp, pp, ep, dp, weights, kv, system``, as ``setup`` takes them.

    Raises
    ------
    UnknownName, SpecError, UsageError
        Never for a model that does not fit: ``fits`` and ``notice`` say so.

    Examples
    --------
    >>> a = analyze("llama3-70b", "h100", tp=4)
    >>> round(a.decode.time.bound * 1e3, 1)  # at least this many ms a token
    10.4
    """
    for name, value in (("batch", batch), ("input", input), ("output", output)):
        check_whole(name, value)
    ready = setup(model, gpu, **plan)
    need = memory(ready.model, ready.gpu, ready.plan, batch, input + output, batch * input)
    hints: tuple[str, ...] = ()
    if not need.fits:
        hints = tuple(remedies(ready, batch, input + output, batch * input))
    timer = clock(ready, fidelity, engine, efficiency, measured)
    return Analysis(
        ready, int(batch), int(input), int(output), prefill_phase(ready, batch, input, timer),
        decode_phase(ready, batch, input, output, timer), need, hints, timer.warnings(),
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Estimate:
    """Times of a batch of equal requests, one operator after another: at their rooflines, or calibrated.

    Attributes
    ----------
    ttft_s : float
        Time to first token: prefill of the whole batch, no queueing. [s]
    tpot_s : float
        Time per output token after the first: the mean decode step. [s]
    tokens_per_s : float
        Output tokens of the deployment a second, over the whole request: ``batch x output / (ttft + (output-1) tpot)``.
    analysis : Analysis
    """

    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    analysis: Analysis

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; at bound fidelity no time has an upper limit (``null``), and no rate a lower one
        (0)."""
        a = self.analysis
        (ttft_low, ttft_high), (tpot_low, tpot_high) = a.ttft_interval, a.tpot_interval
        times = {"ttft_s": self.ttft_s, "ttft_low_s": ttft_low, "ttft_high_s": finite(ttft_high)}
        times |= {"tpot_s": self.tpot_s, "tpot_low_s": tpot_low, "tpot_high_s": finite(tpot_high)}
        low, high = a.tokens_interval
        rates = {"tokens_per_s": self.tokens_per_s, "tokens_per_s_low": low, "tokens_per_s_high": high}
        rates |= {"tokens_ceiling_per_s": a.tokens_ceiling_per_s}
        return {**times, **rates, **a.to_dict()}

    def __repr__(self) -> str:
        times = f"TTFT {self.ttft_s:.4g} s, TPOT {self.tpot_s:.4g} s, {self.tokens_per_s:.4g} tokens/s"
        return f"<Estimate ({self.analysis.fidelity}): {times}; {self.analysis.title}>"

    @property
    def frame(self) -> pd.DataFrame:
        """The operators behind the estimate."""
        return self.analysis.frame

    def _repr_html_(self) -> str:
        return (
            f"<p>Fidelity {self.analysis.fidelity}: TTFT {self.ttft_s * 1e3:.4g} ms, TPOT {self.tpot_s * 1e3:.4g} ms, "
            f"{self.tokens_per_s:.4g} tokens/s</p>" + self.analysis._repr_html_()
        )


def estimate(model: str | ModelSpec, gpu: str | Gpu, **options: Any) -> Estimate:
    """Estimate TTFT, TPOT and throughput. Options as ``analyze``.

    Raises
    ------
    DoesNotFit
        No latency is given for what cannot run; the message says what would fit.

    Examples
    --------
    >>> round(estimate("llama3-70b", "h100", tp=4).ttft_s * 1e3)
    93
    """
    a = analyze(model, gpu, **options)
    if not a.fits:
        hints = f"; {' or '.join(a.remedies)} would fit" if a.remedies else "; no option tried would fit"
        raise DoesNotFit(
            f"{a.setup.model.title} on {a.setup.words()} {a.memory.sentence()}{hints}",
            float(a.memory.needed),
            a.memory.usable,
        )
    return Estimate(a.ttft_s, a.tpot_s, a.tokens_per_s, a)
