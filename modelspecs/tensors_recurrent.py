"""Tensors of recurrent mixers, named as in their checkpoints below ``mixer.``, ``linear_attn.`` or ``self_attn.``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perfmodel.modelspecs.schema_recurrent import (
    GatedDelta,
    Kda,
    Lightning,
    Mamba1,
    Mamba2,
    Parts,
    Recurrent,
    ShortConv,
)
from perfmodel.modelspecs.tensors import Shard, Tensor


def recurrent_tensors(d: int, a: Recurrent) -> Iterator[Tensor]:
    """The weight tensors of one recurrent mixer in a model of width ``d``.

    Roles: ``mixer_in`` and ``mixer_out`` (projections), ``mixer_gates`` (a row or two a head: write strength, decay),
    ``mixer_low``, ``mixer_low_up`` (low-rank gates), ``mixer_x``, ``mixer_dt`` (Mamba), ``conv``, ``state`` (decay,
    skip and time-step vectors), ``mixer_norm``.
    """
    return BUILDERS[type(a)](d, a)


def _matrix(name: str, role: str, out: int, inp: int, shard: Shard = "out", parts: Parts = (), bias: bool = False
) -> Iterator[Tensor]:  # fmt: skip
    yield Tensor(f"{name}.weight", role, (out, inp), "parts" if parts else shard, parts=parts)
    if bias:  # a row-parallel layer adds its bias once, after the reduction: it is not cut
        cut: Shard = "parts" if parts else "whole" if shard == "in" else shard
        yield Tensor(f"{name}.bias", role, (out,), cut, parts=parts)


def _conv(name: str, a: Recurrent, kernel: int, bias: bool = False) -> Iterator[Tensor]:
    parts, channels = a.conv_parts, a.conv_channels()
    yield Tensor(f"{name}.weight", "conv", (channels, 1, kernel), "parts", parts=parts)
    if bias:
        yield Tensor(f"{name}.bias", "conv", (channels,), "parts", parts=parts)


def _mamba2(d: int, a: Mamba2) -> Iterator[Tensor]:
    rows = sum(rows for rows, _ in a.in_parts)
    yield from _matrix("mixer.in_proj", "mixer_in", rows, d, parts=a.in_parts, bias=a.proj_bias)
    yield from _conv("mixer.conv1d", a, a.conv_kernel, a.conv_bias)
    for name in ("dt_bias", "A_log", "D"):
        yield Tensor(f"mixer.{name}", "state", (a.heads,), "out")
    if a.gated_norm:
        yield Tensor("mixer.norm.weight", "mixer_norm", (a.inner,), "out")
    yield from _matrix("mixer.out_proj", "mixer_out", d, a.inner, "in", bias=a.proj_bias)


def _mamba1(d: int, a: Mamba1) -> Iterator[Tensor]:
    yield from _matrix("mixer.in_proj", "mixer_in", 2 * a.inner, d, bias=a.proj_bias)
    yield from _conv("mixer.conv1d", a, a.conv_kernel, a.conv_bias)
    yield from _matrix("mixer.x_proj", "mixer_x", a.dt_rank + 2 * a.state, a.inner, "in")
    yield from _matrix("mixer.dt_proj", "mixer_dt", a.inner, a.dt_rank, bias=True)
    yield Tensor("mixer.A_log", "state", (a.inner, a.state), "out")
    yield Tensor("mixer.D", "state", (a.inner,), "out")
    if a.inner_norms:
        for name, size in (("dt", a.dt_rank), ("b", a.state), ("c", a.state)):
            yield Tensor(f"mixer.{name}_layernorm.weight", "mixer_norm", (size,))
    yield from _matrix("mixer.out_proj", "mixer_out", d, a.inner, "in", bias=a.proj_bias)


def _gated_delta(d: int, a: GatedDelta) -> Iterator[Tensor]:
    values, heads = (a.values, a.value_heads), (a.value_heads, a.value_heads)
    if a.fused:
        parts = (*a.conv_parts, values)
        yield from _matrix("linear_attn.in_proj_qkvz", "mixer_in", sum(n for n, _ in parts), d, parts=parts)
        parts = (heads, heads)
        yield from _matrix("linear_attn.in_proj_ba", "mixer_gates", 2 * a.value_heads, d, parts=parts)
    else:
        yield from _matrix("linear_attn.in_proj_qkv", "mixer_in", a.conv_channels(), d, parts=a.conv_parts)
        yield from _matrix("linear_attn.in_proj_z", "mixer_in", a.values, d, parts=(values,))
        for name in ("b", "a"):
            yield from _matrix(f"linear_attn.in_proj_{name}", "mixer_gates", a.value_heads, d)
    yield from _conv("linear_attn.conv1d", a, a.conv_kernel)
    for name in ("dt_bias", "A_log"):
        yield Tensor(f"linear_attn.{name}", "state", (a.value_heads,), "out")
    yield Tensor("linear_attn.norm.weight", "mixer_norm", (a.value_head_dim,))
    yield from _matrix("linear_attn.out_proj", "mixer_out", d, a.values, "in")


def _kda(d: int, a: Kda) -> Iterator[Tensor]:
    name, parts = "self_attn.", ((a.inner, a.heads),)
    for part in ("q", "k", "v"):
        yield from _matrix(f"{name}{part}_proj", "mixer_in", a.inner, d, parts=parts)
        yield Tensor(f"{name}{part}_conv1d.weight", "conv", (a.inner, 1, a.conv_kernel), "parts", parts=parts)
    yield from _matrix(f"{name}b_proj", "mixer_gates", a.heads, d)
    for part in ("f", "g"):  # the forget gate and the output gate, each of rank head_dim
        yield from _matrix(f"{name}{part}_a_proj", "mixer_low", a.head_dim, d, "whole")
        yield from _matrix(f"{name}{part}_b_proj", "mixer_low_up", a.inner, a.head_dim, parts=parts)
    yield Tensor(f"{name}A_log", "state", (1, 1, a.heads, 1), "whole")
    yield Tensor(f"{name}dt_bias", "state", (a.inner,), "parts", parts=parts)
    yield Tensor(f"{name}o_norm.weight", "mixer_norm", (a.head_dim,))
    yield from _matrix(f"{name}o_proj", "mixer_out", d, a.inner, "in")


def _lightning(d: int, a: Lightning) -> Iterator[Tensor]:
    part = (a.inner, a.heads)
    yield from _matrix("self_attn.qkv_proj", "mixer_in", 3 * a.inner, d, parts=(part, part, part))
    yield from _matrix("self_attn.output_gate", "mixer_in", a.inner, d, parts=(part,))
    yield Tensor("self_attn.norm.weight", "mixer_norm", (a.inner,), "out")
    yield from _matrix("self_attn.out_proj", "mixer_out", d, a.inner, "in")


def _short_conv(d: int, a: ShortConv) -> Iterator[Tensor]:
    part = (a.channels, a.channels)
    yield from _matrix("conv.in_proj", "mixer_in", 3 * a.channels, d, parts=(part, part, part), bias=a.bias)
    yield from _conv("conv.conv", a, a.conv_kernel, a.bias)
    yield from _matrix("conv.out_proj", "mixer_out", d, a.channels, "in", bias=a.bias)


BUILDERS: dict[type, Callable[[int, Any], Iterator[Tensor]]] = {
    Mamba2: _mamba2,
    Mamba1: _mamba1,
    GatedDelta: _gated_delta,
    Kda: _kda,
    Lightning: _lightning,
    ShortConv: _short_conv,
}
