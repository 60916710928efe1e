"""Operators of recurrent mixers: projections, convolution, scan, gated norm, output projection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

from perfmodel.modelspecs.formats import KV_FORMATS
from perfmodel.modelspecs.schema_recurrent import GatedDelta, Kda, Lightning, Mamba1, Mamba2, Recurrent, ShortConv
from perfmodel.roofline import collectives, recurrent
from perfmodel.roofline.graph import Site
from perfmodel.roofline.op import Op
from perfmodel.roofline.sharding import stored_bytes


def recurrent_ops(site: Site, a: Recurrent) -> Iterator[Op]:
    """All operators of a recurrent mixer, but for the all-reduce that ends it.

    Decoded and verified tokens take the scan's step form, prompts its block form.
    """
    yield from BUILDERS[type(a)](site, a)
    yield site.linear("out_proj", ("mixer_out",))


def _state_bytes(a: Recurrent) -> float:
    return KV_FORMATS[a.state_format or "fp32"].bits / 8


def _scan(site: Site, name: str, block: object, step: object, a: Any, **inputs: Any) -> Op:
    """The scan in its form for this step."""
    common = {
        "batch": site.batch, "q": site.step.q, "kv": site.step.kv, **inputs, "state_bytes": _state_bytes(a),
        "act_bytes": site.plan.act_bytes,
    }  # fmt: skip
    if site.step.absorbed:
        return site.op(f"{name}_step", "recurrent", step, **common)
    return site.op(
        f"{name}_scan", "recurrent", block, **common, chunk=float(a.scan_chunk), math=site.plan.dense_math
    )  # fmt: skip


def _conv(site: Site, a: Recurrent, kernel: int, flops: float = 2.0, exps: float = 1.0) -> Op:
    return site.op(
        "conv1d", "conv", recurrent.causal_conv,
        batch=site.batch, q=site.step.q, kv=site.step.kv, channels=float(a.conv_channels(site.plan.tp)),
        kernel=float(kernel), columns=float(a.conv_columns), weight_bytes=stored_bytes(site.tensors["conv"], site.plan),
        act_bytes=site.plan.act_bytes, flops=flops, exps=exps,
    )  # fmt: skip


def _mamba2(site: Site, a: Mamba2) -> Iterator[Op]:
    heads, groups = float(ceil(a.heads / site.plan.tp)), float(ceil(a.groups / site.plan.tp))
    yield site.linear("in_proj", ("mixer_in",))
    yield _conv(site, a, a.conv_kernel)
    yield _scan(
        site, "ssd", recurrent.ssd_scan, recurrent.ssd_step, a,
        heads=heads, groups=groups, head_dim=float(a.head_dim), state=float(a.state),
    )  # fmt: skip
    name, flops = ("gated_norm", 8.0) if a.gated_norm else ("mixer_gate", 4.0)
    yield site.pass_over(name, site.tokens * heads * a.head_dim, 2, 1, flops, 1)


def _mamba1(site: Site, a: Mamba1) -> Iterator[Op]:
    plan, narrow = site.plan, a.dt_rank + 2.0 * a.state
    channels = float(ceil(a.inner / plan.tp))
    yield site.linear("in_proj", ("mixer_in",))
    yield _conv(site, a, a.conv_kernel)
    yield site.linear("x_proj", ("mixer_x",))
    if plan.tp > 1:  # time step, B and C come from all channels
        yield site.op(
            "x_all_reduce", "collective", collectives.all_reduce,
            size=site.tokens * narrow * plan.act_bytes, ranks=float(plan.tp), link="scale_up",
            in_network=site.topology.in_network, inside=site.topology.inside("tp", float(plan.tp)),
        )  # fmt: skip
    if a.inner_norms:
        yield site.pass_over("inner_norm", site.tokens * narrow, 1, 1, 4)
    yield site.linear("dt_proj", ("mixer_dt",))
    yield site.op(
        "selective_scan", "recurrent", recurrent.selective_scan,
        batch=site.batch, q=site.step.q, kv=site.step.kv, channels=channels, state=float(a.state),
        weight_bytes=stored_bytes(site.tensors["state"], plan), state_bytes=_state_bytes(a), act_bytes=plan.act_bytes,
    )  # fmt: skip


def _delta(site: Site, a: GatedDelta | Kda, key_heads: int, key_dim: int, value_dim: int, channel_decay: float) -> Op:
    tp = site.plan.tp
    return _scan(
        site, "delta", recurrent.delta_scan, recurrent.delta_step, a,
        key_heads=float(ceil(key_heads / tp)), value_heads=float(ceil(a.units / tp)), key_dim=float(key_dim),
        value_dim=float(value_dim), channel_decay=channel_decay,
    )  # fmt: skip


def _gated_delta(site: Site, a: GatedDelta) -> Iterator[Op]:
    yield site.linear("in_proj", ("mixer_in",))
    yield site.linear("gates_proj", ("mixer_gates",))
    yield _conv(site, a, a.conv_kernel)
    yield _delta(site, a, a.key_heads, a.key_head_dim, a.value_head_dim, 0.0)
    yield site.pass_over("gated_norm", site.tokens * ceil(a.value_heads / site.plan.tp) * a.value_head_dim, 2, 1, 8, 1)


def _kda(site: Site, a: Kda) -> Iterator[Op]:
    yield site.linear("in_proj", ("mixer_in",))
    yield site.linear("gates_proj", ("mixer_gates",))
    yield site.linear("low_rank_proj", ("mixer_low",))
    yield site.linear("low_rank_up_proj", ("mixer_low_up",))
    yield _conv(site, a, a.conv_kernel)
    yield _delta(site, a, a.heads, a.head_dim, a.head_dim, 1.0)
    yield site.pass_over("gated_norm", site.tokens * ceil(a.heads / site.plan.tp) * a.head_dim, 2, 1, 8, 1)


def _lightning(site: Site, a: Lightning) -> Iterator[Op]:
    heads = float(ceil(a.heads / site.plan.tp))
    wide = site.tokens * heads * a.head_dim
    yield site.linear("in_proj", ("mixer_in",))
    yield site.pass_over("qkv_activation", 3 * wide, 1, 1, 4, 1)
    yield _scan(
        site, "lightning", recurrent.lightning_scan, recurrent.lightning_step, a, heads=heads, dim=float(a.head_dim)
    )  # fmt: skip
    yield site.pass_over("gated_norm", wide, 2, 1, 8, 1)


def _short_conv(site: Site, a: ShortConv) -> Iterator[Op]:
    yield site.linear("in_proj", ("mixer_in",))
    yield _conv(site, a, a.conv_kernel, flops=2.0, exps=0.0)


BUILDERS: dict[type, Callable[[Site, Any], Iterator[Op]]] = {
    Mamba2: _mamba2,
    Mamba1: _mamba1,
    GatedDelta: _gated_delta,
    Kda: _kda,
    Lightning: _lightning,
    ShortConv: _short_conv,
}
