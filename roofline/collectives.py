"""Bytes that collectives send: what one GPU must put on its link, at the least.

All sizes are of the whole vector ``size`` in bytes. No latency and no protocol overhead: these are bounds.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.cost import Cost


def all_reduce(size: Num, ranks: Num, link: str, in_network: bool) -> Cost:
    """Sum a vector over all ranks, the result everywhere.

    Without help from the switch each rank sends ``2 (ranks-1)/ranks size`` (ring or recursive halving; optimal). A
    switch that reduces (NVLS, SHARP) needs ``size`` from each rank. Source: Patarasuk and Yuan, J. Parallel Distrib.
    Comput. 69 (2009) 117; NVIDIA NCCL documentation on NVLS.

    >>> float(all_reduce(100.0, 4.0, "scale_up", False).sent), float(all_reduce(100.0, 4.0, "scale_up", True).sent)
    (150.0, 100.0)
    """
    factor = 2 * (ranks - 1) / ranks
    sent = size * (np.minimum(factor, 1.0) if in_network else factor)
    return Cost({}, {"act_read": size, "act_write": size}, 2 * size, {link: sent})


def all_gather(size: Num, ranks: Num, link: str) -> Cost:
    """Every rank ends with all parts of a vector of ``size`` bytes: sends its part ``(ranks-1)/ranks size`` in all."""
    return Cost({}, {"act_read": size / ranks, "act_write": size}, size, {link: size * (ranks - 1) / ranks})


def send(size: Num, link: str) -> Cost:
    """Point to point: a pipeline stage hands its activations on."""
    return Cost({}, {"act_read": size, "act_write": size}, 2 * size, {link: size})


def expert_exchange(tokens: Num, chosen: Num, ranks: Num, row_bytes: Num, link: str) -> Cost:
    """All-to-all of expert parallelism, one way: each token's row goes once to every other rank with a chosen expert.

    Expected other ranks of a token: ``(ranks-1) (1 - (1 - 1/ranks)^chosen)`` for uniform routing. ``tokens`` are those
    of one rank. Source: DeepEP sends a row once a rank (deepseek-ai/DeepEP README, 2025).
    """
    share = 1 - (1 - 1 / ranks) ** chosen
    sent = tokens * (ranks - 1) * share * row_bytes
    return Cost({}, {"act_read": tokens * row_bytes, "act_write": sent}, tokens * row_bytes + sent, {link: sent})
