"""What a case file declares: launches to compile ahead of time, and configurations to choose table rows from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perfmodel.kernels.device import KNOWN
from perfmodel.kernels.table import Config

MOST_SPILL = 32
"""Bytes of spilled registers that a case may ask to be allowed, if it says why."""

#: What `expects` may name. Counts of instructions in the PTX: true for some, false for none.
COUNTED = frozenset(
    {
        "wgmma", "mma_sync", "tcgen05", "tma_load", "tma_store", "cp_async", "cp_async16", "setmaxnreg", "ldmatrix",
        "ex2", "atomics", "load_v4",
    }
)  # fmt: skip
#: Figures with a limit: at most, or at least.
AT_MOST, AT_LEAST = frozenset({"registers", "instructions_per_weight"}), frozenset({"blocks_per_sm"})
#: Figures that must be just so. `shape` is an MMA shape such as m64n256k16; `warps` counts those that really run.
EXACT = frozenset({"shape", "warps"})


@dataclass(frozen=True)
class Case:
    """One call of a public kernel function whose launches are compiled for an architecture.

    kernel: the name of its launch table. arch: sm_80, sm_90 or sm_100, or another that takes the rows of one.
    label: what tells it from the kernel's other cases. call: makes tensors on the meta device and calls the function,
    leaving the choice of the row to it. expects: see COUNTED, AT_MOST, AT_LEAST and EXACT; met if one launch of the
    call meets it (what must be absent: every one). max_spill: bytes of spilled registers allowed, with the reason in
    `why`. loop_weights: packed weights that a program takes in one turn of its longest loop, to count the instructions
    spent on each.
    """

    kernel: str
    arch: str
    label: str
    call: Callable[[], object]
    expects: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    max_spill: int = 0
    why: str = ""
    loop_weights: int = 0

    def __post_init__(self) -> None:
        known = COUNTED | AT_MOST | AT_LEAST | EXACT
        if self.arch not in KNOWN:
            raise ValueError(f"{self.name}: architecture {self.arch!r} is not one of {', '.join(KNOWN)}")
        if unknown := set(self.expects) - known:
            raise ValueError(f"{self.name}: expects {sorted(unknown)}; known are {sorted(known)}")
        if not 0 <= self.max_spill <= MOST_SPILL or (self.max_spill > 0 and not self.why):
            raise ValueError(f"{self.name}: max_spill {self.max_spill} needs a reason, and to be at most {MOST_SPILL}")

    @property
    def name(self) -> str:
        """kernel/arch/label: unique."""
        return f"{self.kernel}/{self.arch}/{self.label}"


@dataclass(frozen=True)
class Work:
    """What one launch does with a configuration: padding of its tiles and what they read again included.

    math: the format of the matrix units as the hardware specs name it (bf16, fp8, int8). flops: on them. hbm_bytes:
    compulsory traffic. l2_bytes: all that the tiles read and write. blocks: programs, or tiles where the kernel is
    persistent. exp: exponentials.
    """

    blocks: int
    hbm_bytes: float
    l2_bytes: float = 0.0
    flops: float = 0.0
    math: str = "bf16"
    exp: float = 0.0


@dataclass(frozen=True)
class Candidates:
    """Configurations among which `tools/kernels.py prune` proposes a row for one problem on one architecture.

    meta: the values of each compile-time constant. call: makes the problem's tensors on the meta device and calls the
    public function with `config=` the one given. work: what that launch does. keep: leaves out combinations.
    """

    kernel: str
    arch: str
    label: str
    meta: Mapping[str, Sequence[int | str | bool]]
    num_warps: Sequence[int]
    num_stages: Sequence[int]
    call: Callable[[Config], object]
    work: Callable[[Config], Work]
    keep: Callable[[Config], bool] = lambda config: True
    loop_weights: Callable[[Config], int] = lambda config: 0
