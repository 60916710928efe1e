"""Hardware specs as plain rows, for tables and JSON, and where each of their numbers comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from perfmodel.hwspecs.load import GPUS, SYSTEMS, gpu, system
from perfmodel.hwspecs.schema import Alternative, Gpu, Link, Quantity, System


def rows() -> list[dict[str, Any]]:
    """One row a built-in GPU: name, title and the numbers that tell it apart, in SI.

    Returns
    -------
    list of dict
        ``math`` is the 16-bit format that ``peak_flops`` [FLOP/s, dense] is for; ``bandwidth`` [bytes/s],
        ``capacity`` as sold and ``usable`` as the driver reports it [bytes], ``ridge`` [FLOP/byte], ``tdp`` [W] or
        ``None``.

    >>> [row["math"] for row in rows() if row["name"] in ("h100-sxm", "t4")]
    ['bf16', 'fp16']
    """
    return [_row(gpu(name)) for name in GPUS.names]


def _row(spec: Gpu) -> dict[str, Any]:
    hbm, math = spec.memory.hbm, spec.half
    return {
        "name": spec.name,
        "title": spec.title,
        "vendor": spec.vendor,
        "architecture": spec.architecture,
        "math": math,
        "peak_flops": spec.peak(math),
        "bandwidth": spec.bandwidth,
        "capacity": hbm.capacity.value,
        "usable": spec.usable_memory,
        "ridge": spec.ridge(math),
        "tdp": spec.tdp.value if spec.tdp else None,
    }


def system_rows() -> list[dict[str, Any]]:
    """One row a built-in system, in SI.

    Returns
    -------
    list of dict
        ``gpus_per_node`` and ``domain`` (GPUs joined by the scale-up link), and for each of ``scale_up``,
        ``scale_out`` and ``host`` its kind and its one-way bandwidth for one GPU [bytes/s], or ``None``.

    >>> next(row["domain"] for row in system_rows() if row["name"] == "gb200-nvl72")
    72
    """
    return [_system_row(system(name)) for name in SYSTEMS.names]


def _system_row(spec: System) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": spec.name,
        "title": spec.title,
        "gpu": spec.gpu,
        "gpus_per_node": int(spec.gpus_per_node.value),
        "domain": int(spec.domain.value),
        "in_network_reduction": spec.scale_up.in_network_reduction,
    }
    links: dict[str, Link | None] = {"scale_up": spec.scale_up, "scale_out": spec.scale_out, "host": spec.host}
    for name, link in links.items():
        row[f"{name}_kind"] = link.kind if link else None
        row[f"{name}_bandwidth"] = link.bandwidth.value if link else None
    return row


class Citation(NamedTuple):
    """One number of a spec: dotted path, the text it was written as, its source, and what other sources say."""

    path: str
    text: str
    source: str
    note: str
    alternatives: tuple[Alternative, ...]


def sources(spec: Gpu | System) -> list[Citation]:
    """Every number of a spec with its source, in the order of the schema.

    >>> next(c.text for c in sources(gpu("h100")) if c.path == "memory.hbm.bandwidth")
    '3.35 TB/s'
    """
    return list(_walk(spec, ""))


def _walk(node: object, path: str) -> Iterator[Citation]:
    if isinstance(node, Quantity):
        yield Citation(path, node.text, node.source, node.note, node.alternatives)
    elif isinstance(node, BaseModel):
        for name in type(node).model_fields:
            yield from _walk(getattr(node, name), f"{path}.{name}".lstrip("."))
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from _walk(value, f"{path}.{name}")
