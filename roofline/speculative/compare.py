"""All methods beside each other on one setup, each where it can run, and the small model to draft with by default."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.counts import active_params
from perfmodel.modelspecs.load import MODELS
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.speculative.evaluate import Speculation, speculate
from perfmodel.roofline.speculative.methods import Method, methods

#: A default draft has at most this share of the target's active parameters, and at least the smaller one if it can.
LARGEST, SMALLEST = 1 / 4, 1 / 100


@dataclass(frozen=True)
class Refused:
    """A method that cannot run here."""

    method: Method
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Methods on one setup.

    Attributes
    ----------
    found : tuple[Speculation, ...]
        The fastest at the first batch and context first, each at its best shape there.
    refused : tuple[Refused, ...]
    draft : str or None
        The independent drafter that was used.
    chosen : bool
        Whether that drafter was chosen here and not given.
    """

    found: tuple[Speculation, ...]
    refused: tuple[Refused, ...]
    draft: str | None
    chosen: bool

    def rows(self) -> list[dict[str, Any]]:
        """Rows of all methods, one a (method, batch, context)."""
        return [row for one in self.found for row in one.rows()]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; the fastest method's first point at the top."""
        first = self.found[0].to_dict() if self.found else {}
        keys = ("tau", "speedup", "best_gamma", "best_nodes", "best_speedup", "break_even_batch", "method", "fits")
        return {
            **{key: first.get(key) for key in keys}, "draft_model": self.draft, "draft_chosen": self.chosen,
            "methods": [one.to_dict() for one in self.found],
            "refused": [{"method": one.method.name, "reason": one.reason} for one in self.refused],
        }  # fmt: skip


def compare(
    model: str | ModelSpec, gpu: str | Gpu, *, draft: str | None = None, draft_tp: int | None = None,
    draft_weights: str | None = None, gamma: int | None = None, **options: Any,
) -> Comparison:  # fmt: skip
    """Evaluate every method of the catalogue. Options as ``speculate``.

    Without ``draft``, methods with an independent one use ``default_draft``. A method that the setup has no use for
    is refused with the reason, as it would be alone.
    """
    chosen = draft is None
    small = default_draft(load_model(model)) if draft is None else draft
    found: list[Speculation] = []
    refused: list[Refused] = []
    for m in methods():
        own: dict[str, Any] = {}
        if m.draft.kind == "independent":
            if small is None:
                refused.append(Refused(m, f"no built-in model of {load_model(model).title}'s family is small: --draft"))
                continue
            own = {"draft": small, "draft_tp": draft_tp, "draft_weights": draft_weights}
        depth = gamma if gamma is None or m.draft.kind != "medusa" else min(gamma, m.draft.heads)
        try:
            found.append(speculate(model, gpu, method=m, gamma=depth, **own, **options))
        except UsageError as error:
            refused.append(Refused(m, str(error)))
    if not found:
        raise UsageError(f"no method can run here: {refused[0].reason}")
    found.sort(key=lambda one: -float(one.gains.max(axis=0)[0, 0]))
    return Comparison(tuple(found), tuple(refused), small, chosen)


def default_draft(target: ModelSpec) -> str | None:
    """The built-in model to draft with: of the target's maker and vocabulary, a hundredth of its size or little more.

    Of its own series where there is one (Qwen3 for Qwen3). Among models with at most a quarter of its active
    parameters, the smallest of at least a hundredth; the largest when all are smaller; ``None`` when there is none.

    >>> from perfmodel.modelspecs.load import model
    >>> default_draft(model("llama3-70b")), default_draft(model("deepseek-v3"))
    ('llama3.2-1b', None)
    """
    ours, maker = active_params(target), _maker(target)
    sizes: list[tuple[int, str]] = []
    for name in MODELS.names:
        spec = load_model(name)
        same = abs(spec.vocab_size - target.vocab_size) <= 0.02 * target.vocab_size
        if same and maker and maker == _maker(spec) and active_params(spec) <= LARGEST * ours:
            sizes.append((active_params(spec), name))
    related = [size for size in sizes if _series(size[1]) == _series(target.name)] or sizes
    if not related:
        return None
    if enough := [size for size in related if size[0] >= SMALLEST * ours]:
        return min(enough, key=lambda size: (size[0], -_alike(size[1], target.name)))[1]
    return max(related)[1]


def _maker(spec: ModelSpec) -> str:
    """Organisation of the model's first id on the Hugging Face hub; later ones may be of models derived from it."""
    return next((alias.split("/")[0].casefold() for alias in spec.aliases if "/" in alias), "")


def _alike(one: str, other: str) -> int:
    """Letters that two names begin with together: of equal models the one of the target's version is taken."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _series(name: str) -> str:
    """``qwen3`` of ``qwen3-32b``, ``llama3`` of ``llama3.1-8b``."""
    found = re.match(r"[a-z]+\d*", name)
    return found[0] if found else name
