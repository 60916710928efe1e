"""What is run and how it is spread: a step of work, and a plan of parallelism and formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.formats import Format, kv_format, weight_format
from perfmodel.modelspecs.mixes import stored_format
from perfmodel.modelspecs.schema import Compressed, Gqa, ModelSpec, Moe
from perfmodel.modelspecs.schema_recurrent import NoMixer, Recurrent
from perfmodel.roofline.dequantize import check_instructions, instructions

#: Above this a batch, a length or a degree of parallelism is a slip of the pen.
LIMITS = {
    "batch": 10**7,
    "input": 10**8,
    "output": 10**8,
    "context": 10**8,
    "tp": 4096,
    "pp": 4096,
    "ep": 65536,
    "dp": 65536,
}


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
    other_math : str
        Number format for the matrices that a checkpoint stores in another format than the rest (DeepSeek V4).
    dequantization : float or None
        Instructions a weight with which a kernel unpacks weights that no unit multiplies as they are stored; ``None``:
        as ``dequantize.instructions`` says.
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
    other_math: str = "bf16"
    dequantization: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tp * self.pp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that cut one expert."""
        return self.tp * self.dp // self.ep if self.ep > 1 else self.tp

    def unpacking(self, fmt: Format, math: str) -> float:
        """Instructions a weight of a format that is multiplied in ``math``; 0 where nothing is unpacked."""
        return instructions(fmt, math, self.dequantization)

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


def check_number(name: str, value: object, least: float = 1.0) -> None:
    """Refuse what is not finite, too small or absurd.

    Raises
    ------
    UsageError
        With the value and the limit.
    """
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{name} must be a number, not {str(value)[:40]!r}") from error
    most = LIMITS.get(name, 10**12)
    bad = array[~((array >= least) & (array <= most))]
    if bad.size:
        raise UsageError(f"{name} must be between {least:g} and {most:g}, not {bad.flat[0]:g}")


def check_whole(name: str, value: float) -> None:
    """Refuse what is not a whole number within the limits of ``name``.

    Raises
    ------
    UsageError
    """
    check_number(name, value)
    if np.ndim(value) or value != int(value):
        raise UsageError(f"{name} must be a whole number, not {str(value)[:40]}")


def make_plan(
    model: ModelSpec, gpu: Gpu, tp: int = 1, pp: int = 1, ep: int = 1, dp: int = 1,
    weights: str | Format | None = None, kv: str | Format = "bf16", dequantization: float | None = None,
) -> Plan:  # fmt: skip
    """Check the degrees of parallelism against the model and choose the arithmetic from the GPU.

    ``other_math`` is that of the first format of ``native_roles``, for no checkpoint has more than one; of a preset of
    llama.cpp that of all its types.

    Raises
    ------
    UsageError
        For a degree that does not divide what it cuts. Fewer KV heads than ranks are replicated, as engines do.
    """
    for name, value in (("tp", tp), ("pp", pp), ("ep", ep), ("dp", dp)):
        check_whole(name, value)
    stored, cache = stored_format(model, weights or model.native_format), kv_format(kv)
    plan = Plan(
        int(tp), int(pp), int(ep), int(dp), stored, cache, choose_math(stored, gpu), choose_math(cache, gpu),
        choose_math(weight_format("bf16"), gpu), 4.0 if stored.name == "fp32" else 2.0,
        choose_math(stored if stored.roles else weight_format(next(iter(model.native_roles.values()), "bf16")), gpu),
        check_instructions(dequantization),
    )  # fmt: skip
    _check_cuts(model, plan)
    return plan


def _check_cuts(model: ModelSpec, plan: Plan) -> None:
    if plan.pp > model.num_layers:
        raise UsageError(f"pp {plan.pp} is above the {model.num_layers} layers of {model.name}; use at most that")
    if plan.ep > 1:
        if not any(isinstance(f, Moe) for f in model.ffn.values()):
            raise UsageError(f"ep {plan.ep}: {model.name} has no experts; leave ep at 1")
        if (plan.tp * plan.dp) % plan.ep:
            raise UsageError(f"ep {plan.ep} must divide tp x dp = {plan.tp * plan.dp}; {_allowed('ep', model, plan)}")
    if problem := _misfit(model, plan):
        name, text = problem
        raise UsageError(f"{text} of {model.name}; {_allowed(name, model, plan)}")


def _misfit(model: ModelSpec, plan: Plan) -> tuple[str, str] | None:
    """The first degree that does not divide what it cuts, by name and in words."""
    return next(((name, text) for name, size, degree, text in _cuts(model, plan) if size % degree), None)


def _cuts(model: ModelSpec, plan: Plan) -> Iterator[tuple[str, int, int, str]]:
    """What is cut: the degree's name, a size, the number that must divide it, and what to say when it does not."""
    tp, ep, parts = plan.tp, plan.ep, plan.expert_tp
    for a in model.attention.values():
        mixer = a.beside if isinstance(a, Gqa) else a
        if isinstance(mixer, Recurrent):
            yield from _mixer_cuts(mixer, tp)
        if isinstance(a, Recurrent | NoMixer):
            continue
        yield "tp", a.heads, tp, f"tp {tp} does not divide the {a.heads} attention heads"
        if isinstance(a, Compressed):
            yield "tp", a.o_groups, tp, f"tp {tp} does not divide the {a.o_groups} output groups"
        if isinstance(a, Gqa) and tp <= a.kv_heads:
            yield "tp", a.kv_heads, tp, f"tp {tp} does not divide the {a.kv_heads} KV heads"
        elif isinstance(a, Gqa):  # whole copies, an equal number of each
            yield "tp", tp, a.kv_heads, f"tp {tp} is not a multiple of the {a.kv_heads} KV heads"
    for f in model.ffn.values():
        if not isinstance(f, Moe):  # 0 of none, which everything divides
            size = f.intermediate_size
            yield "tp", size, tp, f"tp {tp} does not divide the {size} feed-forward features"
            continue
        size, shared = f.intermediate_size, f.shared_intermediate_size
        yield "ep", f.experts, ep, f"ep {ep} does not divide the {f.experts} experts"
        cut = f"tp {tp}" if ep == 1 else f"tp x dp / ep = {parts}"
        yield "tp", size, parts, f"{cut} does not divide the {size} features of an expert"
        yield "tp", shared, tp, f"tp {tp} does not divide the {shared} shared-expert features"


def _mixer_cuts(a: Recurrent, tp: int) -> Iterator[tuple[str, int, int, str]]:
    """Heads of a recurrent mixer, and groups that are copied whole where there are fewer of them than ranks."""
    yield "tp", a.units, tp, f"tp {tp} does not divide the {a.units} {a.unit_name}"
    if a.replicated:
        smaller, larger = sorted((tp, a.replicated))
        yield "tp", larger, smaller, f"tp {tp} and the {a.replicated} groups of the {a.unit_name} do not divide"


def _allowed(name: str, model: ModelSpec, plan: Plan) -> str:
    """The degrees up to 128 that would do, with the others as they are."""
    degrees: list[dict[str, Any]] = [{name: degree} for degree in range(1, 129)]
    others = [replace(plan, **changed) for changed in degrees]
    fits = [getattr(p, name) for p in others if (p.tp * p.dp) % p.ep == 0 and _misfit(model, p) is None]
    return f"{name} can be {', '.join(map(str, fits))}" if fits else f"no {name} would do with the other degrees"
