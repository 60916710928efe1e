"""Fits of this very machine, as `perfmodel validate --calibrate` keeps them in the user's data folder."""

from __future__ import annotations

from pathlib import Path

from perfmodel.base.errors import SpecError
from perfmodel.hwspecs.kept import fit_folder
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.efficiency_file import Fit, read_fit


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
    found = (_read(path) for path in paths)
    mine = (fit for fit in found if (fit.machine, fit.gpu) == (device.machine, device.name))
    return tuple(fit for fit in mine if engine in ("", fit.engine))


def _read(path: Path) -> Fit:
    try:
        return read_fit(path)
    except SpecError as error:
        remedy = "delete the file, or make it anew with `perfmodel validate --calibrate`"
        raise SpecError(path, error.key, f"{error.problem}; {remedy}") from error
