#!/usr/bin/env python3
"""How far whole runs of a deployment are off together: predicted over measured, by GPU, engine, version and model.

    python tools/deployment_spread.py TABLE.csv

TABLE.csv has a closed loop of requests a row: gpu, framework, version, model, gemm_dtype, tp, isl, osl, concurrency,
ttft_ms, tpot_ms (``systems/silicon_sample.csv`` of aiconfigurator-core, deduplicated). Printed is the list
``deployments`` of roofline/data/quantization_published.yaml. No efficiency is fitted to these rows.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import median, stdev

from perfmodel.roofline.analysis import analyze
from perfmodel.roofline.quantization.published import widened

#: Names of the table -> ours. Models that are served with prediction layers in some rows are left out.
GPUS = {"h100_sxm": "h100-sxm", "b200_sxm": "b200"}
MODELS = {
    "Qwen/Qwen3-32B": "qwen3-32b", "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "meta-llama/Llama-3.1-70B": "llama3.1-70b", "openai/gpt-oss-120b": "gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
}  # fmt: skip
#: Formats as the table writes them; gpt-oss is served in its own.
WEIGHTS = {"fp8": "fp8", "fp8_block": "fp8_block", "bfloat16": "bf16", "nvfp4": None}
#: Rows that a deployment needs.
ENOUGH = 20

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Run:
    """Rates of a row: measured, and predicted with its interval. [requests/s of one sequence]"""

    measured: float
    rate: float
    low: float
    high: float

    @property
    def log_ratio(self) -> float:
        """Logarithm of predicted over measured rate."""
        return log(self.rate / self.measured)

    def inside(self, spread: float) -> bool:
        """Whether the measurement is in the interval, with a spread between deployments added."""
        low, high = widened(self.rate, self.low, self.high, spread=spread)
        return low <= self.measured <= high


def run(row: Mapping[str, str]) -> Run:
    """A row: a request takes ``ttft + (output - 1) x tpot``."""
    output = float(row["osl"])
    a = analyze(
        MODELS[row["model"]], GPUS[row["gpu"]], batch=int(float(row["concurrency"])), input=int(row["isl"]),
        output=int(output), tp=int(float(row["tp"])), weights=WEIGHTS[row["gemm_dtype"]], fidelity="calibrated",
        engine=row["framework"],
    )  # fmt: skip
    measured = (float(row["ttft_ms"]) + (output - 1) * float(row["tpot_ms"])) / 1e3
    low, high = (a.ttft_interval[i] + (output - 1) * a.tpot_interval[i] for i in (1, 0))
    return Run(1 / measured, 1 / (a.ttft_s + (output - 1) * a.tpot_s), 1 / low, 1 / high)


def deployments(rows: Iterable[Mapping[str, str]]) -> dict[Key, list[Run]]:
    """Runs of every deployment with rows enough; rows of data parallelism over attention are left out."""
    found: dict[Key, list[Run]] = defaultdict(list)
    for row in rows:
        if row["model"] in MODELS and row["gemm_dtype"] in WEIGHTS and float(row.get("attention_dp") or 1) == 1:
            found[row["gpu"], row["framework"], row["version"], row["model"]].append(run(row))
    return {key: runs for key, runs in found.items() if len(runs) >= ENOUGH}


def lines(found: Mapping[Key, list[Run]]) -> list[str]:
    """The list of the YAML file, and the shares of runs inside their intervals."""
    middles = {key: median(one.log_ratio for one in runs) for key, runs in found.items()}
    everything = [one for runs in found.values() for one in runs]
    inside = [
        sum(one.inside(spread) for one in everything) / len(everything) for spread in (0.0, stdev(middles.values()))
    ]
    return [
        f"deployments_inside: [{inside[0]:.2f}, {inside[1]:.2f}]", "deployments:",
        *(
            f"  - {{gpu: {GPUS[gpu]}, engine: {engine}, version: '{version}', model: {MODELS[name]}, "
            f"rows: {len(found[gpu, engine, version, name])}, log_ratio: {middles[gpu, engine, version, name]:.3f}}}"
            for gpu, engine, version, name in sorted(found)
        ),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    with parser.parse_args().table.open(newline="", encoding="utf-8") as stream:
        print("\n".join(lines(deployments(csv.DictReader(stream)))))


if __name__ == "__main__":
    main()
