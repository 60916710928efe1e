"""Time perfmodel, and two peers beside it in the same run, and write docs/performance.md.

    pip install --no-deps genz-llm llm-analysis && pip install fire ipython paretoset plotly seaborn tqdm
    python tools/performance.py [-o docs/performance.md]

CPU time of one core, the fastest of several rounds. Without the peers the figures of perfmodel alone are printed and
nothing is written.
"""

import argparse
import importlib.metadata
import importlib.util
import logging
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np

import perfmodel as pm
from perfmodel.roofline.batch import Batch
from perfmodel.roofline.calibrated.model import Calibrated
from perfmodel.roofline.efficiency import load
from perfmodel.roofline.graph import graph
from perfmodel.roofline.setup import setup
from perfmodel.roofline.step import decode
from perfmodel.roofline.tabulated import TabulatedSource
from perfmodel.roofline.time_source import model_source

ROOT = Path(__file__).resolve().parents[1]
PEERS = {"GenZ": "genz-llm", "llm-analysis": "llm-analysis"}
MODULES = {"GenZ": "GenZ", "llm-analysis": "llm_analysis"}
MODEL, GPU, TP, BATCH, CONTEXT = "llama3-70b", "h100", 4, 8, 2048
#: Points of a sweep that the peers make in a loop.
BATCHES = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128]
CONTEXTS = [512, 1024, 1536, 2048, 2560, 3072, 3584, 4000]
MILLION = 10**6


def missing() -> list[str]:
    """Peers that are not installed, as they are called on the package index."""
    return [PEERS[peer] for peer, module in MODULES.items() if importlib.util.find_spec(module) is None]


def genz() -> Callable[[int, int], float]:
    """Seconds of a decode step by GenZ, without its efficiency factor."""
    from GenZ import decode_moddeling

    def step(batch: int, context: int) -> float:
        found = decode_moddeling(
            model="meta-llama/Llama-3.1-70B", batch_size=batch, input_tokens=context, output_tokens=0, Bb=1,
            system_name="H100_GPU", bits="bf16", tensor_parallel=TP,
            parallelism_heirarchy=f"TP{{{TP}}}_EP{{1}}_PP{{1}}",
        )  # fmt: skip
        return float(found["Latency"]) * 1e-3

    return step


def llm_analysis() -> Callable[[int, int], float]:
    """Seconds of a decode step by llm-analysis, of whose models Llama 2 70B is the nearest."""
    from llm_analysis.analysis import LLMAnalysis
    from llm_analysis.config import (
        ParallelismConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
        get_model_config_by_name,
    )
    from llm_analysis.logger import logger

    logger.setLevel(logging.CRITICAL)
    parts = (
        get_model_config_by_name("upstage_Llama-2-70b-instruct-v2"), get_gpu_config_by_name("h100-sxm-80gb"),
        get_dtype_config_by_name("w16a16e16"), ParallelismConfig(tp_size=TP),
    )  # fmt: skip

    def step(batch: int, context: int) -> float:
        found = LLMAnalysis(*parts).inference(batch_size_per_gpu=batch, seq_len=context, num_tokens_to_generate=1)
        return float(found["decode_latency"])

    return step


def ours(fidelity: str) -> Callable[[int, int], float]:
    """Seconds of a decode step by perfmodel."""
    source = model_source(MODEL, GPU, tp=TP, resolution=0, fidelity=fidelity, **_engine(fidelity))
    return lambda batch, context: source.step_time(Batch(batch, context)).seconds


def _engine(fidelity: str) -> dict[str, Any]:
    return {} if fidelity == "bound" else {"engine": "trtllm"}


def per_call(step: Callable[[int, int], Any], calls: int, rounds: int = 5) -> float:
    """Seconds of a call, each with a context that was not asked before: the fastest of several rounds."""
    context = iter(range(CONTEXT, 10**9))
    for _ in range(3):
        step(BATCH, 1000)
    times = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            step(BATCH, min(1024 + next(context) % 3000, 4000))
        times.append((time.process_time() - start) / calls)
    return min(times)


