"""The question put to an engine: a model on GPUs with the engine's settings, checked, with its defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.errors import UsageError
from perfmodel.base.units import parse
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.engines.overheads import Overheads
from perfmodel.roofline.engines.rules import Rules
from perfmodel.roofline.step import Plan, check_number

GIB = 2.0**30

#: Formats of the latent cache that only some engines have -> bytes a token and layer of DeepSeek's latent.
LATENT_FORMATS = ("fp8_ds_mla", "nvfp4_ds_mla")


@dataclass(frozen=True)
class Ask:
    """A checked question.

    Attributes
    ----------
    model, gpu, plan
    rules : Rules
        Of the engine at its version.
    fitted : Overheads
    usable : float
        Device memory as the driver gives it. [bytes]
    kv : str
        Name of the cache's format: one of ``KV_FORMATS``, or an engine's own.
    max_model_len : int
        Tokens of the longest request.
    max_num_batched_tokens, max_num_seqs, memory_fraction, block_size
        As given; ``None`` leaves the engine's default.
    draft : Draft, optional
    options : Mapping
        The engine's own options, read by ``option``.
    """

    model: ModelSpec
    gpu: Gpu
    plan: Plan
    rules: Rules
    fitted: Overheads
    usable: float
    kv: str
    max_model_len: int
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    memory_fraction: float | None = None
    block_size: int | None = None
    draft: Draft | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def option(self, name: str, default: Any) -> Any:
        """An option of the engine's own."""
        found = self.options.get(name)
        return default if found is None else found

    @property
    def fraction(self) -> float:
        """Share of the memory: as given, else the engine's default."""
        return self.memory_fraction if self.memory_fraction is not None else self.rules.number("memory_fraction")

    @property
    def mtp(self) -> bool:
        """Whether the model's own MTP layers draft."""
        return self.draft is not None and self.draft.own

    def settings(self, **chosen: Any) -> dict[str, Any]:
        """What was asked for and chosen, ready for JSON."""
        plan = self.plan
        return {
            "tp": plan.tp, "pp": plan.pp, "ep": plan.ep, "dp": plan.dp, "gpus": plan.gpus,
            "weights": plan.weights.name, "kv": self.kv, "max_model_len": self.max_model_len,
            "draft": self.draft.name if self.draft else None, **chosen,
        }  # fmt: skip


@dataclass(frozen=True)
class Draft:
    """What drafts: the model's own MTP layers, or another model whose tensors are spread like the target's.

    Attributes
    ----------
    name : str
    tokens : int
        Speculated tokens a step.
    own : bool
        Whether the model's own MTP layers draft.
    model : ModelSpec, optional
    plan : Plan, optional
    """

    name: str
    tokens: int
    own: bool = False
    model: ModelSpec | None = None
    plan: Plan | None = None


def as_bytes(value: str | float, name: str) -> float:
    """Bytes given as a number or as text such as ``79.19 GiB``.

    Raises
    ------
    UsageError
    """
    if isinstance(value, str):
        try:
            return parse(value, "bytes")
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
    check_number(name, value, 0.0)
    return float(value)


def whole(value: Any, name: str, least: int = 1) -> int:
    """A whole number within its bounds.

    Raises
    ------
    UsageError
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(f"{name} must be a whole number, not {str(value)[:40]!r}")
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"{name} must be a whole number, not {str(value)[:40]!r}") from None
    check_number(name, number, float(least))
    if number != int(number):
        raise UsageError(f"{name} must be a whole number, not {value}")
    return int(number)


def fraction(value: float, name: str = "memory_fraction") -> float:
    """A share of the memory, above 0 and at most 1.

    Raises
    ------
    UsageError
    """
    if not 0 < float(value) <= 1:
        raise UsageError(f"{name} must be above 0 and at most 1, not {value}")
    return float(value)
