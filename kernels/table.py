"""Launch configurations: small committed tables, one JSON file a kernel in `data/`, and the choice among their rows.

A file holds `{"kernel": NAME, "why": TEXT, "architectures": {"sm_90": [ROW, ...], ...}}`. A row is
`{"when": {QUANTITY: [LOW, HIGH]}, "meta": {CONSTEXPR: VALUE}, "num_warps": W, "num_stages": S}`: it applies where every
named quantity lies in its closed range (null: no limit), and always without `when`. The first that applies is taken.
Beside what a kernel names, `shared` is the bytes of shared memory that a thread block may ask for: rows that need more
than the 99 KiB of sm_86, sm_89 and sm_120 say so, and there a smaller one further down is taken.
No configuration is searched for at run time: the same shape on the same GPU always launches the same code.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import torch

from .device import target


@dataclass(frozen=True)
class Config:
    """One launch configuration: compile-time constants, warps and pipeline stages, and the row's position."""

    meta: Mapping[str, int | str | bool]
    num_warps: int
    num_stages: int
    row: int = 0

    def options(self) -> dict[str, int | str | bool]:
        """Everything a launch passes by keyword."""
        return {**self.meta, "num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True)
class Row:
    """A configuration and where it applies."""

    when: Mapping[str, tuple[float, float]]
    config: Config

    def applies(self, quantities: Mapping[str, int]) -> bool:
        """Whether every named quantity lies in its range; KeyError for one the kernel did not give."""
        return all(low <= quantities[name] <= high for name, (low, high) in self.when.items())


@functools.cache
def rows(kernel: str, arch: str) -> tuple[Row, ...]:
    """The rows of a kernel for an architecture, in order; empty where it has none (FP8 on sm_80)."""
    text = resources.files(__package__).joinpath("data", f"{kernel}.json").read_text(encoding="utf-8")
    listed = json.loads(text)["architectures"].get(arch, [])
    return tuple(_row(i, r) for i, r in enumerate(listed))


def _row(position: int, raw: Mapping[str, object]) -> Row:
    when = raw.get("when") or {}
    assert isinstance(when, dict)
    limits = {name: (_limit(low, -1), _limit(high, 1)) for name, (low, high) in when.items()}
    meta, warps, stages = raw["meta"], raw["num_warps"], raw["num_stages"]
    assert isinstance(meta, dict)
    assert isinstance(warps, int)
    assert isinstance(stages, int)
    return Row(limits, Config(meta, warps, stages, position))


def _limit(value: float | None, sign: int) -> float:
    return sign * float("inf") if value is None else float(value)


def select(kernel: str, tensor: torch.Tensor, **quantities: int) -> Config:
    """The configuration of `kernel` for the device of `tensor` and these quantities (m=16, head_dim=128, ...).

    Raises ValueError where the architecture has no row for them.
    """
    of = target(tensor)
    for row in rows(kernel, of.arch):
        if row.applies({**quantities, "shared": of.shared}):
            return row.config
    held = f"{of.arch} with {of.shared // 1024} KiB of shared memory"
    raise ValueError(f"{kernel} has no configuration for {held} at {quantities}")
