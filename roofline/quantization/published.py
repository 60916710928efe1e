"""What others measured of quantized models, and what is predicted for the same settings.

The figures stand in ``data/quantization_published.yaml``, each with its source. No formula of this package is fitted to
them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import exp, hypot, log
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.modelspecs.formats import Format
from perfmodel.roofline import ops
from perfmodel.roofline.analysis import Analysis, analyze
from perfmodel.roofline.dequantize import instructions
from perfmodel.roofline.efficiency_step import Z80
from perfmodel.roofline.engines.inverse import largest_batch
from perfmodel.roofline.times import Rates

FILE = Path(__file__).parents[1] / "data" / "quantization_published.yaml"

#: Most sequences that TensorRT-LLM runs at once by default. Source: ``max_batch_size`` of trtllm-build, 2048.
MOST_SEQUENCES = 2048


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Group(_Frozen):
    """Rows of one source: ``decode`` counts decode steps alone, ``request`` prefill too."""

    title: str
    metric: Literal["decode", "request"]
    engine: str


class Row(_Frozen):
    """A measured rate of output tokens of all GPUs. ``batch`` 0: as many sequences as fit."""

    group: str
    model: str
    gpu: str
    tp: int
    weights: str
    kv: str
    batch: int
    input: int
    output: int
    tokens_per_s: float
    source: str

    @property
    def setting(self) -> tuple[Any, ...]:
        """What rows share that differ by their formats and GPUs alone."""
        return self.group, self.model, self.batch, self.input, self.output

    @property
    def words(self) -> str:
        """The row in a few words."""
        lengths = f", {self.input} in, {self.output} out" if self.group != "gpt-fast" else ""
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        return f"{self.model}, {self.tp} x {self.gpu}, {self.weights}{batch}{lengths}"


class Speedup(_Frozen):
    """A speedup that is published as such."""

    title: str
    model: str
    gpu: str
    before: str
    after: str
    gpus_before: int
    gpus_after: int
    speedup: float
    batch: int
    input: int
    output: int
    phase: Literal["prefill", "decode"]
    source: str


class Marlin(_Frozen):
    """One product in 4 bits against 16."""

    gpu: str
    n: int
    k: int
    group: int
    speedup: float
    rows: tuple[int, ...]
    source: str


class Served(_Frozen):
    """A rate of a served model whose load is not given."""

    model: str
    gpu: str
    weights: str
    tokens_per_s: float
    input: int
    output: int
    source: str


class Deployment(_Frozen):
    """Whole runs of one engine's version with one model: how far they are off together.

    ``log_ratio`` is the median of the logarithm of predicted over measured rate (``tools/deployment_spread.py``).
    """

    gpu: str
    engine: str
    version: str
    model: str
    rows: int
    log_ratio: float


class Published(_Frozen):
    """All of it; sources are spelled out."""

    sources: dict[str, str]
    deployments: tuple[Deployment, ...]
    deployments_source: str
    deployments_inside: tuple[float, float]
    groups: dict[str, Group]
    rows: tuple[Row, ...]
    speedups: dict[str, Speedup]
    marlin: Marlin
    served: Served


@functools.cache
def published() -> Published:
    """The published figures."""
    return build(Published, load_yaml(FILE), FILE)


@dataclass(frozen=True)
class Predicted:
    """What is predicted for a row. [tokens/s]

    Attributes
    ----------
    batch : int
        Sequences at once.
    bound : float
        At the roofline, one operator after another.
    rate, low, high : float
        Calibrated, with its 80 % interval: the operators' errors, and how far deployments are off as a whole.
    ttft_s, tpot_s : float
        Calibrated times of the prefill of all sequences, and of a decode step. [s]
    """

    batch: int
    bound: float
    rate: float
    low: float
    high: float
    ttft_s: float
    tpot_s: float


@functools.cache
def deployment_spread() -> float:
    """Standard deviation of ``log_ratio`` between deployments.

    The fitted efficiencies are of one version of each engine, kernel by kernel. Runs of another version, with its host,
    build flags and scheduling, are off together by this much, beside the errors of the kernels. It was taken from
    closed loops of other versions than any row here (``deployments``), of which four in five lie in their intervals
    with it.

    >>> round(deployment_spread(), 3)
    0.135
    """
    return stdev(one.log_ratio for one in published().deployments)


def widened(rate: float, low: float, high: float, bound: float = float("inf"), spread: float | None = None
) -> tuple[float, float]:  # fmt: skip
    """An 80 % interval with the spread between deployments added in quadrature, on a logarithmic scale.

    >>> low, high = widened(100.0, 100.0, 100.0, spread=0.1)
    >>> round(low, 1), round(high, 1)
    (88.0, 113.7)
    """
    more = Z80 * (deployment_spread() if spread is None else spread)
    return rate * exp(-hypot(log(rate / low), more)), min(bound, rate * exp(hypot(log(high / rate), more)))


@functools.cache
def predict(row: Row) -> Predicted:
    """Rates for the setting of a row, at the bound and calibrated."""
    group = published().groups[row.group]
    batch = row.batch or most_at_once(row)
    asked: dict[str, Any] = {
        "batch": batch, "input": row.input, "output": row.output, "tp": row.tp, "weights": row.weights, "kv": row.kv,
    }  # fmt: skip
    bound = analyze(row.model, row.gpu, **asked)
    a = analyze(row.model, row.gpu, fidelity="calibrated", engine=group.engine or None, **asked)
    decode = group.metric == "decode"
    ends = [_rate(a, decode, i) for i in (1, 0)]  # the longest time is the lowest rate
    rate, most = _rate(a, decode), _rate(bound, decode)
    low, high = widened(rate, ends[0], ends[1], most)
    return Predicted(batch, most, rate, low, high, a.ttft_s, a.tpot_s)


def implied_step(row: Row) -> float:
    """Time of a decode step if the prefill took what is predicted for it. [s]"""
    if published().groups[row.group].metric == "decode":
        return row.batch / row.tokens_per_s
    p = predict(row)
    return (p.batch * row.output / row.tokens_per_s - p.ttft_s) / (row.output - 1)


def most_at_once(row: Row) -> int:
    """Sequences whose cache fits beside the weights under TensorRT-LLM, up to its default limit."""
    found = largest_batch(
        row.model, row.gpu, context=row.input + row.output, engine="trtllm", tp=row.tp, weights=row.weights, kv=row.kv
    )
    return max(1, min(found.value, MOST_SEQUENCES))


def _rate(a: Analysis, decode: bool, end: int | None = None) -> float:
    ttft, tpot = (a.ttft_s, a.tpot_s) if end is None else (a.ttft_interval[end], a.tpot_interval[end])
    if decode:
        return a.batch / tpot
    return a.batch * a.output_tokens / (ttft + (a.output_tokens - 1) * tpot)


def pairs() -> list[tuple[Row, Row]]:
    """Rows in 16 bits, each with the narrower rows of the same setting and number of GPUs.

    TensorRT-LLM 0.15's 70 B rows in 16 bits are of two GPUs and the others of one: there rates a GPU are compared, as
    their authors do.
    """
    rows = published().rows
    wide = [row for row in rows if row.weights in ("bf16", "fp16") and row.group != "trtllm-0.17"]
    return [
        (base, row)
        for base in wide
        for row in rows
        if row.setting == base.setting and row is not base and row.weights not in ("bf16", "fp16")
        and row.gpu == base.gpu and (row.tp == base.tp or row.group == "modelopt")
    ]  # fmt: skip


def measured_speedup(base: Row, row: Row) -> float:
    """Of measured rates a GPU."""
    return row.tokens_per_s / row.tp / (base.tokens_per_s / base.tp)


def predicted_speedup(base: Row, row: Row, fidelity: str = "calibrated") -> float:
    """The same of predicted rates."""
    one, other = predict(base), predict(row)
    if fidelity == "bound":
        return other.bound / row.tp / (one.bound / base.tp)
    return other.rate / row.tp / (one.rate / base.tp)


def speedup_interval(base: Row, row: Row) -> tuple[float, float]:
    """80 % interval of a predicted speedup: the intervals of both rates in quadrature.

    They share their deployment: half of its spread's variance is assumed to be common to both and to cancel.
    """
    one, other = predict(base), predict(row)
    common = Z80 * deployment_spread()
    spread = hypot(log(one.rate / one.low), log(other.rate / other.low))
    width = max(spread**2 - common**2, 0.0) ** 0.5
    ratio = predicted_speedup(base, row)
    return ratio * exp(-width), ratio * exp(width)


@functools.cache
def of_speedup(name: str, fidelity: str = "calibrated") -> float:
    """What is predicted for a published speedup; several GPUs hold the layers in turn, as the papers' code does."""
    s = published().speedups[name]
    times = []
    for weights, gpus in ((s.before, s.gpus_before), (s.after, s.gpus_after)):
        a = analyze(
            s.model, s.gpu, batch=s.batch, input=s.input, output=s.output, weights=weights, pp=gpus, kv="fp16",
            fidelity=fidelity,
        )  # fmt: skip
        times.append(a.tpot_s if s.phase == "decode" else a.ttft_s)
    return times[0] / times[1]


@functools.cache
def marlin_speedup(rows: int) -> float:
    """Bound on the speedup of Marlin's product with so many rows: 16-bit over 4-bit time at the roofline."""
    m = published().marlin
    rates = Rates(load_gpu(m.gpu))
    fmt = Format("marlin", 4, (1, m.group), 16)  # symmetric
    n, k = float(m.n), float(m.k)
    plain = ops.gemm(float(rows), n, k, 2 * n * k, 2.0, 2.0, "fp16")
    narrow = ops.gemm(float(rows), n, k, fmt.tensor_bytes((m.n, m.k)), 2.0, 2.0, "fp16", instructions(fmt, "fp16"))
    return float(rates.bound(plain) / rates.bound(narrow))


def sequences_for_rate(most: int = 256) -> int:
    """Fewest sequences at once with which the served model is predicted to make the published rate; 0 for none."""
    s = published().served
    for batch in range(1, most + 1):
        a = analyze(
            s.model, s.gpu, batch=batch, input=s.input, output=s.output, weights=s.weights, fidelity="calibrated",
            engine="vllm",
        )  # fmt: skip
        if a.tokens_per_s >= s.tokens_per_s:
            return batch
    return 0
