"""Cost of recurrent mixers: the causal convolution, and each scan in blocks (prefill) and token by token (decode).

A scan keeps a matrix S a head. In blocks of ``chunk`` tokens it is matrix products: scores inside a block, what the
block adds to S, and what S gives to the block; block to block S is carried. Token by token it is a few vector
operations an element of S, and reading and writing S is most of the time. The state's bytes are counted in the streams
``kv_read`` and ``kv_write``, as it takes the cache's place; a prompt from its first token on has no state to read.

Only needed work is counted: scores of a block's causal half, scores that heads share once, and nothing for a first
block's empty state. Source of the block forms: Dao and Gu, Transformers are SSMs (2024), for Mamba-2; Yang et al.,
Gated Delta Networks (2024), for the delta rule; MiniMax-01 (2025) for lightning attention.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.attention import _chunked as block_pairs
from perfmodel.roofline.cost import EXP, VECTOR, Cost, matrix


def _cost(
    matrix_flops: dict[str, Num], vector: Num, exps: Num, reads: Num, writes: Num, state: Num, q: Num, kv: Num,
    weights: Num | None = None,
) -> Cost:  # fmt: skip
    """A scan's cost: activations in and out, the state read (unless the sequence begins) and written once."""
    kept = np.where(kv > q, state, 0.0 * state)
    hbm: dict[str, Num] = {"act_read": reads, "act_write": writes, "kv_read": kept, "kv_write": state}
    hbm |= {} if weights is None else {"weights": weights}
    return Cost({**matrix_flops, VECTOR: vector, EXP: exps}, hbm, reads + writes + kept + state)


def carried_tokens(q: Num, kv: Num, chunk: Num) -> Num:
    """New tokens that meet a state: all, or all after the first block when the sequence begins with them.

    >>> float(carried_tokens(300.0, 300.0, 128.0)), float(carried_tokens(300.0, 400.0, 128.0))
    (172.0, 300.0)
    """
    return np.where(kv > q, q, np.maximum(q - chunk, 0.0))


def causal_conv(
    batch: Num, q: Num, kv: Num, channels: Num, kernel: Num, columns: Num, weight_bytes: Num, act_bytes: float,
    flops: float, exps: float,
) -> Cost:  # fmt: skip
    """Depthwise causal convolution of ``kernel`` taps and an activation; keeps its last ``columns`` inputs.

    ``FLOPs = tokens x channels x (2 kernel + flops)`` on the vector units.

    Parameters
    ----------
    batch, q, kv : Num
        Sequences, new tokens of each, and tokens after the step.
    channels : Num
        On this rank.
    flops, exps : float
        Of the activation or of gates, an element.
    """
    elements = batch * q * channels
    state = batch * channels * columns * act_bytes
    vector = elements * (2 * kernel + flops)
    moved = elements * act_bytes
    return _cost({}, vector, elements * exps, moved, moved, state, q, kv, weight_bytes)


def ssd_scan(
    batch: Num, q: Num, kv: Num, heads: Num, groups: Num, head_dim: Num, state: Num, chunk: Num, state_bytes: float,
    act_bytes: float, math: str,
) -> Cost:  # fmt: skip
    """Mamba-2 in blocks of ``chunk`` tokens.

    Matrix FLOPs of a sequence, P the pairs of a causal half of each block and c the tokens that meet a state:
    ``2 P state groups`` (scores C B^T, once a group) + ``2 P head_dim heads`` (times x) + ``2 q head_dim state heads``
    (a block's addition to S) + ``2 c head_dim state heads`` (S read by C).

    Parameters
    ----------
    heads, groups : Num
        On this rank.
    head_dim, state : Num
        A head's state is ``head_dim x state``.
    state_bytes : float
        Bytes an element of the state.
    """
    pairs, tokens = block_pairs(q, chunk), batch * q
    matrices = batch * heads * head_dim * state
    scores = 2 * batch * pairs * (groups * state + heads * head_dim)
    work = scores + 2 * (q + carried_tokens(q, kv, chunk)) * matrices
    vector = 2 * batch * heads * pairs + 3 * tokens * heads * head_dim + 2 * np.ceil(q / chunk) * matrices
    reads = tokens * (heads * head_dim + 2 * groups * state + heads) * act_bytes
    writes = tokens * heads * head_dim * act_bytes
    return _cost({matrix(math): work}, vector, batch * heads * pairs, reads, writes, matrices * state_bytes, q, kv)


def ssd_step(
    batch: Num, q: Num, kv: Num, heads: Num, groups: Num, head_dim: Num, state: Num, state_bytes: float,
    act_bytes: float,
) -> Cost:  # fmt: skip
    """Mamba-2 token by token: ``S = a S + (dt x) B^T; y = S C + D x``.

    Five vector operations an element of S and token (decay, multiply-add, multiply-add) and three a channel.
    """
    tokens, matrices = batch * q, batch * heads * head_dim * state
    vector = 5 * q * matrices + 3 * tokens * heads * head_dim
    reads = tokens * (heads * head_dim + 2 * groups * state + heads) * act_bytes
    writes = tokens * heads * head_dim * act_bytes
    return _cost({}, vector, tokens * heads, reads, writes, matrices * state_bytes, q, kv)


