"""What proposes tokens, as work: the graph of a drafter's real architecture, matrices beside the target, or nothing.

A draft pass is one forward pass of the drafter. Serial drafters (an independent model, EAGLE, MTP) run one a drafted
position; single-pass drafters (Medusa's heads, parallel drafters) one a round; a lookup none at all.

Sources: EAGLE (arXiv:2401.15077), EAGLE-3 (arXiv:2503.01840) and vLLM's ``llama_eagle.py``, ``llama_eagle3.py``; Medusa
(arXiv:2401.10774); DeepSeek-V3 (arXiv:2412.19437, section 2.2) for MTP; P-EAGLE and ParallelSpec (arXiv:2410.05589) for
single-pass drafters; MagicDec (arXiv:2408.11049) for drafts on a part of the cache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.base.errors import UsageError
from perfmodel.base.num import Num
from perfmodel.modelspecs.formats import Format, weight_format
from perfmodel.modelspecs.schema import Dense, Gqa, ModelSpec, Mtp, Run
from perfmodel.modelspecs.sizes import tensor_bytes
from perfmodel.modelspecs.tensors import Tensor
from perfmodel.roofline import ops
from perfmodel.roofline.graph import graph
from perfmodel.roofline.op import Input, Op
from perfmodel.roofline.setup import Setup, setup
from perfmodel.roofline.sharding import rank_weight_bytes
from perfmodel.roofline.step import Step

Passes = Literal["serial", "single", "none"]

#: Vocabulary of EAGLE-3 heads: the most frequent tokens (``draft_vocab_size`` of the published heads).
EAGLE3_VOCAB = 32_000


@dataclass(frozen=True)
class Matrix:
    """A weight matrix that a pass multiplies its tokens with, beside the drafter's layers.

    Attributes
    ----------
    name : str
    out, inp : int
        Output and input features.
    rows : str
        ``token``: once for each token of the pass; ``last``: once a sequence.
    split : bool
        Whether tensor parallelism cuts its rows; else every rank computes it whole.
    fmt : str
        Storage format.
    """

    name: str
    out: int
    inp: int
    rows: Literal["token", "last"] = "token"
    split: bool = False
    fmt: str = "bf16"

    def op(self, ready: Setup, batch: Num, q: Num) -> Op:
        """Its operator on one rank."""
        out = -(-self.out // ready.plan.tp) if self.split else self.out
        inputs: dict[str, Input] = {
            "m": batch * q if self.rows == "token" else batch, "n": float(out), "k": float(self.inp),
            "weight_bytes": self.bytes(ready.plan.tp), "act_bytes": 2.0, "out_bytes": 2.0,
            "math": ready.plan.dense_math,
        }  # fmt: skip
        return Op(self.name, "gemm", "", 1.0, ops.gemm, inputs)

    def bytes(self, tp: int = 1) -> float:
        """Bytes on one rank."""
        out = -(-self.out // tp) if self.split else self.out
        return tensor_bytes(Tensor(self.name, "draft", (out, self.inp), quantizable=True), self.fmt)


@dataclass(frozen=True)
class Draft:
    """A source of proposed tokens.

    Attributes
    ----------
    title : str
    target : Setup
        What it drafts for.
    ready : Setup or None
        The model that a pass runs; None where a pass is ``each`` alone, or there is none.
    each, once : tuple[Matrix, ...]
        Matrices of every pass, and of the first pass of a round alone (on the tokens that were just verified).
    passes : str
        ``serial``, ``single`` or ``none``.
    catches_up : bool
        Whether the first pass takes all positions of the last verification (EAGLE and MTP read the target's features
        there) instead of the newest token alone.
    shares : tuple[str, ...]
        Roles whose weights are the target's own and not stored again.
    is_target : bool
        Whether it is the target itself, whose weights and cache are there already.
    note : str
        What was assumed.
    """

    title: str
    target: Setup
    ready: Setup | None = None
    each: tuple[Matrix, ...] = ()
    once: tuple[Matrix, ...] = ()
    passes: Passes = "serial"
    catches_up: bool = False
    shares: tuple[str, ...] = ()
    is_target: bool = False
    note: str = ""

    def pass_ops(self, batch: Num, q: Num, kv: Num, first: bool = False, logits: Num = 1.0) -> list[Op]:
        """Operators of one draft pass.

        Parameters
        ----------
        batch, q, kv : Num
            Sequences, tokens of each in this pass, tokens in the cache after it.
        first : bool
            Whether it opens a round.
        logits : Num
            Positions a sequence that propose a token.
        """
        if self.passes == "none":
            return []
        found: list[Op] = []
        if self.ready:
            step = Step("verify", batch, q, kv, logits)
            found = graph(self.ready.model, step, self.ready.plan, self.ready.topology)
        return found + [m.op(self.target, batch, q) for m in (*self.each, *(self.once if first else ()))]

    @property
    def weight_bytes(self) -> float:
        """Bytes that it adds to the fullest rank; what it shares with the target is left out."""
        total = sum(m.bytes(self.target.plan.tp) for m in (*self.each, *self.once))
        if self.ready is None or self.is_target:
            return total
        return total + rank_weight_bytes(self.ready.model, self.ready.plan) - self._shared_bytes()

    def _shared_bytes(self) -> float:
        from perfmodel.roofline.sharding import outer_tensors, stored_bytes

        assert self.ready is not None
        outer = outer_tensors(self.ready.model, self.ready.plan)
        return sum(stored_bytes(outer.get(role, ()), self.ready.plan) for role in self.shares)

    def kv_bytes(self, batch: Num, context: Num) -> Num:
        """Bytes of its own cache on the fullest rank."""
        from perfmodel.roofline.memory import rank_kv_bytes

        if self.ready is None or self.is_target:
            return 0.0
        return rank_kv_bytes(self.ready.model, self.ready.plan, batch, context)


def like(target: Setup, spec: ModelSpec, tp: int | None = None, weights: str | Format | None = None) -> Setup:
    """A drafter's setup on the target's GPUs: the same cache format, and its tensor parallelism where that divides.

    Without ``tp``, a drafter that the target's degree cannot cut takes the largest divisor that can: vLLM and SGLang
    run drafters at the target's degree or at 1.
    """
    options = {"kv": target.plan.kv, "weights": weights, "system": target.system if target.plan.gpus > 1 else None}
    if tp is not None:
        return setup(spec, target.gpu, tp=tp, dp=target.plan.dp, **options)  # type: ignore[arg-type]
    for degree in (target.plan.tp, 1):
        try:
            return setup(spec, target.gpu, tp=degree, dp=target.plan.dp, **options)  # type: ignore[arg-type]
        except UsageError:
            if degree == 1:
                raise
    raise AssertionError("unreachable")


def independent(
    target: Setup, model: str | ModelSpec, tp: int | None = None, weights: str | Format | None = None, window: int = 0
) -> Draft:
    """A smaller model of the same vocabulary, as in speculative sampling.

    Parameters
    ----------
    window : int
        Keys that its attention keeps, sink tokens included (StreamingLLM, as MagicDec drafts); 0: all.

    Raises
    ------
    UsageError
        When the vocabularies differ by more than padding: the tokens of one would mean nothing to the other.
    """
    from perfmodel.modelspecs.load import model as load_model

    spec = load_model(model)
    ours, its = target.model.vocab_size, spec.vocab_size
    if abs(ours - its) > 0.02 * ours:
        raise UsageError(
            f"{spec.title} has {its:,} tokens and {target.model.title} {ours:,}: a draft needs the target's vocabulary"
        )
    kept = f", {window} keys kept" if window else ""
    ready = like(target, windowed(spec, window) if window else spec, tp, weights)
    return Draft(f"{spec.title}{kept}", target, ready, note=_vocabulary_note(target.model, spec))


def _vocabulary_note(target: ModelSpec, draft: ModelSpec) -> str:
    """A warning where vocabularies of one size may hold other tokens: the models are of different families."""
    ours, its = (re.sub(r"[^a-z].*", "", spec.family) for spec in (target, draft))
    if ours == its or not ours or not its:
        return ""
    return (
        f"{draft.title} ({draft.family}) and {target.title} ({target.family}) are of different families: their "
        "vocabularies have one size, but check that they hold the same tokens"
    )


def windowed(model: ModelSpec, window: int) -> ModelSpec:
    """A model whose full attention sees the last ``window`` keys only: what a drafter with a sparse cache computes."""
    attention = {
        name: a.model_copy(update={"window": window}) if isinstance(a, Gqa) and not (a.window or a.chunk) else a
        for name, a in model.attention.items()
    }
    if attention == model.attention:
        raise UsageError(f"no layer of {model.title} has full attention with keys of its own: a window changes nothing")
    return model.model_copy(update={"attention": attention, "name": f"{model.name}-window-{window}"})


def own_sparse(target: Setup, window: int) -> Draft:
    """The target itself on a part of its cache (MagicDec's self-speculation): no weights added, its cache shared."""
    ready = replace(target, model=windowed(target.model, window))
    return Draft(f"{target.model.title} with {window} keys", target, ready, is_target=True)


def eagle(
    target: Setup, version: int = 3, *, layers: int = 1, draft_vocab: int | None = None,
    intermediate: int | None = None, heads: tuple[int, int, int] | None = None,
) -> Draft:  # fmt: skip
    """An EAGLE head: one decoder layer of the target's width, fed with the target's features.

    Versions 1 and 2: ``fc`` takes feature and embedding (2d -> d) in every pass, the LM head is the target's. Version
    3: ``fc`` fuses three features (3d -> d) once a round, the layer's QKV takes embedding and hidden state (2d), the
    head has a vocabulary of its own.

    Parameters
    ----------
    layers : int
        Decoder layers: 1 but for P-EAGLE's published heads (4); the first takes the embedding.
    draft_vocab : int, optional
        Version 3: 32,000 (the published heads) unless the target's is smaller.
    intermediate : int, optional
        Features of its feed-forward part; the target's dense one, or for a mixture of experts 4 x d / 1.5 in steps of
        256, as a dense layer of that width has.
    heads : (heads, kv_heads, head_dim), optional
        The target's where it has GQA, else d / 128 heads of 128 with 8 KV heads.
    """
    if version not in (1, 2, 3):
        raise UsageError(f"EAGLE {version} is not known; 1, 2 or 3")
    model, d = target.model, target.model.hidden_size
    attention, assumed_a = _eagle_attention(model, heads)
    width, assumed_f = _eagle_width(model, intermediate)
    vocab = min(draft_vocab or EAGLE3_VOCAB, model.vocab_size) if version == 3 else model.vocab_size
    spec = ModelSpec(
        name=f"{model.name}-eagle{version}", source="derived from the target",
        title=f"EAGLE-{version} head" + (f", {layers} layers" if layers > 1 else ""),
        hidden_size=d, vocab_size=vocab, max_context=model.max_context,
        norm=model.norm.model_copy(update={"per_layer": 2}),
        attention={"full": attention}, ffn={"mlp": Dense(intermediate_size=width)},
        layers=(Run(repeat=layers, pattern=("full/mlp",)),),
    )  # fmt: skip
    qkv = attention.heads * attention.head_dim + 2 * attention.kv_heads * attention.head_dim
    fused = Matrix("draft_fc", d, (3 if version == 3 else 2) * d)
    more = Matrix("draft_qkv_embedding", qkv, d, split=True)
    return Draft(
        spec.title, target, like(target, spec, weights="bf16"), each=(more,) if version == 3 else (fused,),
        once=(fused,) if version == 3 else (), catches_up=True,
        shares=("embedding",) if version == 3 else ("embedding", "lm_head"),
        note="; ".join(filter(None, (assumed_a, assumed_f))),
    )  # fmt: skip


def _eagle_attention(model: ModelSpec, heads: tuple[int, int, int] | None) -> tuple[Gqa, str]:
    if heads:
        return Gqa(heads=heads[0], kv_heads=heads[1], head_dim=heads[2]), ""
    for a in model.attention.values():
        if isinstance(a, Gqa) and not a.shared_kv:
            return Gqa(heads=a.heads, kv_heads=a.kv_heads, head_dim=a.head_dim), ""
    n = max(model.hidden_size // 128, 1)
    return Gqa(heads=n, kv_heads=8 if n % 8 == 0 else n, head_dim=128), f"{n} heads of 128 assumed for the head"


def _eagle_width(model: ModelSpec, given: int | None) -> tuple[int, str]:
    if given:
        return given, ""
    dense = [f.intermediate_size for f in model.ffn.values() if isinstance(f, Dense)]
    if dense:
        return max(dense), ""
    width = round(model.hidden_size * 8 / 3 / 256) * 256
    return width, f"{width} feed-forward features assumed for the head"


def mtp(target: Setup) -> Draft:
    """The target's own multi-token-prediction layer, run again for each drafted token, as vLLM and SGLang do.

    Raises UsageError for a target without one.
    """
    model = target.model
    if model.mtp is None:
        raise UsageError(f"{model.title} has no multi-token-prediction layer; choose another method")
    kept: Mtp = model.mtp
    spec = model.model_copy(
        update={
            "name": f"{model.name}-mtp", "title": "MTP layer", "mtp": None, "extra_tensors": (),
            "layers": (Run(repeat=1, pattern=(kept.layer, *kept.more)),),
        }
    )  # fmt: skip
    ready = replace(target, model=spec, plan=replace(target.plan, pp=1))
    joined = Matrix("draft_eh_proj", model.hidden_size, 2 * model.hidden_size)
    shares = () if kept.own_embedding else ("embedding",) if kept.own_head else ("embedding", "lm_head")
    return Draft("MTP layer", target, ready, each=(joined,), catches_up=True, shares=shares)


def medusa(target: Setup, heads: int = 4, *, blocks: int = 1) -> Draft:
    """Medusa's heads: each ``blocks`` residual matrices (d x d) and an LM head of its own, on the last hidden state.

    All heads run in one pass on one position a sequence.
    """
    if not 1 <= heads <= 16:
        raise UsageError(f"{heads} Medusa heads; 1 to 16 are possible")
    d, vocab = target.model.hidden_size, target.model.vocab_size
    matrices = tuple(
        m
        for k in range(heads)
        for m in (
            *(Matrix(f"medusa_{k + 1}_block", d, d, "last", split=True) for _ in range(blocks)),
            Matrix(f"medusa_{k + 1}_head", vocab, d, "last", split=True),
        )
    )
    return Draft(f"{heads} Medusa heads", target, each=matrices, passes="single")


def lookup(target: Setup) -> Draft:
    """Tokens found in the text so far (n-gram, prompt lookup, suffix tree): no work for the GPU."""
    return Draft("lookup", target, passes="none")


def parallel(draft: Draft) -> Draft:
    """The same drafter trained to propose all tokens in one pass, over mask tokens (ParallelSpec, P-EAGLE)."""
    if draft.ready is None:
        raise UsageError(f"{draft.title} has no layers to run over mask tokens")
    return replace(draft, title=f"{draft.title}, all tokens in one pass", passes="single")


def precise(draft: Draft, weights: str | Format) -> Draft:
    """The drafter with its layers' weights in another format."""
    if draft.ready is None:
        return draft
    return replace(draft, ready=like(draft.target, draft.ready.model, draft.ready.plan.tp, weight_format(weights)))
