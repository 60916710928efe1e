"""Which type llama.cpp's quantizer gives each tensor of a model, under a preset.

It goes through the tensors layer by layer and by name, sorts them into kinds by their names, and counts values and
down projections as it meets them; the tables of ``gguf_presets`` say the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs import gguf_presets as table
from perfmodel.modelspecs.gguf_layout import GgufTensor, architecture, experts_of, ffn_layers, query_group
from perfmodel.modelspecs.gguf_presets import Preset
from perfmodel.modelspecs.gguf_types import TYPES, GgmlType
from perfmodel.modelspecs.schema import Gqa, ModelSpec

BY_NAME: dict[str, GgmlType] = {t.name: t for t in TYPES.values()}

#: What a name holds -> kind; the first that fits.
_KINDS: tuple[tuple[str, str], ...] = (
    (r"output\.weight", "output"), (r"(?:per_layer_)?token_embd\.weight", "embedding"),
    (r".*attn_qkv\.weight", "qkv"), (r".*attn_kv_b\.weight", "kv_b"), (r".*attn_v\.weight", "v"),
    (r".*attn_k\.weight", "k"), (r".*attn_q\.weight", "q"), (r".*attn_output\.weight", "attn_output"),
    (r".*ffn_up.*", "up"), (r".*ffn_gate.*", "gate"), (r".*ffn_down.*", "down"),
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What the rules ask of a model.

    Attributes
    ----------
    architecture : str
    layers : int
        Prediction layers that are stored included.
    query_group : int
        Query heads a KV head.
    experts : int
        0 of a dense model.
    seventy : bool
        Whether the quantizer takes it for a 70B: 80 layers with shared KV heads.
    matrix : bool
        Whether there is an importance matrix.
    version : str
        Of the rules, one of ``gguf_presets.VERSIONS``.
    """

    architecture: str
    layers: int
    query_group: int = 1
    experts: int = 0
    seventy: bool = False
    matrix: bool = False
    version: str = "2026"


@dataclass
class _State:
    """What has been met so far."""

    facts: Facts
    preset: Preset
    values: int
    tied: bool
    seen: dict[str, int] = field(default_factory=dict)

    def next(self, kind: str) -> int:
        """How many of a kind came before this one."""
        found = self.seen.get(kind, 0)
        self.seen[kind] = found + 1
        return found


def facts_of(model: ModelSpec, matrix: bool = False, version: str = "2026", latent: str = "split") -> Facts:
    """What the rules ask of a model that we know."""
    arch = architecture(model).name
    shared = any(isinstance(a, Gqa) and a.group > 1 for a in model.attention.values())
    seventy = model.num_layers == 80 and (arch in ("qwen2", "deci") or (arch == "llama" and shared))
    return Facts(
        arch, ffn_layers(model), query_group(model, latent), experts_of(model), seventy, matrix, version
    )  # fmt: skip


def kind_of(name: str) -> str:
    """The kind of a tensor by its name; ``other`` for what has no rule.

    >>> kind_of("blk.3.ffn_down_exps.weight"), kind_of("blk.3.attn_q_a.weight")
    ('down', 'other')
    """
    return next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, name)), "other")


def tensor_types(tensors: Iterable[GgufTensor], preset: Preset, facts: Facts) -> list[GgmlType]:
    """The type of each tensor, in the order given, which must be the quantizer's: ``gguf_layout.layout`` has it.

    Parameters
    ----------
    tensors : iterable of GgufTensor
        All of the file.

    Returns
    -------
    list[GgmlType]
    """
    found = list(tensors)
    kinds = [_kind(t.name, facts) for t in found]
    values = sum(kind in _values(facts) for kind in kinds)
    state = _State(facts, preset, values, "output" not in kinds)
    return [BY_NAME[_fixed(t, preset) or _type(t, kind, state)] for t, kind in zip(found, kinds, strict=True)]


def _fixed(t: GgufTensor, preset: Preset) -> str:
    """The type that a tensor has whatever the preset; what stays at 16 bits has those of a plain one."""
    return preset.base if preset.plain and t.fixed == "BF16" else t.fixed


