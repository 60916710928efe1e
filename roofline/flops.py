"""Matrix FLOPs of a model, of a layer and of its parts, all counted on the graph; and the layer that textbooks have.

The graph counts what a FLOP counter counts (matrix products; causal attention with the half that is needed), so these
are exact for one text token or prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num, as_num
from perfmodel.modelspecs.counts import by_role
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import Dense, Gqa, ModelSpec, Run
from perfmodel.roofline.attention import visible_pairs
from perfmodel.roofline.critical import first_root
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import LINEAR_KINDS, SCORE_KINDS, Op
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


#: GEMMs of the feed-forward part, by name; the other linear operators of a layer are attention's projections.
_FFN = ("gate_up_proj", "up_proj", "down_proj", "router", "latent_in_proj", "latent_out_proj")


@dataclass(frozen=True)
class LayerWork:
    """Matrix FLOPs of the layers of a model over one prompt, without embedding and LM head. [FLOP]

    Attributes
    ----------
    scores : Num
        The two products of attention (QK^T and PV).
    projections : Num
        Attention's projections; recurrent mixers with their scans, which grow with the length alone.
    ffn : Num
        Feed-forward layers, routers and experts included.
    """

    scores: Num
    projections: Num
    ffn: Num

    @property
    def total(self) -> Num:
        """All of it."""
        return self.scores + self.projections + self.ffn

    @property
    def linear(self) -> Num:
        """What does not grow with the square of the length."""
        return self.projections + self.ffn

    @property
    def ffn_share(self) -> Num:
        """Share of the feed-forward layers."""
        return self.ffn / self.total


def layer_work(model: ModelSpec, length: Num, causal: bool = True) -> LayerWork:
    """Matrix FLOPs of all layers over a prompt of ``length`` tokens, by part.

    Parameters
    ----------
    length : Num
        Tokens of the prompt.
    causal : bool
        Count the pairs that the mask leaves (``s (s + 1) / 2`` a head, fewer with a window); else all ``s^2``.

    >>> work = layer_work(textbook_model(3072), 1024, causal=False)
    >>> work.linear == 24 * 1024 * 3072**2, work.scores == 4 * 1024**2 * 3072
    (True, True)
    """
    parts: dict[str, Num] = {"scores": 0.0, "projections": 0.0, "ffn": 0.0}
    tokens = as_num(length)
    for op in graph(model, prefill(1.0, tokens), Plan()):
        if (part := _part(op)) is not None:
            work = op.cost().matrix_flops
            masked = 1.0 if causal or part != "scores" else tokens**2 / _visible(op, tokens)
            parts[part] = parts[part] + work * masked
    return LayerWork(**parts)


def _part(op: Op) -> str | None:
    if op.kind in SCORE_KINDS:
        return "scores"
    if op.kind == "recurrent":
        return "projections"
    if op.kind not in LINEAR_KINDS or not op.layer:
        return None
    return "ffn" if op.name.removeprefix("shared_") in _FFN or op.name.startswith("experts_") else "projections"


def _visible(op: Op, length: Num) -> Num:
    """Pairs of a prompt that the mask of an attention operator leaves."""
    window, sinks, chunk, topk = (op.inputs.get(key) for key in ("window", "sinks", "chunk", "topk"))
    limit = topk if window is None else window + sinks  # type: ignore[operator]
    return visible_pairs(length, length, limit, chunk)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Crossovers:
    """Prompt lengths at which attention's score FLOPs pass other work in prefill; infinite where never. [tokens]

    Attributes
    ----------
    ffn : float
        Scores (QK^T and PV) pass the feed-forward layers.
    linear : float
        Scores pass all linear work of the layers.
    ffn_with_projections : float
        Scores and attention's projections together pass the feed-forward layers.
    causal : bool
        Whether only the scores that the mask leaves are counted, or the full square.
    """

    ffn: float
    linear: float
    ffn_with_projections: float
    causal: bool


def crossovers(model: str | ModelSpec, causal: bool = True) -> Crossovers:
    """Lengths at which attention passes the feed-forward layers, all linear work, and with projections counted to it.

    For multi-head attention and SwiGLU of 8/3 d, not causal: 4 d, 6 d and 2 d; causal: twice that (less a token).
    """
    spec = load_model(model)
    if not layer_work(spec, 2.0).scores:
        return Crossovers(float("inf"), float("inf"), float("inf"), causal)  # no scores: a model of recurrent mixers

    def passes(surplus: Callable[[LayerWork], Num]) -> float:
        return first_root(lambda length: surplus(layer_work(spec, length, causal)))

    return Crossovers(
        passes(lambda w: w.scores - w.ffn),
        passes(lambda w: w.scores - w.linear),
        passes(lambda w: w.scores + w.projections - w.ffn),
        causal,
    )


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
