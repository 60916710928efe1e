"""Does speculation pay here? Tokens a round, cost of a round, speedup, the best draft length and where it breaks even.

Every (batch, context) is asked of the same graphs as a plain estimate: the acceptance comes from the method's catalogue
entry or from the user, everything else from the models and the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.clock import Clock, clock
from perfmodel.roofline.memory import memory
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.speculative.drafts import Draft
from perfmodel.roofline.speculative.formulas import MAX_GAMMA, check_fraction, expected_slowest
from perfmodel.roofline.speculative.methods import Acceptance, Method
from perfmodel.roofline.speculative.methods import method as find_method
from perfmodel.roofline.speculative.rounds import NO_HOST, Host, Round, Shape, measure
from perfmodel.roofline.speculative.trees import Tree, best_tree, chain
from perfmodel.roofline.step import check_number

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

#: Longest chain that the search for the best one looks at.
SEARCHED = 16
#: Tree sizes that the search looks at.
BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 60, 64, 96, 128)
#: Batches above this are not looked at for the break-even.
LARGEST_BATCH = 4096


@dataclass(frozen=True)
class Candidate:
    """One way to draft: its tree, what a round costs in passes and nodes, and what it yields.

    Attributes
    ----------
    tree : Tree
    width : int
        Nodes expanded a level by a serial drafter.
    tokens : float
        Tokens a round yields to one sequence on average.
    """

    tree: Tree
    width: int
    tokens: float

    @property
    def words(self) -> str:
        """``gamma 5``, or ``60 nodes, 6 deep``."""
        n = len(self.tree)
        return f"gamma {n}" if n == self.tree.depth else f"{n} nodes, {self.tree.depth} deep"


def candidate(acceptance: Acceptance, gamma: int, nodes: int | None = None, width: int = 1) -> Candidate:
    """The chain of ``gamma``, or the best tree of ``nodes`` nodes and at most ``gamma`` levels."""
    if nodes is None:
        tree = chain(gamma)
        return Candidate(tree, 1, tree.expected_tokens(acceptance.positions(gamma)))
    ranks = acceptance.ranks(gamma)
    tree = best_tree(ranks, nodes, gamma)
    return Candidate(tree, width, tree.expected_tokens(tree.acceptances_by_rank(ranks)))


def candidates(m: Method, acceptance: Acceptance) -> list[Candidate]:
    """What the search for the best draft length tries: chains up to 16, or trees of growing size."""
    s = m.strategy
    if s.kind == "chain" or not acceptance.siblings:
        return [candidate(acceptance, gamma) for gamma in range(1, SEARCHED + 1)]
    return [candidate(acceptance, s.gamma, nodes, s.width) for nodes in BUDGETS]


def default_candidate(m: Method, acceptance: Acceptance, gamma: int | None = None) -> Candidate:
    """The method's own shape, or its chain or tree at the asked depth."""
    s = m.strategy
    depth = s.gamma if gamma is None else gamma
    if s.kind == "chain" or not acceptance.siblings:
        return candidate(acceptance, depth)
    return candidate(acceptance, depth, s.nodes or depth, s.width)


