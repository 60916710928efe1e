"""Options of the engines' own: what each takes, read from a number or from words and held to its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from perfmodel.base.errors import UsageError
from perfmodel.base.text import printable
from perfmodel.base.units import parse
from perfmodel.roofline.engines.llamacpp_cache import CACHE_TYPES, MLA_CACHES
from perfmodel.roofline.engines.rules import engine_name

#: Bytes that no file and no device reaches.
MOST_BYTES = 1e15
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _refuse(name: str, takes: str, value: object) -> UsageError:
    return UsageError(f"{name} takes {takes}, not {printable(str(value), 60)!r}")


def _number(name: str, takes: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _refuse(name, takes, value)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _refuse(name, takes, value) from None
    if not isfinite(number):
        raise _refuse(name, takes, value)
    return number


@dataclass(frozen=True)
class Whole:
    """A whole number within limits; ``multiple`` demands a power of two or, if above 1, a multiple of it."""

    least: int = 1
    most: int = 2**20
    power: bool = False
    multiple: int = 0

    @property
    def takes(self) -> str:
        """The limits in words."""
        shape = " or ".join(
            ["a power of two"] * self.power + [f"a multiple of {self.multiple}"] * bool(self.multiple)
        )  # fmt: skip
        return f"{shape or 'a whole number'} from {self.least:,} to {self.most:,}"

    def read(self, name: str, value: object) -> int:
        """The number.

        Raises
        ------
        UsageError
        """
        number = _number(name, self.takes, value)
        found = int(number)
        shaped = not (self.power or self.multiple) or (
            (self.power and found & (found - 1) == 0) or bool(self.multiple and found % self.multiple == 0)
        )
        if found != number or not self.least <= found <= self.most or not shaped:
            raise _refuse(name, self.takes, value)
        return found


@dataclass(frozen=True)
class Share:
    """A number above 0 and at most ``most``."""

    most: float = 1.0

    @property
    def takes(self) -> str:
        """The limits in words."""
        return f"a number above 0 and at most {self.most:g}"

    def read(self, name: str, value: object) -> float:
        """The number.

        Raises
        ------
        UsageError
        """
        number = _number(name, self.takes, value)
        if not 0 < number <= self.most:
            raise _refuse(name, self.takes, value)
        return number


@dataclass(frozen=True)
class Size:
    """Bytes, as a number or with a unit. [bytes]"""

    zero: bool = False

    @property
    def takes(self) -> str:
        """The limits in words."""
        return f"bytes, as a number or such as '10 GiB', {'0 or more' if self.zero else 'above 0'}"

    def read(self, name: str, value: object) -> float:
        """The bytes.

        Raises
        ------
        UsageError
        """
        try:
            number = _number(name, self.takes, value)
        except UsageError:
            if not isinstance(value, str):
                raise
            try:
                number = parse(value, "bytes")
            except ValueError:
                raise _refuse(name, self.takes, value) from None
        if not (0 if self.zero else 5e-324) <= number <= MOST_BYTES:
            raise _refuse(name, self.takes, value)
        return float(number)


@dataclass(frozen=True)
class Switch:
    """Yes or no."""

    takes: str = "yes or no"

    def read(self, name: str, value: object) -> bool:
        """The switch.

        Raises
        ------
        UsageError
        """
        found = value if isinstance(value, bool) else _WORDS.get(str(value).strip().casefold())
        if found is None:
            raise _refuse(name, self.takes, value)
        return found


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def takes(self) -> str:
        """The words."""
        return f"one of {', '.join(self.words)}"

    def read(self, name: str, value: object) -> str:
        """The word.

        Raises
        ------
        UsageError
        """
        found = str(value).strip().casefold()
        if found not in self.words:
            raise _refuse(name, self.takes, value)
        return found


Kind = Whole | Share | Size | Switch | Choice

_DRAFT = {"num_draft_tokens": Whole(1, 64)}

#: Engine -> its own options and what each takes.
OPTIONS: dict[str, dict[str, Kind]] = {
    "vllm": {
        "enforce_eager": Switch(), "kv_cache_memory_bytes": Size(), "decode_context_parallel_size": Whole(1, 1024),
        "disable_hybrid_kv_cache_manager": Switch(), "mamba_cache_mode": Choice(("none", "align", "all")),
        "allow_long_context": Switch(), **_DRAFT,
    },
    "sglang": {
        "chunked_prefill_size": Whole(), "cuda_graph_max_bs": Whole(1, 8192), "swa_full_tokens_ratio": Share(),
        "page_size": Whole(1, 1024, power=True), "weights_bytes": Size(), "free_before_bytes": Size(),
        "workspace_bytes": Size(zero=True), "dp_attention": Switch(), "allow_long_context": Switch(), **_DRAFT,
    },
    "trtllm": {"free_bytes": Size(), "weights_bytes": Size(), **_DRAFT},
    "llamacpp": {
        "n_ubatch": Whole(), "n_parallel": Whole(1, 2**20), "unified": Switch(),
        "type_k": Choice(tuple(CACHE_TYPES)), "type_v": Choice(tuple(CACHE_TYPES)), "swa_full": Switch(),
        "swa_f16": Switch(), "mla": Choice(MLA_CACHES), "ngl": Whole(0, 100_000), "flash_attn": Switch(),
        "weights_bytes": Size(),
    },
}  # fmt: skip

#: Engine -> what its blocks of tokens may measure.
BLOCK_SIZES = {
    "vllm": Whole(1, 4096, power=True, multiple=16),
    "sglang": Whole(1, 1024, power=True),
    "trtllm": Whole(1, 1024, power=True),
}

#: Settings of ``memory`` that llama.cpp has not, and what it has in their place.
_NOT_LLAMACPP = {
    "memory_fraction": "it takes what it needs: leave it out",
    "max_num_seqs": "say n_parallel, its slots",
    "max_num_batched_tokens": "say n_ubatch",
    "block_size": "its cache has cells of one token",
    "draft": "a draft model is not counted: ask for it alone, and add",
}


def check_name(engine: str, name: str) -> Kind:
    """What an option of an engine takes.

    Raises
    ------
    UsageError
        When the engine has no such option.
    """
    engine = engine_name(engine)
    known = OPTIONS[engine]
    if name not in known:
        raise UsageError(f"{engine} has no option {printable(name, 40)!r}; it has {', '.join(known)}")
    return known[name]


def checked(engine: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an engine's own as numbers, switches and words; those that are ``None`` are left out.

    Raises
    ------
    UsageError
        With the value, what the option takes, or the options that there are.

    Examples
    --------
    >>> checked("vllm", {"kv_cache_memory_bytes": "10 GiB", "enforce_eager": "yes"})
    {'kv_cache_memory_bytes': 10737418240.0, 'enforce_eager': True}
    """
    kinds = {name: check_name(engine, name) for name in given}
    return {name: kinds[name].read(name, value) for name, value in given.items() if value is not None}


def check_foreign(engine: str, **given: Any) -> None:
    """Refuse settings that an engine has not, rather than leave them aside.

    Raises
    ------
    UsageError
    """
    if engine != "llamacpp":
        return
    for name, remedy in _NOT_LLAMACPP.items():
        if given.get(name) is not None:
            raise UsageError(f"llama.cpp has no {name}: {remedy}")
