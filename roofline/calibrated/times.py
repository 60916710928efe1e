"""Calibrated times and what is done with them: repeated, spread over arrays, stretched, added up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.form import Parts
from perfmodel.roofline.calibrated.kernel import Regime
from perfmodel.roofline.efficiency_step import StepFit
from perfmodel.roofline.times import OpTime

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CalibratedTime(OpTime):
    """A calibrated time, with what it is made of.

    Attributes
    ----------
    parts : dict[str, Num]
        Seconds by named part; they add up to ``predicted`` but for the correction and the bound, which are parts too.
    shared, own : Num
        Standard deviations of ``predicted``: what the operators of one kind share, and the rest. [s]
    kind : str
        Whose errors are shared.
    origin : str
        Where the parameters come from.
    """

    parts: Parts = field(default_factory=dict)
    shared: Num = 0.0
    own: Num = 0.0
    kind: str = ""
    origin: str = ""


@dataclass(frozen=True)
class HostTime(CalibratedTime):
    """Time of the host's work in a step.

    Attributes
    ----------
    whole : Regime, optional
        80 % interval of the whole step that it belongs to.
    """

    whole: Regime | None = None


def spread_out(t: CalibratedTime, distinct: Array, back: NDArray[np.int64], like: Array) -> CalibratedTime:
    """A time of distinct values, at all the places where they belong. Its parts are left out."""

    def out(values: Num) -> Num:
        return np.broadcast_to(values, distinct.shape)[back].reshape(like.shape)

    return replace(
        t, bound=out(t.bound), predicted=out(t.predicted), low=out(t.low), high=out(t.high), shared=out(t.shared),
        own=out(t.own), parts={},
    )  # fmt: skip


def scaled(t: CalibratedTime, n: float) -> CalibratedTime:
    """A time of ``n`` runs of the same shape, whose errors are the same."""
    return replace(
        t, bound=t.bound * n, predicted=t.predicted * n, low=t.low * n, high=t.high * n, shared=t.shared * n,
        own=t.own * n,
        parts={k: v * n for k, v in t.parts.items()},
    )  # fmt: skip


def stretched(t: CalibratedTime, factor: float) -> CalibratedTime:
    """A time by the factor that measured steps are off, as a part of its own; never below the bound."""
    predicted = np.maximum(t.predicted * factor, t.bound)
    parts = {**t.parts, "step factor": predicted - t.predicted} if t.parts else {}
    return replace(
        t, predicted=predicted, low=np.maximum(t.low * factor, t.bound), high=np.maximum(t.high * factor, predicted),
        shared=t.shared * factor, own=t.own * factor, parts=parts,
    )  # fmt: skip


def host_time(fit: StepFit, sequences: Num, phase: str) -> HostTime:
    """Time of the host's work in a step of so many sequences: once a step, and for each of them. [s]"""
    parts: Parts = {"step": fit.host, "sequences": fit.sequence * sequences}
    predicted = fit.host + fit.sequence * sequences
    low, high = predicted * fit.hosts.low, predicted * fit.hosts.high
    bound = predicted * 0.0
    return HostTime(
        bound, predicted, low, high, "host", "calibrated", parts, high - predicted, bound, "host", fit.origin,
        fit.intervals.get(phase),
    )  # fmt: skip


def total(times: Iterable[CalibratedTime]) -> CalibratedTime:
    """Sum of the operators of a step, one after another, and its interval.

    That of whole steps where they were measured; else from the operators':

    What operators of a kind share is added linearly within the kind, all the rest in quadrature: a half-width ``w`` is
    split by the variances into ``w shared/s`` and ``w own/s`` with ``s^2 = shared^2 + own^2``.
    """
    listed = list(times)
    bound: Any = 0.0
    predicted: Any = 0.0
    lower: dict[str, Any] = {}
    upper: dict[str, Any] = {}
    down: Any = 0.0
    up: Any = 0.0
    for t in listed:
        bound, predicted = bound + t.bound, predicted + t.predicted
        part, rest = _split(t.shared, t.own)
        lower[t.kind] = lower.get(t.kind, 0.0) + (t.predicted - t.low) * part
        upper[t.kind] = upper.get(t.kind, 0.0) + (t.high - t.predicted) * part
        down, up = down + ((t.predicted - t.low) * rest) ** 2, up + ((t.high - t.predicted) * rest) ** 2
    down = np.sqrt(down + sum(v**2 for v in lower.values()))
    up = np.sqrt(up + sum(v**2 for v in upper.values()))
    heaviest = max(listed, key=lambda t: t.predicted if isinstance(t.predicted, float) else float(np.mean(t.predicted)))
    whole = next((t.whole for t in listed if isinstance(t, HostTime)), None)
    if whole is not None:
        down, up = predicted * max(1 - whole.low, 0.0), predicted * max(whole.high - 1, 0.0)
    return CalibratedTime(
        bound, predicted, np.maximum(predicted - down, bound), predicted + up, heaviest.limiter, "calibrated"
    )


def _split(shared: Num, own: Num) -> tuple[Num, Num]:
    """Parts of a half-width that are shared and a time's own: their squares add up to 1."""
    if isinstance(shared, float) and isinstance(own, float):  # one of many calls for one step
        s = math.hypot(shared, own)
        part = shared / s if s > 0 else 1.0
        return part, math.sqrt(max(1 - part * part, 0.0))
    root = np.sqrt(shared**2 + own**2)
    parts = np.where(root > 0, shared / np.where(root > 0, root, 1.0), 1.0)
    return parts, np.sqrt(1 - parts**2)