@dataclass(frozen=True, repr=False)
class Speculation:
    """Speculation with one method on one setup, over a grid of batches and contexts.

    Attributes
    ----------
    method : Method
    draft : Draft
    acceptance : Acceptance
    asked : Candidate
        The shape that was asked about, or the method's own.
    batch, context : ndarray
        Axes of the grid: sequences of the deployment, tokens in the cache.
    round : Round
        Seconds at the asked shape, each array of shape (batch, context).
    best : tuple[tuple[Candidate | None, ...], ...]
        The fastest shape at each point; None where plain decoding is.
    best_speedup : ndarray
        At the best shape, 1 where plain decoding is.
    break_even_batch : int or None
        Smallest batch, at the first context, from which no shape of this method pays; None up to 4096.
    fits : ndarray of bool
        Whether weights and caches of target and draft are within the memory.
    fidelity : str
    tokens : ndarray
        Tokens a round and sequence at the asked shape, (batch, context).
    """

    method: Method
    draft: Draft
    acceptance: Acceptance
    asked: Candidate
    batch: Array
    context: Array
    round: Round
    tokens: Array
    best: tuple[tuple[Candidate | None, ...], ...]
    best_speedup: Array
    break_even_batch: int | None
    fits: NDArray[np.bool_]
    fidelity: str

    @property
    def speedup(self) -> Array:
        """Of the asked shape: plain time a token over speculative time a token."""
        return np.asarray(self.round.speedup(self.tokens))

    @property
    def interval(self) -> tuple[Array, Array]:
        """80 % interval of the speedup from the errors of the times; the acceptance is taken as given."""
        low, high = self.round.interval(self.tokens)
        return np.asarray(low), np.asarray(high)

    def rows(self) -> list[dict[str, Any]]:
        """One row a (batch, context), in SI units."""
        low, high = self.interval
        return [self._row(i, j, low, high) for i in range(len(self.batch)) for j in range(len(self.context))]

    def _row(self, i: int, j: int, low: Array, high: Array) -> dict[str, Any]:
        def at(x: Any) -> float:
            return float(np.broadcast_to(np.asarray(x, dtype=np.float64), self.fits.shape)[i, j])

        best, known = self.best[i][j], self.fidelity != "bound"
        plain, whole = at(self.round.plain.seconds), at(self.round.whole.seconds)
        return {
            "method": self.method.name, "batch": float(self.batch[i]), "context": float(self.context[j]),
            "gamma": self.asked.tree.depth, "nodes": len(self.asked.tree), "tau": at(self.tokens),
            "draft_cost": at(self.round.draft.seconds) / plain, "verify_cost": at(self.round.verify_cost),
            "round_cost": at(self.round.cost), "speedup": at(self.speedup),
            "speedup_low": at(low) if known else None, "speedup_high": at(high) if known else None,
            "best_gamma": best.tree.depth if best else 0, "best_nodes": len(best.tree) if best else 0,
            "best_speedup": float(self.best_speedup[i, j]), "plain_tpot_s": plain, "tpot_s": whole / at(self.tokens),
            "tokens_per_s": float(self.batch[i]) * at(self.tokens) / whole, "fits": bool(self.fits[i, j]),
            "fidelity": self.fidelity,
        }  # fmt: skip

    @property
    def frame(self) -> pd.DataFrame:
        """``rows`` as a frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; the first (batch, context) at the top."""
        rows = self.rows()
        first = {k: rows[0][k] for k in ("tau", "speedup", "speedup_low", "speedup_high", "best_gamma", "best_nodes")}
        return {
            **first, "break_even_batch": self.break_even_batch, "method": self.method.name, "draft": self.draft.title,
            "model": self.draft.target.model.name, "gpu": self.draft.target.gpu.name,
            "settings": self.draft.target.words(), "fidelity": self.fidelity,
            "exact": self.method.verification == "exact",
            "acceptance": {
                "alphas": list(self.acceptance.alphas), "siblings": list(self.acceptance.siblings),
                "setting": self.acceptance.setting, "source": self.acceptance.source,
            },
            "draft_weight_bytes": self.draft.weight_bytes, "note": self.draft.note, "points": rows,
        }  # fmt: skip

    def __repr__(self) -> str:
        first = self.rows()[0]
        return (
            f"<Speculation: {self.method.title} on {self.draft.target.words()}: speedup {first['speedup']:.2f} at "
            f"batch {first['batch']:g}, {self.asked.words}>"
        )

    def _repr_html_(self) -> str:
        return str(self.frame.to_html(index=False))


@dataclass(frozen=True)
class Bench:
    """What all points of a question share: drafter, clocks, host, and how a batch advances.

    Attributes
    ----------
    padded : bool
        Whether all sequences of a batch advance by what the slowest of them accepted; paged engines let each go its
        own way.
    """

    draft: Draft
    clock: Clock
    host: Host = NO_HOST
    concurrent: bool = False
    padded: bool = False

    def round(self, c: Candidate, batch: Array, context: Array) -> Round:
        """Seconds of a round of one shape over a grid."""
        shape = Shape(float(c.tree.depth), float(len(c.tree)), float(c.width))
        return measure(
            self.draft, batch, context, shape, clock=self.clock, host=self.host, concurrent=self.concurrent
        )  # fmt: skip

    def tokens(self, c: Candidate, acceptance: Acceptance, batch: Array, context: Array) -> Array:
        """Tokens a round yields to a sequence, over a grid."""
        whole = np.broadcast_shapes(batch.shape, context.shape)
        if not self.padded:
            return np.full(whole, c.tokens)
        if len(c.tree) != c.tree.depth:
            raise UsageError("trees are not modelled for batches that advance together; ask for a chain")
        alphas = acceptance.positions(c.tree.depth)
        return np.broadcast_to(np.vectorize(lambda b: expected_slowest(alphas, int(b)))(batch), whole)

    def speedups(self, options: Sequence[Candidate], acceptance: Acceptance, batch: Array, context: Array) -> Array:
        """Speedup of every shape over a grid; shape (options, batch, context)."""
        found = [self.round(c, batch, context).speedup(self.tokens(c, acceptance, batch, context)) for c in options]
        whole = np.broadcast_shapes(batch.shape, context.shape)
        return np.stack([np.broadcast_to(np.asarray(s, dtype=np.float64), whole) for s in found])


