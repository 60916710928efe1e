"""A row of a table of speculative decoding: what it states, and what its words for models, GPUs and methods mean."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfmodel.base.errors import UnknownName
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.speculative.formulas import expected_tokens
from perfmodel.roofline.speculative.gguf_mix import MAIN
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Row, Skip, printed

NO_GPU = "no hardware is named"
NO_ACCEPTANCE = "neither acceptance nor accepted length is given"
NO_LENGTH = "the draft length is not given"
_UNNAMED = re.compile(r"(?i)^$|not in excerpt|not stated|n/s\b|unknown|see thread")
_MEMORY = re.compile(r"(?i)[ ,(]*\b\d+ ?gi?b\b\)?")
#: Endings of a model's name that say how its weights are stored -> the format.
_FORMATS = {"nvfp4": "nvfp4", "mxfp4": "mxfp4", "fp8": "fp8", "fp16": "fp16", "bf16": "bf16", "awq": "int4"}


def number(row: Row, column: str) -> float | None:
    """A number of zero or more; ``None`` for an empty cell, a range or words."""
    text = row.get(column, "").strip()
    found = printed(text)
    return found.value if found else (0.0 if re.fullmatch(r"0*\.?0*", text) and text.strip(".") else None)


@dataclass(frozen=True)
class Stated:
    """What a row states, as numbers; ``None`` where it does not.

    Attributes
    ----------
    source, target, method, kind, hardware, engine, task : str
    gamma : int or None
        Drafted tokens of a round.
    adaptive : bool
        Whether the engine decides on the length by confidence.
    alpha, tau : float or None
        As printed; ``tau`` with the target's own token.
    cost : float or None
        Draft cost c.
    baseline, batch : float or None
        Plain tokens/s; sequences.
    high_load : bool
        Whether the load is called high, without a number.
    rate : float or None
        Requests a second.
    """

    source: str
    target: str
    method: str
    kind: str
    hardware: str
    engine: str
    task: str
    gamma: int | None
    adaptive: bool
    alpha: float | None
    alpha_words: str
    tau: float | None
    cost: float | None
    baseline: float | None
    batch: float | None
    high_load: bool
    rate: float | None

    @property
    def tokens(self) -> float | None:
        """Tokens a round yields, from whichever of the two is given; ``None`` where none is (or no length)."""
        if self.tau is not None:
            return self.tau
        if self.alpha is None or self.gamma is None or self.adaptive:
            return None
        if "accepted/drafted" in self.alpha_words:
            return 1.0 + self.alpha * self.gamma
        return float(expected_tokens(self.alpha, float(self.gamma)))

    @property
    def series(self) -> tuple[str, ...]:
        """What rows share that differ by the draft length alone."""
        return (self.source, self.target, self.method, self.kind, self.hardware, self.engine, self.task)


def stated(row: Row) -> Stated:
    """Read a row.

    Raises
    ------
    Skip
        Where a number is impossible: an acceptance above 1, an accepted length below 1.
    """
    words = {name: row.get(name, "").strip() for name in row}
    gamma_text, load = words.get("gamma_or_K", ""), words.get("batch_or_concurrency", "")
    gamma, alpha, tau = number(row, "gamma_or_K"), number(row, "alpha_acceptance"), number(row, "tau_mean_accepted_len")
    definition = words.get("tau_definition", "")
    if tau is not None and "excl" in definition:
        tau += 1.0
    if alpha is not None and alpha > 1:
        raise Skip("alpha_acceptance is above 1")
    if tau is not None and tau < 1:
        raise Skip("tau_mean_accepted_len is below 1")
    whole = gamma is not None and gamma == int(gamma) and 1 <= gamma <= 64
    rate = re.search(r"(?i)qps ?= ?([\d.]+)", load)
    return Stated(
        words["source_repo"], words["target"], words["draft_or_method"], words["draft_kind"], words["hardware"],
        words["engine"], words["dataset_task"], int(gamma) if whole and gamma else None,
        "adaptive" in f"{gamma_text} {definition}".lower(), alpha, definition, tau, number(row, "draft_cost_c"),
        number(row, "baseline_tps"), number(row, "batch_or_concurrency"), load.lower().startswith("high"),
        float(rate[1]) if rate else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """GPUs of a row: the built-in's name, and how many."""

    name: str
    count: int

    @property
    def gpu(self) -> Gpu:
        """Its spec."""
        return load_gpu(self.name)


def machine(text: str) -> Machine:
    """The GPUs that a row names: ``4x H100``, ``GB200 TP4``, ``Apple M4 Max 128GB``.

    Raises
    ------
    Skip
        When it names none, or one that is not known.

    >>> machine("4x H100").count, machine("GB200 TP4").gpu.name
    (4, 'gb200')
    """
    if _UNNAMED.search(text):
        raise Skip(NO_GPU)
    times, spread = re.match(r"(\d+) ?x ", text), re.search(r"(?i)\bTP ?(\d+)\b", text)
    name = re.sub(r"(?i)^\d+ ?x |\bTP ?\d+\b", "", text).strip()
    for tried in (name, _MEMORY.sub("", name).strip()):
        try:
            found = load_gpu(tried)
        except UnknownName:
            continue
        return Machine(found.name, int(spread[1]) if spread else int(times[1]) if times else 1)
    raise Skip(f"no GPU {name[:40]!r} is known")


@dataclass(frozen=True)
class Named:
    """A model and how it is stored: a GGUF file type or a format, as far as the name says it."""

    model: ModelSpec
    mix: str
    weights: str | None
    source: str


def named(text: str, models: Models) -> Named:
    """The model that a row names, with what its name says of the weights.

    Raises
    ------
    Skip
        When it names none, or one that is not known.
    """
    if _UNNAMED.search(text):
        raise Skip("the model is not named")
    plain = re.sub(r"\s*\([^)]*\)\s*$", "", text).strip()
    head, _, last = plain.rpartition(" ")
    if head and last.upper() in MAIN:
        tries = [(head, last.upper(), _FORMATS.get(last.casefold()))]
    else:
        parts = re.match(r"(?i)^(.*?)[-_ ](" + "|".join(_FORMATS) + r")$", plain)
        tries = [(plain, "", None)] + ([(parts[1], "", _FORMATS[parts[2].casefold()])] if parts else [])
    for name, mix, weights in tries:
        try:
            found = models.find(name)
        except Skip:
            continue
        return Named(found.model, mix, weights, found.source)
    raise Skip(f"no model {plain[:60]!r} is known")


def method_word(text: str) -> str:
    """The name of a method in the catalogue's spelling: ``EAGLE3.1 (amd)`` is EAGLE-3, ``Eagle3 (AngelSlim)`` too.

    >>> method_word("EAGLE 3.1"), method_word("n-gram"), method_word("P-EAGLE")
    ('eagle-3', 'ngram', 'p-eagle')
    """
    word = re.sub(r"\s*\([^)]*\)\s*", " ", text).strip().casefold()
    if re.fullmatch(r"eagle[-_ ]?[123](\.\d)?", word):
        return f"eagle-{re.sub(r'[^123]', '', word.partition('.')[0])[-1]}"
    return {"n-gram": "ngram", "eagle": "eagle-1", "pld": "ngram"}.get(word, word)
