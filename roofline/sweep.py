"""Many configurations at once: structure in loops, numbers in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.clock import Clock, clock, operators
from perfmodel.roofline.graph import graph
from perfmodel.roofline.memory import memory
from perfmodel.roofline.quantization.units import computes_in, remarks
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.step import Step, check_number, decode, prefill
from perfmodel.roofline.times import Rates

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.roofline.measured.record import Recorded

#: Elements evaluated at a time: a handful of such arrays stays in a core's cache.
CHUNK = 1 << 15


def step_time(ready: Setup, step: Step) -> Num:
    """Bound of a step: the sum over its operators. [s] The step's numbers may be arrays that broadcast."""
    rates = Rates(ready.gpu, ready.topology)
    total: Num = 0.0
    for op in graph(ready.model, step, ready.plan, ready.topology):
        total = total + rates.bound(op.unit_cost) * op.count
    return total


def decode_times(ready: Setup, batch: Num, context: Num) -> NDArray[np.float64]:
    """Decode-step bounds of many (batch, context) pairs, in pieces that stay in cache. [s]

    Arguments broadcast: a grid is ``batch[:, None], context[None, :]``, and is then evaluated without repeating what
    depends on one axis alone.
    """
    b, c = np.asarray(batch, dtype=np.float64), np.asarray(context, dtype=np.float64)
    if b.ndim == 1 and b.shape == c.shape and b.size > CHUNK:
        parts = [step_time(ready, decode(b[i : i + CHUNK], c[i : i + CHUNK])) for i in range(0, b.size, CHUNK)]
        return np.concatenate([np.atleast_1d(part) for part in parts])
    return np.asarray(step_time(ready, decode(b, c)), dtype=np.float64)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else [value]


def sweep(
    model: str | ModelSpec, gpu: str | Gpu | Sequence[str | Gpu], *, batch: Any = 1, context: Any = 2048, tp: Any = 1,
    weights: Any = None, kv: Any = "bf16", phase: str = "decode", fidelity: str = "bound", engine: str | None = None,
    efficiency: Sequence[str] = (), measured: Sequence[Recorded] = (), hypothetical: bool = False, **plan: Any,
) -> pd.DataFrame:  # fmt: skip
    """Times of one step over every combination of the lists given.

    Parameters
    ----------
    gpu, tp, weights, kv
        One value or a list: each combination is a structure of its own. Combinations that the model cannot be cut into
        are left out.
    batch, context
        One number or a list; ``context`` is the tokens in the cache (decode) or the prompt length (prefill).
    phase : str
        ``decode`` or ``prefill``.
    fidelity, engine, efficiency, measured
        As ``analyze``; other frames than bounds have ``low_s`` and ``high_s`` too.
    hypothetical : bool
        Give times where weights and cache exceed the usable memory too, as if there were more of it.
    **plan
        ``pp, ep, dp, system``.

    Returns
    -------
    DataFrame
        ``gpu, tp, weights, computes_in, kv, batch, context, fits, time_s, tokens_per_s``: seconds of the step and
        tokens of the whole deployment a second. ``computes_in`` is the number format of the products with the weights,
        with ``unpacked`` where they are converted first; ``attrs["remarks"]`` says what engines do with formats that a
        GPU has no unit for. Where ``fits`` is false, since weights and cache exceed the usable memory, they are
        NaN unless ``hypothetical``.

    Raises
    ------
    UsageError
        For numbers out of range, or when no combination is possible.

    Examples
    --------
    >>> frame = sweep("llama3-70b", "h100", batch=[1, 8], context=[1024, 4096], tp=[4, 8])
    >>> len(frame)
    8
    """
    import pandas as pd

    if phase not in ("decode", "prefill"):
        raise UsageError(f"phase is 'decode' or 'prefill', not {phase!r}")
    lists = {"batch": _list(batch), "context": _list(context)}
    for name, values in {
        **lists,
        "gpu": _list(gpu),
        "tp": _list(tp),
        "weights": _list(weights),
        "kv": _list(kv),
    }.items():
        if not values:
            raise UsageError(f"{name} is an empty list; give at least one value")
    for name, values in lists.items():
        check_number(name, values)
    b, c = (np.asarray(values, dtype=np.float64) for values in lists.values())
    frames, problems, said = [], [], dict[str, None]()
    for g, t, w, k in product(_list(gpu), _list(tp), _list(weights), _list(kv)):
        try:
            ready = setup(model, g, tp=t, weights=w, kv=k, **plan)
        except UsageError as error:
            problems.append(error)
            continue
        said |= dict.fromkeys(remarks(ready.model, ready.plan, ready.gpu))
        timer = (
            None
            if fidelity == "bound" and not engine and not efficiency and not measured
            else clock(ready, fidelity, engine, efficiency, measured)
        )
        frames.append(pd.DataFrame(_columns(ready, b, c, phase, timer, hypothetical)))
    if not frames:
        raise problems[0]
    whole = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    whole.attrs["remarks"] = [*said]
    return whole


def _columns(
    ready: Setup, b: NDArray[np.float64], c: NDArray[np.float64], phase: str, timer: Clock | None, hypothetical: bool
) -> dict[str, Any]:
    step = (decode if phase == "decode" else prefill)(b[:, None], c[None, :])

    def flat(values: Num) -> NDArray[np.float64]:
        return np.broadcast_to(np.asarray(values), (b.size, c.size)).ravel()

    ends: dict[str, Any] = {}
    if timer is None:
        times = flat(step_time(ready, step))
    else:
        total = timer.total([timer.time(op) for op in operators(ready, step, timer)])
        times, ends = flat(total.predicted), {"low_s": flat(total.low), "high_s": flat(total.high)}
    batches, contexts = np.repeat(b, c.size), np.tile(c, b.size)
    tokens = batches * (contexts if phase == "prefill" else 1.0)
    need = memory(ready.model, ready.gpu, ready.plan, batches, contexts, tokens)
    fits = np.broadcast_to(need.needed <= need.usable, batches.shape)
    if not hypothetical and not fits.all():
        times = np.where(fits, times, np.nan)
        ends = {name: np.where(fits, values, np.nan) for name, values in ends.items()}
    return {
        "gpu": ready.gpu.name, "tp": ready.plan.tp, "weights": ready.plan.weights.name,
        "computes_in": computes_in(ready.plan.weights, ready.gpu), "kv": ready.plan.kv.name, "batch": batches,
        "context": contexts, "fits": fits, "time_s": times, "tokens_per_s": tokens / times, **ends,
    }  # fmt: skip
