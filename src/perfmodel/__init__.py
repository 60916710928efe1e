"""An explainable performance model of LLM inference.

The functions are found on first use, so that ``import perfmodel`` costs nothing.

>>> import perfmodel as pm
>>> round(pm.gpu("h100").ridge())
295
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.hwspecs.load import gpu as gpu
    from perfmodel.hwspecs.load import system as system
    from perfmodel.modelspecs.load import model as model
    from perfmodel.modelspecs.params import params as params
    from perfmodel.modelspecs.quant_sizes import quantize as quantize
    from perfmodel.reports.claims import ledger as claims  # noqa: F401
    from perfmodel.reports.explain import explain as explain
    from perfmodel.roofline.analysis import analyze as analyze
    from perfmodel.roofline.analysis import estimate as estimate
    from perfmodel.roofline.critical import critical_batch as critical_batch
    from perfmodel.roofline.engines.budget import memory as memory
    from perfmodel.roofline.flops import crossovers as crossovers
    from perfmodel.roofline.quantization.compare import compare as compare_formats  # noqa: F401
    from perfmodel.roofline.quantization.widths import mixed as mixed_precision  # noqa: F401
    from perfmodel.roofline.speculative.evaluate import speculate as speculate
    from perfmodel.roofline.speculative.rounds import Host as Host
    from perfmodel.roofline.sweep import sweep as sweep
    from perfmodel.validate.check import check as check
    from perfmodel.validate.measured_tables import measured as measured

_EXPORTS = {
    "model": "perfmodel.modelspecs.load:model",
    "gpu": "perfmodel.hwspecs.load:gpu",
    "system": "perfmodel.hwspecs.load:system",
    "params": "perfmodel.modelspecs.params:params",
    "quantize": "perfmodel.modelspecs.quant_sizes:quantize",
    "analyze": "perfmodel.roofline.analysis:analyze",
    "estimate": "perfmodel.roofline.analysis:estimate",
    "memory": "perfmodel.roofline.engines.budget:memory",
    "compare_formats": "perfmodel.roofline.quantization.compare:compare",
    "mixed_precision": "perfmodel.roofline.quantization.widths:mixed",
    "speculate": "perfmodel.roofline.speculative.evaluate:speculate",
    "Host": "perfmodel.roofline.speculative.rounds:Host",
    "sweep": "perfmodel.roofline.sweep:sweep",
    "explain": "perfmodel.reports.explain:explain",
    "claims": "perfmodel.reports.claims:ledger",
    "critical_batch": "perfmodel.roofline.critical:critical_batch",
    "crossovers": "perfmodel.roofline.flops:crossovers",
    "check": "perfmodel.validate.check:check",
    "measured": "perfmodel.validate.measured_tables:measured",
}
__all__ = [*_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = _EXPORTS[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
