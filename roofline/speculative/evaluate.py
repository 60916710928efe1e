"""Does speculation pay here? Tokens a round, cost of a round, speedup, the best draft length and where it breaks even.

Every (batch, context) is asked of the same graphs as a plain estimate: the acceptance comes from the method's catalogue
entry, from the user or from a log, everything else from the models and the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.clock import clock
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.speculative.acceptance_fit import Fitted
from perfmodel.roofline.speculative.asked import acceptances, axis, check_plan, length
from perfmodel.roofline.speculative.bench import Bench, break_even
from perfmodel.roofline.speculative.candidates import Candidate, candidate, candidates, default_candidate
from perfmodel.roofline.speculative.default_draft import default_draft
from perfmodel.roofline.speculative.drafts import Draft
from perfmodel.roofline.speculative.methods import Acceptance, Method
from perfmodel.roofline.speculative.methods import method as find_method
from perfmodel.roofline.speculative.room import Room, room
from perfmodel.roofline.speculative.rounds import Z80, Host, Round, Shape, step_host
from perfmodel.roofline.speculative.why import limiters

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.roofline.measured.record import Recorded

__all__ = [
    "Bench", "Candidate", "Speculation", "break_even", "candidate", "candidates", "default_candidate", "speculate",
]  # fmt: skip

Array = NDArray[np.float64]
Pair = tuple[Array, Array]


@dataclass(frozen=True, repr=False)
class Speculation:
    """Speculation with one method on one setup, over a grid of batches and contexts.

    Attributes
    ----------
    method : Method
    bench : Bench
        Drafter, clock and host of all rounds.
    acceptance : Acceptance
    fitted : Fitted or None
        The log that the acceptance was fitted to.
    asked : Candidate
        The shape that was asked about, or the method's own.
    batch, context : ndarray
        Axes of the grid: sequences of the deployment, tokens in the cache.
    round, tokens : Round, ndarray
        Seconds, and tokens a round and sequence, at the asked shape; each array of shape (batch, context).
    options : list[Candidate]
        Shapes that were tried.
    gains : ndarray, (options, batch, context)
        Speedup of each.
    break_even_batch : int or None
        Smallest batch, at the first context, from which on no shape of this method pays; None up to 4096.
    room : Room
        Memory of target and draft.
    fidelity : str
    """

    method: Method
    bench: Bench
    acceptance: Acceptance
    fitted: Fitted | None
    asked: Candidate
    batch: Array
    context: Array
    round: Round
    tokens: Array
    options: list[Candidate]
    gains: Array
    break_even_batch: int | None
    room: Room
    fidelity: str

    @property
    def draft(self) -> Draft:
        """What proposes the tokens, with its target."""
        return self.bench.draft

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether weights and caches of target and draft are within the memory, at each point."""
        return self.room.fits

    @property
    def speedup(self) -> Array:
        """Of the asked shape: plain time a token over speculative time a token."""
        return np.asarray(self.round.speedup(self.tokens))

    @property
    def best(self) -> tuple[tuple[Candidate | None, ...], ...]:
        """The fastest shape at each point; None where plain decoding is faster than every one."""
        winner, top = np.argmax(self.gains, axis=0), self.gains.max(axis=0)
        points = range(len(self.batch)), range(len(self.context))
        return tuple(tuple(self.options[winner[i, j]] if top[i, j] > 1 else None for j in points[1]) for i in points[0])

    @property
    def best_speedup(self) -> Array:
        """At the best shape, the asked one among them; 1 where plain decoding is best."""
        return np.asarray(np.maximum(self.gains.max(axis=0), 1.0))

    @property
    def interval(self) -> Pair:
        """80 % interval of the speedup: errors of the times, and of the acceptance where it was fitted to a log."""
        return self._around(self.speedup, self.round, [[self.asked] * len(self.context)] * len(self.batch))

    @property
    def best_interval(self) -> Pair:
        """80 % interval of the speedup at the best shape; 1 where plain decoding is best."""
        chosen = [[c or self.asked for c in row] for row in self.best]
        gamma, nodes, width = (
            np.array([[float(f(c)) for c in row] for row in chosen])
            for f in (lambda c: c.tree.depth, lambda c: len(c.tree), lambda c: c.width)
        )
        got = self.bench.measure(Shape(gamma, nodes, width), self.batch[:, None], self.context[None, :])
        low, high = self._around(self.best_speedup, got, chosen)
        plain = self.gains.max(axis=0) <= 1
        return np.where(plain, 1.0, low), np.where(plain, 1.0, high)

    def _around(self, value: Array, got: Round, chosen: Sequence[Sequence[Candidate]]) -> Pair:
        times = np.broadcast_to(np.asarray(got.spread, dtype=np.float64), value.shape)
        known = {id(c): self._tokens_spread(c) for row in chosen for c in row}
        counts = np.array([[known[id(c)] for c in row] for row in chosen])
        factor = np.exp(Z80 * np.hypot(times, counts))
        return value / factor, value * factor

    def _tokens_spread(self, c: Candidate) -> float:
        return self.fitted.spread(c, self.acceptance.siblings) if self.fitted else 0.0

    @property
    def unseen(self) -> int:
        """Positions that the asked shape drafts beyond those of the log; 0 without one."""
        return max(self.asked.tree.depth - len(self.fitted.trials), 0) if self.fitted else 0

    @property
    def host(self) -> tuple[float, float, str]:
        """The engine's own time in a plain step and in a round at the first point [s], and where it is from."""
        if (given := self.bench.host) is not None:
            drafting = given.draft_pass * (self.asked.tree.depth if self.draft.passes == "serial" else 1)
            return given.step, given.round + (drafting if self.draft.passes != "none" else 0.0), "given"
        time = float(step_host(self.bench.clock, self.draft.target, float(self.batch[0]), 1.0).seconds)
        fit = getattr(getattr(self.bench.clock, "calibrated", self.bench.clock), "step", None)
        return time, time, fit.origin if fit else ""

    def limits(self, i: int = 0, j: int = 0) -> tuple[dict[str, float], dict[str, float]]:
        """Shares of the time by limiter at one point, of the plain step and of the verification."""
        point = float(self.batch[i]), float(self.context[j])
        return limiters(self.draft.target, self.bench.clock, *point, float(len(self.asked.tree)))

    def rows(self) -> list[dict[str, Any]]:
        """One row a (batch, context), in SI units; what does not fit gets no times, and its speedup is hypothetical."""
        sides = [*self.interval, *self.best_interval]
        best = self.best
        return [
            self._row(i, j, [float(side[i, j]) for side in sides], best[i][j])
            for i in range(len(self.batch))
            for j in range(len(self.context))
        ]

    def _row(self, i: int, j: int, sides: list[float], best: Candidate | None) -> dict[str, Any]:
        def at(x: Any) -> float:
            return float(np.broadcast_to(np.asarray(x, dtype=np.float64), self.tokens.shape)[i, j])

        known, fits = self.fidelity != "bound" or self.fitted is not None, bool(self.fits[i, j])
        plain, whole = at(self.round.plain.seconds), at(self.round.whole.seconds)
        passes = self.asked.tree.depth if self.draft.passes == "serial" else 1
        low, high, best_low, best_high = (side if known else None for side in sides)
        return {
            "method": self.method.name, "batch": float(self.batch[i]), "context": float(self.context[j]),
            "gamma": self.asked.tree.depth, "nodes": len(self.asked.tree), "tau": at(self.tokens),
            "draft_pass_cost": at(self.round.draft.seconds) / plain / passes,
            "draft_cost": at(self.round.draft.seconds) / plain, "verify_cost": at(self.round.verify_cost),
            "round_cost": at(self.round.cost), "speedup": at(self.speedup), "speedup_low": low, "speedup_high": high,
            "best_gamma": best.tree.depth if best else 0, "best_nodes": len(best.tree) if best else 0,
            "best_speedup": float(self.best_speedup[i, j]), "best_speedup_low": best_low,
            "best_speedup_high": best_high, "fits": fits, "plain_tpot_s": plain if fits else None,
            "tpot_s": whole / at(self.tokens) if fits else None,
            "tokens_per_s": float(self.batch[i]) * at(self.tokens) / whole if fits else None,
            "needed_bytes": at(self.room.needed), "draft_kv_bytes": at(self.room.draft_kv), "fidelity": self.fidelity,
        }  # fmt: skip

    @property
    def frame(self) -> pd.DataFrame:
        """``rows`` as a frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; the first (batch, context) at the top."""
        rows, target = self.rows(), self.draft.target
        first = {
            key: rows[0][key]
            for key in (
                "tau", "speedup", "speedup_low", "speedup_high", "best_gamma", "best_nodes", "best_speedup", "fits",
            )
        }  # fmt: skip
        return {
            **first, "break_even_batch": self.break_even_batch, "method": self.method.name, "draft": self.draft.title,
            "model": target.model.name, "gpu": target.gpu.name, "settings": target.words(), "fidelity": self.fidelity,
            "exact": self.method.verification == "exact", "acceptance": self.acceptance.model_dump(),
            "draft_weight_bytes": self.draft.weight_bytes, "usable_bytes": self.room.target.usable,
            "host_step_s": self.host[0], "host_round_s": self.host[1], "host_source": self.host[2],
            "note": self.draft.note, "points": rows,
        }  # fmt: skip

    def plot(self, **options: Any) -> Any:
        """The speedup over batch: a matplotlib figure (``perfmodel.reports.speculation_plot.draw``)."""
        from importlib import import_module  # reports sit above this floor: looked up, not imported

        return import_module("perfmodel.reports.speculation_plot").draw([self], **options)

    def __repr__(self) -> str:
        first = self.rows()[0]
        return (
            f"<Speculation: {self.method.title} on {self.draft.target.words()}: speedup {first['speedup']:.2f} at "
            f"batch {first['batch']:g}, {self.asked.words}>"
        )

    def _repr_html_(self) -> str:
        return str(self.frame.to_html(index=False))