def break_even(bench: Bench, options: Sequence[Candidate], acceptance: Acceptance, context: float) -> int | None:
    """The smallest batch from which on no shape pays at this context, found on a ladder and then to the sequence."""

    def pays(batches: Array) -> NDArray[np.bool_]:
        return np.asarray(bench.speedups(options, acceptance, batches, np.array(context)).max(axis=0) > 1)

    ladder = np.unique(np.round(np.geomspace(1, LARGEST_BATCH, 49)))
    good = pays(ladder)
    if good[-1]:
        return None
    last = int(np.flatnonzero(good)[-1]) if good.any() else -1
    if last < 0:
        return 1
    between = np.arange(ladder[last], ladder[last + 1] + 1)
    between = between[:: max(1, len(between) // 64)]
    paying = np.flatnonzero(pays(between))
    return int(between[paying[-1]]) + 1


def _acceptance(m: Method, alpha: float | Sequence[float] | None) -> Acceptance:
    if alpha is None:
        return m.acceptance
    given = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
    check_fraction(alpha=given)
    return m.acceptance.model_copy(
        update={"alphas": tuple(map(float, given)), "setting": "given by the user", "source": "the user"}
    )


def speculate(
    model: str | ModelSpec, gpu: str | Gpu, *, method: str | Method = "eagle-3", draft: str | None = None,
    alpha: float | Sequence[float] | None = None, gamma: int | None = None, batch: Any = 1, context: Any = 2048,
    fidelity: str = "calibrated", engine: str | None = None, efficiency: Sequence[str] = (),
    padded: bool = False, host: Host | None = None, draft_tp: int | None = None, draft_weights: str | None = None,
    **plan: Any,
) -> Speculation:  # fmt: skip
    """Evaluate a method of speculative decoding on a setup.

    Parameters
    ----------
    method : str or Method
        Name, alias or YAML file.
    draft : str, optional
        The drafter, of a method with an independent one.
    alpha : float or sequence, optional
        Acceptance of each position instead of the catalogue's.
    gamma : int, optional
        Draft length (depth of a tree), 1 to 64; the method's own by default.
    batch, context : number or list
        Sequences of the deployment; tokens in the cache of each.
    fidelity, engine, efficiency
        As ``analyze``; calibrated by default, since launches decide what a small drafter costs.
    padded : bool
        Whether a batch advances together, by its slowest sequence.
    host : Host, optional
        The engine's own time a step, round and draft pass.
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
    >>> 2 < float(s.speedup[0, 0]) < 3.4
    True
    """
    chosen = find_method(method)
    if gamma is not None and not 1 <= gamma <= MAX_GAMMA:
        raise UsageError(f"gamma is {gamma}; 1 to {MAX_GAMMA} are possible")
    b, c = (np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (batch, context))
    check_number("batch", b)
    check_number("context", c)
    target = setup(model, gpu, **plan)
    acceptance = _acceptance(chosen, alpha)
    drafter = chosen.draft.build(target, draft, **_given(draft_tp=draft_tp, draft_weights=draft_weights))
    bench = Bench(
        drafter, clock(target, fidelity, engine, efficiency), host or NO_HOST, chosen.draft.concurrent, padded
    )
    asked = default_candidate(chosen, acceptance, gamma)
    options = candidates(chosen, acceptance)
    rows, columns = b[:, None], c[None, :]
    gains = bench.speedups(options, acceptance, rows, columns)
    winner, top = np.argmax(gains, axis=0), gains.max(axis=0)
    best = tuple(tuple(options[winner[i, j]] if top[i, j] > 1 else None for j in range(len(c))) for i in range(len(b)))
    return Speculation(
        chosen, drafter, acceptance, asked, b, c, bench.round(asked, rows, columns),
        bench.tokens(asked, acceptance, rows, columns), best, np.maximum(top, 1.0),
        break_even(bench, options, acceptance, float(c[0])), _fits(target, drafter, asked, rows, columns), fidelity,
    )  # fmt: skip


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _fits(target: Setup, draft: Draft, c: Candidate, batch: Array, context: Array) -> NDArray[np.bool_]:
    """Whether both models' weights and caches, with room for the drafted tokens, are within the memory of a rank."""
    longest = context + len(c.tree) + 1.0
    need = memory(target.model, target.gpu, target.plan, batch, longest, batch * (len(c.tree) + 1.0))
    more = draft.weight_bytes + draft.kv_bytes(batch, longest)
    whole = np.broadcast_shapes(batch.shape, context.shape)
    return np.broadcast_to(np.asarray(need.needed + more <= need.usable), whole)
