"""What a kernel runs on: the architecture its configuration is for and the number of multiprocessors it fills.

On a GPU both are asked of the driver. In Triton's interpreter (TRITON_INTERPRET=1) and for tensors on the meta device,
where there is nothing to ask, they are what `assume` says: sm_90 with 132 multiprocessors unless told otherwise.

Launch tables have rows for sm_80, sm_90 and sm_100. Other GPUs take the rows of one of these whose instructions they
have: sm_86, sm_87, sm_89 and sm_120 (no wgmma, no tensor memory) those of sm_80, sm_103 and sm_110 those of sm_100. Of
these rows, those that need more shared memory than the GPU has are passed over (`table`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
from triton.runtime import driver

SM_COUNT = {"sm_80": 108, "sm_90": 132, "sm_100": 148}
"""Multiprocessors of A100, H100/H200 and B200 (NVIDIA's architecture whitepapers): those with rows of their own."""

SHARED_LIMIT = {
    "sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "sm_86": 101376, "sm_89": 101376, "sm_120": 101376,
}  # fmt: skip
"""Bytes of shared memory one thread block may ask for (CUDA programming guide, table of compute capabilities)."""


@dataclass(frozen=True)
class Target:
    """What a configuration is chosen for.

    arch: whose rows are taken (`sm_80`, `sm_90`, `sm_100`). sm_count: multiprocessors. shared: bytes of shared memory a
    thread block may ask for. fp8: whether there are instructions for FP8 (from sm_89 on).
    """

    arch: str
    sm_count: int
    shared: int
    fp8: bool


KNOWN = {
    **{arch: Target(arch, count, SHARED_LIMIT[arch], arch != "sm_80") for arch, count in SM_COUNT.items()},
    "sm_86": Target("sm_80", 84, SHARED_LIMIT["sm_86"], False),
    "sm_89": Target("sm_80", 142, SHARED_LIMIT["sm_89"], True),
    "sm_120": Target("sm_80", 188, SHARED_LIMIT["sm_120"], True),
}
"""What `assume` knows; the last three as an A40, an L40S and an RTX PRO 6000 Blackwell have it."""

_assumed: contextvars.ContextVar[Target] = contextvars.ContextVar("assumed", default=KNOWN["sm_90"])
_ahead: contextvars.ContextVar[bool] = contextvars.ContextVar("ahead", default=False)


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter; read when they are decorated, so it holds for a whole process."""
    return os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "on")


@contextlib.contextmanager
def assume(arch: str, sm_count: int | None = None, *, ahead_of_time: bool = False) -> Iterator[Target]:
    """Choose configurations for `arch` where there is no GPU to ask; has no effect on tensors of a real GPU.

    ahead_of_time: launches are only compiled, so that tensors on the meta device will do; they are refused otherwise.
    Raises ValueError for an architecture that is not in `KNOWN`.
    """
    if arch not in KNOWN:
        raise ValueError(f"architecture {arch!r} has no configurations; there are {', '.join(KNOWN)}")
    known = KNOWN[arch]
    assumed = known if sm_count is None else dataclasses.replace(known, sm_count=sm_count)
    target_token, ahead_token = _assumed.set(assumed), _ahead.set(ahead_of_time)
    try:
        yield assumed
    finally:
        _ahead.reset(ahead_token)
        _assumed.reset(target_token)


def ahead_of_time() -> bool:
    """Whether launches are only compiled (`assume`)."""
    return _ahead.get()


def target(tensor: torch.Tensor) -> Target:
    """What a kernel on this tensor is configured for.

    Raises ValueError for a GPU older than sm_80.
    """
    return _of_gpu(tensor.device.index or 0) if tensor.device.type == "cuda" else _assumed.get()


@functools.cache
def _of_gpu(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    if capability < (8, 0):
        raise ValueError(f"compute capability {capability[0]}.{capability[1]} is not supported; the kernels need 8.0")
    arch = {9: "sm_90", 10: "sm_100", 11: "sm_100"}.get(capability[0], "sm_80")
    shared = int(driver.active.utils.get_device_properties(index)["max_shared_mem"])
    return Target(arch, properties.multi_processor_count, shared, capability >= (8, 9))


def has_tma(tensor: torch.Tensor) -> bool:
    """Whether tiles are loaded by the tensor memory accelerator there (rows of sm_90 and sm_100)."""
    return target(tensor).arch != "sm_80"


def current(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Within it the GPU of the tensor is the current one, on which Triton launches; nothing for other tensors."""
    if tensor.device.type != "cuda" or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    there: contextlib.AbstractContextManager[object] = torch.cuda.device(tensor.device)
    return there


def prepare_descriptors() -> None:
    """Give Triton the allocator that tensor descriptors made on the device need; Triton keeps it a thread."""

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device="cuda")

    triton.set_allocator(allocate)
