"""FLOPs of recurrent mixers against torch's own counter on small instances of the classes of `transformers`.

The eager code of each scan does more than is needed, and how much more is known: whole squares of a block where the
causal half is needed, scores once a head where a group shares them, a first block that meets an empty state, a carry
over all pairs of blocks. Each difference is worked out here; nothing else may differ.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from perfmodel.modelspecs import hf
from perfmodel.modelspecs.schema import ModelSpec
from perfmodel.modelspecs.schema_recurrent import GatedDelta, Kda, Lightning, Mamba1, Mamba2, ShortConv
from perfmodel.roofline.graph import graph
from perfmodel.roofline.step import Plan, Step, decode, prefill

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BATCH, VOCABULARY, KERNEL = 2, 160, 4
CORE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 512, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": KERNEL, "head_dim": 16,
}  # fmt: skip
MAMBA = {"conv_kernel": KERNEL, "expand": 2, "state_size": 16}
ALONE = {key: CORE[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings")}

#: model_type -> configuration; every layer is recurrent, so that attention is out of the picture.
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba2": ALONE | MAMBA | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8},
    "mamba": ALONE | MAMBA | {"time_step_rank": 6},
    "nemotron_h": {key: value for key, value in CORE.items() if key != "num_hidden_layers"} | {
        "layers_block_type": ["mamba", "moe", "mamba", "mlp"], "mamba_num_heads": 8, "mamba_head_dim": 16,
        "ssm_state_size": 16, "n_groups": 2, "conv_kernel": KERNEL, "chunk_size": 8, "n_routed_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40,
        "moe_latent_size": 32, "n_shared_experts": 1, "head_dim": 16,
    },
    "qwen3_5_text": CORE | DELTA | {"layer_types": ["linear_attention"] * 2},
    "qwen3_next": CORE | DELTA | {
        "layer_types": ["linear_attention"] * 2, "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    },
    "minimax": CORE | {
        "layer_types": ["linear_attention"] * 2, "num_local_experts": 8, "num_experts_per_tok": 2, "block_size": 8,
    },
    "lfm2": CORE | {"layer_types": ["conv"] * 2, "conv_L_cache": KERNEL, "block_auto_adjust_ff_dim": False},
}  # fmt: skip
LENGTHS = {"qwen3_5_text": 192, "qwen3_next": 128}  # whole blocks of 64
ALL = pytest.mark.parametrize("kind", CONFIGS)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """These matrices are tiny: threads only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def our_spec(kind: str) -> ModelSpec:
    return hf.from_config({"model_type": kind, **CONFIGS[kind]}, f"{kind}.json", kind)


