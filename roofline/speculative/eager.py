"""PyTorch eager decoding (Hugging Face transformers): a step costs what the device needs or what launching it costs.

Without CUDA graphs the host calls every operator and every view of it one by one, some 60 a layer, and a decode step of
a 7B model on an A100 is nothing but these calls. A forward pass of more tokens makes the same calls, so verification is
free there; what a method does around it (tree masks, candidates, draft layers, cache copies) is paid in calls too:

``step = max(device, calls x seconds a call)``, a round = verification + draft passes + bookkeeping calls.

``call`` follows from one plain speed, 40.24 tokens/s of Vicuna 7B in float16 on an A100 (hemingkx/Spec-Bench issue 4:
transformers 4.37), and from the calls counted. Checked, not fitted, on QwenLM/Qwen's README (A100, batch 1): 54.1, 40.9
and 32.2 tokens/s of 24, 32 and 40 layers of 65 calls, predicted 9 % too low. No speedup was used. Valid for batch 1 and
one GPU; another host has another ``call``, and a GPU's host is rarely named.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import UsageError
from perfmodel.roofline.clock import Clock
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.speculative import drafts
from perfmodel.roofline.speculative.drafts import Draft
from perfmodel.roofline.speculative.rounds import timed
from perfmodel.roofline.step import verify


@dataclass(frozen=True)
class Eager:
    """A host that launches.

    Attributes
    ----------
    call : float
        Time of a call of an operator or a view. [s]
    layer, own_layer : tuple[int, int]
        Calls of a decoder layer of Llama, kernels and views: of transformers with fused attention, and of the copies of
        it with a preallocated cache and attention in parts that tree methods bring along.
    outside : int
        Calls outside the layers.
    kernel : float
        Device time of a small kernel. [s]
    fused : int
        Kernels of a layer that the engines have whose times the clock gives: the others are small ones more.
    """

    call: float = 24.85e-3 / (32 * (45 + 15) + 50)
    layer: tuple[int, int] = (45, 15)
    own_layer: tuple[int, int] = (54, 19)
    outside: int = 50
    kernel: float = 2.2e-6
    fused: int = 14


#: transformers 4.37 with torch 2.1 on the host of an A100.
TRANSFORMERS = Eager()


@dataclass(frozen=True)
class EagerMethod:
    """What a method does in a round, counted from its public code to about a fifth.

    Attributes
    ----------
    tokens : int
        Tokens of a verification, the newest one included.
    width : int
        Tokens of a draft pass.
    own_model : bool
        Whether it brings its own copy of the model.
    bookkeeping : int
        Calls for candidates, masks, comparison, cache and bookkeeping.
    passes : int
        Draft passes, each of ``pass_layers`` layers and ``pass_calls`` other calls (embedding, head, top-k, gathers).
    drafter : str
        Whose weights they read: ``eagle-1``, ``eagle-3``, ``medusa``; or none.
    source : str
    """

    tokens: int
    own_model: bool
    bookkeeping: int
    passes: int = 0
    pass_layers: int = 1
    pass_calls: int = 0
    drafter: str = ""
    source: str = ""
    width: int = 4


_SPEC_BENCH = "github.com/hemingkx/Spec-Bench"
_TREE = 600  # the dynamic tree's mask and paths: loops over 60 nodes on the host, and what a static tree needs

METHODS: dict[str, EagerMethod] = {
    "medusa": EagerMethod(
        64, True, 190, drafter="medusa", source=f"{_SPEC_BENCH}, inference_medusa.py: 4 heads, tree of 63"
    ),
    "hydra": EagerMethod(
        64, True, 150, passes=4, pass_layers=0, pass_calls=60, drafter="eagle-1",
        source=f"{_SPEC_BENCH}, model/hydra: 4 heads one after another, each with an LM head",
    ),
    "eagle": EagerMethod(
        26, True, 120, passes=6, pass_calls=71, drafter="eagle-1",
        source=f"{_SPEC_BENCH}, inference_eagle.py: tree of 25, 5 deep",
    ),
    "eagle2": EagerMethod(
        60, True, _TREE, passes=6, pass_calls=83, drafter="eagle-1", width=10,
        source=f"{_SPEC_BENCH}, model/eagle2: 59 tokens, 5 deep, 10 wide",
    ),
    "eagle3": EagerMethod(
        60, True, _TREE, passes=8, pass_calls=83, drafter="eagle-3", width=10,
        source=f"{_SPEC_BENCH}, model/eagle3: 59 tokens, 7 deep, 10 wide",
    ),
    "samd[eagle2]": EagerMethod(
        60, True, _TREE, passes=6, pass_calls=83, drafter="eagle-1", width=10,
        source=f"{_SPEC_BENCH}, model/samd: as EAGLE-2 in every round, though an automaton replaces its draft in some",
    ),
    "recycling": EagerMethod(81, True, 180, source=f"{_SPEC_BENCH}, model/recycling/tree_template_.py: tree of 80"),
    "rest": EagerMethod(64, True, 300, source=f"{_SPEC_BENCH}, inference_rest.py: 64 tokens, retrieval on the host"),
    "lookahead": EagerMethod(
        57, True, 260, source=f"{_SPEC_BENCH}, eval.sh: level 5, window 7, guess 7: 4 x 7 tokens of each branch"
    ),
    "pld": EagerMethod(11, False, 80, source=f"{_SPEC_BENCH}, model/pld/pld.py: 10 tokens looked up"),
    "sps": EagerMethod(
        4, False, 80, passes=3, pass_layers=2, pass_calls=106,
        source=f"{_SPEC_BENCH}, model/sps/decoding.py: a drafter of 2 layers, some 3 tokens a round (its heuristic "
        "adds 2 after a full acceptance and takes 1 off after any other)",
    ),
}  # fmt: skip
ALIASES = {"eagle-1": "eagle", "eagle-2": "eagle2", "eagle-3": "eagle3", "medusa-1": "medusa"}


def eager_method(name: str) -> EagerMethod:
    """A method by name; raises UsageError for one that was not counted."""
    key = name.strip().casefold()
    found = METHODS.get(ALIASES.get(key, key))
    if found is None:
        raise UsageError(f"the host work of {name[:40]!r} in eager mode is not counted; known are {', '.join(METHODS)}")
    return found


@dataclass(frozen=True)
class EagerRound:
    """Seconds of a plain step and of a round in eager mode.

    Attributes
    ----------
    plain, round : float
    host_share : float
        Share of the round in which the host is what limits.
    words : str
        The sum.
    """

    plain: float
    round: float
    host_share: float
    words: str

    def speedup(self, tokens: float) -> float:
        """Of a round that yields ``tokens``."""
        return tokens * self.plain / self.round


def _drafter(target: Setup, m: EagerMethod) -> Draft | None:
    if m.drafter == "medusa":
        return drafts.medusa(target, 4)
    return drafts.eagle(target, int(m.drafter[-1])) if m.drafter else None


def round_seconds(
    target: Setup, clock: Clock, m: EagerMethod, context: float = 512.0, host: Eager = TRANSFORMERS
) -> EagerRound:
    """Time a plain step and a round of a method.

    Parameters
    ----------
    target : Setup
        On one GPU.
    clock : Clock
        Of its device times.

    Raises
    ------
    UsageError
        For more GPUs than one.
    """
    if target.plan.gpus > 1:
        raise UsageError("eager mode is modelled on one GPU")
    plain = max(_forward(target, clock, 1, host.layer, context, host))
    device, calls = _forward(target, clock, m.tokens, host.own_layer if m.own_model else host.layer, context, host)
    parts = {"bookkeeping": (0.0, host.call * m.bookkeeping)}
    draft = _drafter(target, m)
    if draft and m.drafter == "medusa":
        device += float(timed(clock, draft.pass_ops(1.0, float(m.tokens), context, True, float(m.tokens))).seconds)
    parts["verification"] = (device, calls)
    if m.passes:
        width = float(m.width)
        work = float(timed(clock, draft.pass_ops(1.0, width, context, False, width)).seconds) if draft else 0.0
        one = host.call * (m.pass_layers * sum(host.own_layer) + m.pass_calls)
        parts["drafts"] = (m.passes * work, m.passes * one)
    total = sum(map(max, parts.values()))
    by_host = sum(calls for device, calls in parts.values() if calls >= device)
    words = " + ".join(f"{name} {max(parts[name]) * 1e3:.1f} ms" for name in sorted(parts, reverse=True))
    return EagerRound(plain, total, by_host / total, f"plain step {plain * 1e3:.1f} ms; {words}")


def _forward(
    target: Setup, clock: Clock, tokens: int, layer: tuple[int, int], context: float, host: Eager
) -> tuple[float, float]:
    """Seconds on the device and of the calls of a forward pass of the target."""
    ops = graph(target.model, verify(1.0, float(tokens - 1), context), target.plan, target.topology)
    layers = target.model.num_layers
    device = float(timed(clock, ops).seconds) + layers * host.kernel * (layer[0] - host.fused)
    return device, host.call * (layers * sum(layer) + host.outside)
