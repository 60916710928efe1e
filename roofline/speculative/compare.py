"""All methods beside each other on one setup, each where it can run, and the small model to draft with by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.speculative.default_draft import default_draft
from perfmodel.roofline.speculative.evaluate import Speculation, speculate
from perfmodel.roofline.speculative.methods import Method, methods

__all__ = ["Comparison", "Refused", "compare", "default_draft"]


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

    Raises
    ------
    UsageError
        When no method can run; for a log, which tells the acceptance of one drafter and not of the others.
    """
    if options.get("log") is not None:
        raise UsageError(
            "a log tells the acceptance of the drafter that ran, not of others: name its method (--method eagle-3) "
            "instead of all"
        )
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
