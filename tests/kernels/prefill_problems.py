"""What the prefill tests share: problems between guard bands, small configurations, and the one comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from numeric import Guarded, assert_close, guarded, poisoned, random, starts

from perfmodel.kernels.attention.prefill import Packed, prefill_attention, prefill_reference
from perfmodel.kernels.table import Config


def small(path: str, block_m: int = 64, block_n: int = 32) -> Config:
    """A configuration whose tiles leave tails in short sequences. path: `pointer`, `tma` or `specialized`."""
    meta: dict[str, int | bool] = {"tma": path != "pointer", "BLOCK_M": block_m, "BLOCK_N": block_n}
    if meta["tma"]:
        meta["SPECIALIZE"] = path == "specialized"
    return Config(meta, 4, 2)


def needs(device: str, path: str) -> None:
    """Skip on a GPU that cannot run a path."""
    major = torch.cuda.get_device_capability()[0] if device == "cuda" else 9
    if path != "pointer" and major < 9:
        pytest.skip("this GPU has no tensor memory accelerator")


@dataclass(frozen=True)
class Problem:
    """Queries, keys and values between guard bands, poisoned results, and what they are to be."""

    q: Guarded
    k: Guarded
    v: Guarded
    out: Guarded
    lse: Guarded
    packed: Packed | None
    sinks: torch.Tensor | None

    def check(self, config: Config | None, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the kernel and fail unless output and log-sum-exp are right and nothing else was written."""
        given = (self.q.tensor, self.k.tensor, self.v.tensor)
        out = (self.out.tensor, self.lse.tensor)
        for each in out:
            each.fill_(float("nan"))
        shared = {**options, "packed": self.packed, "sinks": self.sinks}
        prefill_attention(*given, **shared, config=config, out=out)
        shared.pop("warp_specialized", None)
        exact, lse = prefill_reference(*given, **shared)
        theirs, _ = prefill_reference(*given, **shared, dtype=self.q.tensor.dtype)
        assert_close(out[0], exact, torch_result=theirs)
        assert_close(out[1], lse, tolerance=1e-5)
        for buffer in (self.q, self.k, self.v, self.out, self.lse):
            buffer.check()
        return out


def problem(
    device: str,
    dtype: torch.dtype,
    heads: tuple[int, int],
    head_dim: int,
    lengths: Sequence[tuple[int, int]],
    *,
    packed: bool = False,
    sinks: bool = False,
    seed: int = 0,
    scale: float = 1.0,
) -> Problem:
    """Random q, k and v. heads: of queries and of keys. lengths: queries and keys of each sequence."""
    many, few = heads
    rows, columns = [n for n, _ in lengths], [m for _, m in lengths]
    if packed:
        q_shape, k_shape = (sum(rows), many, head_dim), (sum(columns), few, head_dim)
        where = Packed(starts(rows, device), starts(columns, device), max(rows), max(columns))
        lse_shape: tuple[int, ...] = (many, sum(rows))
    else:
        assert len(set(lengths)) == 1, "only packed sequences differ in length"
        where, lse_shape = None, (len(lengths), many, rows[0])
        q_shape, k_shape = (len(lengths), rows[0], many, head_dim), (len(lengths), columns[0], few, head_dim)
    return Problem(
        guarded(random(*q_shape, dtype=dtype, device=device, seed=seed, scale=scale)),
        guarded(random(*k_shape, dtype=dtype, device=device, seed=seed + 1)),
        guarded(random(*k_shape, dtype=dtype, device=device, seed=seed + 2)),
        guarded(poisoned(q_shape, dtype, device)),
        guarded(poisoned(lse_shape, torch.float32, device)),
        where,
        random(many, dtype=torch.float32, device=device, seed=seed + 3, scale=2.0) if sinks else None,
    )
