"""Claims about speculative decoding (chapter section 3): S1 to S5, S7, S8 and S10."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from perfmodel.reports.claims import Line, claim
from perfmodel.roofline.speculative import formulas
from perfmodel.roofline.speculative.acceptance import acceptance, residual, total_variation
from perfmodel.roofline.speculative.evaluate import Speculation, speculate
from perfmodel.roofline.speculative.trees import Tree


@claim("S1", where="3.3", says="tau = (1 - a^(g+1)) / (1 - a); S = tau / (g c + 1); S_max = 1 / (1 - a)")
def s1() -> Iterator[Line]:
    """The formulas, their limits, and the sum that they come from."""
    for alpha, chapter in ((0.8, 5.0), (0.9, 10.0)):
        yield Line(
            f"a = {alpha}: bound on the speedup", chapter, float(formulas.speedup_bound(alpha)), "x",
            formulas.speedup_bound, note="the bound needs endless drafts as well as a free draft",
        )  # fmt: skip
    yield Line("a = 0.8, g = 5: tau", None, float(formulas.expected_tokens(0.8, 5)), "tokens", formulas.expected_tokens)
    yield Line("a = 0.8, g = 5, free draft: speedup", None, float(formulas.speedup(0.8, 5, 0.0)), "x", formulas.speedup)
    accepted = formulas.accepted_pmf(np.full(5, 0.8))
    summed = float((accepted * np.arange(1, 7)).sum())
    yield Line(
        "a = 0.8, g = 5: closed form over the sum of all accepted lengths", 1,
        float(formulas.expected_tokens(0.8, 5)) / summed, "x", formulas.accepted_pmf,
    )  # fmt: skip
    yield Line(
        "a = 1, g = 5: tau, where the closed form divides by zero", None, float(formulas.expected_tokens(1.0, 5)),
        "tokens", formulas.expected_tokens,
    )  # fmt: skip


@claim("S2", where="3.2 and 3.4", says="the acceptance is 1 - TVD(p, q); the output distribution is exactly p")
def s2() -> Iterator[Line]:
    """Both identities on two random distributions over 1,000 tokens."""
    rng = np.random.default_rng(7)
    p, q = rng.dirichlet(np.ones(1000)), rng.dirichlet(np.ones(1000))
    accepted = float(acceptance(p, q))
    yield Line(
        "two random distributions over 1,000 tokens: sum min(p, q) over 1 - TVD", 1,
        accepted / (1 - float(total_variation(p, q))), "x", acceptance,
    )  # fmt: skip
    output = np.minimum(p, q) + (1 - accepted) * residual(p, q)
    yield Line(
        "the same: largest error of accepted and redrawn parts against p, FP64", (0, 1e-15),
        float(np.abs(output - p).max()), "", residual,
        note="a million sampled rounds of chains and trees pass a chi-square test against the target",
    )  # fmt: skip


@claim("S3", where="3.3", says="a below 0.3 is a loss, and so is c above 0.5, even at a = 0.8")
def s3() -> Iterator[Line]:
    """Speedups where the chapter says there is none."""
    reason = "a loss for long drafts alone: some length pays just where a > c"
    for alpha, gamma, cost in ((0.3, 1, 0.05), (0.8, 1, 0.5), (0.3, 5, 0.1), (0.8, 8, 0.6)):
        yield Line(
            f"a = {alpha}, c = {cost}, g = {gamma}: speedup", (0, 1), float(formulas.speedup(alpha, gamma, cost)), "x",
            formulas.speedup, reason, strict=True,
        )  # fmt: skip
    yield Line(
        "c = 0.05, g = 1: acceptance at which nothing is gained", 0.3,
        float(formulas.break_even_acceptance(1.0, 0.05)), "", formulas.break_even_acceptance, reason,
    )  # fmt: skip
    yield Line(
        "a = 0.8, g = 1: draft cost at which nothing is gained", 0.5, float(formulas.break_even_cost(0.8, 1)), "",
        formulas.break_even_cost, reason,
    )  # fmt: skip
    yield Line(
        "a = 0.3, c = 0.05: best draft length", None, float(formulas.best_gamma(0.3, 0.05)), "", formulas.best_gamma
    )


#: What the chapter says of batches.
BATCHES = {1: (2.0, 3.0), 4: (2.0, 3.0), 8: (1.3, 1.6), 32: (0.0, 1.0), 128: (0.0, 1.0)}


@claim("S4", where="3.3", says="2-3x at batches of 1 to 4, 1.3-1.6x at 8, none or a loss from 32")
def s4() -> Iterator[Line]:
    """Predicted speedups of Llama 3 70B on eight H100 over the batch, and where long contexts keep the gain."""
    for draft, title in (("llama3.2-1b", "a 1B"), ("llama3-8b", "an 8B")):
        found = _batches(draft)
        for i, (batch, band) in enumerate(BATCHES.items()):
            yield Line(
                f"Llama 3 70B with {title} draft, 8 x H100, a = 0.8, g = 5, 2,048 tokens, batch {batch}", band,
                float(found.speedup[i, 0]), "x", speculate, _batch_reason(batch, float(found.speedup[i, 0]), band),
                note="calibrated kernels, no engine around them; a and g are fixed, as the chapter has them",
            )  # fmt: skip
    found = _batches("llama3.2-1b")
    last = len(found.batch) - 1
    yield Line(
        "the same with a 1B draft at its best length, batch 128", (0, 1), float(found.best_speedup[last, 0]), "x",
        speculate, "shorter drafts keep a gain where a long one loses",
    )  # fmt: skip
    long = speculate("llama3.1-8b", "h100", method="magicdec", draft="llama3.2-1b", tp=8, batch=128, context=32000)
    yield Line(
        "Llama 3.1 8B with a 1B draft on 512 keys (MagicDec), 8 x H100, 32,000 tokens, batch 128", None,
        float(long.speedup[0, 0]), "x", speculate,
        note="MagicDec's table 6 reports 1.81x: at long contexts reading the cache stays the limit at any batch",
    )  # fmt: skip


@cache
def _batches(draft: str) -> Speculation:
    return speculate(
        "llama3-70b", "h100", method="speculative-sampling", draft=draft, alpha=0.8, gamma=5, tp=8, batch=list(BATCHES)
    )  # fmt: skip


def _batch_reason(batch: int, ours: float, band: tuple[float, float]) -> str:
    if ours > band[1]:
        return f"verifying six tokens of {batch} sequences still shares the weights' reading"
    return "the draft costs more of a step than the figure allows"


@claim("S5", where="3.4", says="acceptance falls with the position: a_i = a (1 - d log i), d of 0.05 to 0.10")
def s5() -> Iterator[Line]:
    """What the fall costs, and EAGLE's own rates beside it."""
    for decay in (0.05, 0.1):
        falling = formulas.decayed_acceptance(0.8, decay, 5)
        yield Line(
            f"a = 0.8, d = {decay}: acceptance of position 5", None, float(falling[-1]), "", formulas.decayed_acceptance
        )
        yield Line(
            f"a = 0.8, d = {decay}, g = 5: tau", None, float(formulas.expected_tokens_by_position(falling)), "tokens",
            formulas.expected_tokens_by_position,
        )  # fmt: skip
    falling = formulas.decayed_acceptance(0.79, 0.1, 5)
    yield Line(
        "a = 0.79, d = 0.10: acceptance of position 5, against EAGLE's on Vicuna 13B", 0.70, float(falling[-1]), "",
        formulas.decayed_acceptance, "EAGLE's falls less",
    )  # fmt: skip


