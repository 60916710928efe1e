"""The catalogue of methods: what drafts, how, how much is accepted, and what was published, each with its source.

A method is data (``data/methods/*.yaml``); what it costs comes from the graph of its drafter on the GPU asked about.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from perfmodel.base.catalogue import Catalogue, looks_like_path
from perfmodel.base.errors import UsageError
from perfmodel.base.validation import build
from perfmodel.base.yamlio import load_yaml
from perfmodel.modelspecs.schema_base import Frozen
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.speculative import drafts
from perfmodel.roofline.speculative.drafts import Draft
from perfmodel.roofline.speculative.formulas import MAX_GAMMA

METHODS = Catalogue(Path(__file__).parents[1] / "data" / "methods", "method", "methods")

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class DraftSource(Frozen):
    """What proposes the tokens; the fields besides ``kind`` are the arguments of the builder in ``drafts``."""

    kind: Literal["independent", "eagle", "mtp", "medusa", "lookup", "own_sparse"]
    version: Literal[1, 2, 3] = 3
    layers: Annotated[int, Field(ge=1, le=8)] = Field(1, description="decoder layers of an EAGLE head")
    heads: Annotated[int, Field(ge=1, le=16)] = 4
    window: Annotated[int, Field(ge=0, le=10**6)] = 0
    single_pass: bool = Field(False, description="trained to propose all tokens in one pass")
    concurrent: bool = Field(False, description="runs beside the verification, on a device of its own")

    def build(self, target: Setup, model: str | None = None, **options: Any) -> Draft:
        """The drafter for a target.

        Parameters
        ----------
        model : str, optional
            The independent drafter; needed by that kind, refused by the others.
        **options
            ``draft_tp``, ``draft_weights`` (independent drafters).

        Raises
        ------
        UsageError
        """
        if (model is None) == (self.kind == "independent"):
            wants = "needs --draft MODEL" if model is None else "has a drafter of its own: leave out --draft"
            raise UsageError(f"this method {wants}")
        most = target.plan.tp
        asked = options.get("draft_tp")
        if isinstance(asked, int) and asked > most:
            raise UsageError(f"draft_tp is {asked}; a draft runs at most at the target's tp of {most}")
        if model is None and options:
            raise UsageError(f"{' and '.join(options)} are for a method with an independent drafter; leave them out")
        found = self._build(target, model, **options)
        return drafts.parallel(found) if self.single_pass and found.ready else found

    def _build(
        self, target: Setup, model: str | None, draft_tp: int | None = None, draft_weights: str | None = None
    ) -> Draft:
        if self.kind == "independent":
            assert model is not None
            return drafts.independent(target, model, draft_tp, draft_weights, self.window)
        if self.kind == "eagle":
            return drafts.eagle(target, self.version, layers=self.layers)
        if self.kind == "medusa":
            return drafts.medusa(target, self.heads)
        if self.kind == "own_sparse":
            return drafts.own_sparse(target, self.window)
        return drafts.mtp(target) if self.kind == "mtp" else drafts.lookup(target)


class Strategy(Frozen):
    """How proposals are organised: a chain of ``gamma``, or a tree."""

    kind: Literal["chain", "tree", "dynamic tree"] = "chain"
    gamma: Annotated[int, Field(ge=1, le=MAX_GAMMA)] = Field(5, description="chain length, or depth of the tree")
    width: Annotated[int, Field(ge=1, le=64)] = Field(1, description="nodes expanded a level by a serial drafter")
    nodes: Annotated[int, Field(ge=1, le=1024)] | None = Field(None, description="tree nodes that are verified")
    most: Annotated[int, Field(ge=1, le=MAX_GAMMA)] | None = Field(
        None, description="positions that its drafter was trained for or its acceptance was measured at"
    )


#: Where an acceptance comes from: published a position; solved from a published mean length (a constant acceptance for
#: what is not published a position); solved from a published speedup, which no mean length falls short of; or that of
#: another method, none of its own being published in what was read.
Basis = Literal["measured", "solved", "bound", "stand-in", "given", "fitted"]


class Acceptance(Frozen):
    """How much is accepted in a stated setting.

    ``alphas`` are the chances of position 1, 2, ..., given that those before were accepted; the last holds for what
    follows. ``siblings`` are, for trees, the chances of the second, third, ... candidate of a position given that the
    ones before it were rejected. ``tau`` is the published mean number of tokens a round that the method's own shape
    yields with them; ``basis`` says whether they were published themselves or solved from it.
    """

    alphas: tuple[Fraction, ...] = Field(min_length=1, max_length=64)
    siblings: tuple[Fraction, ...] = Field((), max_length=63)
    tau: Annotated[float, Field(ge=1)] | None = None
    basis: Basis = "measured"
    setting: str
    source: str = Field(min_length=3)

    def positions(self, gamma: int) -> NDArray[np.float64]:
        """Acceptance of positions 1 to ``gamma``."""
        return np.array([self.alphas[min(i, len(self.alphas) - 1)] for i in range(gamma)])

    def ranks(self, depth: int) -> NDArray[np.float64]:
        """Chance of each candidate of each depth, given its parent; shape ``(depth, 1 + siblings)``.

        The first candidate has ``alpha``; the k-th gets ``siblings[k]`` of what is left, scaled with ``alpha`` over the
        first position's so that deeper levels are less sure at every rank.
        """
        return rank_table(self.positions(depth), self.siblings, self.alphas[0])


def rank_table(alphas: ArrayLike, siblings: Sequence[float], first: ArrayLike) -> NDArray[np.float64]:
    """Chance of each candidate of each depth from the first candidates' ``alphas`` (last axis: depth).

    Returns
    -------
    ndarray, shape (..., depth, 1 + siblings)
        As ``Acceptance.ranks`` says, ``first`` being the first position's acceptance.
    """
    a = np.asarray(alphas, dtype=np.float64)
    scale = a / np.maximum(first, 1e-9)
    table = [a]
    left = 1.0 - a
    for chance in siblings:
        table.append(left * np.minimum(chance * scale, 1.0))
        left = left - table[-1]
    return np.stack(table, axis=-1)


class OwnAcceptance(Frozen):
    """The acceptance that was published for a target itself."""

    models: tuple[str, ...] = Field(min_length=1, description="built-in names of the target and its tunings")
    acceptance: Acceptance


class PublishedResult(Frozen):
    """A published result."""

    speedup: Positive | None = None
    speedup_high: Positive | None = Field(None, description="where a range is given")
    tau: Positive | None = Field(None, description="tokens a round, the target's own included")
    setting: str = Field(min_length=3)
    source: str = Field(min_length=3)

    @model_validator(mode="after")
    def _says_something(self) -> PublishedResult:
        if self.speedup is None and self.tau is None:
            raise ValueError("a published result gives a speedup or a tau")
        if self.speedup_high is not None and (self.speedup is None or self.speedup_high < self.speedup):
            raise ValueError("speedup_high is the upper end of a range that starts at speedup")
        return self

    @property
    def words(self) -> str:
        """``3.05 to 4.26x``, ``tau 3.98``, or both."""
        high = f" to {self.speedup_high:g}" if self.speedup_high else ""
        said = [f"{self.speedup:g}{high}x"] if self.speedup else []
        return ", ".join(said + ([f"tau {self.tau:g}"] if self.tau else []))


class Method(Frozen):
    """A method of speculative decoding."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    year: Annotated[int, Field(ge=2018, le=2100)]
    source: str = Field(min_length=3)
    draft: DraftSource
    strategy: Strategy = Strategy()
    verification: Literal["exact", "typical"] = Field(
        "exact", description="whether the output follows the target's distribution, or is merely plausible to it"
    )
    acceptance: Acceptance = Field(description="of targets without one of their own")
    own: tuple[OwnAcceptance, ...] = Field((), description="acceptances that were published for single targets")
    published: tuple[PublishedResult, ...] = ()
    wins: str = Field(min_length=3, description="where it wins, in a sentence")
    notes: str = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Method:
        if self.strategy.kind != "chain" and not self.acceptance.siblings:
            raise ValueError("a tree needs the acceptance of siblings")
        if self.draft.kind == "medusa" and self.strategy.gamma > self.draft.heads:
            raise ValueError("a tree over Medusa's heads is no deeper than their number")
        return self

    def acceptance_for(self, model: str) -> Acceptance:
        """The acceptance that was published for a target, by its built-in name; else the one for all."""
        return next((one.acceptance for one in self.own if model in one.models), self.acceptance)


def method(name: str | Method) -> Method:
    """A method: a built-in name or alias, or a YAML file.

    Raises
    ------
    UnknownName
        With near matches.
    SpecError
        When the file is not a valid method.

    >>> method("eagle3").draft.kind
    'eagle'
    """
    if isinstance(name, Method):
        return name
    if looks_like_path(name):
        path = Path(name)
        return build(Method, {"name": path.stem, **load_yaml(path)}, path)
    return _builtin(METHODS.resolve(name))


@functools.cache
def _builtin(name: str) -> Method:
    data, path = METHODS.read(name)
    return build(Method, {"name": name, **data}, path.name)


def methods() -> list[Method]:
    """All built-in methods, by year and name."""
    return sorted((_builtin(name) for name in METHODS.names), key=lambda m: (m.year, m.name))