def selective_scan(
    batch: Num, q: Num, kv: Num, channels: Num, state: Num, weight_bytes: Num, state_bytes: float, act_bytes: float
) -> Cost:  # fmt: skip
    """Mamba's selective scan with its gate: the same work in prefill and decode, none of it on the matrix units.

    A token costs six vector operations and an exponential an element of the state (``exp(dt A)``, ``dt x B``,
    multiply-add, multiply-add with C) and eight operations and two exponentials a channel (softplus, skip, gate).
    """
    tokens, elements = batch * q, batch * channels * state
    vector, exps = 6 * q * elements + 8 * tokens * channels, q * elements + 2 * tokens * channels
    reads = tokens * (3 * channels + 2 * state) * act_bytes
    return _cost({}, vector, exps, reads, tokens * channels * act_bytes, elements * state_bytes, q, kv, weight_bytes)


def delta_scan(
    batch: Num, q: Num, kv: Num, key_heads: Num, value_heads: Num, key_dim: Num, value_dim: Num, chunk: Num,
    channel_decay: float, state_bytes: float, act_bytes: float, math: str,
) -> Cost:  # fmt: skip
    """The gated delta rule in blocks of ``chunk`` tokens.

    Matrix FLOPs of a sequence, P the pairs of a causal half of each block, P' = P - q those below its diagonal and c
    the tokens that meet a state: ``2 (P + P') key_dim key_heads`` (Q K^T and K K^T, once a key head); for each value
    head ``2 P' (key_dim + value_dim)`` (the triangular system solved for values and keys), ``2 P value_dim`` (scores
    times new values), ``2 q key_dim value_dim`` (a block's addition to S) and ``4 c key_dim value_dim`` (S read by the
    solved keys and by the queries).

    Parameters
    ----------
    key_heads, value_heads : Num
        On this rank.
    channel_decay : float
        1 where each channel of a key decays on its own (Kimi delta attention), 0 where a head does.
    """
    pairs, tokens = block_pairs(q, chunk), batch * q
    below, matrices = pairs - q, batch * value_heads * key_dim * value_dim
    shared = 2 * batch * key_heads * (pairs + below) * key_dim
    own = 2 * batch * value_heads * (below * (key_dim + value_dim) + pairs * value_dim)
    work = shared + own + (2 * q + 4 * carried_tokens(q, kv, chunk)) * matrices
    exps = batch * value_heads * ((1 - channel_decay) * pairs + channel_decay * 2 * q * key_dim)
    vector = 3 * batch * value_heads * pairs + 8 * tokens * key_heads * key_dim + 2 * np.ceil(q / chunk) * matrices
    reads = (
        tokens * (2 * key_heads * key_dim + value_heads * (value_dim + 1 + _decays(key_dim, channel_decay))) * act_bytes
    )
    writes = tokens * value_heads * value_dim * act_bytes
    return _cost({matrix(math): work}, vector, exps, reads, writes, matrices * state_bytes, q, kv)


def delta_step(
    batch: Num, q: Num, kv: Num, key_heads: Num, value_heads: Num, key_dim: Num, value_dim: Num, channel_decay: float,
    state_bytes: float, act_bytes: float,
) -> Cost:  # fmt: skip
    """The gated delta rule token by token: ``S = a S; S = S + k (beta (v - S^T k))^T; o = S^T q``.

    Seven vector operations an element of S and token (decay, S^T k, multiply-add, S^T q), two an element of v, and the
    norms of q and k.
    """
    tokens, matrices = batch * q, batch * value_heads * key_dim * value_dim
    vector = 7 * q * matrices + 2 * tokens * value_heads * value_dim + 8 * tokens * key_heads * key_dim
    decays = _decays(key_dim, channel_decay)
    reads = tokens * (2 * key_heads * key_dim + value_heads * (value_dim + 1 + decays)) * act_bytes
    writes = tokens * value_heads * value_dim * act_bytes
    return _cost({}, vector, tokens * value_heads * decays, reads, writes, matrices * state_bytes, q, kv)


def _decays(key_dim: Num, channel_decay: float) -> Num:
    """Decays of a head and token: one, or one a channel of the key."""
    return 1 - channel_decay + channel_decay * key_dim


def lightning_scan(
    batch: Num, q: Num, kv: Num, heads: Num, dim: Num, chunk: Num, state_bytes: float, act_bytes: float, math: str
) -> Cost:
    """Lightning attention in blocks: ``4 P dim`` a head for scores and values, ``2 q dim^2`` into S, ``2 c dim^2`` out.

    The decays are constants of the layer: no exponentials.
    """
    pairs, matrices = block_pairs(q, chunk), batch * heads * dim * dim
    work = 4 * batch * heads * pairs * dim + 2 * (q + carried_tokens(q, kv, chunk)) * matrices
    vector = batch * heads * pairs + 2 * batch * q * heads * dim + 2 * np.ceil(q / chunk) * matrices
    moved = batch * q * heads * dim * act_bytes
    return _cost({matrix(math): work}, vector, 0.0 * q, 3 * moved, moved, matrices * state_bytes, q, kv)


def lightning_step(batch: Num, q: Num, kv: Num, heads: Num, dim: Num, state_bytes: float, act_bytes: float) -> Cost:
    """Lightning attention token by token: ``S = a S + k v^T; o = S^T q``, five vector operations an element of S."""
    matrices = batch * heads * dim * dim
    moved = batch * q * heads * dim * act_bytes
    return _cost({}, 5 * q * matrices, 0.0 * q, 3 * moved, moved, matrices * state_bytes, q, kv)
