"""What a kernel runs on: the architecture its configuration is for and the number of multiprocessors it fills.

On a GPU both are asked of the driver. In Triton's interpreter (TRITON_INTERPRET=1) and for tensors on the meta device,
where there is nothing to ask, they are what `assume` says: sm_90 with 132 multiprocessors unless told otherwise.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton

SM_COUNT = {"sm_80": 108, "sm_90": 132, "sm_100": 148}
"""Multiprocessors of A100, H100/H200 and B200 (NVIDIA's architecture whitepapers)."""

SHARED_LIMIT = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448}
"""Bytes of shared memory one thread block may ask for (CUDA programming guide, table of compute capabilities)."""


@dataclass(frozen=True)
class Target:
    """The architecture a configuration is chosen for (`sm_80`, `sm_90`, `sm_100`) and its multiprocessors."""

    arch: str
    sm_count: int


_DEFAULT = Target("sm_90", SM_COUNT["sm_90"])
_assumed: contextvars.ContextVar[Target] = contextvars.ContextVar("assumed", default=_DEFAULT)


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter; read when they are decorated, so it holds for a whole process."""
    return os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "on")


@contextlib.contextmanager
def assume(arch: str, sm_count: int | None = None) -> Iterator[Target]:
    """Choose configurations for `arch` where there is no GPU to ask; has no effect on tensors of a real GPU.

    Raises ValueError for an architecture without configurations.
    """
    if arch not in SM_COUNT:
        raise ValueError(f"architecture {arch!r} has no configurations; there are {', '.join(SM_COUNT)}")
    token = _assumed.set(Target(arch, SM_COUNT[arch] if sm_count is None else sm_count))
    try:
        yield _assumed.get()
    finally:
        _assumed.reset(token)


def target(tensor: torch.Tensor) -> Target:
    """What a kernel on this tensor is configured for.

    GPUs between the listed architectures take the nearest older one: sm_86 and sm_89 use sm_80's, sm_103 sm_100's.
    Raises ValueError for a GPU older than sm_80.
    """
    return _of_gpu(tensor.device.index or 0) if tensor.device.type == "cuda" else _assumed.get()


@functools.cache
def _of_gpu(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    major = properties.major
    if major < 8:
        raise ValueError(f"compute capability {major}.{properties.minor} is not supported; the kernels need 8.0")
    return Target("sm_100" if major >= 10 else "sm_90" if major == 9 else "sm_80", properties.multi_processor_count)


def has_tma(tensor: torch.Tensor) -> bool:
    """Whether the tensor memory accelerator loads tiles there (sm_90 and later)."""
    return target(tensor).arch != "sm_80"


def prepare_descriptors() -> None:
    """Give Triton the allocator that tensor descriptors made on the device need; Triton keeps it a thread."""

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device="cuda")

    triton.set_allocator(allocate)
