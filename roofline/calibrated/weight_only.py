"""Products that unpack their weights: the 16-bit kernel's parameters, as far as they hold.

Nothing was measured of them. They move fewer bytes and issue the instructions that ``dequantize`` counts; what else
differs is that most of them use ``mma.sync``, whose operands come from registers, where a 16-bit product on Hopper
uses ``wgmma``.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.roofline.calibrated.kernel import Kernel

#: Factor on the logarithms of an interval's ends.
WIDER = 2.0
#: Share of the matrix peak that ``mma.sync`` reaches, by architecture, where another instruction reaches all of it.
#: Source: Luo et al., "Dissecting the NVIDIA Hopper Architecture through Microbenchmarking and Multiple Level Analysis"
#: (arXiv:2501.12084), section 6.2: 62.9 % on average, as quoted in public kernel notes. Blackwell's is not known.
MMA_SYNC = {"hopper": 0.629}
#: Engines whose weight-only products use ``wgmma`` on Hopper: vLLM picks Machete before Marlin there (its documentation
#: of quantization, and vllm/model_executor/kernels/linear/mixed_precision).
WGMMA_ENGINES = ("vllm",)


def weight_only(kernel: Kernel, architecture: str, engine: str) -> Kernel:
    """A 16-bit kernel's parameters for a product that unpacks its weights; the interval is twice as wide."""
    origin = f"{kernel.origin}; weights unpacked to 16 bits, of which nothing was measured: interval widened"
    params, share = dict(kernel.params), MMA_SYNC.get(architecture)
    if share is not None and engine not in WGMMA_ENGINES:
        params["matrix"] = min(params.get("matrix", share), share)
        origin += f", matrix units at most {share:.0%} busy (mma.sync)"
    regimes = tuple(replace(r, low=r.low**WIDER, high=r.high**WIDER) for r in kernel.regimes)
    return replace(
        kernel, params=params, regimes=regimes, shared=kernel.shared * WIDER, own=kernel.own * WIDER, origin=origin
    )
