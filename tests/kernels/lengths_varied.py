"""How often Triton compiles a kernel as the lengths and the batch of a server change; a program, since it must not be
interpreted. It prints, as JSON, the calls and kernels that are compiled more than once for one set of constants; with
`all` as if no kernel exempted an argument.

Triton compiles anew where an integer argument becomes 1, or a multiple of 16, or ceases to be. Nothing runs here.
"""

import collections
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import torch
from kernel_aot.driver import Launch, recording
from triton.runtime.jit import JITFunction

from perfmodel.kernels.attention.decode import paged_decode
from perfmodel.kernels.attention.merge import merge_attention
from perfmodel.kernels.attention.mla import Latents, mla_decode
from perfmodel.kernels.attention.paged_launch import Paged
from perfmodel.kernels.attention.prefill import Packed, prefill_attention
from perfmodel.kernels.attention.tree import tree_attention
from perfmodel.kernels.gemm.dense import gemm_dense
from perfmodel.kernels.gemm.fp8_block import gemm_fp8_block
from perfmodel.kernels.gemm.w4_packing import W4Weight
from perfmodel.kernels.gemm.w4a16 import gemm_w4a16
from perfmodel.kernels.speculative.chain import verify_chain
from perfmodel.kernels.speculative.compact import compact_kv
from perfmodel.kernels.speculative.greedy import verify_greedy
from perfmodel.kernels.speculative.tree_sampled import verify_tree_sampled

BF16, FP8, INT, LONG = torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.int64
VOCABULARY, PAGE, PAGES, HEADS = 128256, 64, 1000, (32, 8, 8)
SIZES = [(1, 1), (1, 16), (1, 15), (1, 40), (2, 64), (3, 33), (4, 48), (16, 128), (33, 65), (64, 128), (64, 513)]
"""Sequences, and pages, tokens or (up to 64) drafts of each."""


def new(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def cache(batch: int, width: int) -> Paged:
    k, v = (new(PAGES, PAGE, 8, 128, dtype=BF16) for _ in "kv")
    return Paged(k, v, new(batch, width, dtype=INT), new(batch, dtype=INT))


def decode(batch: int, width: int) -> None:
    paged_decode(new(batch, 1, 32, 128, dtype=BF16), cache(batch, width))


def tree(batch: int, width: int) -> None:
    tree_attention(new(batch, 8, 32, 128, dtype=BF16), cache(batch, width), new(batch, 8, dtype=LONG))


def mla(batch: int, width: int) -> None:
    latents = Latents(new(PAGES, PAGE, 576, dtype=BF16), new(batch, width, dtype=INT), new(batch, dtype=INT))
    mla_decode(new(batch, 1, 128, 576, dtype=BF16), latents, 0.1)


def merge(batch: int, pieces: int) -> None:
    merge_attention(new(32 * batch, pieces, 128), new(32 * batch, pieces))


def prefill(batch: int, tokens: int) -> None:
    prefill_attention(*(new(batch, tokens, heads, 128, dtype=BF16) for heads in HEADS))


def prefill_packed(batch: int, tokens: int) -> None:
    packed = Packed(*(new(batch + 1, dtype=INT) for _ in "qk"), tokens, tokens)
    prefill_attention(*(new(batch * tokens, heads, 128, dtype=BF16) for heads in HEADS), packed=packed)


def dense(batch: int, tokens: int) -> None:
    gemm_dense(new(batch * tokens, 4096, dtype=BF16), new(4096, 4096, dtype=BF16))


def fp8_block(batch: int, tokens: int) -> None:
    a, b = new(batch * tokens, 4096, dtype=FP8), new(4096, 4096, dtype=FP8)
    gemm_fp8_block(a, b, new(32, batch * tokens).t(), new(32, 32))


def w4a16(batch: int, tokens: int) -> None:
    gemm_w4a16(new(batch * tokens, 14336, dtype=BF16), W4Weight.empty(14336, 4096, 128, device="meta"))


def chain(batch: int, drafts: int) -> None:
    drafts = min(drafts, 64)
    logits = new(batch, drafts + 1, VOCABULARY, dtype=BF16), new(batch, drafts, VOCABULARY, dtype=BF16)
    tokens = new(batch, drafts, dtype=INT), new(batch, dtype=INT)
    for draft in (logits[1], None):
        verify_chain(logits[0], draft, *tokens, new(batch, drafts), new(batch), new(batch))
    verify_greedy(logits[0], *tokens)


def sampled_tree(batch: int, _: int) -> None:
    logits, tokens = new(batch, 12, VOCABULARY, dtype=BF16), new(batch, 12, dtype=INT)
    for draft in (logits, None):
        verify_tree_sampled(logits, draft, tokens, tokens, 4, new(batch, 12), new(batch), new(batch))


def compact(batch: int, width: int) -> None:
    k, v = (new(2, PAGES, PAGE, 8, 128, dtype=BF16) for _ in "kv")
    table, path = new(batch, width, dtype=INT), new(batch, 5, dtype=INT)
    compact_kv(k, v, table, new(batch, dtype=INT), path, new(batch, dtype=INT))


CALLS: list[Callable[[int, int], None]] = [
    decode, tree, mla, merge, prefill, prefill_packed, dense, fp8_block, w4a16, chain, sampled_tree, compact,
]  # fmt: skip


def parts(launch: Launch) -> tuple[str, str]:
    """What a launch is compiled for that its caller chose (kernel, types, constants), and what Triton reads off values
    of arguments beside."""
    fixed: list[str] = [
        launch.function.fn.__name__,
        str(launch.options["num_warps"]),
        str(launch.options["num_stages"]),
    ]
    found = [str(sorted(launch.attributes.items()))]
    for parameter in launch.function.params:
        kind = launch.signature[parameter.name]
        value = launch.constants.get((parameter.num,))
        read = kind == "i32" or (kind == "constexpr" and not parameter.is_constexpr and value is not None)
        (found if read else fixed).append(f"{parameter.name} {kind} {value}")
    return str(fixed), str(found)


def repeated() -> Iterator[str]:
    """Kernels of the calls that are compiled more than once, as call:kernel."""
    for call in CALLS:
        with recording("sm_90", compiled=False) as seen:
            for sizes in SIZES:
                call(*sizes)
        compiled = collections.defaultdict(set)
        for launch in filter(lambda one: one.signature, seen.launches):
            chosen, read = parts(launch)
            compiled[chosen].add(read)
        names = {chosen.split("'")[1] for chosen, read in compiled.items() if len(read) > 1}
        yield from (f"{call.__name__}:{name}" for name in sorted(names))


def exempt_none() -> None:
    """Have Triton look at every argument of the kernels that are loaded."""
    for name, module in list(sys.modules.items()):
        if name.startswith("perfmodel.kernels."):
            for function in filter(lambda one: isinstance(one, JITFunction), vars(module).values()):
                for parameter in function.params:
                    vars(parameter)["do_not_specialize"] = False


if __name__ == "__main__":
    if "all" in sys.argv:
        exempt_none()
    print(json.dumps(sorted(set(repeated()))))