def _kind(name: str, facts: Facts) -> str:
    """Kinds of 2023 were told by whole names: those of experts had none."""
    kind = kind_of(name)
    if facts.version.startswith("2023") and kind in ("up", "gate", "down"):
        return kind if re.fullmatch(r"blk\.\d+\.ffn_(?:up|gate|down)\.weight", name) else "other"
    return kind


def _values(facts: Facts) -> tuple[str, ...]:
    """Kinds that are treated as values."""
    return ("v", "qkv", "kv_b") if facts.version == "2026" else ("v",)


def _type(t: GgufTensor, kind: str, state: _State) -> str:
    preset, facts = state.preset, state.facts
    asked = {"output": preset.output, "embedding": preset.embedding}.get(kind, "")
    if asked or preset.plain:
        return asked or preset.base
    return fallback(_chosen(t, kind, state), t.shape[-1], facts)


def fallback(name: str, row: int, facts: Facts) -> str:
    """The type, or the one in its stead where a row is no whole number of its blocks.

    Raises
    ------
    UsageError
        Where the quantizer gives up: for types that have no other in their stead.
    """
    if row % BY_NAME[name].block == 0:
        return name
    tables = {"2026": table.FALLBACK, "2024": table.FALLBACK_2024}
    other = tables.get(facts.version, table.FALLBACK_2023).get(name)
    if other is None:
        raise UsageError(f"llama.cpp cannot store rows of {row} elements as {name}; take a preset of K-quants")
    return other if row % BY_NAME[other].block == 0 else "F16"


def _chosen(t: GgufTensor, kind: str, state: _State) -> str:
    """The type before a row's length is looked at."""
    preset, facts = state.preset, state.facts
    name, base, old = preset.name, preset.base, facts.version.startswith("2023")
    if kind == "output" or (kind == "embedding" and state.tied and not old):
        return _output(t, preset, facts)
    if name == "MXFP4_MOE":
        return "MXFP4" if len(t.shape) > 2 and t.shape[0] > 1 else "Q8_0"
    if kind == "embedding":
        return table.EMBEDDING.get(name, base)
    if name in table.SMALL:
        return _small(kind, state)
    if kind in _values(facts):
        return _value(state)
    if kind in ("q", "k"):
        return "Q8_0" if kind == "k" and _eight(facts) else table.QUERIES_KEYS.get(name, base)
    if kind == "down":
        return _down(t, state)
    if kind == "attn_output":
        return _attention_out(name, base, facts)
    if kind == "qkv":
        return table.FUSED.get(name, base)
    if kind in ("gate", "up"):
        return _gate_up(t, kind, state)
    return base


def _output(t: GgufTensor, preset: Preset, facts: Facts) -> str:
    if preset.name == "MXFP4_MOE" or facts.architecture == "falcon" or t.shape[-1] % BY_NAME[preset.base].block:
        return "Q8_0"
    if facts.version.startswith("2023") and t.shape[-1] % 256:
        return "Q8_0"
    return table.OUTPUT.get(preset.name, "Q8_0" if preset.base == "Q8_0" else "Q6_K")


def _eight(facts: Facts) -> bool:
    """Whether the rules for 8 experts hold."""
    return facts.experts == 8 and facts.version != "2023-09"


def _more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    first = layers // 8
    return layer < first or layer >= 7 * layers // 8 or (layer - first) % 3 == 2


def _layer(t: GgufTensor, kind: str, state: _State) -> int:
    """Layer as the rules count it: by the name in mixtures, by order elsewhere."""
    index = state.next(kind)
    return t.layer if state.facts.experts > 1 else index


def _value(state: _State) -> str:
    preset, facts = state.preset, state.facts
    name, base, index = preset.name, preset.base, state.next("v")
    old = facts.version.startswith("2023")
    found = table.VALUES.get(name, base)
    if name == "IQ3_XXS" and not facts.matrix:
        found = "IQ3_S"
    if name in table.VALUES_SHARED and facts.query_group >= 4 and not old:
        found = table.VALUES_SHARED[name]
    first, raised = table.VALUES_FIRST.get(name, (0, base))
    if index < first:
        found = raised
    if name in table.MORE_BITS and _more_bits(index, state.values):
        found = table.MORE_BITS[name]
    if facts.seventy and found in ("Q3_K", "Q4_K"):
        found = "Q5_K"
    return "Q8_0" if _eight(facts) else found


