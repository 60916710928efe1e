"""Acceptance from distributions: what chance a drafted token has, given what target and draft think of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num

#: How far the sum of a distribution may be from 1.
SUM_TOLERANCE = 1e-6


def check_distribution(name: str, p: ArrayLike) -> NDArray[np.float64]:
    """The distribution over the last axis as float64; raises UsageError where it is negative or does not sum to 1."""
    array = np.asarray(p, dtype=np.float64)
    if not np.all(array >= 0):
        raise UsageError(f"{name} has a negative or undefined probability ({float(array.min()):g})")
    off = np.abs(array.sum(axis=-1) - 1)
    if np.any(off > SUM_TOLERANCE):
        raise UsageError(f"{name} sums to {float(array.sum(axis=-1).flat[np.argmax(off)]):.9g}, not to 1")
    return array


def softmax(logits: ArrayLike, temperature: float = 1.0) -> NDArray[np.float64]:
    """Distribution of logits at a temperature, over the last axis; temperature 0 is all on the first largest.

    >>> softmax([0.0, 0.0]), softmax([1.0, 2.0], 0.0)
    (array([0.5, 0.5]), array([0., 1.]))
    """
    x = np.asarray(logits, dtype=np.float64)
    if not temperature >= 0:
        raise UsageError(f"temperature is {temperature:g}; it must be >= 0")
    if temperature == 0:
        return np.asarray(np.eye(x.shape[-1])[np.argmax(x, axis=-1)])
    e = np.exp((x - x.max(axis=-1, keepdims=True)) / temperature)
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def total_variation(p: ArrayLike, q: ArrayLike) -> Num:
    """Total variation distance of two distributions over the last axis: half of the summed absolute difference.

    >>> total_variation([0.5, 0.5], [1.0, 0.0])
    0.5
    """
    a, b = check_distribution("p", p), check_distribution("q", q)
    return as_num(0.5 * np.abs(a - b).sum(axis=-1))


def acceptance(target: ArrayLike, draft: ArrayLike) -> Num:
    """Chance that a token drawn from ``draft`` is accepted: ``sum min(p, q) = 1 - TVD(p, q)``, exact.

    Source: arXiv:2211.17192, theorem 3.5.

    >>> acceptance([0.5, 0.5], [1.0, 0.0])
    0.5
    """
    p, q = check_distribution("target", target), check_distribution("draft", draft)
    return as_num(np.minimum(p, q).sum(axis=-1))


def acceptance_of_logits(target: ArrayLike, draft: ArrayLike, temperature: float = 1.0) -> Num:
    """Acceptance of logits (last axis: vocabulary) when both models sample at a temperature.

    At temperature 0 it is 1 where both have the same largest logit, else 0. Whether a higher temperature lowers it
    depends on the logits: flat distributions agree again, so no sign is assumed here.
    """
    return acceptance(softmax(target, temperature), softmax(draft, temperature))


def acceptance_of_guess(target: ArrayLike, tokens: ArrayLike) -> Num:
    """Acceptance of a deterministic draft (n-gram lookup, greedy head): the target's own probability of each token."""
    p = check_distribution("target", target)
    index = np.asarray(tokens, dtype=np.int64)
    return as_num(np.take_along_axis(p, index[..., None], axis=-1)[..., 0])


def residual(target: ArrayLike, draft: ArrayLike) -> NDArray[np.float64]:
    """What a rejected position is drawn from: ``max(p - q, 0)``, normalised; the target's own where both agree.

    >>> residual([0.5, 0.5], [1.0, 0.0])
    array([0., 1.])
    """
    p, q = np.asarray(target, dtype=np.float64), np.asarray(draft, dtype=np.float64)
    rest = np.maximum(p - q, 0.0)
    total = rest.sum(axis=-1, keepdims=True)
    # agreement to rounding leaves nothing to draw from, and is never rejected but by rounding
    return np.where(total > 0, rest / np.where(total > 0, total, 1.0), p)
