"""What vLLM's profiling run finds beside the weights: the peak of activations, CUDA graphs, memory outside PyTorch.

The run passes ``max_num_batched_tokens`` dummy tokens through the model and samples for ``max_num_seqs`` rows. The peak
is that of the larger of the two, on top of what is kept from one to the other. Source: ``profile_run``,
``_dummy_sampler_run`` and ``profile_cudagraph_memory`` in vllm/v1/worker/gpu_model_runner.py, vLLM 0.19.0.
"""

from __future__ import annotations

from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.schema import Compressed, Dense, Gqa, LayerClass, Mla, ModelSpec, Moe
from perfmodel.modelspecs.schema_recurrent import NoFfn, NoMixer
from perfmodel.modelspecs.tensors import tensors
from perfmodel.roofline.engines.overheads import NonTorch, Overheads
from perfmodel.roofline.engines.rules import Rules
from perfmodel.roofline.engines.vllm_weights import moe_layers
from perfmodel.roofline.sharding import stage_layers
from perfmodel.roofline.step import Plan

MIB = 2.0**20


def cublas_workspace(gpu: Gpu) -> float:
    """PyTorch's workspace for cuBLAS: 32 MiB from Hopper on, 8.125 MiB before. [bytes]

    Source: ``parseChosenWorkspaceSize`` in aten/src/ATen/cuda/CublasHandlePool.cpp.
    """
    capability = float(gpu.compute_capability or 0)
    return (32 if capability >= 9 else 8.125) * MIB


def attention_width(layer: LayerClass, plan: Plan) -> float:
    """Elements a token that a mixer holds beside the hidden state, of one rank: Q, K, V and its output, or the like."""
    a = layer.attention
    if isinstance(a, Gqa):
        keys = max(1.0, a.kv_heads / plan.tp) * (a.head_dim + a.value_dim)
        return a.heads / plan.tp * (a.head_dim + a.value_dim) + keys
    if isinstance(a, Mla):
        return a.heads / plan.tp * 2 * (a.qk_head_dim + a.v_head_dim) + a.cache_elements
    if isinstance(a, Compressed):
        return a.heads / plan.tp * 2 * a.head_dim + a.series * a.head_dim
    if isinstance(a, NoMixer):
        return 0.0
    return 3.0 * max(a.conv_channels(plan.tp), 1)


def ffn_width(layer: LayerClass, plan: Plan) -> float:
    """Elements a token that a feed-forward layer holds: gate and up, their product, and its quantized copy."""
    f = layer.ffn
    if isinstance(f, NoFfn):
        return 0.0
    inner = f.intermediate_size if isinstance(f, Dense) else f.shared_intermediate_size
    quantized = plan.activation_bytes / plan.act_bytes if plan.activation_bytes < plan.act_bytes else 0.0
    return inner / plan.tp * ((2 if f.gated else 1) + 1 + quantized)


def forward_bytes(model: ModelSpec, gpu: Gpu, plan: Plan, tokens: int, copies: float) -> float:
    """Peak of the forward pass: the widest layer's tensors and ``copies`` of the hidden state. [bytes]"""
    widest = max(max(attention_width(layer, plan), ffn_width(layer, plan)) for layer in model.layer_classes)
    return tokens * (widest + copies * model.hidden_size) * plan.act_bytes + cublas_workspace(gpu)


def sampler_bytes(model: ModelSpec, gpu: Gpu, plan: Plan, rules: Rules, tokens: int, rows: int) -> float:
    """Peak of sampling ``rows`` tokens, while the hidden states of all ``tokens`` live. [bytes]"""
    logit = plan.act_bytes + rules.number("sampler_bytes_per_logit")
    sms = gpu.compute.sms.value if gpu.compute.sms else 0.0
    buffer = min(rows, sms) * 4.0 * rules.number("sampler_rows_in_buffer")
    hidden = (tokens + 2 * rows) * model.hidden_size * plan.act_bytes
    return model.vocab_size * (rows * logit + buffer) + hidden + cublas_workspace(gpu)


def moe_workspace(model: ModelSpec, plan: Plan, stage: int, tokens: int) -> float:
    """Two workspaces of the routed experts: a row for each token and chosen expert. [bytes]

    ``tokens x chosen x (max(I, d) + max(2 I, d)) x element`` with ``I`` a rank's share of an expert's features.
    """
    if not moe_layers(model, plan, stage) or plan.weights.name == "mxfp4":  # gpt-oss: the kernels fuse them away
        return 0.0
    ffns = [layer.ffn for layer in model.layer_classes if isinstance(layer.ffn, Moe)]
    d = model.hidden_size
    return max(
        tokens * f.experts_per_token * (max(i, d) + max((2 if f.gated else 1) * i, d)) * plan.act_bytes
        for f in ffns
        for i in [f.intermediate_size / plan.expert_tp]
    )


def activation_bytes(
    model: ModelSpec, gpu: Gpu, plan: Plan, stage: int, rules: Rules, fitted: Overheads, tokens: int, seqs: int
) -> float:
    """Peak of activations on a rank of one pipeline stage. [bytes]"""
    workspace = moe_workspace(model, plan, stage, tokens)
    forward = forward_bytes(model, gpu, plan, tokens, fitted.hidden_copies)
    kept = workspace if rules["moe_workspace_kept"] else 0.0
    peak = forward if kept else forward + workspace
    if stage == plan.pp - 1:
        peak = max(peak, sampler_bytes(model, gpu, plan, rules, tokens, min(seqs, tokens)))
    if stage < plan.pp - 1:  # hidden state and residual that go to the next stage
        kept += 2 * tokens * model.hidden_size * plan.act_bytes
    if any(t.role == "vision" for t in tensors(model)):  # the encoder's output for a full budget
        kept += tokens * model.hidden_size * plan.act_bytes
    return peak + kept


def graph_sizes(rules: Rules, seqs: int, tokens: int, draft_tokens: int = 0) -> list[int]:
    """Batch sizes for which vLLM captures CUDA graphs by default. [tokens]

    >>> from perfmodel.roofline.engines.rules import rules as read
    >>> len(graph_sizes(read("vllm", "0.19.0"), 1024, 8192)), len(graph_sizes(read("vllm", "0.11.0"), 1024, 8192))
    (51, 67)
    """
    most = min(2 * seqs * (1 + draft_tokens), int(rules["graph_size_cap"]), tokens)
    step = int(rules["graph_sizes_step_16_from"])
    sizes = [1, 2, 4, *range(8, min(most + 1, step), 8), *range(step, most + 1, 16)]
    return [size for size in sizes if size <= most]


def graph_bytes(
    model: ModelSpec, plan: Plan, stage: int, rules: Rules, fitted: Overheads, sizes: int, estimate: bool
) -> float:
    """CUDA graphs of a rank: as captured, or as the engine estimates them before it does. [bytes]"""
    layers = len(stage_layers(model.num_layers, plan.pp)[stage])
    form = fitted.graph_estimate if estimate else fitted.graphs
    return form.at(layers, moe_layers(model, plan, stage)) * sizes / 51


def non_torch_bytes(rules: Rules, fitted: Overheads, tp: int) -> float:
    """Memory outside PyTorch: loaded kernels, communicators and their buffers. [bytes]"""
    stated = NonTorch(**rules["non_torch_bytes"])
    return (stated if stated.tp1 else fitted.non_torch).at(tp)
