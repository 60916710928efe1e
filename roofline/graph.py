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
from perfmodel.modelspecs.sizes import tensor_format
from perfmodel.modelspecs.tensors import Tensor, norm_names
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

    def cache_element(self, head_dim: int, window: int | None = None) -> Num:
        """Bytes of an element of the KV cache that a step reads: scales in it, a mean where new tokens are kept whole.

        Parameters
        ----------
        head_dim : int
            Elements of a head's vector, of a latent all of it.
        window : int, optional
            Tokens that the layer keeps at most.
        """
        kept = self.step.kv if window is None else np.minimum(self.step.kv, float(window))
        return self.plan.kv.cache_bits(head_dim, kept) / 8

    def op(self, name: str, kind: str, formula: object, times: float = 1.0, **inputs: Input) -> Op:
        """An operator of this site, run ``times`` times a layer."""
        count = times * (self.layer.count if self.layer else 1)
        return Op(name, kind, self.layer.name if self.layer else "", count, formula, inputs)  # type: ignore[arg-type]

    def linear(self, name: str, roles: tuple[str, ...], rows: Num | None = None) -> Op:
        """The GEMM of one or more matrices with the same input, fused."""
        parts = [t for role in roles for t in self.tensors.get(role, [])]
        matrices = [t for t in parts if len(t.shape) == 2]
        formats = [tensor_format(t, self.plan.weights) for t in matrices]
        plan, math = self.plan, self.plan.dense_math
        if all(fmt is plan.weights for fmt in formats):
            math = plan.linear_math
        elif all(fmt.group is not None for fmt in formats):  # stored with scales, in another format than the rest
            math = plan.other_math
        act = {plan.linear_math: plan.activation_bytes, "fp8": 1.0}.get(math, plan.act_bytes)
        unpack = min(plan.unpacking(fmt, math) for fmt in formats)
        return self.op(
            name, "gemm", ops.gemm,
            m=self.tokens if rows is None else rows, n=float(sum(t.shape[0] for t in matrices)),
            k=float(matrices[0].shape[1]), weight_bytes=stored_bytes(parts, self.plan), act_bytes=act,
            out_bytes=self.plan.act_bytes, math=math, **({"dequant": unpack} if unpack else {}),
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
                size=size, ranks=float(self.plan.tp), link="scale_up", in_network=self.topology.in_network,
                inside=self.topology.inside("tp", float(self.plan.tp)),
            )  # fmt: skip


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
    from perfmodel.roofline.graph_compressed import layer_extra_ops
    from perfmodel.roofline.graph_ffn import ffn_ops

    topology = topology or Topology()
    outer = Site(model, step, plan, topology, outer_tensors(model, plan))
    found = list(_entry(outer))
    for layer in model.layer_classes:
        site = Site(model, step, plan, topology, layer_tensors(model, layer, plan), layer)
        d = site.tokens * model.hidden_size
        norms = len(norm_names(model.norm, layer)) + sum(t.role == "norm" for t in model.layer_tensors)
        streams = 2.0 if model.streams == 1 else 1.0  # the residual too; several are mixed by themselves
        found.append(site.pass_over("norm", d, streams, streams, 5, times=float(norms)))
        found += layer_extra_ops(site)
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
    for t in site.tensors.get("position", []):  # learned positions, tables of further inputs: one row a token
        yield site.op(
            "position_embedding", "embedding", ops.embedding,
            tokens=site.tokens, d=float(t.shape[1]), weight_bytes=site.plan.act_bytes, act_bytes=site.plan.act_bytes,
        )  # fmt: skip
    if "hyper" in site.tensors and site.model.streams == 1:
        yield site.linear("input_proj", ("hyper",))
    yield from site.all_reduce("embedding_all_reduce")


def _exit(site: Site) -> Iterator[Op]:
    rows = site.batch * site.step.logits
    vocab, plan = float(site.model.vocab_size), site.plan
    yield from _sends(site)
    if site.model.streams > 1:
        yield site.linear("stream_head", ("hyper",), rows)
        every = rows * site.model.hidden_size * site.model.streams
        yield site.pass_over("stream_collapse", every, 1, 1 / site.model.streams, 2)
    yield site.pass_over("final_norm", rows * site.model.hidden_size, 2, 1, 5)
    yield site.linear("lm_head", ("lm_head",), rows)
    if plan.tp > 1:
        yield site.op(
            "logits_all_gather", "collective", collectives.all_gather,
            size=rows * vocab * plan.act_bytes, ranks=float(plan.tp), link="scale_up",
            inside=site.topology.inside("tp", float(plan.tp)),
        )  # fmt: skip
    yield site.op("sampling", "sampling", ops.sampling, rows=rows, vocab=vocab, act_bytes=plan.act_bytes)


def _sends(site: Site) -> Iterator[Op]:
    """Activations handed from stage to stage: within a domain, and over the network where a border crosses it."""
    plan, crossings = site.plan, site.topology.crossings
    size = site.tokens * site.model.hidden_size * plan.act_bytes
    for name, link, times in (
        ("pipeline_send", "scale_up", plan.pp - 1 - crossings),
        ("pipeline_send_out", "scale_out", crossings),
    ):
        if times:
            yield site.op(
                name, "collective", collectives.send, float(times), size=size, ranks=float(plan.tp), link=link
            )  # fmt: skip
