"""Bytes that collectives send: what one GPU must put on its links, at the least.

All sizes are of the whole vector ``size`` in bytes. No latency and no protocol overhead: these are bounds. A group that
is wider than a scale-up domain sends in two levels: what leaves the domain goes once over the network, shared by the
``inside`` ranks of the domain, and the rest stays on the scale-up link. Both levels together send as much as one flat
group would.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.num import Num
from perfmodel.roofline.cost import Cost
from perfmodel.roofline.ops import any_of

#: Name of the network between domains, as ``Topology`` has it.
OUT = "scale_out"


def all_reduce(size: Num, ranks: Num, link: str, in_network: bool, inside: Num | None = None) -> Cost:
    """Sum a vector over all ranks, the result everywhere.

    Without help from the switch each rank sends ``2 (ranks-1)/ranks size`` (ring or recursive halving; optimal). A
    switch that reduces (NVLS, SHARP) needs ``size`` from each rank. Over several domains: the same within a domain, and
    ``2 (domains-1)/domains size/inside`` over the network. Source: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69
    (2009) 117; NVIDIA NCCL documentation on NVLS.

    Parameters
    ----------
    size : Num
        Bytes of the vector.
    ranks : Num
    link : str
        The link inside a domain, or the only one.
    in_network : bool
        Whether the switch of ``link`` reduces.
    inside : Num, optional
        Ranks that share a domain, where that is not all of them.

    >>> float(all_reduce(100.0, 4.0, "scale_up", False).sent), float(all_reduce(100.0, 4.0, "scale_up", True).sent)
    (150.0, 100.0)
    >>> all_reduce(100.0, 4.0, "scale_up", False, inside=2.0).comm
    {'scale_up': 100.0, 'scale_out': 50.0}
    """
    near = ranks if inside is None else inside
    factor = 2 * (near - 1) / near
    comm = {link: size * (np.minimum(factor, 1.0) if in_network else factor)}
    if inside is not None:
        domains = ranks / inside
        comm[OUT] = 2 * (domains - 1) / domains * size / inside
    return Cost({}, {"act_read": size, "act_write": size}, 2 * size, comm)


def all_gather(size: Num, ranks: Num, link: str, inside: Num | None = None) -> Cost:
    """Every rank ends with all parts of a vector of ``size`` bytes: sends its part ``(ranks-1)/ranks size`` in all.

    Over several domains: ``(inside-1)/inside size`` within a domain and ``(domains-1)/domains size/inside`` over the
    network. Parameters as ``all_reduce``.
    """
    near = ranks if inside is None else inside
    comm = {link: size * (near - 1) / near}
    if inside is not None:
        domains = ranks / inside
        comm[OUT] = (domains - 1) / domains * size / inside
    return Cost({}, {"act_read": size / ranks, "act_write": size}, size, comm)


def send(size: Num, ranks: Num, link: str) -> Cost:
    """Point to point: a pipeline stage hands its activations on, each of its tensor-parallel ``ranks`` a part.

    Source: ``send_tensor_dict`` in vLLM's vllm/distributed/parallel_state.py sends slices and gathers them there.
    """
    return Cost({}, {"act_read": size / ranks, "act_write": size / ranks}, 2 * size / ranks, {link: size / ranks})


def expert_exchange(tokens: Num, chosen: Num, ranks: Num, row_bytes: Num, link: str, inside: Num | None = None) -> Cost:
    """All-to-all of expert parallelism, one way: each token's row goes once to every other rank with a chosen expert.

    Expected other ranks of a token: ``(ranks-1) (1 - (1 - 1/ranks)^chosen)`` for uniform routing. Over several domains
    a row goes to each other domain once, ``(domains-1) (1 - (1 - 1/domains)^chosen)`` of them, and on from there.
    ``tokens`` are those of one rank. Source: DeepEP sends a row once a node over RDMA and forwards it over NVLink
    (deepseek-ai/DeepEP README, 2025).
    """
    total = tokens * _others(ranks, chosen) * row_bytes
    comm = {link: total}
    if inside is not None:
        comm[OUT] = tokens * _others(ranks / inside, chosen) * row_bytes
        comm[link] = total - comm[OUT]
    return Cost({}, {"act_read": tokens * row_bytes, "act_write": total}, tokens * row_bytes + total, comm)


def _others(places: Num, chosen: Num) -> Num:
    """Expected number of other places, out of ``places``, where one of ``chosen`` experts sits."""
    return (places - 1) * any_of(1 / places, chosen)
