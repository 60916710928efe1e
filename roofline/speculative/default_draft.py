"""The small built-in model to draft with, where none is named."""

from __future__ import annotations

import re
from itertools import takewhile

from perfmodel.modelspecs.counts import active_params
from perfmodel.modelspecs.load import MODELS
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec

#: A default draft has at most this share of the target's active parameters, and at least the smaller one if it can.
LARGEST, SMALLEST = 1 / 4, 1 / 100


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
