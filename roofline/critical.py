"""Where the limiter changes: the batch sizes at which a decode step turns compute-bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfmodel.base.num import Num
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import LINEAR_KINDS, Op
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import Step, decode
from perfmodel.roofline.times import HBM, Rates

#: A batch or length beyond this is called infinite.
FAR = 2.0**40


def linear_critical_batch(gpu: Gpu, weight_bytes: float = 2.0, math: str = "bf16") -> float:
    """Batch at which a linear layer's compute takes as long as reading its weights. [sequences]

    At batch B the layer does 2 B FLOPs a weight and reads ``weight_bytes`` of it: intensity ``2 B / bytes``, so
    ``B* = ridge x bytes / 2``. Weights only; activations move it up a little.

    Parameters
    ----------
    gpu : Gpu
    weight_bytes : float
        Bytes a weight is stored in: 2 at 16 bits, 1 at 8.
    math : str
        Number format of the matrix unit: 8-bit weights multiplied in BF16 keep BF16's peak.

    Examples
    --------
    >>> from perfmodel.hwspecs.load import gpu
    >>> round(linear_critical_batch(gpu("h100")))
    295
    """
    return gpu.ridge(math) * weight_bytes / 2


@dataclass(frozen=True)
class CriticalBatch:
    """Batches at which a decode step turns from memory-bound to compute-bound; infinite where none does.

    Attributes
    ----------
    context : float
        Tokens in each sequence's cache.
    linear : float
        For the linear layers alone (weights against their FLOPs).
    step : float
        For the whole step: all bytes against all matrix FLOPs. KV-cache reads grow with the batch, so at long contexts
        no batch is enough.
    """

    context: float
    linear: float
    step: float


def critical_batch(
    model: str | ModelSpec, gpu: str | Gpu, context: Num, *, include_activations: bool = True, **plan: object
) -> list[CriticalBatch]:
    """Critical batch of a decode step at one or more contexts.

    Parameters
    ----------
    context : Num
        Tokens in the cache of each sequence.
    include_activations : bool
        Count activation traffic of the step beside weights and KV cache.
    **plan
        ``tp, pp, ep, dp, weights, kv, system``, as ``analyze``.

    Examples
    --------
    >>> [round(c.linear) for c in critical_batch("llama3-70b", "h100", 512.0)]
    [295]
    """
    ready = setup(model, gpu, **plan)  # type: ignore[arg-type]
    linear = linear_batch(ready)

    def whole_step(tokens: float) -> float:
        return first_root(lambda b: _balance(ready, decode(b, tokens), _any, include_activations))

    contexts: list[float] = np.atleast_1d(np.asarray(context, dtype=np.float64)).tolist()
    return [CriticalBatch(c, linear, whole_step(c)) for c in contexts]


def linear_batch(ready: Setup) -> float:
    """Sequences a decode step at which all its linear layers together turn compute-bound; infinite where never.

    Weights against FLOPs, each layer in its own format. With experts it is far above a dense model's: until all of them
    are chosen, more tokens also read more weights.
    """
    return first_root(lambda b: _balance(ready, decode(b, 1.0), _linear, False))


def compute_bound_context(model: str | ModelSpec, gpu: str | Gpu, **plan: object) -> float:
    """Longest context at which some batch makes the whole decode step compute-bound. [tokens]

    Weights vanish at infinite batch; what remains is KV-cache bytes against FLOPs of one token, activations left out.
    """
    ready = setup(model, gpu, **plan)  # type: ignore[arg-type]
    huge = 2.0**50

    def surplus(context: Num) -> Num:
        memory, compute = _seconds(ready, decode(huge, context), _any, False)
        return memory - compute

    return first_root(surplus)


def _any(op: Op) -> bool:
    return True


def _linear(op: Op) -> bool:
    return op.kind in LINEAR_KINDS


def _seconds(ready: Setup, step: Step, keep: Callable[[Op], bool], activations: bool) -> tuple[Num, Num]:
    rates = Rates(ready.gpu, ready.topology)
    memory: Num = 0.0
    compute: Num = 0.0
    for op in graph(ready.model, step, ready.plan, ready.topology):
        if not keep(op):
            continue
        cost = op.cost()
        streams = {k: v for k, v in cost.hbm.items() if activations or not k.startswith("act_")}
        terms = rates.terms(Cost(cost.ops, streams))
        memory, compute = memory + terms.get(HBM, 0.0), compute + terms.get("matrix", 0.0)
    return memory, compute


def _balance(ready: Setup, step: Step, keep: Callable[[Op], bool], activations: bool) -> Num:
    memory, compute = _seconds(ready, step, keep, activations)
    return compute - memory


def first_root(function: Callable[[Num], Num]) -> float:
    """Smallest x in [1, FAR] where a function reaches 0 from below (scan, bisection); infinite where it never does."""
    grid = np.geomspace(1.0, FAR, 801)
    above = np.nonzero(np.broadcast_to(np.asarray(function(grid)), grid.shape) >= 0)[0]
    if above.size == 0:
        return float("inf")
    index = int(above[0])
    if index == 0:
        return 1.0
    low, high = float(grid[index - 1]), float(grid[index])
    for _ in range(60):
        middle = (low + high) / 2
        if float(np.asarray(function(middle))) >= 0:
            high = middle
        else:
            low = middle
    return high