@functools.cache
def torch_model(kind: str) -> Any:
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[kind])
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def counted(kind: str, length: int, **options: Any) -> int:
    """FLOPs of a forward pass by torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (BATCH, length))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        torch_model(kind)(ids, use_cache=False, **options)
    return int(counter.get_total_flops())


def matrix_flops(spec: ModelSpec, step: Step, scans: bool = True) -> float:
    """Ours, with or without the scans."""
    ops = graph(spec, step, Plan())
    return float(sum(op.cost().matrix_flops for op in ops if scans or op.kind != "recurrent"))


def eager_scan(mixer: object, length: int) -> int:
    """FLOPs of a layer's scan for one sequence as the eager code of `transformers` does them."""
    if isinstance(mixer, Mamba2):
        blocks = -(-length // mixer.scan_chunk)
        block, state = blocks * mixer.scan_chunk, mixer.head_dim * mixer.state
        squares = 2 * block * mixer.scan_chunk * (mixer.state + mixer.head_dim)  # scores, and scores times x
        return mixer.heads * (squares + 2 * 2 * block * state + 2 * (blocks + 1) ** 2 * state)
    if isinstance(mixer, Mamba1):
        return 2 * length * mixer.inner * mixer.state  # the state times C, token by token
    if isinstance(mixer, GatedDelta):
        square = 2 * length * mixer.scan_chunk
        within = square * (2 * mixer.key_head_dim + mixer.value_head_dim)  # the solver is not counted
        return mixer.value_heads * (within + 3 * 2 * length * mixer.key_head_dim * mixer.value_head_dim)
    if isinstance(mixer, Lightning):
        square = 2 * length * mixer.scan_chunk * 2 * mixer.head_dim
        return mixer.heads * (square + 2 * 2 * length * mixer.head_dim**2)
    assert isinstance(mixer, ShortConv)
    return 0


def eager_conv(mixer: object, length: int) -> int:
    """FLOPs of a layer's convolution for one sequence: the eager code also computes what its padding makes."""
    channels = mixer.conv_channels() if not isinstance(mixer, Lightning) else 0  # type: ignore[attr-defined]
    return 2 * KERNEL * channels * (length + KERNEL - 1)


@ALL
def test_prefill_equals_the_counter_but_for_the_scan(kind: str) -> None:
    """Projections, experts, gates and head to the FLOP; the scan and convolution are the eager code's own."""
    spec, length = our_spec(kind), LENGTHS.get(kind, 24)
    own = matrix_flops(spec, prefill(float(BATCH), float(length)), scans=False)
    extra = sum(
        layer.count * BATCH * (eager_scan(layer.attention, length) + eager_conv(layer.attention, length))
        for layer in spec.layer_classes
        if layer.attention.kind != "none"
    )
    assert counted(kind, length, logits_to_keep=1) == own + extra


@pytest.mark.parametrize("length", [24, 21])
def test_a_last_block_is_padded_by_the_eager_code(length: int) -> None:
    """With 21 tokens the eager scan of Mamba-2 does the work of 24; ours does that of 21."""
    spec = our_spec("mamba2")
    mixer = spec.layer_classes[0].attention
    assert eager_scan(mixer, length) == eager_scan(mixer, 24)
    step = prefill(float(BATCH), float(length))
    own = matrix_flops(spec, step, scans=False)
    rest = 2 * BATCH * (eager_scan(mixer, length) + eager_conv(mixer, length))
    assert counted("mamba2", length, logits_to_keep=1) == own + rest
    shorter = matrix_flops(spec, prefill(float(BATCH), 21.0))
    assert shorter < matrix_flops(spec, prefill(float(BATCH), 24.0))


def scan_flops(kind: str, length: int) -> float:
    """Ours of one layer's scan and one sequence."""
    ops = graph(our_spec(kind), prefill(1.0, float(length)), Plan())
    (scan,) = [op for op in ops if op.kind == "recurrent"]
    return float(scan.unit_cost.matrix_flops)


def test_needed_half_of_mamba_2() -> None:
    """Of the eager scan ours keeps the causal half of each block, a group's scores once, and no empty state."""
    mixer, length, block = our_spec("mamba2").layer_classes[0].attention, 24, 8
    assert isinstance(mixer, Mamba2)
    state, half = mixer.head_dim * mixer.state, (block + 1) / 2
    per_group = 2 * length * half * mixer.state * mixer.groups
    per_head = 2 * length * half * mixer.head_dim + 2 * length * state + 2 * (length - block) * state
    assert scan_flops("mamba2", length) == per_group + mixer.heads * per_head
    carry = 2 * (3 + 1) ** 2 * state  # the eager code carries the state over all pairs of blocks
    saved = 2 * length * (block - half) * (mixer.state + mixer.head_dim) + 2 * block * state + carry
    shared = 2 * length * half * mixer.state * (mixer.heads - mixer.groups)
    assert eager_scan(mixer, length) - mixer.heads * saved - shared == scan_flops("mamba2", length)


def test_needed_half_of_the_delta_rule() -> None:
    """Of the eager scan ours keeps the causal halves; the triangular systems, which no counter sees, are added."""
    mixer, length, block = our_spec("qwen3_5_text").layer_classes[0].attention, 192, 64
    assert isinstance(mixer, GatedDelta)
    k, v, pairs, below = mixer.key_head_dim, mixer.value_head_dim, 3 * 64 * 65 / 2, 3 * 64 * 63 / 2
    solved = 2 * below * (k + v)
    eager_less_halves = 2 * (pairs + below) * k + 2 * pairs * v + 6 * length * k * v - 4 * block * k * v
    assert scan_flops("qwen3_5_text", length) == mixer.value_heads * (eager_less_halves + solved)
    assert eager_scan(mixer, length) == mixer.value_heads * (2 * 2 * (pairs + below) * k + 2 * length * block * v
                                                             + 6 * length * k * v)  # fmt: skip


def test_needed_half_of_lightning_attention() -> None:
    """Of the eager scan ours keeps the causal half of each block and drops the first block's empty state."""
    mixer, length, block = our_spec("minimax").layer_classes[0].attention, 24, 8
    assert isinstance(mixer, Lightning)
    size = mixer.head_dim
    saved = 4 * length * (block - (block + 1) / 2) * size + 2 * block * size**2
    assert eager_scan(mixer, length) - mixer.heads * saved == scan_flops("minimax", length)


@ALL
def test_decode_multiplies_no_matrices_in_the_scan(kind: str) -> None:
    """A token's scan is vector work on the state: its matrix FLOPs are those of projections, experts and head."""
    spec = our_spec(kind)
    step = decode(float(BATCH), 25.0)
    assert matrix_flops(spec, step) == matrix_flops(spec, step, scans=False)
    scans = [op for op in graph(spec, step, Plan()) if op.kind == "recurrent"]
    assert all(float(op.cost().flops) > 0 for op in scans)
    assert bool(scans) == (kind != "lfm2")


def test_decode_equals_the_counter_but_for_the_convolution() -> None:
    """A token after a cache: the eager code multiplies the state by C as a matrix, and convolves two columns."""
    spec, model = our_spec("mamba2"), torch_model("mamba2")
    mixer = spec.layer_classes[0].attention
    assert isinstance(mixer, Mamba2)
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad():
        cache = model(torch.randint(3, VOCABULARY, (BATCH, 24)), use_cache=True).cache
        with FlopCounterMode(display=False) as counter:
            model(torch.randint(3, VOCABULARY, (BATCH, 1)), cache=cache, use_cache=True)
    found = int(counter.get_total_flops())
    output = 2 * mixer.heads * mixer.head_dim * mixer.state
    columns = found - matrix_flops(spec, decode(float(BATCH), 25.0)) - 2 * BATCH * output
    assert columns == 2 * BATCH * 2 * (
        2 * KERNEL * mixer.conv_channels()
    )  # two layers; two columns, of which one is new


def test_kimi_delta_attention_is_a_delta_rule_with_more_decays() -> None:
    """One decay a channel of the key changes no matrix product: the scan's FLOPs are the gated delta net's."""
    from perfmodel.roofline import recurrent

    shape = {"batch": 1.0, "q": 192.0, "kv": 192.0, "key_heads": 4.0, "value_heads": 4.0, "key_dim": 8.0,
             "value_dim": 8.0, "chunk": 64.0, "state_bytes": 4.0, "act_bytes": 2.0, "math": "bf16"}  # fmt: skip
    head, channel = (recurrent.delta_scan(**shape, channel_decay=decay) for decay in (0.0, 1.0))  # type: ignore[arg-type]
    assert float(head.matrix_flops) == float(channel.matrix_flops)
    assert float(channel.hbm["act_read"] - head.hbm["act_read"]) == 192 * 4 * (8 - 1) * 2
    assert Kda(heads=4, head_dim=8).state_elements() == 4 * 8 * 8
