"""Launch configurations: small committed tables, one JSON file a kernel in `data/`, and the choice among their rows.

A file holds `{"kernel": NAME, "why": TEXT, "architectures": {"sm_90": [ROW, ...], ...}}`. A row is
`{"when": {QUANTITY: [LOW, HIGH]}, "meta": {CONSTEXPR: VALUE}, "num_warps": W, "num_stages": S}`: it applies where every
named quantity lies in its closed range (null: no limit), and always without `when`. The first that applies is taken.
Beside what a kernel names, `shared` is the bytes of shared memory that a thread block may ask for: rows that need more
than the 99 KiB of sm_86, sm_89 and sm_120 say so, and there a smaller one further down is taken.
No configuration is searched for at run time: the same shape on the same GPU always launches the same code.
One that is given by hand must look like a row of the kernel's table (`check_given`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import torch

from .checks import KernelInputError, check_range, require
from .device import SM_COUNT, target


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

    Raises KernelInputError where the architecture has no row for them.
    """
    of = target(tensor)
    for row in rows(kernel, of.arch):
        if row.applies({**quantities, "shared": of.shared}):
            return row.config
    held = f"{of.arch} with {of.shared // 1024} KiB of shared memory"
    raise KernelInputError(f"{kernel} has no configuration for {held} at {quantities}")


def configured(
    kernel: str,
    tensor: torch.Tensor,
    config: Config | None,
    *,
    least: int = 1,
    limits: Mapping[str, tuple[int, int]] | None = None,
    **quantities: int,
) -> Config:
    """The configuration to launch: `config` where one is given, once `check_given` finds it right, else `select`'s.

    Raises KernelInputError for one given that no row resembles, and where the architecture has no row.
    """
    if config is None:
        return select(kernel, tensor, **quantities)
    check_given(kernel, config, least=least, limits=limits)
    return config


WARPS, MOST_STAGES, BEYOND = (1, 2, 4, 8, 16), 8, 8
"""What a configuration given by hand may ask for; its numbers go up to BEYOND times the largest of the table's."""

OPTIONAL = ("FLATTEN", "GROUP_M", "HALVES", "PROMOTE", "RESIDENT", "SWAP", "per_sm")
"""Constants for which the launch has a value of its own."""


def check_given(
    kernel: str, config: Config, *, least: int = 1, limits: Mapping[str, tuple[int, int]] | None = None
) -> None:
    """Check a configuration that was not taken from the table of `kernel`, whose rows say what it may hold.

    It names the constants that all rows have, and no other than those some row has (of the rows with `tma` if it has
    that, else of those without): true or false where the rows say so, integers elsewhere; powers of two where a block
    or another constant of the kernel (upper case) is one in all rows. Integers lie between 1 (`least` for blocks that
    tensor cores multiply) and BEYOND times the table's largest, or within `limits`, which may name constants that no
    row has. Warps are 1 to 16 and a power of two, stages 1 to 8. Raises KernelInputError.
    """
    meta, known = config.meta, _constants(kernel, config.meta.get("tma") is True)
    limits = limits or {}
    for name in meta:
        held = name in known or name in limits
        names = ", ".join(known) or "none"
        require(held, f"config.meta has {name!r}, which {kernel} does not take; its constants are {names}")
    for name, (always, _) in known.items():
        needed = always and name not in OPTIONAL and name not in meta
        require(not needed, f"config.meta has no {name!r}, which {kernel} needs; its constants are {', '.join(known)}")
    for name, value in meta.items():
        values = known[name][1] if name in known else frozenset({1})
        _check_constant(name, value, values, limits.get(name), least)
    warps, stages = config.num_warps, config.num_stages
    require(warps in WARPS, f"config.num_warps is {warps}, 1, 2, 4, 8 or 16 is needed")
    check_range("config.num_stages", stages, 1, MOST_STAGES)


def _check_constant(
    name: str, value: object, values: frozenset[int | str | bool], limits: tuple[int, int] | None, least: int
) -> None:
    shown = f"config.meta[{name!r}] is {value!r}"
    if any(isinstance(one, bool) for one in values):
        require(isinstance(value, bool), f"{shown}, True or False is needed")
        return
    numbers = [one for one in values if isinstance(one, int)]
    low, high = limits or (least if name.startswith("BLOCK") else 1, BEYOND * max(numbers))
    power = name.isupper() and name != "GROUP_M" and all(one & (one - 1) == 0 for one in numbers)
    fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if power:
        fits = fits and isinstance(value, int) and value & (value - 1) == 0
        require(fits, f"{shown}, a power of two from {low} to {high} is needed")
    require(fits, f"{shown}, {low} to {high} is supported")


@functools.cache
def _constants(kernel: str, tma: bool) -> dict[str, tuple[bool, frozenset[int | str | bool]]]:
    """The constants that a kernel's rows name: whether all do, and what they are; of rows with or without TMA."""
    listed = [row.config.meta for arch in SM_COUNT for row in rows(kernel, arch)]
    alike = [meta for meta in listed if bool(meta.get("tma")) == tma] or listed
    names = sorted({name for meta in alike for name in meta})
    return {
        name: (all(name in meta for meta in alike), frozenset(meta[name] for meta in alike if name in meta))
        for name in names
    }
