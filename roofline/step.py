"""What is run and how it is spread: a step of work, and a plan of parallelism and formats."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.formats import Format, kv_format, weight_format
from perfmodel.modelspecs.schema import Gqa, ModelSpec, Moe

#: Above this a batch, a length or a degree of parallelism is a slip of the pen.
LIMITS = {"batch": 10**7, "input": 10**8, "output": 10**8, "tp": 4096, "pp": 4096, "ep": 65536, "dp": 65536}


@dataclass(frozen=True)
class Step:
    """One forward pass of a batch of sequences.

    Attributes
    ----------
    name : str
        ``prefill``, ``decode``, ``chunk`` or ``verify``: they are one graph with other numbers.
    batch, q, kv : Num
        Sequences; new tokens a sequence; tokens a sequence after the step (q <= kv).
    logits : Num
        Positions a sequence whose logits are computed: 1 in prefill and decode, all q in verification.
    """

    name: str
    batch: Num
    q: Num
    kv: Num
    logits: Num = 1.0

    @property
    def absorbed(self) -> bool:
        """Whether MLA runs on the latent (few new tokens) or on expanded heads (prefill), as engines do."""
        return self.name in ("decode", "verify")

    @property
    def tokens(self) -> Num:
        """New tokens of the whole batch."""
        return self.batch * self.q


def prefill(batch: Num, length: Num) -> Step:
    """Process whole prompts of ``length`` tokens."""
    return Step("prefill", batch, length, length)


def decode(batch: Num, context: Num) -> Step:
    """One token a sequence, with ``context`` tokens in the cache after it."""
    return Step("decode", batch, 1.0, context)


def chunked_prefill(batch: Num, chunk: Num, past: Num) -> Step:
    """``chunk`` more tokens of prompts of which ``past`` are in the cache."""
    return Step("chunk", batch, chunk, past + chunk)


def verify(batch: Num, drafted: Num, context: Num) -> Step:
    """Check ``drafted`` proposed tokens and add one: drafted + 1 queries, all their logits."""
    return Step("verify", batch, drafted + 1, context + drafted + 1, drafted + 1)


@dataclass(frozen=True)
class Plan:
    """How the model is spread and stored.

    Attributes
    ----------
    tp, pp, ep, dp : int
        Tensor, pipeline, expert and data parallelism. ``tp x pp x dp`` GPUs; with ``ep`` > 1 the experts are spread
        over ``ep`` of the ``tp x dp`` GPUs of a stage, the rest of that group cuts each expert.
    weights, kv : Format
        Storage of weights and of the KV cache.
    linear_math, attention_math : str
        Number formats in which the matrix units compute; chosen from the GPU by ``make_plan``.
    act_bytes : float
        Bytes of an activation element.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    weights: Format = field(default_factory=lambda: weight_format("bf16"))
    kv: Format = field(default_factory=lambda: kv_format("bf16"))
    linear_math: str = "bf16"
    attention_math: str = "bf16"
    dense_math: str = "bf16"
    act_bytes: float = 2.0

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tp * self.pp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that cut one expert."""
        return self.tp * self.dp // self.ep if self.ep > 1 else self.tp

    @property
    def activation_bytes(self) -> float:
        """Bytes of a GEMM's input element: 8-bit math reads 8-bit activations."""
        return {"fp8": 1.0, "int8": 1.0, "fp4": 0.5}.get(self.linear_math, self.act_bytes)


def choose_math(fmt: Format, gpu: Gpu) -> str:
    """The best number format in which this GPU can multiply a stored format.

    Raises
    ------
    UsageError
        When it can in none.
    """
    for math in fmt.math:
        if gpu.supports(math):
            return math
    formats = ", ".join(fmt.math)
    raise UsageError(f"{gpu.name} computes in none of {formats}, which {fmt.name} needs; choose another format")


def check_number(name: str, value: Num, least: float = 1.0) -> None:
    """Refuse what is not finite, too small or absurd.

    Raises
    ------
    UsageError
        With the value and the limit.
    """
    array = np.asarray(value, dtype=np.float64)
    most = LIMITS.get(name, 10**12)
    bad = array[~((array >= least) & (array <= most))]
    if bad.size:
        raise UsageError(f"{name} must be between {least:g} and {most:g}, not {bad.flat[0]:g}")


def make_plan(
    model: ModelSpec, gpu: Gpu, tp: int = 1, pp: int = 1, ep: int = 1, dp: int = 1,
    weights: str | Format | None = None, kv: str | Format = "bf16",
) -> Plan:  # fmt: skip
    """Check the degrees of parallelism against the model and choose the arithmetic from the GPU.

    Raises
    ------
    UsageError
        For a degree that does not divide what it cuts. Fewer KV heads than ranks are replicated, as engines do.
    """
    for name, value in (("tp", tp), ("pp", pp), ("ep", ep), ("dp", dp)):
        check_number(name, float(value))
        if value != int(value):
            raise UsageError(f"{name} must be a whole number, not {value}")
    stored, cache = weight_format(weights or model.native_format), kv_format(kv)
    plan = Plan(
        tp, pp, ep, dp, stored, cache, choose_math(stored, gpu), choose_math(cache, gpu),
        choose_math(weight_format("bf16"), gpu), 4.0 if stored.name == "fp32" else 2.0,
    )  # fmt: skip
    _check_cuts(model, plan)
    return plan


def _check_cuts(model: ModelSpec, plan: Plan) -> None:
    if plan.pp > model.num_layers:
        raise UsageError(f"pp {plan.pp} is above the {model.num_layers} layers of {model.name}; use at most that")
    experts = [f for f in model.ffn.values() if isinstance(f, Moe)]
    if plan.ep > 1:
        if not experts:
            raise UsageError(f"ep {plan.ep}: {model.name} has no experts; leave ep at 1")
        if (plan.tp * plan.dp) % plan.ep:
            raise UsageError(f"ep {plan.ep} must divide tp x dp = {plan.tp * plan.dp}")
    for a in model.attention.values():
        _divides("tp", plan.tp, a.heads, "attention heads", model)
        if isinstance(a, Gqa) and plan.tp > a.kv_heads and plan.tp % a.kv_heads:
            what = f"tp {plan.tp} is no multiple of the {a.kv_heads} KV heads of {model.name}"
            raise UsageError(f"{what}; {_degrees(a.heads)}")
        if isinstance(a, Gqa) and plan.tp <= a.kv_heads:
            _divides("tp", plan.tp, a.kv_heads, "KV heads", model)
    for f in model.ffn.values():
        if isinstance(f, Moe):
            _divides("ep", plan.ep, f.experts, "experts", model)
            _divides("tp", plan.expert_tp, f.intermediate_size, "expert features", model)
            if f.shared_intermediate_size:
                _divides("tp", plan.tp, f.shared_intermediate_size, "shared-expert features", model)
        else:
            _divides("tp", plan.tp, f.intermediate_size, "feed-forward features", model)


def _divides(name: str, degree: int, size: int, what: str, model: ModelSpec) -> None:
    if size % degree:
        raise UsageError(f"{name} {degree} does not divide the {size} {what} of {model.name}; {_degrees(size, name)}")


def _degrees(size: int, name: str = "tp") -> str:
    fits = [d for d in range(1, min(size, 128) + 1) if size % d == 0]
    return f"{name} can be {', '.join(map(str, fits[:12]))}"
