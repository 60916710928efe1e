"""Fits of this very machine, as `perfmodel validate --calibrate` keeps them in the user's data folder."""

from __future__ import annotations

from pathlib import Path

from perfmodel.base.userdata import data_folder
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.efficiency_file import Fit, read_fit


def fit_folder() -> Path:
    """Where fits of this machine's devices are kept, one file a device and engine."""
    return data_folder() / "fits"


def kept_fits(device: Gpu, engine: str = "") -> tuple[Fit, ...]:
    """The fits that were made on this very device, of one engine if it is named.

    Parameters
    ----------
    device : Gpu
        A spec that was detected here or measured: it names its ``machine``. Another has none. A fit belongs to one spec
        (a processor by so many threads, a GPU by its datasheet), since its shares are of that spec's rates.
    engine : str
        ``""`` for all.

    Raises
    ------
    SpecError
        For a file that is damaged.
    """
    if not device.machine:
        return ()
    try:
        paths = sorted(fit_folder().glob("*.yaml"))
    except OSError:
        return ()
    found = (read_fit(path) for path in paths)
    mine = (fit for fit in found if (fit.machine, fit.gpu) == (device.machine, device.name))
    return tuple(fit for fit in mine if engine in ("", fit.engine))
