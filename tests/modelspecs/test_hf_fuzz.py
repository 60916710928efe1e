"""Mutated configurations: whatever is taken away, changed or added, the importer gives a model or one clear refusal."""

from __future__ import annotations

import copy
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import SpecError
from perfmodel.modelspecs import counts, hf
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.sizes import weight_bytes
from perfmodel.roofline.graph import graph
from perfmodel.roofline.step import Plan, decode

with gzip.open(Path(__file__).parent / "data" / "configs.jsonl.gz", "rt") as stream:
    LINES = [json.loads(line) for line in stream]
CONFIGS: dict[str, dict[str, Any]] = {line["file"]: line["config"] for line in LINES if "model_type" in line["config"]}
WORDS = sorted({key for config in CONFIGS.values() for key in config})

#: One import, with the counts of what it gives. [s]
LONGEST = 5.0

NUMBERS = [0, 1, -1, 2, 3, 7, 64, 10_000, 10_001, 10**9, 10**9 + 1, 10**40, 0.5, 1e308, float("inf"), float("nan")]
ODD = st.sampled_from([*NUMBERS, True, False, "full_attention", "moe", "fp8", ""])
VALUES = st.recursive(
    st.none() | ODD | st.integers(-10, 300) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner),
    max_leaves=8,
)


def sections(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The configuration and every mapping in it, those within lists too."""
    found, waiting = [], [config]
    while waiting:
        section = waiting.pop()
        found.append(section)
        for value in section.values():
            inner = value if isinstance(value, list) else [value]
            waiting += [item for item in inner[:100] if isinstance(item, dict)]
    return found


def mutate(data: st.DataObject, config: dict[str, Any]) -> None:
    """Take a key away, change a value, shorten or lengthen a list, or add a key that another architecture has."""
    for _ in range(data.draw(st.integers(1, 4))):
        section = data.draw(st.sampled_from(sections(config)))
        if not section:
            continue
        key = data.draw(st.sampled_from(sorted(section)))
        kind = data.draw(st.sampled_from(["delete", "replace", "null", "number", "list", "add"]))
        value = section[key]
        if kind == "delete":
            del section[key]
        elif kind == "add":
            section[data.draw(st.sampled_from(WORDS) | st.text(max_size=8))] = data.draw(VALUES)
        elif kind == "number" and isinstance(value, int):
            section[key] = value + data.draw(st.integers(-3, 3))
        elif kind == "list" and isinstance(value, list) and value:
            others = [value[:-1], [*value, value[0]], value[::-1], [*value[:-1], None]]
            section[key] = data.draw(st.sampled_from(others))
        else:
            section[key] = None if kind == "null" else data.draw(VALUES)


def attempt(config: dict[str, Any]) -> None:
    """Import, and use what comes of it; a refusal is one line that names the file and a key."""
    start = time.perf_counter()
    try:
        spec = hf.from_config(config, "config.json", "mutated")
    except SpecError as error:
        message = str(error)
    else:
        message = "config.json: a model"
        assert 0 < counts.active_params(spec) <= counts.total_params(spec)
        assert counts.kv_bytes(spec, 1000.0) >= 0
        assert weight_bytes(spec, spec.native_format) > 0
        assert graph(spec, decode(1.0, 1000.0), Plan())
    assert time.perf_counter() - start < LONGEST
    assert message.startswith("config.json: ")
    assert "\n" not in message
    assert len(message) < 2000


def check(name: str, data: st.DataObject) -> None:
    config = copy.deepcopy(CONFIGS[name])
    mutate(data, config)
    attempt(config)


FUZZ = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=False, database=None)


@settings(FUZZ, max_examples=500)
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_mutated(name: str, data: st.DataObject) -> None:
    """500 mutated real configurations: a model or a SpecError, in bounded time."""
    check(name, data)


@pytest.mark.slow
@settings(FUZZ, max_examples=10_000)
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_mutated_ten_thousand(name: str, data: st.DataObject) -> None:
    """10,000 mutated real configurations: a model or a SpecError, in bounded time."""
    check(name, data)


STRICT = ("text_config", "vision_config", "attn_config", "quantization_config", "rope_scaling", "rope_parameters")


def strict(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The sections in which no key may be unknown: those of the text section and of a quantizer's groups too."""
    found: list[dict[str, Any]] = []
    for name in STRICT:
        section = config.get(name)
        if isinstance(section, dict):
            found += [section, *(strict(section) if name == "text_config" else ())]
            found += [inner for inner in sections(section.get("config_groups") or {})[1:] if inner]
            found += [inner for inner in [section.get("kv_cache_scheme")] if isinstance(inner, dict)]
    return found


@settings(FUZZ, max_examples=200)
@given(st.sampled_from(sorted(CONFIGS)), st.text("abcdefghijklmnopqrstuvwxyz_", min_size=12, max_size=30), VALUES)
def test_unknown_keys_are_refused(name: str, key: str, value: Any) -> None:
    """A key that no architecture knows is refused by its name wherever the importer looks, unless it is null."""
    config = copy.deepcopy(CONFIGS[name])
    try:
        hf.from_config(config, "config.json", "whole")
    except SpecError:
        return
    for section in (config, *strict(config)):
        section[key] = value
        if value is None:
            assert hf.from_config(config, "config.json", "added")
        else:
            with pytest.raises(SpecError, match=key):
                hf.from_config(config, "config.json", "added")
        del section[key]


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_any_one_key_may_be_missing(name: str) -> None:
    """Taking away any one key of a configuration or its sections is answered like any other mutation."""
    for i, section in enumerate(sections(CONFIGS[name])[:4]):
        for key in sorted(section)[:60]:
            config = copy.deepcopy(CONFIGS[name])
            del sections(config)[i][key]
            attempt(config)


#: Keys whose absence is another statement of the format, or leaves another key to say the same.
SAID_OTHERWISE = (
    "quantization_config", "expert_dtype", "moe_quant_algo", "scale_fmt", "ignore", "modules_to_not_convert",
    "sliding_window_size", "moe_latent_size", "mamba_ssm_dtype", "mamba_ssm_cache_dtype",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_nothing_is_guessed_in_silence(name: str) -> None:
    """Without any one key a configuration is refused, or means the same, or the notes name the class default used."""
    try:
        whole = hf.from_config(copy.deepcopy(CONFIGS[name]), "config.json", "whole")
    except SpecError:
        return
    for i, section in enumerate(sections(CONFIGS[name])[:4]):
        for key in sorted(set(section) - set(SAID_OTHERWISE)):
            config = copy.deepcopy(CONFIGS[name])
            del sections(config)[i][key]
            try:
                less = hf.from_config(config, "config.json", "whole")
            except SpecError:
                continue
            assert facts(less) == facts(whole) or key in less.notes, key


def facts(spec: ModelSpec) -> tuple[object, ...]:
    """What sizes and costs follow from."""
    return counts.unscaled_params(spec), spec.layer_classes, spec.mtp, spec.tied_embeddings, spec.max_context, spec.norm
