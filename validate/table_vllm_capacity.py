"""Tables of vLLM's capacity: what its start-up log says of weights, activations, graphs and the KV cache.

Every number is predicted from the row's settings by ``roofline.engines.memory``; none of the measured columns is used.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.roofline.engines import memory
from perfmodel.roofline.engines.capacity import base_name, question
from perfmodel.roofline.engines.overheads import overheads
from perfmodel.roofline.engines.result import EngineMemory, Term
from perfmodel.validate.models import UNKNOWN, Models
from perfmodel.validate.rows import Comparison, Kind, Missing, Row, Skip, measured, whole

GIB = 2.0**30

#: Measured column -> the term of the budget that it is. [GiB]
TERMS = {
    "weights_gib": "weights", "kv_gib": "kv_pool", "activation_gib": "activations", "non_torch_gib": "non_torch",
    "cudagraph_gib": "cuda_graphs",
}  # fmt: skip
#: Columns that the log prints for rank 0 only, not for the rank that decides.
OF_RANK_0 = ("kv_gib", "activation_gib", "non_torch_gib", "cudagraph_gib")


class Specs:
    """Models as ``question`` looks them up: by the name, or by the name without what a quantizer added."""

    def __init__(self, models: Models) -> None:
        self.models, self.source = models, ""

    def find(self, name: str) -> ModelSpec:
        """The model of a table's name."""
        try:
            found = self.models.find(name)
        except Skip as skip:
            short = base_name(name)[0]
            if str(skip) != UNKNOWN or short == name:
                raise
            found = self.models.find(short)
        self.source = found.source
        return found.model


def compare(row: Row, models: Models) -> Iterator[Comparison | Missing]:
    """Terms of the budget, KV tokens and concurrency of a row."""
    for column in ("max_model_len", "max_num_batched_tokens", "tp", "pp"):
        whole(row, column)
    specs = Specs(models)
    asked = question(row, specs)  # type: ignore[arg-type]  # looked up by ``find`` alone
    found = memory(**asked)
    for column, name in TERMS.items():
        number, term = measured(row, column), _term(found, name)
        if number is not None and column in OF_RANK_0 and found.settings["stage"] != 0:
            yield Missing(column, "the log prints it for the first stage, and another one decides")
        elif number is not None and term is not None:
            low, high = (None if x is None else x / GIB for x in (term.low, term.high))
            yield Comparison(
                column, number.value, term.bytes / GIB, f"{term.formula} ({term.source})", specs.source, low, high,
                half_unit=number.half_unit,
            )  # fmt: skip
    if (number := measured(row, "kv_tokens")) is not None:
        yield Comparison(
            "kv_tokens", number.value, float(found.kv_tokens), found.sentence, specs.source,
            float(found.kv_tokens_low), float(found.kv_tokens_high), half_unit=number.half_unit,
        )  # fmt: skip
    if (number := measured(row, "max_concurrency")) is not None:
        scale = found.max_concurrency / max(found.kv_tokens, 1)
        yield Comparison(
            "max_concurrency", number.value, found.max_concurrency, found.sentence, specs.source,
            found.kv_tokens_low * scale, found.kv_tokens_high * scale, half_unit=number.half_unit,
        )  # fmt: skip


def _term(found: EngineMemory, name: str) -> Term | None:
    return next((term for term in found.terms if term.name == name), None)


def note() -> str:
    """On what the overheads were fitted, and how well they predict a model that they have not seen."""
    fitted = overheads()
    names = ("weights_mean", "kv_tokens_mean", "kv_tokens_max")
    weights, tokens, most = (float(fitted.cross_validation.get(name, "nan")) for name in names)
    return (
        f"overheads fitted on {fitted.rows} rows of {fitted.provenance}; models left out of the fit in turn: mean "
        f"error of weights {weights:.2%}, of KV tokens {tokens:.2%}, at most {most:.2%}"
    )


KIND = Kind(
    "vllm_capacity", "vLLM's memory at start-up",
    ("engine", "version", "model", "weight_format", "kv_dtype", "gpu", "device_memory_gib", "tp", "pp",
     "gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "weights_gib", "kv_tokens"),
    ("weights_gib", "kv_tokens", "kv_gib", "max_concurrency", "activation_gib", "non_torch_gib", "cudagraph_gib"),
    ("gpu", "engine", "version", "weight_format", "tp", "pp"), compare, note=note,
)  # fmt: skip