def _acceptance(
    m: Method, model: str, alpha: float | Sequence[float] | None, log: Fitted | None
) -> tuple[Acceptance, Fitted | None]:
    if alpha is not None and log is not None:
        raise UsageError("alpha and a log both say what is accepted; give one of them")
    if log is not None:
        return log.acceptance(m.acceptance.siblings), log
    if alpha is None:
        return m.acceptance_for(model), None
    given = acceptances(alpha)
    return m.acceptance.model_copy(
        update={
            "alphas": tuple(map(float, given)), "setting": "given by the user", "source": "the user", "basis": "given",
            "tau": None,
        }
    ), None  # fmt: skip


def speculate(
    model: str | ModelSpec, gpu: str | Gpu, *, method: str | Method | None = None, draft: str | None = None,
    alpha: float | Sequence[float] | None = None, log: Fitted | None = None, gamma: int | None = None, batch: Any = 1,
    context: Any = 2048, fidelity: str = "calibrated", engine: str | None = None, efficiency: Sequence[str] = (),
    measured: Sequence[Recorded] = (), padded: bool = False, host: Host | None = None, draft_tp: int | None = None,
    draft_weights: str | None = None, **plan: Any,
) -> Speculation:  # fmt: skip
    """Evaluate a method of speculative decoding on a setup.

    Parameters
    ----------
    method : str or Method, optional
        Name, alias or YAML file; by default EAGLE-3, or Speculative Sampling where ``draft`` is given.
    draft : str, optional
        The drafter, of a method with an independent one; by default a small built-in model of the target's family.
    alpha : float or sequence, optional
        Acceptance of each position instead of the catalogue's, which is the target's own where one was published and
        else that of another model; the last holds for what follows.
    log : Fitted, optional
        Acceptance fitted to a log (``perfmodel.validate.logs_speculation.read``), whose interval is carried on; no
        shape beyond the positions that it holds is tried, unless ``gamma`` asks for it.
    gamma : int, optional
        Draft length (depth of a tree), 1 to 64; the method's own by default.
    batch, context : number or list
        Sequences of the deployment; tokens in the cache of each.
    fidelity, engine, efficiency, measured
        As ``analyze``; calibrated by default, since launches decide what a small drafter costs.
    padded : bool
        Whether a batch advances together, by its slowest sequence.
    host : Host, optional
        The engine's own time a step, round and draft pass; by default that of a fit of whole steps in ``efficiency``,
        once a step and once a round, else none.
    draft_tp, draft_weights
        Of an independent drafter.
    **plan
        ``tp, pp, ep, dp, weights, kv, system``.

    Raises
    ------
    UnknownName, SpecError, UsageError
        Never for what does not fit: ``fits`` says so.

    Examples
    --------
    >>> s = speculate("llama3-70b", "h100", method="eagle-3", alpha=0.8, gamma=4, tp=8)
    >>> 3 < float(s.speedup[0, 0]) < 4
    True
    """
    chosen = find_method(method or ("speculative-sampling" if draft else "eagle-3"))
    gamma, b, c = length(gamma), axis("batch", batch), axis("context", context)
    check_plan(plan, _OPTIONS)
    target = setup(model, gpu, **plan)
    acceptance, fitted = _acceptance(chosen, target.model.name, alpha, log)
    own = _given(draft_tp=draft_tp, draft_weights=draft_weights)
    drafter = _drafter(chosen, target, draft, own)
    apart = chosen.draft.concurrent
    timer = clock(target, fidelity, engine, efficiency, measured)
    bench = Bench(drafter, timer, host, apart, padded)
    seen = len(fitted.trials) if fitted else None
    asked = default_candidate(chosen, acceptance, gamma, seen)
    options = candidates(chosen, acceptance, seen)
    options += [] if asked in options else [asked]
    rows, columns = b[:, None], c[None, :]
    return Speculation(
        chosen, bench, acceptance, fitted, asked, b, c, bench.round(asked, rows, columns),
        bench.tokens(asked, rows, columns), options, bench.speedups(options, rows, columns),
        break_even(bench, options, float(c[0])), room(drafter, len(asked.tree), rows, columns, apart), fidelity,
    )  # fmt: skip


#: Options of ``speculate`` beside those of a setup.
_OPTIONS = (
    "method", "draft", "alpha", "log", "gamma", "batch", "context", "fidelity", "engine", "efficiency", "measured",
    "padded", "host", "draft_tp", "draft_weights",
)  # fmt: skip


def _drafter(m: Method, target: Setup, draft: str | None, own: dict[str, Any]) -> Draft:
    """What drafts; of a method with an independent drafter and none named, the default one, and said so."""
    if draft is not None or m.draft.kind != "independent" or (small := default_draft(target.model)) is None:
        return m.draft.build(target, draft, **own)
    found = m.draft.build(target, small, **own)
    said = f"Draft {small} was chosen: of the target's maker and vocabulary; --draft names another"
    return replace(found, note="; ".join(filter(None, (found.note, said))))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
