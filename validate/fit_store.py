"""Write fitted kernels to the files that ``roofline.efficiency`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from perfmodel.roofline.calibrated.form import Form
from perfmodel.roofline.calibrated.forms import FORMS
from perfmodel.roofline.calibrated.kernel import Regime
from perfmodel.roofline.calibrated.residual import Residual
from perfmodel.validate.fit_kernel import Checked

HEADER = "# Written by {tool}: run it again rather than edit. Parameters and their meanings: roofline/calibrated.\n"


def digits(value: float, n: int = 5) -> float:
    """A number with ``n`` significant digits."""
    return float(f"{value:.{n}g}")


def microseconds(value: float) -> str:
    """A time as the files have it.

    >>> microseconds(9.1234567e-06)
    '9.1235 us'
    """
    return f"{value * 1e6:.5g} us"


def values(form: Form, params: Mapping[str, float]) -> dict[str, str | float]:
    """Parameters with their units."""
    return {
        p.name: microseconds(params[p.name]) if p.unit == "s" else digits(params[p.name])
        for p in form.params
        if p.name in params
    }


def intervals(regimes: Sequence[Regime]) -> list[dict[str, Any]]:
    """Intervals, the last without an upper end."""
    return [
        ({"below": microseconds(r.below)} if np.isfinite(r.below) else {})
        | {"low": digits(r.low, 4), "high": digits(r.high, 4), "rows": r.rows}
        for r in regimes
    ]


def _residual(r: Residual) -> dict[str, Any]:
    lists = {name: [digits(v) for v in getattr(r, name)] for name in ("mean", "scale", "low", "high", "weights")}
    return {"features": list(r.features), **lists, "constant": digits(r.constant)}


def record(checked: Checked, scores: Mapping[str, float], simple: Mapping[str, float] | None = None) -> dict[str, Any]:
    """A kernel as the file has it, with its errors and where it comes from."""
    kernel, cell, fitted = checked.kernel, checked.cell, checked.fitted
    n = len(fitted.sigma)
    found: dict[str, Any] = {
        "kind": kernel.kind, "format": kernel.fmt, "form": kernel.form.name, "version": cell.version,
        "kernels": cell.source, "table": cell.table, "rows": len(cell.measured), "excluded": checked.excluded,
        "parameters": values(kernel.form, kernel.params),
        "sigma": {name: digits(s, 3) for name, s in fitted.sigma.items()},
        "correlation": [[round(float(fitted.correlation[i, j]), 2) for j in range(i)] for i in range(1, n)],
        "facts": dict(kernel.facts),
        "families": {name: values(kernel.form, {**kernel.params, **p}) for name, p in kernel.families.items()},
        "intervals": intervals(kernel.regimes),
        "spread": {"shared": digits(kernel.shared, 3), "own": digits(kernel.own, 3)},
        "scores": {name: digits(float(v), 6) for name, v in scores.items()},
    }  # fmt: skip
    if simple is not None:
        found["simple"] = values(FORMS["simple"], simple)
    if kernel.residual is not None:
        found["residual"] = _residual(kernel.residual)
    return found


class _Dumper(yaml.SafeDumper):
    """Block mappings, flow lists of numbers, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    plain = all(not isinstance(v, dict) for v in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Dumper.add_representer(list, _list)


def text(data: Mapping[str, Any], tool: str = "tools/fit_efficiency.py") -> str:
    """A file of efficiencies as it is written."""
    body: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)
    return HEADER.format(tool=tool) + body


def write(path: Path, data: Mapping[str, Any], tool: str = "tools/fit_efficiency.py") -> None:
    """Write a file of efficiencies."""
    path.write_text(text(data, tool), encoding="utf-8")
