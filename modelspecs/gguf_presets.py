"""llama.cpp's presets as data: the type that most tensors get, and which get another one.

Read in ``llama_tensor_get_type_impl`` and ``llama_ftype_get_default_type`` of ``src/llama-quant.cpp``,
https://github.com/ggml-org/llama.cpp (2026), and, for files of before i-quants, in ``get_k_quant_type`` of its
``llama.cpp`` of November and December 2023. ``gguf_rules`` applies the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import UnknownName


@dataclass(frozen=True)
class Preset:
    """A preset.

    Attributes
    ----------
    name : str
        As the quantizer calls it.
    number : int
        ``general.file_type``.
    base : str
        Type of all that has no rule of its own.
    output, embedding : str
        Types of the output matrix and of the input embedding where the user asked for others than the rules'.
    label : str
        What to call it where that is not ``name``.
    """

    name: str
    number: int
    base: str
    output: str = ""
    embedding: str = ""
    label: str = ""

    @property
    def shown(self) -> str:
        """Its name, with what is asked for beside the rules."""
        return self.label or self.name

    @property
    def plain(self) -> bool:
        """Whether its base is a float, which no rule changes."""
        return self.base in ("F32", "F16", "BF16")


def _table(*rows: tuple[str, int, str]) -> dict[str, Preset]:
    return {name: Preset(name, number, base) for name, number, base in rows}


#: Name -> preset. Source of the numbers: ``LlamaFileType`` of the ``gguf`` package, which a test compares.
PRESETS: dict[str, Preset] = _table(
    ("F32", 0, "F32"), ("F16", 1, "F16"), ("BF16", 32, "BF16"),
    ("Q4_0", 2, "Q4_0"), ("Q4_1", 3, "Q4_1"), ("Q5_0", 8, "Q5_0"), ("Q5_1", 9, "Q5_1"), ("Q8_0", 7, "Q8_0"),
    ("Q2_K", 10, "Q2_K"), ("Q2_K_S", 21, "Q2_K"), ("Q3_K_S", 11, "Q3_K"), ("Q3_K_M", 12, "Q3_K"),
    ("Q3_K_L", 13, "Q3_K"), ("Q4_K_S", 14, "Q4_K"), ("Q4_K_M", 15, "Q4_K"), ("Q5_K_S", 16, "Q5_K"),
    ("Q5_K_M", 17, "Q5_K"), ("Q6_K", 18, "Q6_K"),
    ("IQ1_S", 24, "IQ1_S"), ("IQ1_M", 31, "IQ1_M"), ("IQ2_XXS", 19, "IQ2_XXS"), ("IQ2_XS", 20, "IQ2_XS"),
    ("IQ2_S", 28, "IQ2_XS"), ("IQ2_M", 29, "IQ2_S"), ("IQ3_XXS", 23, "IQ3_XXS"), ("IQ3_XS", 22, "IQ3_S"),
    ("IQ3_S", 26, "IQ3_S"), ("IQ3_M", 27, "IQ3_S"), ("IQ4_XS", 30, "IQ4_XS"), ("IQ4_NL", 25, "IQ4_NL"),
    ("TQ1_0", 36, "TQ1_0"), ("TQ2_0", 37, "TQ2_0"), ("MXFP4_MOE", 38, "MXFP4"), ("NVFP4", 39, "NVFP4"),
    ("Q1_0", 40, "Q1_0"),
)  # fmt: skip

#: Presets that people who publish files made: embedding and output in Q8_0, the rest as the preset named.
#: Source: model cards of https://huggingface.co/bartowski ("Uses Q8_0 for embed and output weights").
LARGER: dict[str, str] = {
    "Q2_K_L": "Q2_K", "Q3_K_XL": "Q3_K_L", "Q4_K_L": "Q4_K_M", "Q5_K_L": "Q5_K_M", "Q6_K_L": "Q6_K",
}  # fmt: skip
_OTHER_WORDS = {
    "Q3_K": "Q3_K_M",
    "Q4_K": "Q4_K_M",
    "Q5_K": "Q5_K_M",
    "FP16": "F16",
    "FP32": "F32",
    "MXFP4": "MXFP4_MOE",
}

#: The presets of about 1 and 2 bits, which have rules of their own; they cannot be made without an importance matrix.
SMALL = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
#: Presets that need an importance matrix.
WITH_MATRIX = (*SMALL, "IQ3_XXS", "Q2_K_S")

#: The output matrix, and a tied embedding: Q6_K, but for these (and Q8_0, where all is Q8_0).
OUTPUT = dict.fromkeys((*SMALL, "IQ3_XXS"), "Q5_K") | {"MXFP4_MOE": "Q8_0"}
#: The input embedding; the base type where nothing is said.
EMBEDDING = {
    "IQ1_S": "Q2_K", "IQ1_M": "Q2_K", "IQ2_XXS": "Q2_K", "IQ2_XS": "Q2_K", "IQ2_S": "IQ3_S", "IQ2_M": "IQ3_S",
    "IQ3_XXS": "IQ3_S", "TQ1_0": "Q4_K", "TQ2_0": "Q4_K",
}  # fmt: skip
#: Values where 4 and more query heads share them, and where fewer do.
VALUES_SHARED = {
    "Q2_K": "Q4_K", "Q2_K_S": "Q4_K", "IQ3_XXS": "Q4_K", "IQ3_XS": "Q4_K", "IQ3_S": "Q4_K", "IQ4_XS": "Q5_K",
    "IQ4_NL": "Q5_K",
}  # fmt: skip
VALUES = {"Q2_K": "Q3_K", "IQ3_M": "Q4_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}
#: Values of the first layers: how many, and their type.
VALUES_FIRST = {"Q3_K_M": (2, "Q5_K"), "Q4_K_S": (4, "Q5_K")}
#: Presets that raise every third layer's values and down projections, and those of the first and last eighth.
MORE_BITS = {"Q4_K_M": "Q6_K", "Q5_K_M": "Q6_K"}
#: Queries and keys.
QUERIES_KEYS = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}
#: Down projections of all layers, and of the first ones: which share of the layers, and their type.
DOWN = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}
DOWN_FIRST = {
    "Q2_K_S": (8, "Q4_K"), "Q3_K_M": (16, "Q5_K"), "IQ3_M": (8, "Q4_K"), "Q4_K_S": (8, "Q5_K"),
}  # fmt: skip
#: The same without an importance matrix, and with one.
DOWN_FIRST_PLAIN = {"IQ3_XXS": (8, "Q4_K"), "IQ4_XS": (8, "Q5_K"), "IQ4_NL": (8, "Q5_K")}
DOWN_FIRST_MATRIX = {"Q4_0": (8, "Q4_1"), "Q5_0": (8, "Q5_1")}
#: Attention's output projection; with 8 experts, Q5_K in these.
ATTENTION_OUT = {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}
ATTENTION_OUT_8 = (
    "Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_XS",
)  # fmt: skip
#: Q, K and V in one tensor, in files of before 2026 (since then they are like values).
FUSED = {"Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "IQ3_M": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}

#: Where a row is no whole number of blocks: blocks of 256 -> blocks of 32.
FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
#: The same of builds of 2024 and 2025, and of 2023.
FALLBACK_2024 = FALLBACK | {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL"}
FALLBACK_2023 = FALLBACK | {"Q3_K": "Q4_1"}

#: Rules by the date of the quantizer.
VERSIONS = ("2026", "2024", "2023-12", "2023-09")


def preset(name: str) -> Preset:
    """The preset that a name means, in any case: ``Q4_K_M``, ``q4_k_m``, ``Q4_K - Medium``; ``Q4_K_L`` of bartowski.

    Examples
    --------
    >>> preset("q4_k_m").base, preset("Q4_K - Medium").name, preset("Q4_K_L").name, preset("Q4_K_L").output
    ('Q4_K', 'Q4_K_M', 'Q4_K_M', 'Q8_0')

    Raises
    ------
    UnknownName
    """
    key = _words(name)
    if key in LARGER:
        found = PRESETS[LARGER[key]]
        return Preset(found.name, found.number, found.base, "Q8_0", "Q8_0", key)
    if key not in PRESETS:
        raise UnknownName("preset of llama.cpp", name, [one.casefold() for one in (*PRESETS, *LARGER)], "formats")
    return PRESETS[key]


def is_preset(name: str) -> bool:
    """Whether a name means a preset."""
    return _words(name) in PRESETS or _words(name) in LARGER


def _words(name: str) -> str:
    """A preset's name without the words of llama.cpp's logs: ``Q4_K - Medium``, ``IQ4_XS - 4.25 bpw``."""
    key = name.strip().upper().removeprefix("MOSTLY ").replace("MXFP4 MOE", "MXFP4_MOE")
    stem, _, word = key.partition(" - ")
    size = {"SMALL": "_S", "MEDIUM": "_M", "LARGE": "_L"}.get(word.strip(), "")
    key = stem.strip() + size
    key = {"Q2_K_M": "Q2_K"}.get(key, key)
    return _OTHER_WORDS.get(key, key)