def scaling_law(scale: float) -> float:
    """The chapter's formula of EAGLE-3's speedup over the training data: ``3.0 + 0.8 log2(scale)``.

    >>> scaling_law(4)
    4.6
    """
    return 3.0 + 0.8 * math.log2(scale)


@claim("S7", where="3.9", says="EAGLE-3 gains 3.0, 3.5, 4.5, 6.0x at 1, 2, 4, 8 times the data: 3.0 + 0.8 log2(scale)")
def s7() -> Iterator[Line]:
    """The chapter's formula against its own row."""
    for scale, chapter in ((1, 3.0), (2, 3.5), (4, 4.5), (8, 6.0)):
        yield Line(
            f"{scale} times the data: the formula", chapter, scaling_law(scale), "x", scaling_law,
            "the formula does not give its own row", strict=True,
        )  # fmt: skip
    yield Line("speedup from training data", None, None, reason="how a head's acceptance grows is learnt, not computed")


@claim("S8", where="3.8", says="tree attention: A[i][j] = 1 if and only if j is i or an ancestor of it")
def s8() -> Iterator[Line]:
    """The mask of a tree of 25 nodes against a walk up the parents, and the tokens that such a tree yields."""
    tree = Tree((-1, -1, -1, -1, 0, 0, 0, 1, 1, 2, 2, 3, 4, 4, 4, 5, 5, 6, 6, 7, 12, 12, 12, 20, 20))
    mask, wrong = tree.mask(), 0
    for node in range(len(tree)):
        path, at = {node}, tree.parents[node]
        while at >= 0:
            path.add(at)
            at = tree.parents[at]
        wrong += sum(bool(mask[node, other]) != (other in path) for other in range(len(tree)))
    yield Line("EAGLE-1's tree of 25 nodes: entries that differ from a walk up the parents", 0, wrong, "", Tree.mask)
    ranks = np.array([0.79, 0.06, 0.04, 0.03])
    tokens = tree.expected_tokens(tree.acceptances_by_rank(ranks))
    yield Line("the same: tokens a round with candidates of 0.79, 0.06, 0.04, 0.03", None, tokens, "tokens",
               Tree.expected_tokens)  # fmt: skip


@claim("S10", where="3.1 and 3.11", says="5 drafted and 4 accepted: 4 tokens for one call; 2 accepted: advances 2")
def s10() -> Iterator[Line]:
    """Tokens of single rounds: the target's own comes with those accepted."""
    reason = "the corrected (or the bonus) token comes with them"
    for accepted, chapter in ((4, 4.0), (5, 5.0), (2, 2.0)):
        tokens = formulas.expected_tokens_by_position([1.0] * accepted + [0.0] * (5 - accepted))
        yield Line(
            f"5 drafted, {accepted} accepted: tokens for one call of the target", chapter, float(tokens), "tokens",
            formulas.expected_tokens_by_position, reason, strict=True,
        )  # fmt: skip
