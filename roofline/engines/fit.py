"""Fit the overheads on start-up logs, and say how well they predict a model that was left out.

Five forms with few parameters each; everything else in the budget is counted. The logs print rank 0's activations and
memory outside PyTorch; the KV tokens are those of the rank with the least room.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np

from perfmodel.roofline.engines import vllm
from perfmodel.roofline.engines.budget import ask
from perfmodel.roofline.engines.capacity import GIB, base_name
from perfmodel.roofline.engines.overheads import Overheads
from perfmodel.roofline.engines.vllm_activation import activation_bytes, graph_bytes, graph_sizes
from perfmodel.roofline.engines.vllm_weights import moe_layers
from perfmodel.roofline.sharding import stage_layers

TERMS = ("weights", "activations", "non_torch", "cuda_graphs", "graph_estimate", "kv_pool")


@dataclass(frozen=True)
class Case:
    """A row of the table with its question, and what was measured. [bytes]"""

    row: Mapping[str, str]
    question: Mapping[str, Any]

    @property
    def group(self) -> str:
        """The base model, by which rows are left out together."""
        return str(self.question["model"].name)

    @property
    def tp(self) -> int:
        """Tensor parallelism."""
        return int(self.question["tp"])

    @property
    def pp(self) -> int:
        """Pipeline parallelism."""
        return int(self.question["pp"])

    def measured(self, column: str) -> float:
        """A column in GiB, in bytes."""
        return float(self.row[column]) * GIB

    @property
    def estimate(self) -> float:
        """The engine's estimate of its CUDA graphs."""
        found = re.search(r"\(est ([\d.]+)\)", self.row.get("other", ""))
        return float(found[1]) * GIB if found else 0.0

    @property
    def before(self) -> float:
        """What was taken of the device before the engine measured."""
        found = re.search(r"init free ([\d.]+) of ([\d.]+) GiB", self.row.get("other", ""))
        return (float(found[2]) - float(found[1])) * GIB if found else 0.0


