"""Where speculation pays: speedup over two axes, the others fixed, as an array and as rows.

Each map is one evaluation of the graphs over arrays: the costs of a round over batch, context and shape, the tokens
over acceptance and shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.roofline.speculative.candidates import Candidate, candidate, searched
from perfmodel.roofline.speculative.evaluate import Speculation
from perfmodel.roofline.speculative.room import room

Array = NDArray[np.float64]
Axes = Literal["batch,context", "alpha,gamma", "batch,gamma"]
MAPS: tuple[Axes, ...] = ("batch,context", "alpha,gamma", "batch,gamma")

#: Axes of a map where the question names a single value: batches, contexts, acceptances.
BATCHES = tuple(float(2**n) for n in range(11))
CONTEXTS = tuple(float(2**n) for n in range(9, 18))
ALPHAS = tuple(round(0.05 * n, 2) for n in range(2, 20))


@dataclass(frozen=True)
class CrossoverMap:
    """Speedup over two axes.

    Attributes
    ----------
    x, y : str
        Names of the axes.
    xs, ys : ndarray
        Their values.
    speedup : ndarray, (ys, xs)
        1 is the break-even line.
    fits : ndarray of bool, (ys, xs)
        Whether target and draft fit; elsewhere the speedup is hypothetical.
    shapes : tuple[tuple[str, ...], ...]
        The shape behind each point, in words.
    of : Speculation
        The question, whose first batch, context and acceptance hold where no axis changes them.
    """

    x: str
    y: str
    xs: Array
    ys: Array
    speedup: Array
    fits: NDArray[np.bool_]
    shapes: tuple[tuple[str, ...], ...]
    of: Speculation

    def rows(self) -> list[dict[str, Any]]:
        """One row a point."""
        fixed = {"batch": float(self.of.batch[0]), "context": float(self.of.context[0])}
        return [
            {
                "method": self.of.method.name, **fixed, self.x: float(x), self.y: float(y),
                "speedup": float(self.speedup[i, j]), "shape": self.shapes[i][j], "fits": bool(self.fits[i, j]),
                "fidelity": self.of.fidelity,
            }
            for i, y in enumerate(self.ys)
            for j, x in enumerate(self.xs)
        ]  # fmt: skip

    def break_even(self) -> list[float | None]:
        """For each ``y`` the last ``x`` at which it pays before it stops for good; ``None`` where it never does."""
        found: list[float | None] = []
        for row in self.speedup:
            paying = np.flatnonzero(row > 1)
            found.append(float(self.xs[paying[-1]]) if paying.size else None)
        return found


def crossover(of: Speculation, axes: str, asked: bool = False) -> CrossoverMap:
    """A map of the speedup around a question.

    Parameters
    ----------
    of : Speculation
        Its batches and contexts are the axes where it has several.
    axes : str
        ``batch,context``: the best shape at each point, or the asked one; ``alpha,gamma``: chains at the first batch
        and context, with one acceptance for all positions; ``batch,gamma``: chains at the first context.
    asked : bool
        Whether ``batch,context`` shows the asked shape rather than the best.
    """
    if axes not in MAPS:
        raise UsageError(f"--map {axes[:40]!r} is not known; choose one of {', '.join(MAPS)}")
    if axes == "batch,context":
        return _batch_context(of, asked)
    return _alpha_gamma(of) if axes == "alpha,gamma" else _batch_gamma(of)


def _axis(given: Array, usual: Sequence[float]) -> Array:
    return np.asarray(given if len(given) > 1 else usual, dtype=np.float64)


def _fits(of: Speculation, nodes: int, batch: Array, context: Array) -> NDArray[np.bool_]:
    return room(of.draft, nodes, batch, context, of.bench.concurrent).fits


def _batch_context(of: Speculation, asked: bool) -> CrossoverMap:
    batches, contexts = _axis(of.batch, BATCHES), _axis(of.context, CONTEXTS)
    b, c = batches[None, :], contexts[:, None]
    options = [of.asked] if asked else of.options
    gains = of.bench.speedups(options, b, c)
    best = np.argmax(gains, axis=0)
    words = tuple(tuple(options[k].words for k in row) for row in best)
    fits = _fits(of, len(of.asked.tree), b, c)
    return CrossoverMap("batch", "context", batches, contexts, gains.max(axis=0), fits, words, of)


def _lengths(of: Speculation) -> list[int]:
    return list(range(1, searched(of.method) + 1))


def _alpha_gamma(of: Speculation) -> CrossoverMap:
    gammas, alphas = _lengths(of), np.array(ALPHAS)
    shapes = [[_chain(of, gamma, alpha) for alpha in ALPHAS] for gamma in gammas]
    flat = [c for row in shapes for c in row]
    gains = of.bench.speedups(flat, of.batch[:1], of.context[:1]).reshape(len(gammas), len(alphas))
    fits = np.array([[bool(_fits(of, len(c.tree), of.batch[:1], of.context[:1])[0]) for c in row] for row in shapes])
    words = tuple(tuple(c.words for c in row) for row in shapes)
    return CrossoverMap("alpha", "gamma", alphas, np.array(gammas, dtype=np.float64), gains, fits, words, of)


def _chain(of: Speculation, gamma: int, alpha: float) -> Candidate:
    return candidate(of.acceptance.model_copy(update={"alphas": (alpha,)}), gamma)


def _batch_gamma(of: Speculation) -> CrossoverMap:
    seen = len(of.fitted.trials) if of.fitted else searched(of.method)
    gammas, batches = _lengths(of)[:seen], _axis(of.batch, BATCHES)
    shapes = [candidate(of.acceptance, gamma) for gamma in gammas]
    gains = of.bench.speedups(shapes, batches, of.context[:1])
    fits = np.stack([_fits(of, len(c.tree), batches, of.context[:1]) for c in shapes])
    words = tuple((c.words,) * len(batches) for c in shapes)
    return CrossoverMap("batch", "gamma", batches, np.array(gammas, dtype=np.float64), gains, fits, words, of)
