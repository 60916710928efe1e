"""Tables of parameter counts: totals of hubs, makers, llama.cpp and Keras, and active parameters.

The column ``total_kind`` says whose count it is; each kind of count has its own list of ways (``counting``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from perfmodel.validate import counting
from perfmodel.validate.counting import Parts, Way
from perfmodel.validate.models import Found, Models
from perfmodel.validate.rows import Comparison, Kind, Printed, Row, Skip, measured, printed

#: Factors of the letters that follow a rounded count.
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_COUNT = re.compile(r"\s*([0-9][0-9.,]*)\s*([KMBT]?)\s*", re.IGNORECASE)

#: Presets of Keras Hub whose name is not the model's, spelled out; the others are names of built-in models.
PRESETS = {
    "mistral_0.3_7b": "mistralai/Mistral-7B-v0.3", "mixtral_8_7b": "mistralai/Mixtral-8x7B-v0.1",
    "gemma3_12b_text": "google/gemma-3-12b-pt", "gemma3_27b_text": "google/gemma-3-27b-pt",
    "qwen3_moe_30b_a3b": "Qwen/Qwen3-30B-A3B", "qwen3_moe_235b_a22b": "Qwen/Qwen3-235B-A22B",
    "gpt2_base": "openai-community/gpt2", "gpt2_medium": "openai-community/gpt2-medium",
    "gpt2_large": "openai-community/gpt2-large", "gpt2_extra_large": "openai-community/gpt2-xl",
    "qwen3_5_moe_35b_a3b": "Qwen/Qwen3.5-35B-A3B", "smollm3_3b": "HuggingFaceTB/SmolLM3-3B",
    "bloom_560m": "bigscience/bloom-560m",
    "bloom_1.1b": "bigscience/bloom-1b1", "opt_125m": "facebook/opt-125m", "opt_1.3b": "facebook/opt-1.3b",
    "opt_2.7b": "facebook/opt-2.7b", "opt_6.7b": "facebook/opt-6.7b", "falcon_refinedweb_1b": "tiiuae/falcon-rw-1b",
}  # fmt: skip


def count(text: str) -> Printed | None:
    """A count as it is printed, with its rounding; ``None`` for what is none. A comma is a decimal comma before a unit.

    >>> count("671.026 B")
    Printed(value=671026000000.0, half_unit=500000.0)
    >>> count("30,532 B").value, count("1T").half_unit, count("(2 of 8 experts)")
    (30532000000.0, 500000000000.0, None)
    """
    match = _COUNT.fullmatch(text)
    if match is None:
        return None
    unit = match[2].upper()
    return printed(match[1].replace(",", "." if unit else ""), UNITS[unit])


def rounded(text: str) -> Printed | None:
    """A count of which the closing zeros are no digits.

    >>> rounded("6700000000")
    Printed(value=6700000000.0, half_unit=50000000.0)
    """
    found = count(text)
    zeros = len(text.strip()) - len(text.strip().rstrip("0")) if text.strip().isdigit() else 0
    return Printed(found.value, found.half_unit * 10.0**zeros) if found else None


def _by_id(models: Models, name: str) -> Found:
    """A model by id, or by one of two names side by side (``Llama-1-7B / Llama-2-7B``)."""
    if " / " not in name:
        return models.find(name)
    reasons = []
    for part in name.split(" / "):
        try:
            return models.find(part)
        except Skip as skip:
            reasons.append(skip)
    raise reasons[0]


def _of_log(models: Models, name: str) -> Found:
    if re.search(
        r"\?B|\b(?:llama|qwen2|qwen3moe|deepseek2|ds2|gemma3|bitnet-25|bert) \d+(?:\.\d+)?[BM]\b|DS-R1|bpw", name
    ):
        raise Skip("llama.cpp's label of an architecture and a size names no single model")
    return models.printed(name)


def _of_preset(models: Models, name: str) -> Found:
    short = re.sub(r"(?:_en|_multi|_base)?(?:_int8)?$", "", name.partition(":")[2] or name)
    return models.find(PRESETS.get(short, short.replace("qwen3_5", "qwen3.5")))


#: Beginning of ``total_kind`` -> how the model is found, how the count is read, and the ways of counting.
Rule = tuple[Callable[[Models, str], Found], Callable[[str], Printed | None], Callable[[Parts], Iterator[Way]]]
RULES: dict[str, Rule] = {
    "exact int (HF": (_by_id, count, counting.stored),
    "exact int (keras": (_of_preset, count, counting.presets),
    "exact int (module": (_by_id, count, counting.modules),
    "as printed by llama.cpp": (_of_log, count, counting.gguf),
    "published": (_by_id, count, counting.published),
    "rounded": (_of_preset, rounded, counting.presets),
}


def compare(row: Row, models: Models) -> Iterator[Comparison]:
    """Totals and active parameters of a row."""
    kind = row["total_kind"]
    rule = next((RULES[start] for start in RULES if kind.startswith(start)), None)
    if rule is None:
        raise Skip(f"total_kind is not one of {', '.join(RULES)} ...")
    if "do not use as truth" in row.get("notes", ""):
        raise Skip("the row's own note says that it is not to be used as truth")
    find, read, ways = rule
    ways = counting.text_presets if ways is counting.presets and row["model"].endswith("_text") else ways
    total = read(row["total_params"])
    if total is None:
        raise Skip("total_params is no count")
    found = find(models, row["model"])
    parts = Parts(found.model)
    yield comparison("total_params", total, counting.choose(ways(parts), total), found)
    if (active := count(row.get("active_params", ""))) is not None:
        yield comparison("active_params", active, counting.choose(counting.active(parts), active), found)


def remark(compared: Sequence[Comparison], skipped: Mapping[str, int]) -> str:
    """How many ways of counting were chosen by the printed number, and the error without that choice."""
    totals = [(one, one.predicted if one.plain is None else one.plain) for one in compared]
    chosen = sum(plain != one.predicted for one, plain in totals)
    if not chosen:
        return ""
    error = sum(abs(plain / one.measured - 1) for one, plain in totals) / len(totals)
    return (
        f"{chosen:,} of {len(totals):,} counts are compared by a way of counting that was chosen because it gives the "
        f"printed number; by the first way of each list alone the mean error is {100 * error:.3g} %"
    )


def comparison(metric: str, number: Printed, ways: tuple[Way, Way], found: Found) -> Comparison:
    """A printed count beside the way of counting that was chosen, and the first one."""
    way, first = ways
    return Comparison(
        metric, number.value, float(way.value), f"{way.name}: {way.formula}", found.source,
        half_unit=number.half_unit, group={"counts": way.name}, plain=float(first.value),
    )  # fmt: skip


def compare_bulk(row: Row, models: Models) -> Iterator[Comparison]:
    """The exact total of a hub."""
    total = measured(row, "total_params")
    if total is None:
        raise Skip("total_params is no count")
    found = models.find(row["model"])
    yield comparison("total_params", total, counting.choose(counting.stored(Parts(found.model)), total), found)


KIND = Kind(
    "param_counts", "parameter counts", ("model", "total_params", "total_kind", "active_params"),
    ("total_params", "active_params"), ("total_kind",), compare, remark=remark,
)  # fmt: skip
BULK = Kind(
    "param_counts_bulk", "exact totals of checkpoints", ("model", "total_params", "architecture", "num_layers"),
    ("total_params",), ("architecture",), compare_bulk, remark=remark,
)  # fmt: skip
