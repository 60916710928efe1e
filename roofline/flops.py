"""Matrix FLOPs of a model, of a layer and of its parts, all counted on the graph; and the layer that textbooks have.

The graph counts what a FLOP counter counts (matrix products; causal attention with the half that is needed), so these
are exact for one text token or prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.counts import by_role
from perfmodel.modelspecs.schema import Dense, Gqa, ModelSpec, Run
from perfmodel.roofline.critical import _FFN, _is_linear
from perfmodel.roofline.graph import graph
from perfmodel.roofline.step import Plan, Step, decode, prefill


def step_flops(model: ModelSpec, step: Step) -> float:
    """Matrix FLOPs of a step with scalar numbers, LM head included. [FLOP]"""
    return sum(float(op.cost().matrix_flops) for op in graph(model, step, Plan()))


def flops_per_token(model: ModelSpec, context: int = 1) -> float:
    """Matrix FLOPs of one decoded token with ``context`` tokens in the cache, itself included. [FLOP]

    Twice the active parameters that are matrices, plus attention over the context. The input embedding is a row read
    and costs none.

    >>> from perfmodel.modelspecs.load import model
    >>> round(flops_per_token(model("llama3-70b")) / 1e9, 1)
    139.0
    """
    return step_flops(model, decode(1.0, float(context)))


@dataclass(frozen=True)
class LayerWork:
    """Matrix FLOPs of the layers of a model over one prompt, without embedding and LM head. [FLOP]

    Attributes
    ----------
    scores : float
        The two products of attention (QK^T and PV).
    projections : float
        Attention's projections.
    ffn : float
        Feed-forward layers, routers and experts included.
    """

    scores: float
    projections: float
    ffn: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.scores + self.projections + self.ffn

    @property
    def linear(self) -> float:
        """What does not grow with the square of the length."""
        return self.projections + self.ffn

    @property
    def ffn_share(self) -> float:
        """Share of the feed-forward layers."""
        return self.ffn / self.total


def layer_work(model: ModelSpec, length: int, causal: bool = True) -> LayerWork:
    """Matrix FLOPs of all layers over a prompt of ``length`` tokens, by part.

    Parameters
    ----------
    length : int
        Tokens of the prompt.
    causal : bool
        Count the needed pairs, ``s (s + 1) / 2`` a head; else all ``s^2`` (full attention only).

    Raises
    ------
    UsageError
        For ``causal=False`` with windowed or chunked layers, where "all pairs" says nothing.

    >>> work = layer_work(textbook_model(3072), 1024, causal=False)
    >>> work.linear == 24 * 1024 * 3072**2, work.scores == 4 * 1024**2 * 3072
    (True, True)
    """
    if not causal and any(isinstance(a, Gqa) and (a.window or a.chunk) for a in model.attention.values()):
        raise UsageError(f"{model.name} has windowed attention: its pairs without a causal mask are not defined here")
    scores = projections = ffn = 0.0
    for op in graph(model, prefill(1.0, float(length)), Plan()):
        work = float(op.cost().matrix_flops)
        if op.kind in ("attention", "mla"):
            scores += work if causal else work * 2 * length / (length + 1)
        elif _is_linear(op) and op.layer:
            if op.name.removeprefix("shared_") in _FFN or op.name.startswith("experts_"):
                ffn += work
            else:
                projections += work
    return LayerWork(scores, projections, ffn)


def op_share(model: ModelSpec, step: Step, name: str) -> float:
    """Share of one operator (``"lm_head"``) in the matrix FLOPs of a step. [1]"""
    mine = sum(float(op.cost().matrix_flops) for op in graph(model, step, Plan()) if op.name == name)
    return mine / step_flops(model, step)


def role_share(model: ModelSpec, role: str) -> float:
    """Share of a role (``"lm_head"``) in the parameters, parts counted apart left out. [1]

    >>> from perfmodel.modelspecs.load import model
    >>> round(role_share(model("llama3-70b"), "lm_head"), 4)
    0.0149
    """
    roles = {name: count for name, count in by_role(model).items() if name not in ("mtp", "buffer")}
    return roles.get(role, 0) / sum(roles.values())


def textbook_model(hidden_size: int = 6144, layers: int = 1, heads: int | None = None) -> ModelSpec:
    """The transformer that textbooks count on: multi-head attention and SwiGLU of 8/3 d, nothing else.

    A layer has 12 d^2 parameters in matrices; over s tokens it does ``24 s d^2 + 4 s^2 d`` FLOPs without a mask.

    Parameters
    ----------
    hidden_size : int
        d, a multiple of 3 and of the heads.
    heads : int, optional
        By default heads of 128.

    Raises
    ------
    UsageError
        When 8/3 d or a head is no whole number.
    """
    heads = heads or max(hidden_size // 128, 1)
    if hidden_size % 3 or hidden_size % heads:
        raise UsageError(f"hidden size {hidden_size} must be a multiple of 3 and of its {heads} heads")
    return ModelSpec(
        name=f"textbook-{hidden_size}",
        title=f"textbook transformer, d = {hidden_size}",
        source="multi-head attention and SwiGLU with d_ff = 8/3 d",
        hidden_size=hidden_size,
        vocab_size=32000,
        max_context=2**20,
        attention={"full": Gqa(heads=heads, kv_heads=heads, head_dim=hidden_size // heads)},
        ffn={"swiglu": Dense(intermediate_size=8 * hidden_size // 3)},
        layers=(Run(repeat=layers, pattern=("full/swiglu",)),),
    )
