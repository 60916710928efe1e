"""Operators of the feed-forward part of a layer: dense, or routed and shared experts."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.base.num import Num
from perfmodel.modelspecs.schema import Dense, Moe
from perfmodel.modelspecs.schema_recurrent import NoFfn
from perfmodel.modelspecs.sizes import tensor_format
from perfmodel.modelspecs.tensors import Tensor
from perfmodel.roofline import collectives, ops
from perfmodel.roofline.graph import Site
from perfmodel.roofline.op import Op
from perfmodel.roofline.sharding import stored_bytes


def ffn_ops(site: Site) -> Iterator[Op]:
    """The feed-forward operators and the all-reduce that ends them."""
    assert site.layer is not None
    f = site.layer.ffn
    if isinstance(f, NoFfn):
        return
    if isinstance(f, Dense):
        yield from _mlp(site, "", "ffn", f.intermediate_size / site.plan.tp, f.gated)
        yield from site.all_reduce("ffn_all_reduce")
    else:
        yield from _moe(site, f)


def _mlp(site: Site, prefix: str, role: str, width: float, gated: bool) -> Iterator[Op]:
    roles = (f"{role}_gate", f"{role}_up") if gated else (f"{role}_up",)
    yield site.linear(f"{prefix}gate_up_proj" if gated else f"{prefix}up_proj", roles)
    yield site.pass_over(f"{prefix}activation", site.tokens * width, 2.0 if gated else 1.0, 1, 4, 1)
    yield site.linear(f"{prefix}down_proj", (f"{role}_down",))


def _moe(site: Site, f: Moe) -> Iterator[Op]:
    plan, d = site.plan, float(f.latent_size or site.model.hidden_size)
    group = plan.dp if plan.ep > 1 else 1  # expert parallelism pools the tokens of all data-parallel ranks
    exchange = plan.ep > 1 and plan.dp > 1
    routed, local = site.tokens * group, f.experts / plan.ep
    rows, width = routed * f.experts_per_token * (local / f.experts), f.intermediate_size / plan.expert_tp
    yield site.linear("router", ("router",))
    yield site.pass_over("topk", site.tokens * f.experts, 1, 0, 3, 1)
    if f.latent_size:
        yield site.linear("latent_in_proj", ("latent_in",))
    if exchange:
        yield _exchange(site, "dispatch", f, plan.activation_bytes)
    for name, roles in _expert_matrices(f):
        if name == "experts_down":
            yield site.pass_over("experts_activation", rows * width, 2.0 if f.gated else 1.0, 1, 4, 1)
        yield _grouped(site, name, roles, f, routed, local)
    yield site.op(
        "experts_combine", "elementwise", ops.combine,
        tokens=site.tokens, chosen=f.experts_per_token * (1.0 if exchange else local / f.experts), d=d,
        act_bytes=plan.act_bytes,
    )  # fmt: skip
    if exchange:
        yield _exchange(site, "return", f, plan.act_bytes)
    if f.latent_size:  # of a rank's share of the sum: the projection is linear
        yield site.linear("latent_out_proj", ("latent_out",))
    if f.shared_intermediate_size:
        if f.shared_gate:
            yield site.linear("shared_router", ("shared_router",))
        yield from _mlp(site, "shared_", "shared_expert", f.shared_intermediate_size / plan.tp, f.gated)
    yield from site.all_reduce("ffn_all_reduce")


def _expert_matrices(f: Moe) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield ("experts_gate_up", ("expert_gate", "expert_up")) if f.gated else ("experts_up", ("expert_up",))
    yield "experts_down", ("expert_down",)


def _grouped(site: Site, name: str, roles: tuple[str, ...], f: Moe, routed: Num, local: float) -> Op:
    plan = site.plan
    parts: list[Tensor] = [t for role in roles for t in site.tensors.get(role, [])]
    matrices = [t for t in parts if len(t.shape) == 2]
    unpack = plan.unpacking(tensor_format(matrices[0], plan.weights), plan.linear_math)
    return site.op(
        name, "grouped_gemm", ops.grouped_gemm,
        tokens=routed, n=float(sum(t.shape[0] for t in matrices)), k=float(matrices[0].shape[1]),
        experts=float(f.experts), chosen=float(f.experts_per_token), local=local,
        expert_bytes=stored_bytes(parts, plan) / local, act_bytes=plan.activation_bytes, out_bytes=plan.act_bytes,
        math=plan.linear_math, **({"dequant": unpack} if unpack else {}),
    )  # fmt: skip


def _exchange(site: Site, name: str, f: Moe, row_bytes: float) -> Op:
    plan = site.plan
    return site.op(
        f"experts_{name}", "collective", collectives.expert_exchange,
        tokens=site.tokens / plan.tp, chosen=float(f.experts_per_token), ranks=float(plan.ep),
        row_bytes=(f.latent_size or site.model.hidden_size) * row_bytes, link="scale_up",
        inside=site.topology.inside("ep", float(plan.ep)),
    )  # fmt: skip
