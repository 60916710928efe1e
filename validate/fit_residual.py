"""Fit the smooth correction of a form (``roofline.calibrated.residual``), or find that it does not help."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.roofline.calibrated.residual import Residual
from perfmodel.validate.fit import group_folds

Array = NDArray[np.float64]

#: Strength of the ridge, in rows; log error at which a row counts half.
RIDGE, SCALE = 100.0, 0.08


def quadratic(z: Array) -> Array:
    """Linear terms and upper triangle of products of standardised features."""
    i, j = np.triu_indices(z.shape[1])
    return np.hstack([z, z[:, i] * z[:, j]])


def fit_residual(values: Mapping[str, Array], log_ratio: Array, ridge: float = RIDGE) -> Residual:
    """Ridge of log(measured / physical) on the features, with Cauchy weights against outliers.

    Parameters
    ----------
    values : Mapping
        Feature -> positive array.
    log_ratio : Array
    ridge : float
    """
    x = np.log(np.stack([np.broadcast_to(v, log_ratio.shape) for v in values.values()], 1))
    spread = x.std(0)
    mean, scale = x.mean(0), np.where(spread > 1e-9, spread, 1.0)
    b = quadratic((x - mean) / scale)
    centre = b.mean(0)
    b = b - centre
    weights, beta, offset = np.ones(len(b)), np.zeros(b.shape[1]), float(np.median(log_ratio))
    penalty = ridge * np.eye(b.shape[1])
    for _ in range(8):
        beta = np.linalg.solve(b.T @ (weights[:, None] * b) + penalty, b.T @ (weights * (log_ratio - offset)))
        left = log_ratio - b @ beta
        offset = float(np.median(left))
        weights = 1 / (1 + ((left - offset) / SCALE) ** 2)
    return Residual(tuple(values), mean, scale, x.min(0), x.max(0), offset - float(centre @ beta), beta)


def helps(values: Mapping[str, Array], log_ratio: Array, groups: Array, least: float = 0.01) -> bool:
    """Whether the correction lowers the mean absolute log error on shape groups that it did not see, by 1 % of it or
    more."""
    fold = group_folds(groups, 5)
    left = log_ratio.copy()
    for j in range(5):
        seen, new = fold != j, fold == j
        found = fit_residual({k: v[seen] for k, v in values.items()}, log_ratio[seen])
        left[new] -= np.log(found.factor({k: v[new] for k, v in values.items()}))
    before = np.abs(log_ratio - np.median(log_ratio)).mean()
    return bool(np.abs(left).mean() < before * (1 - least))
