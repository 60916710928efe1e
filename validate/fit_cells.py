"""Which form a cell is fitted with, what is known about its engine, and what its rows cannot identify."""

from __future__ import annotations

from typing import Any

from perfmodel.roofline.calibrated.decode import DECODE
from perfmodel.roofline.calibrated.experts import EXPERTS
from perfmodel.roofline.calibrated.form import Form
from perfmodel.roofline.calibrated.gemm import GEMM, QUANTIZED_GEMM, TILES
from perfmodel.roofline.calibrated.gemm_blocked import BLOCKED_GEMM
from perfmodel.roofline.calibrated.latent import MLA_CONTEXT, MLA_GENERATION
from perfmodel.roofline.calibrated.links import COLLECTIVE
from perfmodel.roofline.calibrated.prefill import PREFILL
from perfmodel.roofline.calibrated.simple import SIMPLE
from perfmodel.validate.fit_data import PLAIN_ENGINES

FORMS: dict[str, Form] = {
    "prefill": PREFILL, "decode": DECODE, "mla_context": MLA_CONTEXT, "mla_generation": MLA_GENERATION,
    "experts": EXPERTS, "collective": COLLECTIVE,
}  # fmt: skip

#: (kind, architecture, engine) -> facts.
FACTS: dict[tuple[str, str, str], dict[str, Any]] = {
    ("prefill", "hopper", "vllm"): {"packs": "always"},
    ("prefill", "ampere", "vllm"): {"packs": "one token"},
    ("prefill", "blackwell", "vllm"): {"packs": "one token", "rows": 256.0},
    ("decode", "hopper", "trtllm"): {"mha": "own", "splits": "xqa", "templates": True},
    ("decode", "blackwell", "trtllm"): {"shortest": 512.0},
    ("decode", "blackwell", "vllm"): {"shortest": 512.0},
    ("decode", "ampere", "vllm"): {"mha": "unsplit", "swaps": True, "splits": "fa2"},
    ("mla_generation", "hopper", "trtllm"): {"block": 64.0, "shortest": 128.0},
    ("mla_generation", "blackwell", "trtllm"): {"block": 256.0, "shortest": 512.0},
    ("mla_generation", "blackwell", "sglang"): {"block": 256.0, "shortest": 512.0},
    ("gemm", "ampere", "trtllm"): {
        "tiles": [
            [256, 128],
            [128, 256],
            [128, 128],
            [128, 64],
            [64, 128],
            [64, 64],
            [256, 64],
            [64, 256],
            [64, 32],
            [32, 64],
        ]
    },
    ("gemm", "blackwell", "trtllm"): {"tiles": [*map(list, TILES), [128, 32], [64, 32]]},
    ("gemm", "blackwell", "vllm"): {
        "tiles": [
            [128, 256],
            [128, 192],
            [128, 128],
            [128, 64],
            [64, 128],
            [64, 64],
            [128, 32],
            [256, 64, 2],
            [256, 128, 2],
            [256, 192, 2],
            [256, 256, 2],
        ]
    },
    ("gemm", "hopper", "sglang"): {"rule": "sm90"},
    ("gemm", "blackwell", "sglang"): {"rule": "sm100"},
}


def form(kind: str, fmt: str, engine: str = "") -> Form:
    """The form of an operator kind and format; of an engine on a processor always the simple one."""
    if engine in PLAIN_ENGINES:
        return SIMPLE
    if kind == "gemm":
        return GEMM if fmt == "bf16" else BLOCKED_GEMM if fmt == "fp8_block" else QUANTIZED_GEMM
    return FORMS[kind]


def facts(kind: str, architecture: str, engine: str, fmt: str) -> dict[str, Any]:
    """What is known about the kernels."""
    found = dict(FACTS.get((kind, architecture, engine), {}))
    return {**found, "op": fmt} if kind == "collective" else found


def fixed(kind: str, known: dict[str, Any]) -> tuple[str, ...]:
    """Parameters that no row of the cell depends on."""
    if kind == "prefill" and known.get("packs", "never") == "never":
        return ("one_launch", "one_cta")
    if kind == "decode":
        treat = known.get("mha", "")
        swap = () if known.get("swaps") else ("swap",)
        return swap + (() if treat else ("launch_mha",)) + (() if treat == "own" else ("cta_mha", "draw_mha"))
    return ()
