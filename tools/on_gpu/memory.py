"""Memory and launch cases: copy, read and triad from 64 KiB to 1 GiB, and what a launch costs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from on_gpu.cases import Case, Sizes, Tensors, normal, pick

FLOAT = 4  # bytes


def _maker(count: int, buffers: int, results: int = 0) -> Callable[[torch.device], Tensors]:
    def make(device: torch.device) -> Tensors:
        sources = [normal((count,), torch.float32, device) for _ in range(buffers)]
        return (*sources, torch.empty(results or count, dtype=torch.float32, device=device))

    return make


def _run_copy(inputs: Tensors) -> torch.Tensor:
    source, target = inputs
    return target.copy_(source)


def _run_read(inputs: Tensors) -> torch.Tensor:
    source, target = inputs
    return torch.linalg.vector_norm(source, dim=0, keepdim=True, out=target)


def _run_triad(inputs: Tensors) -> torch.Tensor:
    left, right, target = inputs
    return torch.add(left, right, alpha=3.0, out=target)


def _run_small(inputs: Tensors) -> torch.Tensor:
    source, target = inputs
    return torch.add(source, 1.0, out=target)


def _same(inputs: Tensors, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    differing = (output != inputs[0]).sum().double()
    return differing, torch.zeros_like(differing)


def _norm(inputs: Tensors, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    squares = [chunk.double().square().sum() for chunk in inputs[0].split(2**26)]
    return output.double(), torch.stack(squares).sum().sqrt().reshape(1)


def _sum(inputs: Tensors, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    left, right, _ = inputs
    at = pick(left.numel(), 65536, left.device)
    return output[at].double(), left[at].double() + 3.0 * right[at].double()


def _plus_one(inputs: Tensors, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return output.double(), inputs[0].double() + 1.0


def stream(op: str, size: int) -> Case:
    """Return the case of ``op`` (copy, read, triad) over buffers of ``size`` bytes."""
    count = size // FLOAT
    # Tolerances: the copy is exact, the triad rounds once or twice, the norm sums millions of squares in fp32.
    source, run, reference, tolerance, moved = {
        "copy": ("torch_copy", _run_copy, _same, 0.0, 2),
        "read": ("torch_vector_norm", _run_read, _norm, 1e-3, 1),
        "triad": ("torch_add", _run_triad, _sum, 1e-6, 3),
    }[op]
    return Case(
        name=f"{op} {size} bytes",
        table="copy",
        group=op,
        source=source,
        columns={"op": op, "buffer_bytes": size, "moved_bytes": moved * size},
        make=_maker(count, 2, 0) if op == "triad" else _maker(count, 1, 1 if op == "read" else 0),
        run=run,
        reference=reference,
        tolerance=tolerance,
        set_bytes=moved * size,
        moved_bytes=moved * size,
        core=op == "copy",
    )


def stream_cases(sizes: Sizes, op: str) -> list[Case]:
    """Return the sweep of one operation over the buffer sizes."""
    return [stream(op, size) for size in sizes.buffers]


def launch(mode: str) -> Case:
    """Return the case of launching one kernel over 1024 numbers; ``mode`` as in ``Case`` (device: a graph's node)."""
    name = "graph_node" if mode == "device" else mode if mode.startswith("graph") else f"eager_{mode}"
    return Case(
        name=f"launch torch_add {name}",
        table="launch",
        group="launch",
        source="torch_add",
        columns={"mode": name},
        make=_maker(1024, 1),
        run=_run_small,
        reference=_plus_one,
        tolerance=1e-6,
        set_bytes=8192,
        moved_bytes=8192,
        core=True,
        mode=mode,
        rotate=False,
    )


def launch_cases() -> list[Case]:
    """Return the launch cases: eager issue and round trip, a graph's node, and a one-node graph's round trip."""
    return [launch(mode) for mode in ("issue", "round_trip", "device", "graph_round_trip")]
