"""What share of its ceilings a library reaches: recorded on one machine, and a first guess on any other."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from perfmodel.base.errors import SpecError
from perfmodel.base.units import parse
from perfmodel.base.yamlio import load_yaml
from perfmodel.roofline.calibrated.kernel import Kernel, Regime
from perfmodel.roofline.efficiency_file import Fit, as_fit

#: One file an engine, written by ``tools/cpu_shares.py`` from a run under ``recorded``.
DATA = Path(__file__).parent / "data"
#: On another processor an interval is so much wider, in logarithms, and at least so wide either way. Assumed: two
#: processors differ by more than two shapes.
STRETCH, LEAST_FACTOR = 2.0, 1.3


@cache
def recorded(engine: str) -> tuple[Fit, float, str] | None:
    """Shares of an engine: the fit, the time of a call on its machine [s], and where it was recorded.

    ``None`` for an engine without a file.

    Raises
    ------
    SpecError
        For a file that is damaged.
    """
    path = DATA / f"{engine}.yaml"
    if not path.exists():
        return None
    data = load_yaml(path)
    try:
        call, place = parse(data["call"], "s"), str(data["recorded_on"])
        return as_fit(data["fit"], path), call, place
    except KeyError as missing:
        raise SpecError(path, str(missing), "is missing") from missing


def elsewhere(kernel: Kernel, calls: float) -> Kernel:
    """A kernel on another machine: its shares as they are, its launch in proportion to a call, its interval wider.

    Parameters
    ----------
    calls : float
        Time of a call there over the time of a call on its own machine.
    """
    regimes = tuple(_wider(regime) for regime in kernel.regimes)
    params, *members = ({**p, "launch": p["launch"] * calls} for p in (kernel.params, *kernel.families.values()))
    families = dict(zip(kernel.families, members, strict=True))
    shared, own = STRETCH * kernel.shared, STRETCH * kernel.own
    return replace(kernel, params=params, families=families, regimes=regimes, shared=shared, own=own)


def _wider(r: Regime) -> Regime:
    return replace(r, low=min(r.low**STRETCH, 1 / LEAST_FACTOR), high=max(r.high**STRETCH, LEAST_FACTOR))
