"""Recorded runs, replayed: what `tools/on_gpu.sh` measured once is predicted by the code of today.

``suite.json`` holds the cases of the full suite with their operators, and the ceilings of that run; ``device.yaml`` the
device as it was measured; the CSV tables what `validate --against` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.errors import SpecError
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.validate.bench.ceilings import Ceilings
from perfmodel.validate.bench.compare import Compared, Family, compare, families
from perfmodel.validate.bench.predict import by_ceilings
from perfmodel.validate.bench.store import Result
from perfmodel.validate.check import Check, check
from perfmodel.validate.csvfile import read, text_of
from perfmodel.validate.kinds import kind_of

#: Where recorded runs are kept.
RECORDED = Path(__file__).parent / "recorded"
SUITE, DEVICE = "suite.json", "device.yaml"


@dataclass(frozen=True)
class Replayed:
    """A recorded run beside what is predicted for it now.

    Attributes
    ----------
    name : str
        Of its folder.
    compared : tuple[Compared, ...]
        Cases of the suite; empty where no suite was recorded.
    tables : tuple[Check, ...]
        Its CSV tables of a known kind.
    """

    name: str
    compared: tuple[Compared, ...]
    tables: tuple[Check, ...]

    @property
    def families(self) -> list[Family]:
        """Errors by family of operators; the last is ``all``."""
        return families(self.compared)

    @property
    def coverage(self) -> float:
        """Share of the cases inside their 80 % interval."""
        return sum(c.inside for c in self.compared) / len(self.compared) if self.compared else 1.0

    @property
    def outside(self) -> list[str]:
        """Families whose median error is above the stated tolerance."""
        return [f"{f.name}: median error {f.error:.1%} is above {f.allowed:.1%}" for f in self.families if f.outside]


def folders(where: Path = RECORDED) -> list[Path]:
    """Recorded runs, in the order of their names."""
    return sorted(path for path in where.iterdir() if path.is_dir()) if where.is_dir() else []


def replay(folder: Path) -> Replayed:
    """Predict all that a folder holds.

    Raises
    ------
    SpecError
        For a file that is damaged.
    """
    suite = folder / SUITE
    found = _suite(suite, folder / DEVICE) if suite.exists() else []
    tables = [check(path) for path in sorted(folder.glob("*.csv")) if _has_kind(path)]
    return Replayed(folder.name, tuple(found), tuple(tables))


def _has_kind(path: Path) -> bool:
    """Whether a table has the header of a kind that can be compared: bandwidths and launches have not."""
    try:
        kind_of(read(path).header, path)
    except SpecError:
        return False
    return True


@dataclass(frozen=True)
class Suite:
    """What ``perfmodel validate --format json`` wrote: the cases and ceilings of a run.

    Attributes
    ----------
    device, kind : str
        What was measured, and whether it is ``cpu`` or ``cuda``.
    ceilings : Ceilings
    results : tuple[Result, ...]
    versions : Mapping[str, str]
        Of the packages, where they were written down.
    """

    device: str
    kind: str
    ceilings: Ceilings
    results: tuple[Result, ...]
    versions: Mapping[str, str]


def recorded_suite(path: Path) -> Suite:
    """Read the report of a run.

    Raises
    ------
    SpecError
        When it is none.
    """
    try:
        data = json.loads(text_of(path))
        results = tuple(_result(case) for case in data["cases"])
        versions = data.get("machine", {}).get("versions", {})
        return Suite(
            str(data["device"]), str(data["kind"]), Ceilings.from_dict(data["ceilings"]), results, dict(versions)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(path, "", f"is no report of `perfmodel validate --format json`: {error!r}") from error


def _suite(path: Path, device: Path) -> list[Compared]:
    run = recorded_suite(path)
    spec = load_gpu(str(device))
    engine = run.results[0].engine if run.results else ""
    return compare(run.results, [by_ceilings(run.ceilings, spec, engine, run.kind)], spec, run.ceilings, engine)


def _result(case: Mapping[str, Any]) -> Result:
    return Result(
        case["case"], case["kind"], case["engine"], case["format"], case["inputs"], case["measured_s"], case["p20_s"],
        case["p80_s"], case["precision"], case["samples"], {"set": case["set"]},
    )  # fmt: skip
