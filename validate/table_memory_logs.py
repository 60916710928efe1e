"""Tables of start-up logs: llama.cpp's caches, the pools of SGLang and TensorRT-LLM, vLLM's blocks and budgets.

A log states some of the numbers and leaves others to be derived; what is printed is taken as given, and the rest is
predicted from it: figures are grouped by what was ``given``. Each engine has its own rules; a process's peak is not
predicted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from perfmodel.validate import logs_llamacpp, logs_pools, logs_vllm
from perfmodel.validate.models import Models
from perfmodel.validate.rows import Comparison, Kind, Missing, Row, Skip

PEAK = "a process's peak: what the framework and its allocator keep beside weights and cache is not predicted"

#: A word of the engine's name -> what compares its rows; the first that is found.
ENGINES: dict[str, Callable[[Row, Models], Iterator[Comparison | Missing]]] = {
    "llama.cpp": logs_llamacpp.compare,
    "vllm": logs_vllm.compare,
    "sglang": logs_pools.sglang,
    "tensorrt-llm": logs_pools.trtllm,
}


def compare(row: Row, models: Models) -> Iterator[Comparison | Missing]:
    """What a log prints beside what follows from its settings."""
    if row["kind"] == "process_peak_memory":
        raise Skip(PEAK)
    engine = row["engine"].casefold()
    found = next((rules for word, rules in ENGINES.items() if word in engine), None)
    if found is None:
        raise Skip(f"the logs of this engine are not understood; those of {', '.join(ENGINES)} are")
    if re.search(r"ranks? (?:differ|decide)|over ranks", row.get("notes", "") + row.get("quality", "")):
        raise Skip(
            "the memory is printed for one rank and the tokens for another: the row's note says that ranks differ"
        )
    for one in found(row, models):
        if isinstance(one, Comparison):
            yield replace(one, group={"given": one.group.get("given", "settings")})
        else:
            yield one


KIND = Kind(
    "memory_logs", "memory in start-up logs",
    ("kind", "engine", "model", "weight_format", "kv_dtype", "tp", "max_len_or_n_ctx", "kv_mem", "kv_mem_unit",
     "kv_tokens", "other_numbers", "verbatim"),
    ("kv_mem", "k_mem", "v_mem", "state_mem", "kv_tokens", "gpu_blocks", "max_concurrency", "weights_per_gpu",
     "params_printed"),
    ("engine",), compare,
)  # fmt: skip
