"""Fitted efficiencies: which kernels' parameters answer for a GPU and an engine, and how far they are trusted.

The fits lie in ``data/efficiency``, one file a GPU and engine, written by ``tools/fit_efficiency.py``. What has no
fit of its own is answered by the nearest one, with a wider interval, and says so: another engine on the same GPU, a
GPU of the same architecture, another architecture (by the form that was found to transfer), and plain defaults in the
end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfmodel.base.errors import UsageError
from perfmodel.base.text import printable
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline import efficiency_cpu
from perfmodel.roofline.calibrated.forms import FORMS
from perfmodel.roofline.calibrated.kernel import Kernel, Regime
from perfmodel.roofline.efficiency_file import Fit, Transferred, read_fit, read_transfer
from perfmodel.roofline.efficiency_kept import kept_fits
from perfmodel.roofline.efficiency_step import StepFit, nearest
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup

FOLDER = Path(__file__).parent / "data" / "efficiency"
ENGINES = ("vllm", "trtllm", "sglang")
#: Whose kernels `perfmodel validate` measures.
MEASURED_ENGINES = ("torch-cpu", "triton")

#: Factor on the logarithms of an interval's ends for parameters of another engine on the same GPU (FP8 and FP4 GEMMs
#: of two engines differ by 17 to 43 %, 16-bit ones by 3 to 9 %), and of another GPU of the same architecture.
OTHER_ENGINE, SISTER = 2.0, 1.5
#: What a replayed graph of one call costs beside the kernels in it; the fitted launches of attention, of expert layers
#: and of collectives hold it once a call, a step pays it once. Estimated from the launches of calls of one to three
#: kernels. [s]
REPLAY = 5e-6
#: Gap between two kernels of a graph where no GEMM of the engine was measured. [s]
GAP = 2e-6
#: Kernels without data (norms, elementwise, cache writes): bandwidth share as the fitted quantization kernels reach it.
PLAIN = {"launch": GAP, "matrix": 0.6, "memory": 0.75, "overlap": 2.0}
#: Their assumed interval, and that of operator kinds that nothing was fitted for.
ASSUMED = (Regime(float("inf"), 0.6, 1.8),)


@dataclass(frozen=True)
class Efficiency:
    """The kernels that answer for one GPU and engine.

    Attributes
    ----------
    gpu : Gpu
    engine : str
        ``""`` when none was named: the one with most data answers.
    fits : tuple[Fit, ...]
        All fits, the nearest first.
    transfer : dict
        (kind, ``newer`` or ``older``) -> how it transfers to such an architecture.
    """

    gpu: Gpu
    engine: str
    fits: tuple[Fit, ...]
    transfer: dict[tuple[str, str], Transferred] = field(default_factory=dict)
    _cache: dict[tuple[str, tuple[str, ...]], Kernel] = field(default_factory=dict, repr=False, compare=False)

    @property
    def plain(self) -> Kernel:
        """For kernels without data."""
        origin = "assumed: no measurements of this kind"
        return Kernel("plain", "", FORMS["simple"], PLAIN, regimes=ASSUMED, shared=0.3, own=0.1, origin=origin)

    def other(self, op: Op) -> Kernel:
        """The kernel for an operator that no form asks for (norms, elementwise): fitted on this device, or plain."""
        for name in passes_of(op):
            key = (name, ())
            if key not in self._cache:
                fit = next((f for f in self.fits if f.gpu == self.gpu.name and (name, "") in f.kernels), None)
                self._cache[key] = self._adapted(fit, fit.kernels[name, ""]) if fit else self.plain
            if self._cache[key].kind == name:
                return self._cache[key]
        return self.plain

    def kernel(self, kind: str, formats: Sequence[str]) -> Kernel:
        """The kernel for an operator kind, in the first of the formats that any fit has."""
        key = (kind, tuple(formats))
        if key not in self._cache:
            self._cache[key] = self._find(kind, formats)
        return self._cache[key]

    def _find(self, kind: str, formats: Sequence[str]) -> Kernel:
        for fmt in formats:
            having = [fit for fit in self.fits if (kind, fmt) in fit.kernels]
            if having:
                found = self._adapted(having[0], having[0].kernels[kind, fmt])
                farther = [] if having[0].file else [f"{fit.file} of {fit.gpu}" for fit in having if fit.file]
                nearer = f"; nearer than {', '.join(farther)}" if farther else ""
                return replace(found, origin=found.origin + nearer)
        return self.plain

    def _adapted(self, fit: Fit, kernel: Kernel) -> Kernel:
        """A fit's kernel as it applies here: with its interval widened where it is another's."""
        same_gpu = fit.gpu == self.gpu.name
        same_engine = not self.engine or fit.engine == self.engine
        where = f"{fit.gpu} under {fit.engine} {fit.version(kernel)}".rstrip()
        where += f" in {fit.file}" if fit.file else ""
        if fit.place:
            where = where.replace(fit.gpu, fit.place, 1)
            return replace(kernel, origin=f"taken from {where}; interval widened; `perfmodel validate` fits this one")
        if same_gpu and same_engine:
            return replace(kernel, origin=f"fitted: {where}{fit.remark}")
        if not alike(load_gpu(fit.gpu), self.gpu):
            return self._elsewhere(fit, kernel, where)
        factor = (1.0 if same_gpu else SISTER) * (1.0 if same_engine else OTHER_ENGINE)
        why = "another engine" if same_gpu else "a GPU of the same architecture"
        return widened(kernel, factor, f"taken from {where}, {why}; interval widened")

    def _elsewhere(self, fit: Fit, kernel: Kernel, where: str) -> Kernel:
        """On another architecture: the form that transfers, with the interval of such transfers."""
        way = "newer" if _capability(self.gpu) >= _capability(load_gpu(fit.gpu)) else "older"
        moved = self.transfer.get((kernel.kind, way))
        simple = fit.simple.get((kernel.kind, kernel.fmt))
        origin = f"taken from {where}, another architecture"
        if moved is None:
            return replace(widened(kernel, 3.0, origin), residual=None)
        if moved.form == "simple" and simple is not None:
            kernel = replace(kernel, form=FORMS["simple"], params=simple, families={}, facts={})
        origin += f"; {'simple' if moved.form == 'simple' else 'full'} form, interval of such transfers"
        return replace(kernel, residual=None, regimes=moved.regimes, shared=moved.shared, own=moved.own, origin=origin)

    def step_launch(self, kernel: Kernel, kernels: int) -> float:
        """Gap of a call of so many kernels in a step's graph, where the harness's replay is not paid for each call.
        [s]"""
        if kernel.facts.get("launch") == "in a step":
            return kernel.params["launch"]
        gap = min((f.gap for f in self.fits if f.gpu == self.gpu.name and f.gap), default=GAP)
        launch = kernel.params.get("launch", gap)
        return min(launch, max(launch - REPLAY, kernels * gap)) if kernel.kind != "gemm" else launch

    def step(self, ready: Setup) -> StepFit | None:
        """Fitted times of whole steps for a setup; ``None`` when no fit has any of its GPU and engine."""
        return nearest((fit.step for fit in self.fits if fit.step), ready, self.engine)

    def warnings(self) -> tuple[str, ...]:
        """Which of the user's step fits are not used, and why."""
        found = []
        for fit in self.fits:
            if fit.step is None or not fit.file:
                continue
            if fit.gpu != self.gpu.name:
                found.append(f"the step times in {fit.file} are of {fit.gpu}, and not used for {self.gpu.name}")
            elif self.engine not in ("", fit.engine):
                found.append(f"the step times in {fit.file} are of {fit.engine}, and not used for {self.engine}")
        return tuple(found)

    def describe(self) -> list[dict[str, str]]:
        """Each fitted kind and format with where its parameters come from."""
        kinds = sorted({key for fit in self.fits for key in fit.kernels})
        return [{"kind": k, "format": f, "origin": self.kernel(k, (f,)).origin} for k, f in kinds]