def fastest(call: Callable[[], Any], rounds: int = 3) -> float:
    """Seconds of the fastest of several calls."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def sweep(fidelity: str) -> float:
    """Seconds of a sweep over ``BATCHES`` and ``CONTEXTS``."""
    options = {"batch": BATCHES, "context": CONTEXTS, "tp": TP, "fidelity": fidelity, **_engine(fidelity)}
    return fastest(lambda: pm.sweep(MODEL, GPU, **options), 5)


def looped(step: Callable[[int, int], float]) -> float:
    """Seconds of the same points one after another."""
    return fastest(lambda: [step(b, c) for b in BATCHES for c in CONTEXTS], 1)


def million(model: str) -> float:
    """Seconds of 10^6 unrelated pairs of batch and context, one decode step each at calibrated fidelity."""
    ready = setup(model, GPU, tp=8)
    rng = np.random.default_rng(0)
    batch, context = (rng.integers(1, top, MILLION).astype(float) for top in (1024, 131072))

    def run() -> Any:
        timer, total = Calibrated(ready.gpu, load(ready.gpu, "vllm"), ready.topology), 0.0
        for op in graph(ready.model, decode(batch, context), ready.plan, ready.topology):
            total = total + timer.time(op).predicted
        return total

    return fastest(run, 2)


def frame() -> float:
    """Seconds of a sweep of 10^6 configurations of batch, context, TP and cache format, at calibrated fidelity."""
    contexts = [float(x) for x in np.linspace(1, 131072, 250).astype(int)]
    options = {"batch": list(range(1, 501)), "context": contexts, "tp": [1, 2, 4, 8], "kv": ["bf16", "fp8"]}
    return fastest(lambda: pm.sweep(MODEL, GPU, fidelity="calibrated", engine="vllm", **options), 2)


def figures() -> list[tuple[str, str, str]]:
    """What is timed, the figure, and the aim."""
    found = [
        (f"10^6 unrelated decode steps of {model}, calibrated", f"{million(model):.2g} us a step", "2 us")
        for model in ("llama3-70b", "deepseek-v3", "gpt-oss-120b")
    ]
    found.append(("a sweep of 10^6 (batch, context, TP, KV format), calibrated", f"{frame():.2g} us a step", "2 us"))
    for model in ("llama3-70b", "deepseek-v3"):
        new = _new_step(model)
        found.append((f"one decode step of {model}, calibrated, every shape new", f"{new * 1e3:.2g} ms", "5 ms"))
    new = per_call(ours("calibrated"), 200)
    found.append(("ModelSource: a context not asked before, calibrated", f"{new * 1e3:.2g} ms", "1 ms"))
    source = model_source(MODEL, GPU, tp=TP, fidelity="calibrated", engine="vllm")
    table = TabulatedSource(source)
    error = table.error(500)
    for at in range(1000, 4001):
        table.step_time(Batch(BATCH, at))
    found.append(("TabulatedSource: decodes", f"{per_call(_asks(table), 20000) * 1e6:.2g} us", "5 us"))
    mixed = Batch(64, 3000.5, 2, 224.0, 1200.0)
    table.step_time(mixed)
    alone = fastest(lambda: [table.step_time(mixed) for _ in range(10000)], 5) / 10000
    found.append(("TabulatedSource: decodes and chunks", f"{alone * 1e6:.2g} us", "5 us"))
    words = f"mean {error.mean:.2%}, 99th percentile {error.p99:.2%}, most {error.most:.1%}"
    found.append(("its error against ModelSource, 500 random steps", words, ""))
    return found


def _asks(source: Any) -> Callable[[int, int], Any]:
    return lambda batch, context: source.step_time(Batch(batch, context))


def _new_step(model: str) -> float:
    ready = setup(model, GPU, tp=8)
    efficiency, ops = load(ready.gpu, "vllm"), graph(ready.model, decode(8.0, 4096.0), ready.plan, ready.topology)

    def run() -> float:
        fresh = Calibrated(ready.gpu, efficiency, ready.topology)
        return float(fresh.total([fresh.time(op) for op in ops]).predicted)

    return fastest(run, 20)


def beside() -> list[dict[str, Any]]:
    """perfmodel and the peers on the same questions."""
    rows = []
    for name, step, whole in (
        ("perfmodel, bound", ours("bound"), lambda: sweep("bound")),
        ("perfmodel, calibrated", ours("calibrated"), lambda: sweep("calibrated")),
        ("GenZ", genz(), None),
        ("llm-analysis", llm_analysis(), None),
    ):
        calls = 10 if name == "GenZ" else 200
        rows.append({
            "name": name, "step_s": step(BATCH, CONTEXT), "call_s": per_call(step, calls, 3 if calls == 10 else 5),
            "sweep_s": whole() if whole else looped(step),
        })  # fmt: skip
    return rows


INTRODUCTION = """# Speed

<!-- Written by tools/performance.py: run it again rather than edit. -->

CPU time of one core of {processor}, Python {python}, NumPy {numpy}; the fastest of several rounds,
hot. Times depend on the machine and on what else runs there; the ratios below less so.

| what | measured | aim |
| --- | --: | --: |
"""
PEERS_WORDS = """
## Beside peers

One decode step of a 70B model on {tp} H100, batch {batch}, each call with a context that was not asked before; and
{points} points ({batches} batches x {contexts} contexts), where the peers are called in a loop and perfmodel once.
Versions: {versions}. llm-analysis has no Llama 3 and takes Llama 2 70B;
its call computes the prefill too. Neither peer has intervals or fits to measurements: the bound does what they do.
Ratios are to perfmodel at calibrated fidelity: above 1 is slower.

| | its decode step | a call | ratio | {points} points | ratio |
| --- | --: | --: | --: | --: | --: |
"""


def page(own: list[tuple[str, str, str]], rows: list[dict[str, Any]]) -> str:
    """The page in Markdown."""
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PEERS.values())
    base = {row["name"]: row for row in rows}["perfmodel, calibrated"]
    text = INTRODUCTION.format(processor=_processor(), python=platform.python_version(), numpy=np.__version__)
    text += "".join(f"| {what} | {figure} | {aim} |\n" for what, figure, aim in own)
    text += PEERS_WORDS.format(
        tp=TP, batch=BATCH, points=len(BATCHES) * len(CONTEXTS), batches=len(BATCHES), contexts=len(CONTEXTS),
        versions=versions,
    )  # fmt: skip
    for row in rows:
        call, whole = row["call_s"] / base["call_s"], row["sweep_s"] / base["sweep_s"]
        text += (
            f"| {row['name']} | {row['step_s'] * 1e3:.1f} ms | {_short(row['call_s'] * 1e3)} ms | {_short(call)} | "
            f"{_short(row['sweep_s'] * 1e3)} ms | {_short(whole)} |\n"
        )
    commands = (__doc__ or "").split("\n\n")[1].splitlines()
    return text + "\nMade by\n\n```console\n" + "".join(f"$ {line.strip()}\n" for line in commands) + "```\n"


def _short(value: float) -> str:
    """Two digits."""
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "performance.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    own = figures()
    for what, figure, aim in own:
        print(f"{what}: {figure}" + f" (aim {aim})" * bool(aim))
    if lacking := missing():
        print(f"no comparison: {' and '.join(lacking)} not installed")
        return
    text = page(own, beside())
    print(text)
    given.output.write_text(text, encoding="utf-8")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
