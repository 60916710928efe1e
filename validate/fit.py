"""Fit a form's parameters to measured times, and judge it on shapes that the fit did not see.

Parameters are fitted in log space (all are positive) by robust least squares on log(predicted / measured), with a weak
prior that keeps what the rows do not identify at its physical starting value. Shapes are left out by whole groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Model = Callable[[dict[str, float]], Any]

#: Times below this measure the harness and are reported apart. [s]
FLOOR = 10e-6


@dataclass(frozen=True)
class Fitted:
    """Result of a fit.

    Attributes
    ----------
    params : dict[str, float]
    sigma : dict[str, float]
        Standard error of the logarithm of each fitted parameter.
    correlation : Array
        Of the logarithms, in the order of ``sigma``.
    """

    params: dict[str, float]
    sigma: dict[str, float]
    correlation: Array


def fit_log(
    model: Model, start: Mapping[str, float], measured: Array, *, fixed: tuple[str, ...] = (), prior: float = 0.03,
    scale: float = 0.08, evaluations: int = 40, pulls: Mapping[str, float] | None = None, reach: float = 4.0,
) -> Fitted:  # fmt: skip
    """Fit ``model(params)`` to ``measured`` [s].

    Parameters
    ----------
    start : Mapping
        Positive starting values.
    fixed : tuple
        Names that are held.
    prior : float
        Weight of one e-fold away from the start, in units of a row's log error times the fourth root of the rows.
    scale : float
        Log error beyond which a row counts linearly (pseudo-Huber).
    pulls : Mapping, optional
        Factors on the prior, by name.
    reach : float
        Most e-folds away from the start.
    """
    from scipy.optimize import least_squares

    names = [name for name in start if name not in fixed]
    x0 = np.log([start[name] for name in names])
    pull = prior * len(measured) ** 0.25 * np.array([(pulls or {}).get(name, 1.0) for name in names])
    log_t = np.log(measured)

    def unpack(x: Array) -> dict[str, float]:
        values = np.exp(np.clip(x, x0 - reach, x0 + reach))
        return {**start, **dict(zip(names, map(float, values), strict=True))}

    def residuals(x: Array) -> Array:
        r = np.log(np.maximum(model(unpack(x)), 1e-15)) - log_t
        return np.concatenate([r, pull * (x - x0)])

    options: dict[str, Any] = {"loss": _pseudo_huber, "f_scale": scale, "method": "trf"}
    s = least_squares(residuals, x0, diff_step=2e-2, max_nfev=evaluations, **options)
    s = least_squares(residuals, s.x, diff_step=3e-3, max_nfev=evaluations // 2, **options)
    covariance = _covariance(s.jac, residuals(s.x), len(measured))
    sigma = np.sqrt(np.diag(covariance))
    outer = np.outer(sigma, sigma)
    return Fitted(unpack(s.x), dict(zip(names, map(float, sigma), strict=True)), covariance / outer)


def _pseudo_huber(z: Array) -> Array:
    root = np.sqrt(1 + z)
    return np.vstack([2 * (root - 1), 1 / root, -0.5 / root**3])


def _covariance(jacobian: Array, residuals: Array, rows: int) -> Array:
    """Of the log parameters, from the Gauss-Newton matrix and a robust variance (1.4826 MAD) of the rows."""
    variance = (1.4826 * float(np.median(np.abs(residuals[:rows])))) ** 2
    normal = jacobian.T @ jacobian
    return variance * np.linalg.pinv(normal + 1e-12 * np.trace(normal) * np.eye(len(normal)))


def group_folds(keys: Array, folds: int = 5, seed: int = 0) -> NDArray[np.int64]:
    """Fold of each row; rows of one group (equal rows of ``keys``) share a fold, folds have about equal sizes.

    Raises
    ------
    ValueError
        With fewer groups than folds.

    >>> group_folds(np.array([[1], [1], [2], [3]]), folds=3).tolist()
    [0, 0, 2, 1]
    """
    group = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
    count = int(group.max()) + 1
    if count < folds:
        raise ValueError(f"{count} groups of shapes cannot be spread over {folds} folds")
    size = np.bincount(group)
    order = np.random.default_rng(seed).permutation(count)
    order = order[np.argsort(-size[order], kind="stable")]
    load, fold = np.zeros(folds), np.zeros(count, np.int64)
    for g in order:
        j = int(load.argmin())
        fold[g] = j
        load[j] += size[g]
    return fold[group]


def figures(predicted: Array, measured: Array) -> dict[str, float]:
    """Errors as fractions: ``mape`` of all rows; ``mape_10us``, ``median_ape`` and ``bias`` (median ratio less 1) of
    those over 10 us; numbers of rows.

    >>> found = figures(np.array([11e-6, 22e-6]), np.array([1e-5, 2e-5]))
    >>> round(found["mape"], 6), round(found["bias"], 6), found["n"]
    (0.1, 0.1, 2)
    """
    ratio = predicted / measured
    error, long = np.abs(ratio - 1), measured >= FLOOR
    return {
        "n": len(measured), "n_10us": int(long.sum()), "mape": float(error.mean()),
        "mape_10us": float(error[long].mean()), "median_ape": float(np.median(error[long])),
        "bias": float(np.median(ratio[long])) - 1,
    }  # fmt: skip