def _down(t: GgufTensor, state: _State) -> str:
    preset, facts = state.preset, state.facts
    name, layer = preset.name, _layer(t, "down", state)
    if facts.architecture == "falcon":
        return _down_falcon(name, preset.base, layer, facts)
    first = table.DOWN_FIRST | (table.DOWN_FIRST_MATRIX if facts.matrix else table.DOWN_FIRST_PLAIN)
    found = table.DOWN.get(name, preset.base)
    if name == "IQ3_XXS" and not facts.matrix:
        found = "Q3_K"
    share, raised = first.get(name, (0, preset.base))
    if share and layer < _first(name, share, facts):
        return raised
    if name == "IQ3_M" and _eight(facts) and _more_bits(layer, facts.layers):
        return "Q4_K"
    if name in table.MORE_BITS and _more_bits(layer, facts.layers):
        return table.MORE_BITS[name]
    return found


def _first(name: str, share: int, facts: Facts) -> int:
    """How many layers are first: a share of them; in 2023 a number."""
    if facts.version.startswith("2023"):
        return {"Q3_K_M": 2, "Q4_K_S": 4}.get(name, 0)
    return facts.layers // share


def _down_falcon(name: str, base: str, layer: int, facts: Facts) -> str:
    """Falcon's down projections, which need more bits in places and fewer in others."""
    first, more = layer < _first("Q3_K_M", 16, facts), _more_bits(layer, facts.layers)
    plain = {"Q2_K": "Q3_K", "Q3_K_L": "Q4_K"}.get(name, base)
    if name == "Q3_K_M":
        return "Q5_K" if first else "Q4_K" if more else "Q3_K"
    if name == "Q4_K_M":
        return "Q6_K" if first else "Q5_K" if more else "Q4_K"
    if name == "Q5_K_M" and more:
        return "Q6_K"
    eighth = layer < facts.layers // 8 and not facts.version.startswith("2023")
    raised = {"Q2_K_S": "Q4_K", "IQ3_M": "Q4_K"}
    raised |= {"Q4_0": "Q4_1", "Q5_0": "Q5_1"} if facts.matrix else {"IQ4_XS": "Q5_K", "IQ4_NL": "Q5_K"}
    if name == "IQ3_XXS" and not facts.matrix:
        return "Q4_K" if eighth else "Q3_K"
    return raised[name] if eighth and name in raised else plain


def _attention_out(name: str, base: str, facts: Facts) -> str:
    if facts.architecture == "falcon":
        return "Q4_K" if name == "Q3_K_L" else base
    if _eight(facts) and not facts.version.startswith("2023"):
        return "Q5_K" if name in table.ATTENTION_OUT_8 else base
    return table.ATTENTION_OUT.get(name, base)


def _gate_up(t: GgufTensor, kind: str, state: _State) -> str:
    preset, facts = state.preset, state.facts
    layer = _layer(t, kind, state)
    if facts.version.startswith("2023"):
        return "Q3_K" if preset.name == "Q2_K" else preset.base
    middle = facts.layers // 8 <= layer < 7 * facts.layers // 8
    return "IQ3_XXS" if preset.name == "IQ3_XS" and middle else preset.base


def _small(kind: str, state: _State) -> str:
    """Rules of the presets of about 1 and 2 bits."""
    preset, facts = state.preset, state.facts
    two, one = preset.name in ("IQ2_S", "IQ2_M"), preset.name in ("IQ1_S", "IQ1_M")
    raised = "IQ3_S" if two else "Q2_K"
    if kind in _values(facts):
        return "Q4_K" if facts.query_group >= 4 or facts.experts >= 4 else raised
    if kind == "k" and facts.experts == 8:
        return "Q4_K"
    if kind == "down":
        return raised if state.next("down") < facts.layers // 8 else preset.base
    if kind == "attn_output":
        return "Q5_K" if facts.experts == 8 else "IQ2_XXS" if one else "IQ3_S" if two else preset.base
    return preset.base
