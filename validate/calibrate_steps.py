"""Fit whole steps of an engine: its host's time a step and a sequence, and one factor on the operators' times.

``t = host + sequence n + factor D`` with D the calibrated sum of the operators, none of which goes below its bound.
Robust least squares on log time; a log-normal prior keeps what the rows do not fix near what is usual, and such numbers
are named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.roofline.calibrated.model import Calibrated
from perfmodel.roofline.efficiency import Efficiency
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.step_parts import StepParts
from perfmodel.validate.fit import Array, figures, fit_log, group_folds
from perfmodel.validate.fit_kernel import conformal
from perfmodel.validate.fit_store import digits, microseconds
from perfmodel.validate.step_rows import StepRows

#: What is usual, and the standard deviation of its logarithm: vLLM's host takes some 0.4 ms a step and 10 us a
#: sequence, sums of operators are off by some tens of percent, HTTP and tokenizing take some 8 ms a request. Estimated
#: from serving benchmarks that others published. [s, s, 1, s]
USUAL = {"host": (4e-4, 1.5), "sequence": (1e-5, 1.5), "factor": (1.0, 0.3), "request": (8e-3, 1.0)}
#: A parameter whose posterior is wider than this share of its prior is held by the prior.
HELD = 0.5
#: Log error of a row at which it counts linearly.
SCALE = 0.08
#: Least spread of the rows' logarithms that is believed, of few and of many: no form of three numbers is nearer.
FEW, MANY = 0.05, 0.02
#: Fewest rows for which errors are cross-validated, and fewest of a phase for an interval of its own.
LEAST, LEAST_INTERVAL = 10, 20
FOLDS = 5


@dataclass(frozen=True)
class StepCalibration:
    """Fitted steps.

    Attributes
    ----------
    ready : Setup
    engine : str
    rows : StepRows
        Those that were fitted.
    params, sigma : dict[str, float]
        ``host``, ``sequence`` [s], ``factor`` and, where a client measured, ``request`` [s]; and the standard errors of
        their logarithms.
    held : list[str]
        What the rows do not fix.
    predicted, plain : Array
        Of each row: by a fit that did not see its group where there are enough rows, and the operators alone. [s]
    judged : str
        What was left out of the fits behind ``predicted``; empty when nothing was.
    intervals : dict[str, tuple[float, float, int]]
        Phase -> ends of an 80 % interval of measured over predicted, and rows.
    device : list[str]
        Where the operators' parameters came from.
    """

    ready: Setup
    engine: str
    rows: StepRows
    params: dict[str, float]
    sigma: dict[str, float]
    held: list[str]
    predicted: Array
    plain: Array
    judged: str
    intervals: dict[str, tuple[float, float, int]]
    device: list[str] = field(default_factory=list)

    @property
    def scores(self) -> dict[str, float | str]:
        """Figures of the predictions, by phase; of the sum of operators alone too."""
        found: dict[str, float | str] = {"judged": self.judged or "rows of the fit itself: too few to leave any out"}
        for phase in np.unique(self.rows.phase):
            at = self.rows.phase == phase
            one, alone = (figures(t[at], self.rows.seconds[at]) for t in (self.predicted, self.plain))
            found |= {f"{phase}_mape": one["mape"], f"{phase}_bias": one["bias"], f"{phase}_plain_mape": alone["mape"]}
        return found

    def content(self, source: str) -> dict[str, Any]:
        """The section ``step`` of a file of efficiencies."""
        p, more = self.params, {}
        if "request" in p:
            more["request"] = microseconds(p["request"])
        return {
            "model": self.ready.model.name, "settings": self.ready.words(), "version": self.rows.version,
            "measured": self.rows.measured, "source": source, "device": self.device,
            "host": microseconds(p["host"]), "sequence": microseconds(p["sequence"]), "factor": digits(p["factor"]),
            **more, "sigma": {name: digits(s, 3) for name, s in self.sigma.items()}, "held": self.held,
            "rows": len(self.rows),
            "intervals": {
                phase: {"low": digits(low, 4), "high": digits(high, 4), "rows": n}
                for phase, (low, high, n) in self.intervals.items()
            },
            "scores": {k: v if isinstance(v, str) else digits(v, 4) for k, v in self.scores.items()},
        }  # fmt: skip

    def lines(self) -> list[dict[str, Any]]:
        """One row a number: its value, its 80 % interval, and whether the rows fix it."""
        found = []
        for name, value in self.params.items():
            spread = float(np.exp(1.2816 * self.sigma[name]))
            fixed = "no: held near what is usual" if name in self.held else "yes"
            ends = {"low": value / spread, "high": value * spread}
            found.append({"name": NAMES[name], "value": value, **ends, "fixed": fixed})
        return found

    def errors(self) -> list[dict[str, Any]]:
        """One row a phase: rows, error with and without the fit, and the interval."""
        scores, found = self.scores, []
        for phase in map(str, np.unique(self.rows.phase)):
            low, high, _ = self.intervals.get(phase, (None, None, 0))
            found.append(
                {
                    "phase": phase, "rows": int((self.rows.phase == phase).sum()), "mape": scores[f"{phase}_mape"],
                    "bias": scores[f"{phase}_bias"], "plain": scores[f"{phase}_plain_mape"], "low": low, "high": high,
                }
            )  # fmt: skip
        return found


#: The numbers in words.
NAMES = {
    "host": "host, once a step", "sequence": "host, a sequence of a step", "factor": "factor on operator times",
    "request": "a request outside the steps",
}  # fmt: skip


def calibrate_steps(rows: StepRows, ready: Setup, engine: str, efficiency: Efficiency) -> StepCalibration:
    """Fit steps, and judge the fit on groups of rows that it did not see.

    Parameters
    ----------
    rows : StepRows
    ready : Setup
        Model, GPU and plan that ran them.
    engine : str
    efficiency : Efficiency
        Of the operators.

    Raises
    ------
    UsageError
        When no row is left.
    """
    rows = rows.thinned()
    if not len(rows):
        raise UsageError(f"no step can be predicted: {reasons(rows) or 'there is none'}")
    device = device_times(rows, ready, efficiency)
    usable = rows.seconds >= device.bound.sum(0)
    if short := int((~usable).sum()):
        rows.skipped["shorter than the roofline bound: the engine waited for a part of the step only"] += short
    if not usable.any():
        raise UsageError(
            f"all {len(rows):,} steps are shorter than {ready.model.title} on {ready.words()} can take: is this the "
            "log of that model and plan? With asynchronous scheduling a line's wait is a part of the step: write "
            "stamps with milliseconds"
        )
    rows, device = rows.take(usable), device.take(usable)
    params, sigma = fit(rows, device)
    held = [name for name, error in sigma.items() if error > HELD * USUAL[name][1]]
    predicted, judged = _left_out(rows, device, params)
    intervals = {}
    for phase in map(str, np.unique(rows.phase)) if judged else ():
        at = rows.phase == phase
        if at.sum() >= LEAST_INTERVAL:
            low, high = conformal(np.log(rows.seconds[at] / predicted[at]))
            intervals[phase] = min(float(np.exp(low)), 1.0), max(float(np.exp(high)), 1.0), int(at.sum())
    return StepCalibration(
        ready, engine, rows, params, sigma, held, predicted, device.plain.sum(0), judged, intervals, device.origins
    )


@dataclass(frozen=True)
class Device:
    """Times of every operator (first axis) in every step. [s]"""

    plain: Array
    bound: Array
    origins: list[str]

    def take(self, rows: NDArray[Any]) -> Device:
        """Some of the steps."""
        return Device(self.plain[:, rows], self.bound[:, rows], self.origins)

    def time(self, factor: float) -> Array:
        """Of a step, with all operators by a factor and none below its bound. [s]"""
        total: Array = np.maximum(factor * self.plain, self.bound).sum(0)
        return total


def device_times(rows: StepRows, ready: Setup, efficiency: Efficiency) -> Device:
    """Times of the operators of each step, as calibrated for one operator alone."""
    timer, parts, n, m = Calibrated(ready.gpu, efficiency, ready.topology), StepParts(ready), rows.decodes, rows.chunks
    groups = (
        (parts.tokens(n + m * rows.tokens), True),
        (parts.rows(n + m), True),
        (parts.decode(np.maximum(n, 1.0), 1.0, rows.context), n > 0),
        (parts.chunk(np.maximum(m, 1.0), rows.tokens, rows.reach), m > 0),
    )
    plain, bound, origins = [], [], set[str]()
    for ops, where in groups:
        if not np.any(where):
            continue
        for t in map(timer.time, ops):
            plain.append(np.where(where, np.broadcast_to(t.predicted, n.shape), 0.0))
            bound.append(np.where(where, np.broadcast_to(t.bound, n.shape), 0.0))
            origins.add(t.origin)
    return Device(np.stack(plain), np.stack(bound), sorted(origins))


def model(p: dict[str, float], rows: StepRows, device: Device) -> Array:
    """Times of steps. [s]"""
    host = p["host"] + p["sequence"] * rows.sequences
    return host + device.time(p["factor"]) + np.where(rows.client, p.get("request", 0.0), 0.0)


def fit(rows: StepRows, device: Device) -> tuple[dict[str, float], dict[str, float]]:
    """Parameters by robust least squares on log time, and the standard errors of their logarithms.

    The prior is weighed against the rows' own spread, which the second of two rounds knows; few rows are not believed
    to be nearer than ``FEW``, many not nearer than ``MANY``: so much the form itself is off.
    """
    start = {name: usual for name, (usual, _) in USUAL.items() if name != "request" or rows.client.any()}
    params, spread = start, SCALE
    for _ in range(2):
        pulls = {name: spread / USUAL[name][1] / len(rows) ** 0.25 for name in start}
        params = fit_log(
            lambda p: model(p, rows, device), start, rows.seconds, prior=1.0, scale=SCALE, evaluations=60, pulls=pulls,
            reach=6.0,
        ).params  # fmt: skip
        left = np.log(rows.seconds / model(params, rows, device))
        spread = max(1.4826 * float(np.median(np.abs(left))), MANY if len(rows) >= LEAST else FEW)
    return params, _errors(params, rows, device, spread)


def _errors(p: dict[str, float], rows: StepRows, device: Device, spread: float) -> dict[str, float]:
    """Standard errors of the logarithms: of the rows' curvature and the prior's."""
    free = np.where(p["factor"] * device.plain > device.bound, p["factor"] * device.plain, 0.0).sum(0)
    parts = {"host": p["host"], "sequence": p["sequence"] * rows.sequences, "factor": free}
    parts |= {"request": p["request"] * rows.client} if "request" in p else {}
    whole = model(p, rows, device)
    jacobian = np.stack([np.broadcast_to(parts[name], whole.shape) / whole for name in p], 1)
    normal = jacobian.T @ jacobian / spread**2 + np.diag([USUAL[name][1] ** -2.0 for name in p])
    return dict(zip(p, map(float, np.sqrt(np.diag(np.linalg.inv(normal)))), strict=True))


def groups(rows: StepRows) -> tuple[NDArray[Any], str]:
    """What is left out together: steps of one phase and number of sequences, else stretches of the log."""
    prefill = (rows.chunks > 0).astype(float)
    keys = np.stack([prefill, np.where(prefill, rows.chunks * rows.tokens, rows.decodes)], 1)
    if len(np.unique(keys, axis=0)) > FOLDS:
        return keys, "numbers of sequences (decode) and of tokens (prefill) left out in turn"
    blocks = np.arange(len(rows)) * 2 * FOLDS // len(rows)
    return np.stack([prefill, blocks], 1), "stretches of the log left out in turn"


def _left_out(rows: StepRows, device: Device, whole: dict[str, float]) -> tuple[Array, str]:
    """Predictions by fits that did not see a row's group; those of the fit itself where there are too few rows."""
    if len(rows) < LEAST:
        return model(whole, rows, device), ""
    keys, words = groups(rows)
    fold, predicted = group_folds(keys, FOLDS), np.zeros(len(rows))
    for j in range(FOLDS):
        seen, new = np.flatnonzero(fold != j), np.flatnonzero(fold == j)
        params, _ = fit(rows.take(seen), device.take(seen))
        predicted[new] = model({**whole, **params}, rows.take(new), device.take(new))
    return predicted, words


def reasons(rows: StepRows) -> str:
    """Why steps are no rows, the most frequent first."""
    return "; ".join(f"{n:,} {why}" for why, n in rows.skipped.most_common() if n)
