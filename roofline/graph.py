"""The graph of one step: every operator that a rank runs, one a distinct layer class, with its count.

Prefill, decode, chunked prefill and verification are this one graph with other (q, kv). GEMM shapes and weight bytes
come from the tensor inventory through ``sharding``; fused GEMMs (QKV, gate and up) are fused as engines fuse them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfmodel.base.num import Num
from perfmodel.modelspecs.schema import LayerClass, ModelSpec
from perfmodel.modelspecs.tensors import Tensor
from perfmodel.roofline import collectives, ops
from perfmodel.roofline.op import Input, Op
from perfmodel.roofline.sharding import layer_tensors, outer_tensors, stored_bytes
from perfmodel.roofline.step import Plan, Step
from perfmodel.roofline.topology import Topology


@dataclass(frozen=True)
class Site:
    """Where operators are added: one rank's view of one layer class (or of what lies outside the layers)."""

    model: ModelSpec
    step: Step
    plan: Plan
    topology: Topology
    tensors: dict[str, list[Tensor]]
    layer: LayerClass | None = None

    @property
    def batch(self) -> Num:
        """Sequences of a rank's microbatch: the batch spread over data-parallel ranks and pipeline microbatches."""
        ranks = self.plan.dp * self.plan.pp
        return np.ceil(self.step.batch / ranks) if ranks > 1 else self.step.batch

    @property
    def tokens(self) -> Num:
        """New tokens of a rank's microbatch."""
        return self.batch * self.step.q

    def op(self, name: str, kind: str, formula: object, times: float = 1.0, **inputs: Input) -> Op:
        """An operator of this site, run ``times`` times a layer."""
        count = times * (self.layer.count if self.layer else 1)
        return Op(name, kind, self.layer.name if self.layer else "", count, formula, inputs)  # type: ignore[arg-type]

    def linear(self, name: str, roles: tuple[str, ...], rows: Num | None = None) -> Op:
        """The GEMM of one or more matrices with the same input, fused."""
        parts = [t for role in roles for t in self.tensors.get(role, [])]
        matrices = [t for t in parts if len(t.shape) == 2]
        math = self.plan.linear_math if all(t.quantizable for t in matrices) else self.plan.dense_math
        act = self.plan.activation_bytes if math == self.plan.linear_math else self.plan.act_bytes
        return self.op(
            name, "gemm", ops.gemm,
            m=self.tokens if rows is None else rows, n=float(sum(t.shape[0] for t in matrices)),
            k=float(matrices[0].shape[1]), weight_bytes=stored_bytes(parts, self.plan), act_bytes=act,
            out_bytes=self.plan.act_bytes, math=math,
        )  # fmt: skip

    def pass_over(
        self, name: str, elements: Num, reads: float, writes: float, flops: float, exps: float = 0.0, times: float = 1.0
    ) -> Op:
        """An elementwise or norm kernel."""
        kind = "norm" if "norm" in name else "elementwise"
        return self.op(
            name, kind, ops.elementwise, times,
            elements=elements, reads=reads, writes=writes, act_bytes=self.plan.act_bytes, flops=flops, exps=exps,
        )  # fmt: skip

    def all_reduce(self, name: str) -> Iterator[Op]:
        """Sum of the activations over the tensor-parallel ranks, when there are several."""
        if self.plan.tp > 1:
            size = self.tokens * self.model.hidden_size * self.plan.act_bytes
            yield self.op(
                name, "collective", collectives.all_reduce,
                size=size, ranks=float(self.plan.tp), link=self.topology.tp, in_network=self._in_network(),
            )  # fmt: skip

    def _in_network(self) -> bool:
        return self.topology.in_network and self.topology.tp == "scale_up"


def graph(model: ModelSpec, step: Step, plan: Plan, topology: Topology | None = None) -> list[Op]:
    """All operators of a step on one rank, over all pipeline stages.

    Parameters
    ----------
    model : ModelSpec
    step : Step
        ``batch`` counts the sequences of the whole deployment.
    plan : Plan
        From ``make_plan``, which checks it.
    topology : Topology, optional
        From ``place``; needed when there are several GPUs.
    """
    from perfmodel.roofline.graph_attention import attention_ops
    from perfmodel.roofline.graph_ffn import ffn_ops

    topology = topology or Topology()
    outer = Site(model, step, plan, topology, outer_tensors(model, plan))
    found = list(_entry(outer))
    for layer in model.layer_classes:
        site = Site(model, step, plan, topology, layer_tensors(model, layer, plan), layer)
        d = site.tokens * model.hidden_size
        found.append(site.pass_over("norm", d, 2, 2, 5, times=float(model.norm.per_layer)))
        found += attention_ops(site)
        found += ffn_ops(site)
    found += _exit(outer)
    return found


def _entry(site: Site) -> Iterator[Op]:
    yield site.op(
        "embedding", "embedding", ops.embedding,
        tokens=site.tokens, d=float(site.model.hidden_size), weight_bytes=site.plan.act_bytes,
        act_bytes=site.plan.act_bytes,
    )  # fmt: skip
    yield from site.all_reduce("embedding_all_reduce")


def _exit(site: Site) -> Iterator[Op]:
    rows = site.batch * site.step.logits
    vocab, plan = float(site.model.vocab_size), site.plan
    if plan.pp > 1:
        size = site.tokens * site.model.hidden_size * plan.act_bytes
        yield site.op("pipeline_send", "collective", collectives.send, plan.pp - 1.0, size=size, link=site.topology.pp)
    yield site.pass_over("final_norm", rows * site.model.hidden_size, 2, 1, 5)
    yield site.linear("lm_head", ("lm_head",), rows)
    if plan.tp > 1:
        yield site.op(
            "logits_all_gather", "collective", collectives.all_gather,
            size=rows * vocab * plan.act_bytes, ranks=float(plan.tp), link=site.topology.tp,
        )  # fmt: skip
    yield site.op("sampling", "sampling", ops.sampling, rows=rows, vocab=vocab, act_bytes=plan.act_bytes)
