"""The operators of a step of an engine, apart by what they depend on: tokens, rows, caches, chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.base.num import Num
from perfmodel.roofline.graph import Site, graph
from perfmodel.roofline.graph_attention import attention_ops
from perfmodel.roofline.op import Op
from perfmodel.roofline.setup import Setup
from perfmodel.roofline.sharding import layer_tensors
from perfmodel.roofline.step import Step


class StepParts:
    """The operators of a step of any batch, in four kinds by what they depend on.

    ``tokens``: all new tokens of the step; ``rows``: the sequences, whose logits are computed; ``decode`` and
    ``chunk``: what either sort of sequences has for itself, attention above all. Which operator is which is found by
    comparing graphs: of two decodes, of a chunk of two tokens, and of one with a longer context.

    All counts are those of one rank: of data parallelism, and of a pipeline's micro-batches.
    """

    def __init__(self, ready: Setup) -> None:
        self.ready, self.ranks = ready, ready.plan.dp * ready.plan.pp
        start = Step("chunk", 1.0, 2.0, 64.0)
        self._sites = [
            Site(ready.model, start, ready.plan, ready.topology, layer_tensors(ready.model, layer, ready.plan), layer)
            for layer in ready.model.layer_classes
        ]
        decode, chunk, far = (
            self._graph(step) for step in (Step("decode", 2.0, 1.0, 64.0), start, replace(start, kv=128.0))
        )
        alike, grown = ({_key(op): op for op in ops} for ops in (chunk, far))
        self._kinds: dict[Any, str] = dict.fromkeys(alike, "chunk")
        for op in decode:
            self._kinds[_key(op)] = _kind(op, alike.get(_key(op)), grown.get(_key(op)))
        own = {key for key, kind in self._kinds.items() if kind in ("decode", "chunk", "both")}
        inside = {_key(op) for step in (start, Step("decode", 2.0, 1.0, 64.0)) for op in self._attention(step)}
        self._narrow = own <= inside

    def _whole(self, step: Step) -> Step:
        return replace(step, batch=step.batch * self.ranks)

    def _graph(self, step: Step) -> list[Op]:
        ready = self.ready
        return graph(ready.model, self._whole(step), ready.plan, ready.topology)

    def _attention(self, step: Step) -> list[Op]:
        return [op for site in self._sites for op in attention_ops(replace(site, step=self._whole(step)))]

    def _own(self, step: Step, kind: str) -> list[Op]:
        ops = self._attention(step) if self._narrow else self._graph(step)
        return [op for op in ops if self._kinds[_key(op)] in (kind, "both")]

    def tokens(self, count: Num) -> list[Op]:
        """What depends on the new tokens."""
        return [op for op in self._graph(Step("chunk", 1.0, count, count)) if self._kinds[_key(op)] == "tokens"]

    def rows(self, count: Num) -> list[Op]:
        """What depends on the sequences."""
        return [op for op in self._graph(Step("chunk", count, 1.0, 1.0)) if self._kinds[_key(op)] == "rows"]

    def decode(self, sequences: Num, queries: float, context: Num) -> list[Op]:
        """What decoding sequences have for themselves."""
        return self._own(Step("decode" if queries == 1 else "verify", sequences, queries, context, queries), "decode")

    def chunk(self, prompts: Num, tokens: Num, reach: Num) -> list[Op]:
        """What chunks have for themselves."""
        return self._own(Step("chunk", prompts, tokens, reach), "chunk")


def _key(op: Op) -> tuple[Any, ...]:
    return op.layer, op.name, op.kind, op.formula


def _kind(op: Op, other: Op | None, grown: Op | None) -> str:
    """Of an operator of two decodes, beside that of a chunk of two tokens, and of one with a longer context."""
    if other is None or grown is None:
        return "decode"
    differ = [name for name in {**op.inputs, **other.inputs} if op.inputs.get(name) != other.inputs.get(name)]
    if dict(other.inputs) != dict(grown.inputs) or len(differ) > 1:
        return "both"
    return "rows" if differ else "tokens"
