"""Rows of a capacity table (start-up logs of vLLM, one configuration a row) as questions to ``memory``.

The columns that are read: engine, version, model, weight_format, kv_dtype, gpu, device_memory_gib, tp, pp,
gpu_memory_utilization, max_model_len, max_num_batched_tokens; what was measured: weights_gib, activation_gib,
non_torch_gib, cudagraph_gib, kv_gib, kv_tokens, max_concurrency.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.catalogue import normalise
from perfmodel.base.errors import PerfmodelError, SpecError, UsageError
from perfmodel.base.yamlio import read_text
from perfmodel.modelspecs.load import from_file
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.schema import ModelSpec

GIB = 2.0**30

#: What a quantizer adds to a model's name, and the storage format that it means.
SUFFIXES = (
    (r"[-_.]fp8[-_]?(dynamic|static|kv)?$", "fp8"),
    (r"[-_.]quantized\.w8a8$", "int8"),
    (r"[-_.]quantized\.w8a16$", "w8a16"),
    (r"[-_.]quantized\.w4a16$", "int4"),
    (r"[-_.](gptq|awq)([-_.].*)?$", "int4"),
)
#: Words of the weight-format column that are storage formats of ours.
FORMAT_WORDS = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8": "fp8_tensor", "mxfp4": "mxfp4",
    "gptq_marlin": "int4", "awq_marlin": "int4",
}  # fmt: skip


def read_rows(path: Path | str) -> list[dict[str, str]]:
    """Rows of a CSV table, as text."""
    return list(csv.DictReader(read_text(Path(path), 64 * 2**20).splitlines()))


def base_name(name: str) -> tuple[str, str | None]:
    """A model's name without what a quantizer added, and the format that it stands for.

    >>> base_name("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16")
    ('Meta-Llama-3.1-8B-Instruct', 'int4')
    """
    short = name.rpartition("/")[2]
    for pattern, fmt in SUFFIXES:
        if re.search(pattern, short, re.IGNORECASE):
            return re.sub(pattern, "", short, flags=re.IGNORECASE), fmt
    return short, None


class Specs:
    """Models by the names of a table: built-in ones, then YAML specs and configurations of a folder."""

    def __init__(self, folder: Path | str | None = None) -> None:
        paths = sorted(Path(folder).iterdir()) if folder else []
        self._files = {normalise(p.stem.rpartition("__")[2]): p for p in paths if p.suffix in (".yaml", ".json")}
        self._found: dict[str, ModelSpec] = {}

    def find(self, name: str) -> ModelSpec:
        """The model of a table's name.

        Raises
        ------
        UnknownName, SpecError
        """
        if name not in self._found:
            self._found[name] = self._load(name)
        return self._found[name]

    def _load(self, name: str) -> ModelSpec:
        short = base_name(name)[0]
        for candidate in (name, short):
            path = self._files.get(normalise(candidate.rpartition("/")[2]))
            if path:
                return from_file(path)
        try:
            return load_model(name)
        except PerfmodelError:
            return load_model(short)


def weight_name(row: Mapping[str, str]) -> str | None:
    """The storage format of a row's weights: by the model's name, else by the last word of the format column."""
    by_name = base_name(row["model"])[1]
    words = [FORMAT_WORDS.get(word.strip().casefold()) for word in row["weight_format"].split("/")]
    if by_name:
        return by_name
    return next((word for word in reversed(words) if word), None)


def question(row: Mapping[str, str], specs: Specs) -> dict[str, Any]:
    """Arguments of ``memory`` for a row.

    Raises
    ------
    UnknownName, SpecError, UsageError
        When the model is not known or a number is missing.
    """
    spec = specs.find(row["model"])
    fmt = weight_name(row)
    kv = row.get("kv_dtype") or "auto"
    try:
        return {
            "model": spec, "gpu": gpu_name(row["gpu"]), "engine": row["engine"], "version": row["version"] or None,
            "tp": int(float(row["tp"] or 1)), "pp": int(float(row["pp"] or 1)),
            "weights": None if fmt == spec.native_format else fmt, "kv": kv if kv != "auto" else "auto",
            "max_model_len": int(float(row["max_model_len"])),
            "max_num_batched_tokens": int(float(row["max_num_batched_tokens"])),
            "memory_fraction": float(row["gpu_memory_utilization"]),
            "usable": float(row["device_memory_gib"]) * GIB,
        }  # fmt: skip
    except (ValueError, KeyError) as error:
        raise UsageError(f"a row of {row.get('model', '?')[:60]} lacks a number: {error}") from None


def gpu_name(text: str) -> str:
    """A GPU's name as the catalogue has it."""
    return text.replace("_", "-")


def cases(path: Path | str, specs: Specs) -> Iterator[tuple[dict[str, str], dict[str, Any] | None, str]]:
    """Rows of a table with their questions, or the reason why a row is skipped."""
    for row in read_rows(path):
        if not row.get("kv_tokens"):
            yield row, None, "no KV tokens were recorded: the log ends before"
            continue
        try:
            yield row, question(row, specs), ""
        except SpecError as error:
            yield row, None, f"the configuration is refused: {error}"
        except PerfmodelError as error:
            yield row, None, str(error)