def passes_of(op: Op) -> tuple[str, ...]:
    """Names under which a pass over activations may be fitted, the narrowest first: ``activation``, ``elementwise``.

    The experts' and the shared experts' are the same kernels, and all norms are.
    """
    base = op.kind if op.kind == "norm" else op.name.removeprefix("shared_").removeprefix("experts_")
    return tuple(dict.fromkeys((base, op.kind, "elementwise")))


def widened(kernel: Kernel, factor: float, origin: str) -> Kernel:
    """A kernel with the logarithms of its interval's ends, and its spreads, times a factor."""
    regimes = tuple(replace(r, low=r.low**factor, high=r.high**factor) for r in kernel.regimes)
    return replace(kernel, regimes=regimes, shared=kernel.shared * factor, own=kernel.own * factor, origin=origin)


@functools.cache
def _shipped() -> tuple[tuple[Fit, ...], dict[tuple[str, str], Transferred]]:
    fits = tuple(read_fit(path) for path in sorted(FOLDER.glob("*.yaml")) if path.stem != "transfer")
    return fits, read_transfer(FOLDER / "transfer.yaml")


def load(gpu: str | Gpu, engine: str | None = None, files: Iterable[str | Path | Fit] = ()) -> Efficiency:
    """The efficiencies of a GPU under an engine.

    The nearest fit answers: of this GPU, of its architecture, of another one; of equally near ones the user's own, or
    what `perfmodel validate --calibrate` fitted to this very machine, before a shipped one. A processor takes nothing
    from GPUs: without a fit of its own it has the shares that were recorded on another one.

    Parameters
    ----------
    gpu : str or Gpu
    engine : str, optional
        ``vllm``, ``trtllm`` or ``sglang``; or that of a fit of this machine, ``torch-cpu`` or ``triton``. When none is
        named, that of the step times in the user's files, if they hold any of this GPU.
    files : iterable of paths
        Fits of the user's own, or what was read from them, which go before equally near shipped ones.

    Raises
    ------
    UsageError
        For an unknown engine; for step times of several engines and none named.
    SpecError
        For a file that is not a fit.

    >>> load("h100", "vllm").kernel("decode", ("bf16",)).origin
    'fitted: h100-sxm under vllm 0.24.0'
    >>> "same architecture" in load("h200", "vllm").kernel("decode", ("bf16",)).origin
    True
    """
    device = load_gpu(gpu)
    fits, transfer = _shipped()
    engine = (engine or "").lower()
    own = tuple(file if isinstance(file, Fit) else _users(Path(file)) for file in files)
    engine = engine or _engine_of_steps(own, device)
    own += kept_fits(device, engine)
    if device.kind == "cpu":
        elsewhere = efficiency_cpu.fit_of(device)
        fits = () if elsewhere is None else (elsewhere,)
    known = sorted({*ENGINES, *(fit.engine for fit in (*own, *fits))})
    if engine and engine not in known:
        hint = "; `perfmodel validate --calibrate` fits this machine's" if engine in MEASURED_ENGINES else ""
        raise UsageError(f"no efficiencies for the engine {engine!r}; there are {', '.join(known)}{hint}")

    def distance(fit: Fit) -> tuple[bool, bool, float]:
        donor = device if fit.gpu == device.name else load_gpu(fit.gpu)
        return fit.gpu != device.name, not alike(donor, device), abs(_capability(donor) - _capability(device))

    shipped = sorted(fits, key=lambda fit: fit.engine != engine)
    return Efficiency(device, engine, tuple(sorted((*own, *shipped), key=distance)), transfer)


def _users(path: Path) -> Fit:
    """A user's file, by whose name its numbers are known."""
    fit, name = read_fit(path), printable(path.name, 60)
    return replace(fit, file=name, step=replace(fit.step, file=name) if fit.step else None)


def _engine_of_steps(own: Iterable[Fit], device: Gpu) -> str:
    """The engine whose steps on this GPU the user's files hold; ``""`` without any.

    Raises
    ------
    UsageError
        When there are several.
    """
    found = sorted({fit.engine for fit in own if fit.step and fit.file and fit.gpu == device.name})
    if len(found) > 1:
        raise UsageError(f"the efficiency files hold step times of {' and '.join(found)}: choose one by --engine")
    return found[0] if found else ""


def alike(a: Gpu, b: Gpu) -> bool:
    """Whether two GPUs run the same kernels: one architecture and major compute capability.

    A B200 and a B300 (``blackwell-ultra``) do, a B200 and an RTX 5090 do not.
    """
    same = a.architecture.split("-")[0] == b.architecture.split("-")[0]
    return same and int(_capability(a)) == int(_capability(b))


def _capability(gpu: Gpu) -> float:
    """CUDA compute capability as a number; that of Hopper for devices without one."""
    return float(gpu.compute_capability or 9.0)
