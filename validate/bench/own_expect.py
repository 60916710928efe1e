"""What a user's kernel is compared with besides other code: roofline and prediction for the threads that it runs on."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import NoGpu, SpecError
from perfmodel.base.validation import build
from perfmodel.hwspecs import detect, kept, processor
from perfmodel.hwspecs.schema import Gpu
from perfmodel.roofline.op import Op
from perfmodel.validate.bench import predict
from perfmodel.validate.bench.ceilings import Ceilings
from perfmodel.validate.bench.own_report import Time
from perfmodel.validate.bench.predict import Column


@dataclass(frozen=True)
class Expectation:
    """A device as its spec has it, and what predicts on it.

    Attributes
    ----------
    spec, column : optional
        None for a GPU that no spec describes.
    words : str
        Whose figures they are.
    """

    spec: Gpu | None
    column: Column | None
    words: str

    def of(self, op: Op) -> tuple[Time | None, float]:
        """Predicted time, and the roofline bound [s]; None and 0 where the spec has no unit of the format."""
        if self.spec is None or self.column is None or _lacks(self.spec, op):
            return None, 0.0
        told = predict.predict(self.column, op)
        return Time("predicted", told.predicted, told.low, told.high), predict.bound(self.spec, op)[0]

    def lack(self, op: Op, fmt: str) -> str:
        """Why there is no prediction, in words; empty where there is one."""
        if self.spec is None or not _lacks(self.spec, op):
            return ""
        have = ", ".join(dict.fromkeys([*self.spec.compute.tensor, *self.spec.compute.vector]))
        return f"no prediction and no roofline: {self.spec.title} has no unit for products in {fmt}; it has {have}"


def _lacks(spec: Gpu, op: Op) -> bool:
    used = (name.removeprefix("matrix:") for name in op.unit_cost.ops if name.startswith("matrix:"))
    return any(not spec.supports(fmt) for fmt in used)


def expectation(device: str, engine: str, threads: int) -> Expectation:
    """What is known of a device: this machine's fit, else shares of the rates in its spec.

    Parameters
    ----------
    threads : int
        Of a processor: ceilings and fit of another number of threads are not taken.
    """
    try:
        spec, note = _processor(threads) if device == "cpu" else (detect.local_gpu(), "")
    except NoGpu:
        return Expectation(None, None, "no prediction: no spec describes this GPU")
    if (own := predict.by_fit(spec, engine)) is not None:
        return Expectation(spec, own, f"prediction: {own.words}")
    plain = predict.by_ceilings(Ceilings({}), spec, engine, device)
    words = f"prediction: the rates of {spec.title}{note}, {predict.share_words(engine, device)}"
    return Expectation(spec, plain, words + ("" if note else "; `perfmodel validate --calibrate` fits this machine"))


def _processor(threads: int) -> tuple[Gpu, str]:
    """The processor by so many threads as it was measured, else as it is derived from cores and clock, with words."""
    mine: list[Gpu] = []
    others: list[Gpu] = []
    for name in kept.names():
        try:
            spec = kept.named(name)
        except SpecError:  # damaged: it is somebody's to mend who asks for it by name
            continue
        if spec is not None and spec.machine == processor.machine():
            (mine if spec.compute.sms is not None and spec.compute.sms.value == threads else others).append(spec)
    if mine:
        return mine[0], ""
    count = f"{threads} thread{'s' * (threads != 1)}"
    measured = f"; what was measured is {', '.join(spec.title for spec in others)}" if others else ""
    note = f" (derived from cores and clock; `perfmodel validate --threads {threads}` measures {count}{measured})"
    # asked for anew: another number of threads may have been detected in this process before
    return build(Gpu, processor.describe(), "cpu"), note
