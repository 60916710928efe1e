"""What is predicted for a measured case: by the ceilings of this very run, by this machine's fit, by shipped ones.

By ceilings means the simple form with shares of them: those of the shipped recording of the engine where there is one,
else assumed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline import efficiency, efficiency_cpu
from perfmodel.roofline.calibrated.forms import FORMS
from perfmodel.roofline.calibrated.kernel import Kernel
from perfmodel.roofline.calibrated.model import Calibrated
from perfmodel.roofline.efficiency import ASSUMED, Efficiency
from perfmodel.roofline.efficiency_file import Fit
from perfmodel.roofline.efficiency_kept import kept_fits
from perfmodel.roofline.op import Op
from perfmodel.roofline.times import Rates
from perfmodel.validate.bench.ceilings import Ceilings

#: Shares of the measured ceilings that a kernel without a recording is assumed to reach, and how far its loads and its
#: arithmetic overlap (1: not at all). Estimates: a core issues both, and streams weights at some 60 % of what copies
#: reach; a GPU overlaps them.
ASSUMED_SHARES: Mapping[str, Mapping[str, float]] = {
    "cpu": {"matrix": 0.85, "memory": 0.6, "overlap": 1.0},
    "cuda": {"matrix": 0.8, "memory": 0.85, "overlap": 2.0},
}
#: What the fits and the default hold: kinds, and formats in which they may be asked for.
KINDS = ("gemm", "prefill", "decode", "mla_context", "mla_generation", "experts")
FORMATS = ("bf16", "fp32", "fp16", "int8", "fp8", "fp8_block", "nvfp4", "w4a16")
#: A launch is paid in a step as it is when the kernel is measured by itself.
FACTS = {"launch": "in a step"}
#: Name of the default column, of this machine's fit, and of the shipped fits that are shown beside them.
CEILINGS, FITTED, SHIPPED = "ceilings", "fit", ("vllm", "trtllm")


@dataclass(frozen=True)
class Column:
    """A way to predict.

    Attributes
    ----------
    name : str
    clock : Calibrated
    words : str
        What it rests on.
    """

    name: str
    clock: Calibrated
    words: str


@dataclass(frozen=True)
class Prediction:
    """A predicted time with its 80 % interval. [s]"""

    predicted: float
    low: float
    high: float


def by_shares(found: Ceilings, spec: Gpu, engine: str, device: str) -> Fit:
    """The simple form with the ceilings of a run: the launch that was measured, and shares of the rates."""
    known = efficiency_cpu.recorded(engine)
    launch = found.get("launch:graph") or found.get("launch") or (known[1] if known else 1e-6)
    params = {"launch": launch, **ASSUMED_SHARES[device]}
    kernel = Kernel("", "", FORMS["simple"], params, FACTS, regimes=ASSUMED, shared=0.3, own=0.1)
    keys = [*((kind, fmt) for kind in KINDS for fmt in FORMATS), ("elementwise", "")]
    kernels = {(kind, fmt): _named(kernel, kind, fmt) for kind, fmt in keys}
    versions = dict.fromkeys(keys, "assumed")
    if known is not None:
        fit, call, place = known
        kernels |= {key: efficiency_cpu.elsewhere(k, launch / call) for key, k in fit.kernels.items()}
        versions |= {key: f"{version}, recorded on {place}" for key, version in fit.versions.items()}
    return Fit(spec.name, engine, kernels, {}, versions, launch)


def share_words(engine: str, device: str) -> str:
    """Where the shares of ``by_shares`` come from."""
    if (known := efficiency_cpu.recorded(engine)) is not None:
        return f"the shares of them that {engine} {next(iter(known[0].versions.values()))} reached on {known[2]}"
    assumed = ASSUMED_SHARES[device]
    return f"{assumed['matrix']:.0%} of the peaks and {assumed['memory']:.0%} of the bandwidth (assumed)"


def _named(kernel: Kernel, kind: str, fmt: str) -> Kernel:
    return Kernel(
        kind, fmt, kernel.form, kernel.params, kernel.facts, regimes=kernel.regimes, shared=kernel.shared,
        own=kernel.own,
    )  # fmt: skip


def by_ceilings(found: Ceilings, spec: Gpu, engine: str, device: str) -> Column:
    """The default column.

    Parameters
    ----------
    spec : Gpu
        With the ceilings of this run.
    """
    fit = by_shares(found, spec, engine, device)
    words = f"simple form with the ceilings of this run, {share_words(engine, device)}"
    return Column(CEILINGS, Calibrated(spec, Efficiency(spec, engine, (fit,))), words)


def by_fit(spec: Gpu, engine: str) -> Column | None:
    """This machine's own fit; ``None`` before `validate --calibrate` made one.

    Parameters
    ----------
    spec : Gpu
        The spec that the fit refers to: a processor's as it was kept with it, a GPU's datasheet.
    """
    fits = kept_fits(spec, engine)
    if not fits:
        return None
    found = Efficiency(spec, engine, fits)
    words = f"fitted to this machine{fits[0].remark.removeprefix(', measured on this machine')}"
    return Column(FITTED, Calibrated(spec, found), words)


def shipped(spec: Gpu) -> list[Column]:
    """What the shipped fits of other engines say of their own kernels on this GPU, where they have one like it."""
    columns = []
    for engine in SHIPPED if spec.kind != "cpu" else ():
        found = efficiency.load(spec, engine)
        near = [fit for fit in found.fits if fit.engine == engine and _alike(fit.gpu, spec)]
        if near:
            columns.append(Column(engine, Calibrated(spec, found), f"shipped fit of {engine}'s kernels, never judged"))
    return columns


def _alike(name: str, spec: Gpu) -> bool:
    from perfmodel.hwspecs.load import gpu

    return efficiency.alike(gpu(name), spec)


def predict(column: Column, op: Op) -> Prediction:
    """What a column says of an operator."""
    t: Any = column.clock.time(op)
    return Prediction(float(t.predicted), float(t.low), float(t.high))


def bound(spec: Gpu, op: Op) -> tuple[float, str, dict[str, float]]:
    """The roofline bound of an operator, what sets it, and the seconds that each resource needs."""
    rates, cost = Rates(spec), op.cost()
    terms = {name: float(seconds) for name, seconds in rates.terms(cost).items()}
    return float(rates.bound(cost)), rates.limiter(cost), terms
