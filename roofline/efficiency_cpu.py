"""What share of its ceilings a library reaches on a processor: recorded on one, and a first guess on any other."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from perfmodel.base.errors import SpecError
from perfmodel.base.units import parse
from perfmodel.base.yamlio import load_yaml
from perfmodel.hwspecs import kept
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.calibrated.kernel import Kernel, Regime
from perfmodel.roofline.efficiency_file import Fit, as_fit

#: One file an engine, written by ``tools/cpu_shares.py`` from a recorded run with one thread. Shares by several threads
#: depend on how much of the memory's bandwidth others leave: ten minutes later they were off by half.
DATA = Path(__file__).parent / "data" / "efficiency_cpu"
ENGINE = "torch-cpu"
#: On another processor an interval is so much wider, in logarithms, and at least so wide either way; wider still where
#: the ceilings themselves were not measured. Assumed: two processors differ by more than two shapes.
STRETCH, LEAST_FACTOR, UNMEASURED = 2.0, 1.3, 1.8


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


def fit_of(device: Gpu) -> Fit | None:
    """The recorded shares as a fit of a processor that has none of its own; ``None`` for a GPU.

    A call takes as long as on the recorded machine: how long it takes here only `perfmodel validate` knows.
    """
    known = recorded(ENGINE) if device.kind == "cpu" else None
    if known is None:
        return None
    fit, _, place = known
    least = LEAST_FACTOR if device.name in kept.names() else UNMEASURED
    kernels = {key: elsewhere(kernel, 1.0, least) for key, kernel in fit.kernels.items()}
    return replace(fit, gpu=device.name, kernels=kernels, place=place)


def elsewhere(kernel: Kernel, calls: float, least: float = LEAST_FACTOR) -> Kernel:
    """A kernel on another machine: its shares as they are, its launch in proportion to a call, its interval wider.

    Parameters
    ----------
    calls : float
        Time of a call there over the time of a call on its own machine.
    least : float
        The interval goes at least by this factor either way.
    """
    regimes = tuple(_wider(regime, least) for regime in kernel.regimes)
    params, *members = ({**p, "launch": p["launch"] * calls} for p in (kernel.params, *kernel.families.values()))
    families = dict(zip(kernel.families, members, strict=True))
    shared, own = STRETCH * kernel.shared, STRETCH * kernel.own
    return replace(kernel, params=params, families=families, regimes=regimes, shared=shared, own=own)


def _wider(r: Regime, least: float) -> Regime:
    return replace(r, low=min(r.low**STRETCH, 1 / least), high=max(r.high**STRETCH, least))
