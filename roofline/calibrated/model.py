"""Calibrated times of the operators of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.num import Num
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.calibrated.chip import Chip, chip
from perfmodel.roofline.calibrated.experts import one_gemm, routing
from perfmodel.roofline.calibrated.form import Parts, Shape
from perfmodel.roofline.calibrated.kernel import Kernel
from perfmodel.roofline.calibrated.mixed import by_parts, few_tokens
from perfmodel.roofline.calibrated.shapes import Ask, ask
from perfmodel.roofline.calibrated.simple import ONE_ROW, SIMPLE
from perfmodel.roofline.calibrated.times import CalibratedTime, host_time, scaled, spread_out, stretched, total
from perfmodel.roofline.calibrated.weight_only import weight_only
from perfmodel.roofline.cost import EXP, ISSUE, VECTOR, Cost
from perfmodel.roofline.dequantize import LEAST
from perfmodel.roofline.efficiency import Efficiency
from perfmodel.roofline.efficiency_step import StepFit, host_op
from perfmodel.roofline.op import Op
from perfmodel.roofline.step import Plan, Step
from perfmodel.roofline.times import Rates
from perfmodel.roofline.topology import Topology

Array = NDArray[np.float64]

#: Rows that are evaluated at a time, so that memory stays bounded.
CHUNK = 1 << 16
#: Distinct shapes that a model of times remembers.
REMEMBERED = 1 << 16
#: Arrays up to this length are evaluated as they are.
FOLD = 1 << 12


class Calibrated:
    """Times of operators on one GPU under one engine.

    Parameters
    ----------
    gpu : Gpu
    efficiency : Efficiency
        From ``efficiency.load``.
    topology : Topology, optional
        The links, for collectives.
    step : StepFit, optional
        Times of whole steps: then the host's work is an operator of each, and the others are scaled.
    """

    def __init__(
        self, gpu: Gpu, efficiency: Efficiency, topology: Topology | None = None, step: StepFit | None = None
    ) -> None:
        self.efficiency, self.rates, self.step = efficiency, Rates(gpu, topology), step
        links = (topology.bandwidth or {}) if topology else {}
        self._known: dict[Any, CalibratedTime] = {}
        self._pattern: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self.chip: Chip | None = chip(gpu, link=links.get("scale_up", 0.0))

    def time(self, op: Op) -> CalibratedTime:
        """Time of all runs of an operator in a step, where kernels follow one another in a graph.

        A shape that was asked before is not computed again, nor is one that repeats in an array.
        """
        if op.kind == "host" and self.step is not None:
            return host_time(self.step, cast(Num, op.inputs["sequences"]), str(op.inputs["phase"]))
        arrays = {name: v for name, v in op.inputs.items() if isinstance(v, np.ndarray) and v.ndim}
        if not arrays:
            found = self._remembered(op)
        elif len(arrays) == 1 and (folded := self._folded(*arrays.items())) is not None:
            name, distinct, back = folded
            found = spread_out(
                self._one(replace(op, inputs={**op.inputs, name: distinct})), distinct, back, arrays[name]
            )
        else:
            found = self._one(op)
        if self.step is not None and self.step.factor != 1:
            found = stretched(found, self.step.factor)
        return found if op.count == 1 else scaled(found, op.count)

    def beside(self, step: Step, plan: Plan) -> list[Op]:
        """The host's work, where its time is known."""
        return [host_op(step, plan)] if self.step is not None else []

    def warnings(self) -> tuple[str, ...]:
        """Which of the user's step fits are not used, and why."""
        return self.efficiency.warnings()

    def total(self, times: Sequence[CalibratedTime]) -> CalibratedTime:
        """Sum of the operators of a step: ``total`` of this module."""
        return total(times)

    def _remembered(self, op: Op) -> CalibratedTime:
        key = (op.kind, op.formula, *op.inputs.items())
        found = self._known.get(key)
        if found is None:
            found = self._one(op)
            if len(self._known) < REMEMBERED:
                self._known[key] = found
        return found

    def _folded(self, item: tuple[str, Array]) -> tuple[str, Array, NDArray[np.int64]] | None:
        """The distinct values of a long array and where each belongs; ``None`` when it is short or repeats little.

        The operators of a step depend on its tokens in the same way, so that the last array's pattern is tried first.
        """
        name, flat = item[0], item[1].reshape(-1)
        if flat.size <= FOLD:
            return None
        if self._pattern is not None and self._pattern[1].size == flat.size:
            first, back = self._pattern
            if np.array_equal(flat[first][back], flat):
                return name, flat[first], back
        distinct, first, back = np.unique(flat, return_index=True, return_inverse=True)
        if distinct.size > flat.size // 4:
            return None
        self._pattern = first, back
        return name, distinct, back

    def _one(self, op: Op) -> CalibratedTime:
        """Time of one run."""
        if (few := few_tokens(op)) is not None:
            return by_parts(op, few, self._one)
        unit = op.unit_cost
        bound = self.rates.bound(unit)
        asked = ask(op)
        kernel = self._kernel(asked) if asked.kind else self.efficiency.other(op)
        parts = self._chunked(kernel, asked, unit, bound)
        predicted: Any = 0.0
        for seconds in parts.values():
            predicted = predicted + seconds
        low, high = kernel.interval(predicted, bound)
        return CalibratedTime(
            bound, predicted, low, high, self.rates.limiter(unit), "calibrated", parts,
            predicted * kernel.shared, predicted * kernel.own, kernel.kind, kernel.origin,
        )  # fmt: skip

    def _kernel(self, asked: Ask) -> Kernel:
        if not asked.kind or self.chip is None:
            return self.efficiency.plain
        kernel = self.efficiency.kernel(asked.kind, asked.formats)
        if asked.kind not in ("gemm", "experts") or "dequant" not in asked.shape or kernel.fmt == "w4a16":
            return kernel
        # which matrix instructions grouped products with narrow weights use is not known
        architecture = self.efficiency.gpu.architecture if asked.kind == "gemm" else ""
        return weight_only(kernel, architecture, self.efficiency.engine)

    def _chunked(self, kernel: Kernel, asked: Ask, unit: Cost, bound: Num) -> Parts:
        """Parts of a time; long arrays in pieces (a GEMM's are short: each row has some sixty candidates)."""
        if kernel.form is SIMPLE:
            return self._simple(kernel, unit, bound, asked.shape)
        shape = asked.shape
        whole = np.broadcast_shapes(np.shape(asked.scale), *(np.shape(v) for v in shape.values() if _numeric(v)))
        size, step = int(np.prod(whole)), CHUNK // 64 if asked.kind == "gemm" else CHUNK
        if size <= step:
            return self._parts(kernel, asked, bound)
        flat = {k: np.broadcast_to(v, whole) if np.ndim(v) else v for k, v in shape.items()}
        flat = {k: v.reshape(-1) if isinstance(v, np.ndarray) and v.ndim else v for k, v in flat.items()}
        scale, least = np.broadcast_to(asked.scale, whole).reshape(-1), np.broadcast_to(bound, whole).reshape(-1)
        found: dict[str, Any] = {}
        for at in range(0, size, step):
            cut = slice(at, at + step)
            piece = {k: v[cut] if isinstance(v, np.ndarray) and v.ndim else v for k, v in flat.items()}
            some = self._parts(kernel, replace(asked, shape=piece, scale=scale[cut]), least[cut])
            for name, v in some.items():
                found.setdefault(name, np.empty(size))[cut] = v
        return {name: v.reshape(whole) for name, v in found.items()}

    def _parts(self, kernel: Kernel, asked: Ask, bound: Num) -> Parts:
        """Parts of one run: the kernel's own, the smooth correction, and what lifts it to the bound."""
        assert self.chip is not None
        if asked.kind == "experts":
            p = {**kernel.params, **kernel.families.get(str(kernel.facts.get("family", "")), {})}
            parts: Parts = {  # of the layer's two grouped GEMMs, each with half of what they share
                "launch": self.efficiency.step_launch(kernel, 2) / 2,
                "tiles": one_gemm(p, asked.shape, self.chip),
                "routing": routing(p, asked.shape, self.chip) / 2,
            }
        else:
            parts = {k: v for k, v in kernel.parts(asked.shape, self.chip).items() if not asked.keep or k in asked.keep}
            parts = {
                k: v if np.ndim(asked.scale) == 0 and asked.scale == 1 else v * asked.scale for k, v in parts.items()
            }
            parts["launch"] = self.efficiency.step_launch(kernel, 1)
            if kernel.residual is not None:
                total: Any = sum(v for v in parts.values())
                parts["correction"] = total * (kernel.correction(asked.shape, self.chip) - 1)
        return _lifted(parts, bound)

    def _simple(self, kernel: Kernel, unit: Cost, bound: Num, asked: Shape) -> Parts:
        terms = dict(self.rates.terms(unit))
        if ISSUE in terms:  # the roofline counts the least of them
            terms[ISSUE] = terms[ISSUE] * max(float(asked.get("dequant", 0.0)) / LEAST, 1.0)
        compute: Any = terms.get("matrix", 0.0)
        stream: Any = 0.0
        for name, seconds in terms.items():
            if name in (VECTOR, EXP, ISSUE):
                compute = np.maximum(compute, seconds)
            elif name != "matrix":
                stream = np.maximum(stream, seconds)
        shape = {"compute": compute, "stream": stream}
        parts = self._member(kernel, "", shape)
        if ONE_ROW in kernel.families:
            one = SIMPLE.family(asked, {}) == ONE_ROW
            parts = {k: np.where(one, v, parts[k]) for k, v in self._member(kernel, ONE_ROW, shape).items()}
        return _lifted(parts, bound)

    def _member(self, kernel: Kernel, family: str, shape: Shape) -> Parts:
        """Parts of the simple form with the numbers of one family."""
        chosen = kernel.member(family)
        parts = SIMPLE.parts(chosen.params, shape, self.chip or _NO_CHIP, {})
        return {**parts, "launch": self.efficiency.step_launch(chosen, 1)}


_NO_CHIP = Chip("", "", {}, 1.0, 1.0, 1.0, 1.0)


def _numeric(value: Any) -> bool:
    return value is not None and not isinstance(value, str)


def _lifted(parts: Parts, bound: Num) -> Parts:
    total: Any = 0.0
    for seconds in parts.values():
        total = total + seconds
    return {**parts, "up to the bound": np.maximum(bound - total, 0.0)}
