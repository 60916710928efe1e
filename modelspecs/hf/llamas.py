"""Dense families that differ from Llama in a few settings: one table of variants and one function that reads them all.

Class defaults are those of transformers 5.24; of Orion, Baichuan, InternLM2, MiMo, Qwen 1 and ChatGLM, which it does
not know, of the code that their makers publish with the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from perfmodel.modelspecs.hf.common import (
    CORE,
    KINDS,
    Spec,
    base,
    dense,
    effective_window,
    gqa,
    num_layers,
    schedule,
    windowed,
)
from perfmodel.modelspecs.hf.keys import Keys

LAYER_NORM: Spec = {"kind": "layernorm", "bias": True}


@dataclass(frozen=True)
class Variant:
    """How a family differs from Llama.

    Attributes
    ----------
    tied : bool
        What the class does when ``tie_word_embeddings`` is absent.
    norm : Spec
        Fields of the spec's norm.
    qkv, out, mlp : str or bool
        Biases of Q, K and V, of the output projection and of the feed-forward part: the key that says so, or always.
    on : bool
        What the class does when such a key is absent.
    kv_heads, dim : int, optional
        Defaults of the class where it has its own; else as many KV heads as heads, and ``hidden_size / heads``.
    qk_norm : str
    gated : bool
    activation : str
    expected : dict
        Keys that only one value of leaves the formulas true.
    alias : dict
        Other names of keys.
    layer : tuple
        Small tensors that each layer has besides.
    """

    tied: bool = False
    norm: Spec = field(default_factory=dict)
    qkv: str | bool = False
    out: str | bool = False
    mlp: str | bool = False
    on: bool = False
    kv_heads: int | None = None
    dim: int | None = None
    qk_norm: str = "none"
    gated: bool = True
    activation: str = "silu"
    expected: dict[str, tuple[object, ...]] = field(default_factory=dict)
    alias: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    layer: tuple[Spec, ...] = ()


def attention(k: Keys, v: Variant) -> Spec:
    """The attention of a variant, without window."""
    return gqa(
        k, mha_if_absent=v.kv_heads is None, kv_heads=v.kv_heads, dim=v.dim, qk_norm=v.qk_norm,
        qkv_bias=_bias(k, v.qkv, v.on), o_bias=_bias(k, v.out, v.on),
    )  # fmt: skip


def _bias(k: Keys, key: str | bool, default: bool) -> bool:
    return k.flag(key, default) if isinstance(key, str) else key


def parts(k: Keys, v: Variant) -> tuple[Spec, int, Spec, Spec]:
    """Fields of the model, number of layers, attention and feed-forward part of a variant."""
    k.alias(**v.alias)
    k.require(*CORE, "max_position_embeddings")
    spec, n = base(k, tied=v.tied), num_layers(k)
    for key, allowed in v.expected.items():
        k.expect(key, *allowed)
    ffn = dense(k, default_activation=v.activation, gated=v.gated, bias=_bias(k, v.mlp, v.on))
    spec |= {"norm": v.norm} if v.norm else {}
    spec |= {"layer_tensors": v.layer} if v.layer else {}
    return spec, n, attention(k, v), ffn


def uniform(v: Variant) -> Callable[[Keys], Spec]:
    """A reader of models whose layers are all alike."""

    def read(k: Keys) -> Spec:
        spec, n, full, ffn = parts(k, v)
        return spec | {"attention": {"full": full}, "ffn": {"dense": ffn}, "layers": schedule(["full/dense"] * n)}

    return read


VARIANTS: dict[str, Variant] = {
    "granite": Variant(qkv="attention_bias", out="attention_bias", mlp="mlp_bias"),
    "helium": Variant(qkv="attention_bias", mlp="mlp_bias", dim=128),
    "arcee": Variant(qkv="attention_bias", out="attention_bias", mlp="mlp_bias", gated=False, activation="relu2"),
    "nemotron": Variant(
        norm=LAYER_NORM, qkv="attention_bias", out="attention_bias", mlp="mlp_bias", gated=False, activation="relu2"
    ),
    "olmo": Variant(norm={"kind": "layernorm", "weights": False}, qkv="attention_bias", out="attention_bias"),
    "glm": Variant(qkv="attention_bias", on=True, kv_heads=2, dim=128),
    "glm4": Variant(norm={"per_layer": 4}, qkv="attention_bias", on=True, kv_heads=2, dim=128),
    "ernie4_5": Variant(tied=True, qkv="use_bias", out="use_bias", mlp="use_bias", kv_heads=2, dim=128),
    "hunyuan_v1_dense": Variant(qkv="attention_bias", out="attention_bias", qk_norm="head"),
    "apertus": Variant(
        qkv="attention_bias", out="attention_bias", qk_norm="head", gated=False, activation="xielu",
        layer=tuple(
            {"name": f"mlp.act_fn.{name}", "role": "scale", "shape": (1,)} for name in ("alpha_p", "alpha_n")
        ),
    ),
    "orion": Variant(norm=LAYER_NORM),
    "baichuan": Variant(expected={"position_embedding": ("ROPE",)}),
    "internlm2": Variant(qkv="bias", out="bias"),
    "exaone": Variant(
        qkv="attention_bias", out="attention_bias", mlp="mlp_bias", kv_heads=8,
        alias={"num_hidden_layers": "num_layers", "hidden_act": "activation_function"},
    ),
}  # fmt: skip


def seed_oss(k: Keys) -> Spec:
    """Seed-OSS: biases on Q, K and V unless told otherwise, another switch for the output projection."""
    out = k.flag("attention_out_bias", False)
    read = uniform(Variant(qkv="attention_bias", out=out, mlp=k.flag("mlp_bias", False), on=True, kv_heads=8, dim=128))
    return read(k)


def internlm3(k: Keys) -> Spec:
    """InternLM3: the same switch for all biases, under three names."""
    k.alias(attention_bias="qkv_bias", mlp_bias="bias")
    bias = k.flag("attention_bias", False)
    k.expect("mlp_bias", bias)
    return uniform(Variant(qkv=bias, out=bias, mlp=bias, kv_heads=2, dim=128))(k)


def stablelm(k: Keys) -> Spec:
    """StableLM: LayerNorm; with ``use_parallel_residual`` attention and feed-forward part share one."""
    side_by_side = k.flag("use_parallel_residual", False)
    norm = {**LAYER_NORM, "per_layer": 1 if side_by_side else 2}
    return uniform(Variant(norm=norm, qkv="use_qkv_bias", kv_heads=32, expected={"qk_layernorm": (False,)}))(k)


def starcoder2(k: Keys) -> Spec:
    """StarCoder2: LayerNorm, biases, plain feed-forward layers, a window where the file has one."""
    variant = Variant(
        tied=True, norm=LAYER_NORM, qkv="use_bias", out="use_bias", mlp="use_bias", on=True, kv_heads=2, gated=False,
        activation="gelu_pytorch_tanh", expected={"norm_type": ("layer_norm",), "mlp_type": ("default",)},
    )  # fmt: skip
    spec, n, full, ffn = parts(k, variant)
    window = effective_window(k, k.optional("sliding_window"), spec["max_context"])
    kinds = ["sliding_attention" if window else "full_attention"] * n
    return spec | {"ffn": {"dense": ffn}} | windowed(full, window, kinds, ["dense"] * n)


def sliding(k: Keys, spec: Spec, n: int, period: int, window: int | None) -> tuple[list[str], int | None]:
    """Kind of each layer and window: ``layer_types``, else every ``period``-th layer full."""
    size = effective_window(k, k.optional("sliding_window", window), spec["max_context"])
    kinds = k.words("layer_types", n, KINDS)
    if kinds is None:
        k.notes.append(f"layer_types: every {period}th layer full")
        kinds = [KINDS[int((i + 1) % period != 0)] for i in range(n)]
    if "sliding_attention" in kinds and "sliding_window" in k.data and not k.has("sliding_window"):
        raise k.error("sliding_window", "is null, and layer_types has sliding layers")
    return kinds, size


def olmo3(k: Keys) -> Spec:
    """OLMo 3: OLMo 2 with three windowed layers to a full one."""
    variant = Variant(norm={"placement": "post"}, qkv="attention_bias", out="attention_bias", qk_norm="full")
    spec, n, full, ffn = parts(k, variant)
    kinds, window = sliding(k, spec, n, 4, 4096)
    return spec | {"ffn": {"dense": ffn}} | windowed(full, window, kinds, ["dense"] * n)


def cohere2(k: Keys) -> Spec:
    """Command R7B, Command A: Cohere with three windowed layers to a full one, which has no rotary embedding."""
    variant = Variant(
        tied=True, norm={"kind": "layernorm", "per_layer": 1}, qkv="attention_bias", out="attention_bias",
        expected={"use_qk_norm": (False,)},
    )  # fmt: skip
    period = k.dim("sliding_window_pattern", 4) if "layer_types" not in k.data else 4
    k.read |= {"sliding_window_pattern", "_sliding_window_pattern"}
    spec, n, full, ffn = parts(k, variant)
    kinds, window = sliding(k, spec, n, period, 4096)
    return spec | {"ffn": {"dense": ffn}} | without_rope(windowed(full, window, kinds, ["dense"] * n))


def without_rope(spec: Spec) -> Spec:
    """Full layers among windowed ones have no rotary embedding."""
    if "sliding" in spec["attention"] and "full" in spec["attention"]:
        spec["attention"]["full"] = {**spec["attention"]["full"], "rope": False}
    return spec


def exaone4(k: Keys) -> Spec:
    """EXAONE 4: norms after the parts and on the heads of Q and K; windowed layers by a pattern such as LLLG."""
    spec, n, full, ffn = parts(k, Variant(norm={"placement": "post"}, kv_heads=32, qk_norm="head"))
    kinds, window = exaone_kinds(k, spec, n)
    return spec | {"ffn": {"dense": ffn}} | without_rope(windowed(full, window, kinds, ["dense"] * n))


def exaone_kinds(k: Keys, spec: Spec, n: int) -> tuple[list[str], int | None]:
    """Kinds of layers by ``layer_types``, else by ``sliding_window_pattern``: a number, or letters L and G."""
    pattern = k.data.get("sliding_window_pattern", 4)
    k.read.add("sliding_window_pattern")
    if k.data.get("layer_types") is None and "sliding_window" in k.data and k.data["sliding_window"] is None:
        k.read.add("sliding_window")
        return ["full_attention"] * n, None
    if isinstance(pattern, str) and set(pattern) == {"L", "G"} and pattern.endswith("G") and pattern.count("G") == 1:
        pattern = len(pattern)
    if k.data.get("layer_types") is None and (type(pattern) is not int or pattern < 1):
        raise k.error("sliding_window_pattern", f"{str(pattern)[:40]!r} is not understood")
    return sliding(k, spec, n, pattern if type(pattern) is int else 4, 4096)


def smollm3(k: Keys) -> Spec:
    """SmolLM3: every fourth layer without rotary embedding, windowed when ``use_sliding_window``."""
    variant = Variant(tied=True, qkv="attention_bias", out="attention_bias", mlp="mlp_bias", kv_heads=4)
    spec, n, full, ffn = parts(k, variant)
    every = k.dim("no_rope_layer_interval", 4)
    rope = k.numbers("no_rope_layers", n) or [int((i + 1) % every != 0) for i in range(n)]
    if not set(rope) <= {0, 1}:
        raise k.error("no_rope_layers", f"must be {n} zeros and ones")
    kinds = k.words("layer_types", n, KINDS)
    used = k.flag("use_sliding_window", False)
    window = effective_window(k, k.optional("sliding_window"), spec["max_context"]) if used else None
    k.read.add("sliding_window")
    if kinds is None:
        kinds = [KINDS[int(bool(window) and not on)] for on in rope]
    if "sliding_attention" in kinds and not used:
        raise k.error("layer_types", "has sliding layers, and use_sliding_window is not true")
    names = [
        ("sliding" if kind == "sliding_attention" and window else "full") + ("" if on else "_nope")
        for kind, on in zip(kinds, rope, strict=True)
    ]
    attentions = {
        "full": full, "full_nope": {**full, "rope": False}, "sliding": {**full, "window": window},
        "sliding_nope": {**full, "window": window, "rope": False},
    }  # fmt: skip
    return spec | {
        "attention": {name: attentions[name] for name in dict.fromkeys(names)}, "ffn": {"dense": ffn},
        "layers": schedule([f"{name}/dense" for name in names]),
    }  # fmt: skip


def mimo(k: Keys) -> Spec:
    """MiMo 7B: Qwen2 with biases on Q, K and V and a prediction layer of the same kind."""
    k.expect("use_sliding_window", False)
    k.expect("use_mrope", False)
    k.expect("attention_bias", True)
    k.read |= {"sliding_window", "max_window_layers"}
    spec = uniform(Variant(qkv=True))(k)
    layers = k.dim("num_nextn_predict_layers", 0, least=0)
    return spec | ({"mtp": {"layers": layers, "layer": "full/dense"}} if layers else {})


def qwen(k: Keys) -> Spec:
    """Qwen 1: ``intermediate_size`` counts gate and up together; biases on Q, K and V."""
    k.alias(max_position_embeddings="seq_length")
    k.require(*CORE, "max_position_embeddings")
    k.expect("no_bias", True)
    spec, n = base(k, tied=False), num_layers(k)
    heads, size = k.dim("num_attention_heads"), k.dim("kv_channels", 128)
    if heads * size != spec["hidden_size"]:
        raise k.error("kv_channels", f"{size} times {heads} heads is not hidden_size ({spec['hidden_size']})")
    both = k.dim("intermediate_size", least=2)
    if both % 2:
        raise k.error("intermediate_size", f"{both} counts gate and up together, and is odd")
    full = gqa(k, mha_if_absent=True, qkv_bias=True)
    ffn = {"kind": "dense", "intermediate_size": both // 2, "activation": "silu"}
    return spec | {"attention": {"full": full}, "ffn": {"dense": ffn}, "layers": schedule(["full/dense"] * n)}


def chatglm(k: Keys) -> Spec:
    """ChatGLM 2 and 3, GLM-4 as first published: grouped heads, biases on Q, K and V."""
    k.alias(
        num_hidden_layers="num_layers", intermediate_size="ffn_hidden_size", vocab_size="padded_vocab_size",
        max_position_embeddings="seq_length", head_dim="kv_channels",
    )  # fmt: skip
    for key in ("multi_query_attention", "rmsnorm", "post_layer_norm", "original_rope"):
        k.expect(key, True)
    for key in ("add_bias_linear", "apply_residual_connection_post_layernorm", "interleaved_qkv"):
        k.expect(key, False)
    k.require("multi_query_group_num", "add_qkv_bias", "head_dim")
    k.expect("num_key_value_heads", k.data["multi_query_group_num"])
    return uniform(Variant(qkv=k.flag("add_qkv_bias", False), kv_heads=k.dim("multi_query_group_num")))(k)