def by_model(cases: Sequence[Case], value: Any) -> list[float]:
    """The mean of a value of each model: every model counts once."""
    groups: dict[str, list[float]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(value(case))
    return [mean(found) for found in groups.values()]


def fit(cases: Sequence[Case], template: Overheads) -> Overheads:
    """Overheads from the logs of several models.

    Parameters
    ----------
    template : Overheads
        Where what is not fitted comes from, and where a form without any row keeps its value.
    """
    tensor = [case for case in cases if case.pp == 1]
    one, two, more = ([c for c in tensor if min(c.tp, 3) == level] for level in (1, 2, 3))

    def levels(value: Any, old: Any) -> dict[str, float]:
        tp1 = median(by_model(one, value)) if one else old.tp1
        tp2 = median(by_model(two, value)) if two else old.tp2
        grown = [(value(c) - tp2) / (c.tp.bit_length() - 2) for c in more]
        return {"tp1": tp1, "tp2": tp2, "doubling": max(0.0, mean(grown)) if grown else old.doubling}

    moe = [case for case in cases if moe_layers(*_stage(case, template))]
    bare = template.model_copy(update={"moe_buffers": 0.0})
    buffers = by_model(moe, lambda c: c.measured("weights_gib") - _rank(c, bare).taken_weights)
    found = {
        "moe_buffers": max(0.0, mean(buffers)) if buffers else template.moe_buffers,
        "non_torch": levels(lambda c: c.measured("non_torch_gib"), template.non_torch),
        "context": levels(lambda c: c.before, template.context),
        "graphs": _graphs(cases, template, lambda c: c.measured("cudagraph_gib")),
        "graph_estimate": _graphs(cases, template, lambda c: c.estimate),
        "hidden_copies": _copies(cases, template),
    }
    return Overheads.model_validate({**template.model_dump(), **found, "rows": len(cases)})


@dataclass(frozen=True)
class Predicted:
    """Rank 0 of a case. [bytes]"""

    taken_weights: float
    activations: float
    non_torch: float
    graphs: float
    estimate: float


def _stage(case: Case, fitted: Overheads) -> tuple[Any, Any, int]:
    asked = ask(**case.question, fitted=fitted)
    return asked.model, asked.plan, 0


def _rank(case: Case, fitted: Overheads) -> Predicted:
    asked = ask(**case.question, fitted=fitted)
    limits = vllm.Limits.of(asked)
    rank = vllm.rank(asked, limits, 0)
    sizes = len(graph_sizes(asked.rules, limits.seqs, limits.tokens))
    estimate = graph_bytes(asked.model, asked.plan, 0, asked.rules, fitted, sizes, True)
    weights = max(
        sum(value for value, _ in vllm.rank(asked, limits, stage).weights.values()) for stage in range(asked.plan.pp)
    )
    return Predicted(weights, rank.activations, rank.non_torch, rank.graphs, estimate)


def _copies(cases: Sequence[Case], template: Overheads) -> float:
    """The number of hidden-size tensors that brings the predicted activations nearest to the measured ones."""
    asked = {id(case): ask(**case.question, fitted=template) for case in cases}

    def error(copies: float) -> float:
        other = template.model_copy(update={"hidden_copies": copies})

        def off(case: Case) -> float:
            a, limits = asked[id(case)], vllm.Limits.of(asked[id(case)])
            peak = activation_bytes(a.model, a.gpu, a.plan, 0, a.rules, other, limits.tokens, limits.seqs)
            return abs(peak - case.measured("activation_gib"))

        return sum(by_model(cases, off))

    return min((round(2 + 0.1 * step, 1) for step in range(61)), key=error)


def _graphs(cases: Sequence[Case], template: Overheads, value: Any) -> dict[str, float]:
    """Least squares of a base, a part a layer and a part a mixture layer; rows weighted so that models count alike."""
    rows, wanted = [], []
    sizes = {case.group: sum(other.group == case.group for other in cases) for case in cases}
    for case in cases:
        model, plan, stage = _stage(case, template)
        weight = sizes[case.group] ** -0.5
        layers = len(stage_layers(model.num_layers, plan.pp)[stage])
        rows.append([weight, weight * layers, weight * moe_layers(model, plan, stage)])
        wanted.append(weight * value(case))
    found = np.linalg.lstsq(np.array(rows), np.array(wanted), rcond=None)[0]
    return dict(zip(("base", "per_layer", "per_moe_layer"), (max(0.0, float(x)) for x in found), strict=True))


def residuals(cases: Sequence[Case], fitted: Overheads) -> list[dict[str, Any]]:
    """Predicted less measured, of every row and term [bytes], and the errors of weights and KV tokens as fractions."""
    found = []
    for case in cases:
        asked = ask(**case.question, fitted=fitted)
        answer = vllm.memory(asked)
        rank, tokens = _rank(case, fitted), float(case.row["kv_tokens"])
        weights = case.measured("weights_gib")
        pool = answer.block_bytes * (answer.kv_tokens - tokens) / answer.block_size * max(answer.facts["groups"], 1)
        single = case.pp == 1
        found.append({
            "model": base_name(case.row["model"])[0], "group": case.group, "tp": case.tp, "pp": case.pp,
            "weights_error": rank.taken_weights / weights - 1, "kv_tokens_error": answer.kv_tokens / tokens - 1,
            "weights": rank.taken_weights - weights, "kv_pool": pool,
            "activations": rank.activations - case.measured("activation_gib"),
            "non_torch": rank.non_torch - case.measured("non_torch_gib") if single else None,
            "cuda_graphs": rank.graphs - case.measured("cudagraph_gib"),
            "graph_estimate": rank.estimate - case.estimate,
        })  # fmt: skip
    return found


def cross_validate(cases: Sequence[Case], template: Overheads) -> list[dict[str, Any]]:
    """Residuals of each model's rows under overheads that were fitted on the other models."""
    found = []
    for group in dict.fromkeys(case.group for case in cases):
        others = [case for case in cases if case.group != group]
        found += residuals([case for case in cases if case.group == group], fit(others, template))
    return found


def half_width(found: Sequence[Mapping[str, Any]], term: str, share: float = 0.8) -> float:
    """The size that ``share`` of the left-out residuals stay under, every model counting once. [bytes]"""
    values = [(abs(row[term]), row["group"]) for row in found if row[term] is not None]
    counts = {group: sum(g == group for _, g in values) for _, group in values}
    total, reached = share * len(counts), 0.0
    for value, group in sorted(values):
        reached += 1 / counts[group]
        if reached >= total - 1e-9:
            return float(value)
    return 0.0


def summary(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean and largest errors of weights and KV tokens, as fractions."""
    return {
        "weights_mean": mean(abs(row["weights_error"]) for row in found),
        "weights_max": max(abs(row["weights_error"]) for row in found),
        "kv_tokens_mean": mean(abs(row["kv_tokens_error"]) for row in found),
        "kv_tokens_max": max(abs(row["kv_tokens_error"]) for row in found),
    }
