"""``rope_scaling`` and ``rope_parameters``: numerics of the rotary embedding, as long as every key is known."""

from __future__ import annotations

from perfmodel.modelspecs.hf.common import words
from perfmodel.modelspecs.hf.keys import Keys

SECTIONS = ("rope_scaling", "rope_parameters")
#: Layer types that may have a rotary embedding of their own.
LAYERS = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention", "main", "compress")
KNOWN = words(
    """
    rope_type type factor original_max_position_embeddings attention_factor attn_factor extrapolation_factor
    beta_fast beta_slow low_freq_factor high_freq_factor long_factor short_factor long_mscale short_mscale mscale
    mscale_all_dim rope_theta partial_rotary_factor mrope_section mrope_interleaved truncate finetuned alpha
    llama_4_scaling_beta max_position_embeddings
    """
)


def check(k: Keys) -> None:
    """Refuse a key of the rotary embedding that is not known, in the file and in its text section.

    Raises
    ------
    SpecError
        Naming the key.
    """
    inner = k.data.get("text_config")
    for section in (k, Keys(inner, k.file, "text_config.") if isinstance(inner, dict) else None):
        for name in SECTIONS if section is not None else ():
            assert section is not None
            rope = section.section(name)
            if rope is None:
                continue
            for layer in LAYERS:
                if isinstance(rope.data.get(layer), dict) and (own := rope.section(layer)) is not None:
                    own.finish(KNOWN)
            rope.finish(KNOWN)
