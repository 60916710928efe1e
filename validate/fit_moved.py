"""How the kinds transfer to an architecture that was not fitted: which form, and how wide an interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.roofline.calibrated.kernel import Kernel, Regime
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.validate.fit import FLOOR
from perfmodel.validate.fit_data import Cell
from perfmodel.validate.fit_kernel import regimes, spread
from perfmodel.validate.fit_store import digits, intervals
from perfmodel.validate.fit_transfer import Transfer, transfers

Array = NDArray[np.float64]

#: Kinds of the simple form on a newer architecture than the fitted one. Chosen by the errors of ``transfers``: the
#: time of a CTA belongs to the kernel, and a new architecture brings new decode kernels. Older ones run what the
#: newer once did.
SIMPLE_KINDS = ("decode", "mla_generation")


def nearest(found: Iterable[Transfer]) -> list[Transfer]:
    """Those from the one GPU whose compute capability is nearest, the newer of two."""
    by: dict[tuple[str, str, str, str], list[Transfer]] = {}
    for t in found:
        if len(t.seen) == 1:
            by.setdefault((t.target.kind, t.target.fmt, t.target.engine, t.target.gpu), []).append(t)
    return [min(members, key=lambda t: _distance(t)) for members in by.values()]


def _distance(t: Transfer) -> tuple[float, float]:
    here, there = (float(load_gpu(g).compute_capability or 0) for g in (t.target.gpu, t.seen[0]))
    return abs(here - there), -there


def direction(t: Transfer) -> str:
    """Whether the target's architecture is ``newer`` or ``older`` than the one that was seen."""
    here, there = (float(load_gpu(g).compute_capability or 0) for g in (t.target.gpu, t.seen[0]))
    return "newer" if here > there else "older"


def chosen_form(kind: str, way: str) -> str:
    """The form that is used for a kind on a newer or older architecture."""
    return "simple" if kind in SIMPLE_KINDS and way == "newer" else "full"


def summaries(listed: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """For each kind and direction: form, error, intervals and their coverage, over transfers from the nearest
    architecture."""
    found: dict[tuple[str, str], list[Transfer]] = {}
    for t in nearest(transfers(listed)):
        found.setdefault((t.target.kind, direction(t)), []).append(t)
    out: dict[str, dict[str, Any]] = {}
    for (kind, way), some in found.items():
        both = [pair(t, chosen_form(kind, w)) for (k, w), members in found.items() if k == kind for t in members]
        out.setdefault(kind, {})[way] = summary(chosen_form(kind, way), some, both)
    return out


Pair = tuple[str, Array, Array]


def pair(t: Transfer, form: str) -> Pair:
    """A transfer's target, predictions and measurements. [s]"""
    return t.target.gpu, t.predicted[form], t.target.measured


def summary(form: str, found: Sequence[Transfer], both: Sequence[Pair]) -> dict[str, Any]:
    """Transfers of a kind in one direction together; each GPU and engine weighs as much as its rows.

    Their interval is symmetric and rests on both directions, since few architectures are there to learn from.
    """
    p, m = (np.concatenate([pair(t, form)[i] for t in found]) for i in (1, 2))
    labels = np.concatenate([np.full(len(t.target.measured), i, float) for i, t in enumerate(found)])
    shared, own = spread(np.log(m / p), labels[:, None])
    long = m >= FLOOR
    return {
        "form": form, "mape": digits(float(np.abs(p / m - 1)[long].mean()), 3), "rows": len(m),
        "pairs": [f"{t.seen[0]} to {t.target.gpu}, {t.target.engine} {t.target.fmt}: {_mape(t, form)}" for t in found],
        "coverage80": digits(_coverage([pair(t, form) for t in found], both), 3),
        "intervals": intervals(_regimes(both)), "spread": {"shared": digits(shared, 3), "own": digits(own, 3)},
    }  # fmt: skip


def _regimes(pairs: Sequence[Pair]) -> tuple[Regime, ...]:
    """Intervals of the errors and their mirror images."""
    p, m = (np.concatenate([one[i] for one in pairs]) for i in (1, 2))
    return regimes(np.concatenate([p, p]), np.concatenate([m, p * p / m]))


def _mape(t: Transfer, form: str) -> str:
    return f"{100 * t.scores()[form]['mape_10us']:.1f} %"


def _coverage(found: Sequence[Pair], both: Sequence[Pair]) -> float:
    """Share inside the interval that the transfers to other GPUs give, or where there are none, the other transfers."""
    inside, rows = 0, 0
    for gpu, p, m in found:
        others = [one for one in both if one[0] != gpu] or [one for one in both if one[1] is not p]
        low, high = Kernel("", "", SIMPLE, {}, regimes=_regimes(others)).interval(p)
        inside, rows = inside + int(((m >= low) & (m <= high)).sum()), rows + len(m)
    return inside / rows
