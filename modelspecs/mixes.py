"""Formats that depend on the model: llama.cpp's presets, which give each kind of matrix types of its own.

A preset is turned into one ``Format`` for a model: each role has the bits that its tensors take on average in the file,
so that the sum is the file's, and a step reads what it reads of it.
"""

from __future__ import annotations

import functools

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.format import Format
from perfmodel.modelspecs.formats import FORMATS, weight_format
from perfmodel.modelspecs.gguf_presets import Preset, is_preset, preset
from perfmodel.modelspecs.gguf_rules import BY_NAME
from perfmodel.modelspecs.quant_sizes import PREFIX, RULES_SOURCE, as_gguf, weight_or_preset
from perfmodel.modelspecs.quantized import Quantized, Sized
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.sizes import NOT_LOADED, weight_bytes

#: Roles of matrices that some architectures store inside another one: Q, K and V, gate and up projection.
INSIDE = {"k_proj": "q_proj", "v_proj": "q_proj", "ffn_up": "ffn_gate", "expert_up": "expert_gate"}
#: The sum of the roles may differ by this from the file's tensors, which may hold small tables besides (RoPE factors).
TOLERANCE = 1e-6
#: Parts that are in a file of their own.
APART = ("vision", "projector")


def stored_format(model: ModelSpec, name: str | Format) -> Format:
    """The format that ``--weights`` means for a model: a weight format, or a preset of llama.cpp.

    What is both (``q8_0``, ``q6_k``, ``bf16``) is the weight format; ``gguf:Q8_0`` is the preset.

    >>> from perfmodel.modelspecs.load import model
    >>> spec = model("llama3.1-8b")
    >>> [stored_format(spec, name).name for name in ("q8_0", "gguf:q8_0", "q4_k_m", "type:Q4_K")]
    ['q8_0', 'Q8_0', 'Q4_K_M', 'q4_k']

    Raises
    ------
    UnknownName
    UsageError
        For a preset where the layout of the model's GGUF files is not described.
    """
    if isinstance(name, Format):
        return name
    if name.casefold().startswith(PREFIX):
        return preset_format(model, preset(name[len(PREFIX) :]))
    if is_preset(name) and name.casefold().strip() not in FORMATS:
        return preset_format(model, preset(name))
    return weight_format(name)


def chosen_format(model: ModelSpec, name: str | Format) -> Format:
    """The format that a name means where presets go first, as ``quantize`` has it; see ``weight_or_preset``."""
    found = weight_or_preset(name)
    return preset_format(model, found) if isinstance(found, Preset) else found


@functools.lru_cache(maxsize=256)
def preset_format(model: ModelSpec, chosen: Preset) -> Format:
    """A preset as a format of one model: ``roles`` holds the format of each kind of tensor.

    Its matrices are multiplied as those of their ggml types are. Without an importance matrix, but for presets that
    cannot be made without; by today's rules.

    Raises
    ------
    UsageError
        When the layout of the model's GGUF files is not described.
    """
    found = as_gguf(model, chosen)
    base = FORMATS[
        _PLAIN.get(chosen.base, "q4_k")
    ]  # what matters of it is how it is multiplied: all of ggml's are alike
    roles = _roles(found, base, chosen.shown)
    matrices = [t for t in found.tensors if t.type not in _PLAIN and t.role not in NOT_LOADED] or list(found.tensors)
    bits = 8 * sum(t.bytes for t in matrices) / sum(t.elements for t in matrices)
    made = Format(
        chosen.shown, bits, None if chosen.plain else (1, BY_NAME[chosen.base].block), math=base.math,
        source=RULES_SOURCE, title=f"llama.cpp's preset {chosen.shown} of {model.title}", roles=roles,
        parts=_parts(found),
    )  # fmt: skip
    _check(model, made, found)
    return made


#: Types of ggml that are plain floats -> their formats.
_PLAIN = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def _roles(found: Quantized, base: Format, shown: str) -> tuple[tuple[tuple[str, bool], Format], ...]:
    """The format of each role's matrices, and of its vectors; the LM head's, tied or not."""
    groups: dict[tuple[str, bool], list[Sized]] = {}
    for t in found.tensors:
        if t.role not in NOT_LOADED:
            groups.setdefault((t.role, len(t.shape) > 1), []).append(t)
    made = {key: _mean(tensors, base, f"{shown} {key[0]}") for key, tensors in groups.items()}
    for role, whole in INSIDE.items():
        for matrix in (True, False):
            if (role, matrix) not in made and (whole, matrix) in made:
                made[role, matrix] = made[whole, matrix]
    head = [t for t in found.tensors if t.name == "output.weight"]
    made["lm_head", True] = _mean(head, base, f"{shown} lm_head") if head else made["embedding", True]
    return tuple(made.items())


def _mean(tensors: list[Sized], base: Format, name: str) -> Format:
    """A format of as many bits as tensors take on average."""
    types = {t.type for t in tensors}
    if len(types) == 1 and (plain := _PLAIN.get(next(iter(types)))):
        return FORMATS[plain]
    block = max(BY_NAME[one].block for one in types)
    bits = 8 * sum(t.bytes for t in tensors) / sum(t.elements for t in tensors)
    return Format(name, bits, (1, block), math=base.math, source=RULES_SOURCE, title=name)


def _parts(found: Quantized) -> str:
    """The types of the file with their shares of its bytes."""
    return ", ".join(
        f"{name} {100 * share:.0f} %"
        for name, sums in found.by_type.items()
        if (share := sums["bytes"] / found.total_bytes) >= 0.005
    )


def _check(model: ModelSpec, made: Format, found: Quantized) -> None:
    """Refuse where the roles do not add up to the file: its layout has something that the roles do not tell."""
    file = sum(t.bytes for t in found.tensors if t.role not in NOT_LOADED)
    sum_ = weight_bytes(model, made, without=APART)
    if abs(sum_ - file) > TOLERANCE * file:
        raise UsageError(
            f"{made.name} of {model.name} takes {file:,.0f} bytes and its roles {sum_:,.0f}: times of this preset "
            f"cannot be told; take the type of most of its matrices, as in --weights type:{_most(found)}"
        )


def _most(found: Quantized) -> str:
    return next(iter(found.by_type)).casefold()


def meaning(fmt: Format) -> str:
    """What a name means where it could mean two things: a preset of llama.cpp, or a type for every linear layer.

    >>> meaning(FORMATS["int4"])
    ''
    """
    if fmt.roles:
        return f"{fmt.name}: llama.cpp's preset, tensor by tensor ({fmt.parts} of its bytes)"
    if not fmt.block:
        return ""
    name = fmt.name.upper()
    other = ""
    if is_preset(name):
        shown = preset(name).shown
        other = f"; llama.cpp's preset is {shown if shown.casefold() not in FORMATS else PREFIX + shown}"
    return f"{fmt.name}: every linear layer in this type of ggml, embedding and head at 16 bits{other}"
