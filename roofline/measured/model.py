"""Times of the operators of a step from a recorded table, and calibrated where it does not reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num
from perfmodel.roofline.calibrated.kernel import Kernel
from perfmodel.roofline.calibrated.mixed import by_parts, few_tokens
from perfmodel.roofline.calibrated.model import CHUNK, REMEMBERED, Calibrated
from perfmodel.roofline.calibrated.shapes import Ask
from perfmodel.roofline.calibrated.times import CalibratedTime, total
from perfmodel.roofline.measured.look import Look, look
from perfmodel.roofline.measured.record import Page, Rows
from perfmodel.roofline.measured.scatter import BETWEEN, EXACT, OUTSIDE, Found
from perfmodel.roofline.op import Op
from perfmodel.roofline.step import Plan, Step

Array = NDArray[np.float64]

#: What an operator's time is called by its state.
SOURCES = {EXACT: "measured", BETWEEN: "interpolated", OUTSIDE: "calibrated"}


@dataclass(frozen=True)
class MeasuredTime(CalibratedTime):
    """A time from a table, or calibrated beyond it. ``source`` says which: ``measured`` (a row has the shape),
    ``interpolated`` or ``calibrated``; over an array, what most of its time is.

    Attributes
    ----------
    origins : Mapping[str, float]
        Where the time comes from, with the share of it: more than one over an array.
    """

    origins: Mapping[str, float] = field(default_factory=dict)


class Measured:
    """Times of operators on one GPU under one engine, from recorded tables.

    A row was measured as one call by itself, in the manner of its harness; in a step the call's launch and the small
    kernels around it are operators of their own. So a time in a step is ``calibrated time in the step x measured /
    calibrated time of the call``, which for a GEMM is the measured time itself. Between rows that ratio is
    interpolated, so that what the physics knows (waves, tiles, splits) is not smoothed away.

    Parameters
    ----------
    calibrated : Calibrated
        For the ratio, and for what no table has.
    rows : sequence of Rows
        Of its GPU and engine.

    Raises
    ------
    UsageError
        When the GPU's spec lacks what calibrated times need.
    """

    def __init__(self, calibrated: Calibrated, rows: Sequence[Rows]) -> None:
        if calibrated.chip is None:
            gpu = calibrated.rates.gpu.name
            raise UsageError(f"the spec of {gpu} lacks its SMs, clock or L2, without which a table cannot be read")
        self.calibrated, self.rows = calibrated, tuple(rows)
        self._chip = calibrated.chip
        self._alone = calibrated  # operators by themselves: what measured steps are off is not measured rows'
        if calibrated.step is not None:
            rates = calibrated.rates
            self._alone = Calibrated(rates.gpu, calibrated.efficiency, rates.topology)
        self._pages: dict[Any, Page | None] = {}
        self._known: dict[Any, CalibratedTime] = {}

    def time(self, op: Op) -> CalibratedTime:
        """Time of all runs of an operator in a step, with its interval."""
        if op.kind == "host":
            return self.calibrated.time(op)
        if any(isinstance(v, np.ndarray) for v in op.inputs.values()):
            return self._one(op)
        key = (op.name, op.kind, op.formula, op.count, *op.inputs.items())
        found = self._known.get(key)
        if found is None:
            found = self._one(op)
            if len(self._known) < REMEMBERED:
                self._known[key] = found
        return found

    def total(self, times: Sequence[CalibratedTime]) -> CalibratedTime:
        """Sum of the operators of a step: errors of interpolation are independent, calibrated ones partly shared."""
        return replace(total(times), source="measured")

    def beside(self, step: Step, plan: Plan) -> list[Op]:
        """The host's work, where its time is known."""
        return self.calibrated.beside(step, plan)

    def warnings(self) -> tuple[str, ...]:
        """Those of the calibrated times."""
        return self.calibrated.warnings()

    def _one(self, op: Op) -> CalibratedTime:
        """Time of one operator; of an array of shapes, each from where it stands."""
        if (few := few_tokens(op)) is not None:
            return by_parts(op, few, self._one)
        t = self.calibrated.time(op)
        where = look(op)
        page = self.page(where) if where is not None else None
        if where is None or page is None:
            return _calibrated(t, "no measured rows of its kind")
        found, shape = self._found(page, where)
        outside = found.state == OUTSIDE
        if outside.all():
            return _calibrated(t, f"outside {page.source}")
        alone = t if self._alone is self.calibrated else self._alone.time(op)

        def flat(value: Num) -> Array:
            return np.asarray(np.broadcast_to(value, shape), np.float64).reshape(-1)

        def pick(inside: Array, otherwise: Num) -> Num:
            values = np.where(outside, flat(otherwise), inside).reshape(shape)
            return values if shape else float(values)

        base, bound = flat(alone.predicted), flat(t.bound)
        predicted = np.maximum(base * np.exp(found.value), bound)
        low = np.minimum(np.maximum(base * np.exp(found.low), bound), predicted)
        high = np.maximum(base * np.exp(found.high), predicted)
        whole = pick(predicted, t.predicted)
        origins, source = _origins(found.state, flat(whole), page.source, t.origin)
        parts = {**t.parts, "measured beside calibrated": whole - t.predicted} if t.parts else {}
        return MeasuredTime(
            pick(bound, t.bound), whole, pick(low, t.low), pick(high, t.high), t.limiter, source, parts,
            pick(0 * base, t.shared), pick(predicted * found.sigma, t.own), t.kind, next(iter(origins)), origins,
        )  # fmt: skip

    def _found(self, page: Page, where: Look) -> tuple[Found, tuple[int, ...]]:
        """Ratios at the places of an operator, flat, and the shape of its arrays."""
        names = list(where.sizes)
        shape = np.broadcast_shapes(np.shape(where.valid), *(np.shape(where.sizes[n]) for n in names))
        places = np.stack([np.log(np.broadcast_to(where.sizes[n], shape).reshape(-1)) for n in names], 1)
        pieces = [page.at(places[i : i + CHUNK]) for i in range(0, len(places), CHUNK)]
        found = Found(*(np.concatenate([getattr(p, n) for p in pieces]) for n in Found.__dataclass_fields__))
        valid = np.broadcast_to(where.valid, shape).reshape(-1)
        return replace(found, state=np.where(valid, found.state, OUTSIDE)), shape

    def page(self, where: Look) -> Page | None:
        """The rows that answer for a look; ``None`` when there are none."""
        key = (where.kind, where.formats, tuple(where.same.items()), where.asked.formats)
        if key not in self._pages:
            self._pages[key] = self._make(where)
        return self._pages[key]

    def _make(self, where: Look) -> Page | None:
        for fmt in where.formats:
            of_format = [r for r in self.rows if (r.kind, r.fmt) == (where.kind, fmt)]
            for values in dict.fromkeys(tuple(r.same.items()) for r in of_format):
                if all(where.same[name] in (None, value) for name, value in values):
                    rows = [r for r in of_format if tuple(r.same.items()) == values]
                    return Page(rows, self._kernel(where.asked), self._chip)
        return None

    def _kernel(self, asked: Ask) -> Kernel:
        return self.calibrated.efficiency.kernel(asked.kind, asked.formats)


def _calibrated(t: CalibratedTime, why: str) -> MeasuredTime:
    origin = f"calibrated ({why}): {t.origin}"
    return MeasuredTime(**{**t.__dict__, "source": "calibrated", "origin": origin, "origins": {origin: 1.0}})


def _origins(state: NDArray[np.int64], seconds: Array, source: str, calibrated: str) -> tuple[dict[str, float], str]:
    """Each origin with its share of the time, largest first; and what most of the time is."""
    words = {EXACT: f"measured: {source}", BETWEEN: f"interpolated between rows of {source}",
             OUTSIDE: f"calibrated (outside {source}): {calibrated}"}  # fmt: skip
    shares = {s: float(seconds[state == s].sum()) / float(seconds.sum()) for s in words if (state == s).any()}
    listed = sorted(shares, key=lambda s: -shares[s])
    return {words[s]: shares[s] for s in listed}, SOURCES[listed[0]]
