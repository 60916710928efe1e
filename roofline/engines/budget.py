"""``memory``: does a model fit under an engine, how many tokens and requests does it hold, and what would help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.base.units import gib
from perfmodel.hwspecs.load import gpu as load_gpu
from perfmodel.hwspecs.schema import Gpu
from perfmodel.modelspecs.formats import FORMATS, KV_FORMATS, OFFERED, OFFERED_KV, Format, kv_format
from perfmodel.modelspecs.load import model as load_model
from perfmodel.modelspecs.mixes import stored_format
from perfmodel.modelspecs.schema import Gqa, Mla, ModelSpec
from perfmodel.roofline.engines import llamacpp, sglang, trtllm, vllm
from perfmodel.roofline.engines.ask import LATENT_FORMATS, Ask, Draft, as_bytes, fraction, whole
from perfmodel.roofline.engines.options import BLOCK_SIZES, check_foreign, checked
from perfmodel.roofline.engines.overheads import Overheads, overheads
from perfmodel.roofline.engines.result import EngineMemory
from perfmodel.roofline.engines.rules import rules
from perfmodel.roofline.quantization.units import remarks
from perfmodel.roofline.step import Plan, make_plan

#: What answers for an engine.
ANSWERS = {"vllm": vllm.memory, "sglang": sglang.memory, "trtllm": trtllm.memory, "llamacpp": llamacpp.memory}

#: Engines that refuse a request longer than the model's longest context -> the variable that makes them take it.
LONG_CONTEXT = {"vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "sglang": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"}

#: Engine -> vendors of the GPUs that its budget describes; llama.cpp runs on anything.
VENDORS = {"vllm": ("nvidia", "amd"), "sglang": ("nvidia", "amd"), "trtllm": ("nvidia",)}


def memory(
    model: str | ModelSpec, gpu: str | Gpu, *, engine: str = "vllm", version: str | None = None, tp: int = 1,
    pp: int = 1, ep: int = 1, dp: int = 1, weights: str | Format | None = None, kv: str | Format = "auto",
    max_model_len: int | None = None, max_num_batched_tokens: int | None = None, max_num_seqs: int | None = None,
    memory_fraction: float | None = None, block_size: int | None = None, usable: str | float | None = None,
    draft: str | ModelSpec | None = None, fitted: Overheads | None = None, **engine_options: Any,
) -> EngineMemory:  # fmt: skip
    """Memory of a model under an engine: every term of its budget, KV tokens, concurrency, and what would fit.

    Parameters
    ----------
    model, gpu
        Names, files or specs.
    engine : str
        ``vllm``, ``sglang``, ``trtllm`` or ``llamacpp``.
    version : str, optional
        Of the engine; the newest whose source was read by default. llama.cpp has none: write a build's date.
    tp, pp, ep, dp : int
        Tensor, pipeline, expert and data parallelism. Everything is of one GPU, tokens are of one data-parallel
        replica. llama.cpp: ``pp`` GPUs share the layers.
    weights, kv : str or Format
        Storage formats; the checkpoint's own, and 16 bits (32 for 32-bit weights), by default.
    max_model_len : int, optional
        Tokens of the longest request; the model's longest context by default.
    max_num_batched_tokens, max_num_seqs : int, optional
        Limits of a step; the engine's defaults for this GPU when left out.
    memory_fraction : float, optional
        Of the device memory (vLLM, SGLang) or of what is left of it (TensorRT-LLM).
    block_size : int, optional
        Tokens of a KV block. [tokens]
    usable : float or str, optional
        Device memory as the driver gives it, where it is known better than the GPU's spec. [bytes]
    draft : str or ModelSpec, optional
        ``"mtp"`` for the model's own MTP layers, else a draft model.
    fitted : Overheads, optional
        Other overheads than those that ship, as in cross-validation.
    **engine_options
        The engine's own: vLLM ``enforce_eager, kv_cache_memory_bytes, decode_context_parallel_size,
        disable_hybrid_kv_cache_manager, mamba_cache_mode``; SGLang ``chunked_prefill_size, cuda_graph_max_bs,
        swa_full_tokens_ratio, page_size, dp_attention``; both ``allow_long_context``; TensorRT-LLM ``free_bytes``;
        llama.cpp ``n_ubatch, n_parallel, unified,
        type_k, type_v, swa_full, swa_f16, mla, ngl, flash_attn``; all but vLLM ``weights_bytes``. What each takes
        is in ``perfmodel.roofline.engines.options``.

    Returns
    -------
    EngineMemory

    Raises
    ------
    UnknownName, SpecError, UsageError
        Never for a model that does not fit: ``fits``, ``notice`` and ``remedies`` say so.

    Examples
    --------
    >>> found = memory("llama3.1-8b", "h100", engine="vllm", version="0.19.0", memory_fraction=0.95, max_model_len=8192)
    >>> found.fits, round(found.weights / 2**30, 2), round(found.kv_tokens, -4)
    (True, 14.99, 480000)
    """
    asked = ask(
        model, gpu, engine=engine, version=version, tp=tp, pp=pp, ep=ep, dp=dp, weights=weights, kv=kv,
        max_model_len=max_model_len, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
        memory_fraction=memory_fraction, block_size=block_size, usable=usable, draft=draft, fitted=fitted,
        **engine_options,
    )  # fmt: skip
    found = answer(asked)
    return found if found.fits else replace(found, remedies=tuple(remedies(asked)))


def answer(asked: Ask) -> EngineMemory:
    """The engine's answer to a checked question, without remedies.

    A request longer than the model's longest context is refused by vLLM and SGLang unless ``allow_long_context`` (their
    environment variables) is set; TensorRT-LLM and llama.cpp warn.
    """
    found = ANSWERS[asked.rules.engine](asked)
    found = replace(found, remarks=remarks(asked.model, asked.plan, asked.gpu))
    if asked.max_model_len <= asked.model.max_context:
        return found
    text = f"{asked.max_model_len:,} tokens are more than the model's longest context of {asked.model.max_context:,}: "
    if asked.rules.engine in LONG_CONTEXT and not asked.option("allow_long_context", False):
        variable = LONG_CONTEXT[asked.rules.engine]
        text += f"{found.engine} refuses to start unless {variable} is set (-O allow_long_context=yes)"
        return replace(found, fits=False, notice="; ".join(filter(None, (text, "" if found.fits else found.notice))))
    return replace(found, notice="; ".join(filter(None, (found.notice, text + "answers may be worse there"))))


def ask(
    model: str | ModelSpec, gpu: str | Gpu, *, engine: str = "vllm", version: str | None = None, tp: int = 1,
    pp: int = 1, ep: int = 1, dp: int = 1, weights: str | Format | None = None, kv: str | Format = "auto",
    max_model_len: int | None = None, max_num_batched_tokens: int | None = None, max_num_seqs: int | None = None,
    memory_fraction: float | None = None, block_size: int | None = None, usable: str | float | None = None,
    draft: str | ModelSpec | None = None, fitted: Overheads | None = None, **engine_options: Any,
) -> Ask:  # fmt: skip
    """Check a question and load what it names; parameters as ``memory``."""
    spec, device, found = load_model(model), load_gpu(gpu), rules(engine, version)
    _check_device(found.engine, device)
    options = checked(found.engine, engine_options)
    check_foreign(
        found.engine, memory_fraction=memory_fraction, max_num_seqs=max_num_seqs, block_size=block_size, draft=draft,
        max_num_batched_tokens=max_num_batched_tokens,
    )  # fmt: skip
    stored = stored_format(spec, weights or spec.native_format)
    name = _kv_name(kv, stored, found.engine, spec)
    cache = kv_format("fp8" if name in LATENT_FORMATS else name if name in KV_FORMATS else "bf16")
    plan = make_plan(spec, device, tp, pp, ep, dp, stored, cache)
    _check_context_parallel(spec, plan, options)
    given = {"max_num_batched_tokens": max_num_batched_tokens, "max_num_seqs": max_num_seqs}
    limits = {key: whole(value, key) if value is not None else None for key, value in given.items()}
    limits["block_size"] = BLOCK_SIZES[found.engine].read("block_size", block_size) if block_size is not None else None
    return Ask(
        spec, device, plan, found, fitted or overheads(), _usable(usable, device), name,
        whole(max_model_len if max_model_len is not None else spec.max_context, "max_model_len"),
        memory_fraction=fraction(memory_fraction) if memory_fraction is not None else None,
        draft=_draft(draft, spec, device, plan, options, found.engine), options=options, **limits,
    )  # fmt: skip


def _usable(given: str | float | None, device: Gpu) -> float:
    """Device memory: as given, unless no such GPU has it, else as the spec says."""
    if given is None:
        return device.usable_memory
    value, most = as_bytes(given, "usable"), 1.1 * max(device.usable_memory, device.memory.hbm.capacity.value)
    if not 0 < value <= most:
        raise UsageError(f"usable {gib(value)}: a {device.name} has {gib(device.usable_memory)}")
    return value


def _check_device(engine: str, device: Gpu) -> None:
    """Refuse devices whose memory an engine's budget does not describe: no CUDA graphs, no such profile."""
    vendors = VENDORS.get(engine)
    if vendors and (device.kind != "gpu" or device.vendor.casefold() not in vendors):
        makers = " and ".join({"nvidia": "NVIDIA", "amd": "AMD"}[one] for one in vendors)
        title = rules(engine).title
        raise UsageError(
            f"{title} is described on {makers} GPUs, and {device.name} ({device.vendor}) is none: take another GPU, or "
            f"--engine {'llamacpp' if engine != 'trtllm' or device.vendor.casefold() != 'amd' else 'vllm'}"
        )


def _check_context_parallel(spec: ModelSpec, plan: Plan, options: dict[str, Any]) -> None:
    """Decode context parallelism divides a sequence among ranks that would otherwise keep copies of it."""
    degree = options.get("decode_context_parallel_size", 1)
    if plan.tp % degree:
        raise UsageError(f"decode_context_parallel_size {degree} does not divide tp {plan.tp}; take a divisor of it")
    copies = min(plan.tp // min(a.kv_heads, plan.tp) if isinstance(a, Gqa) else plan.tp
                 for a in spec.attention.values() if isinstance(a, Gqa | Mla)) if degree > 1 else 1  # fmt: skip
    if degree > copies:
        raise UsageError(
            f"decode_context_parallel_size {degree}: at tp {plan.tp} a KV head of {spec.name} is on {copies} "
            f"rank{'s' if copies > 1 else ''}; take at most {copies}"
        )


def _kv_name(kv: str | Format, stored: Format, engine: str, spec: ModelSpec) -> str:
    if isinstance(kv, Format):
        return kv.name
    name = kv.casefold()
    if name == "auto":
        return "fp32" if stored.name == "fp32" else "fp16" if stored.name == "fp16" else "bf16"
    if engine == "llamacpp":
        if name not in llamacpp.CACHE_TYPES:
            raise UnknownName("llama.cpp cache type", kv, llamacpp.CACHE_TYPES, "formats")
        return name
    if name in LATENT_FORMATS:
        if engine == "vllm" and any(isinstance(a, Mla) for a in spec.attention.values()):
            return name
        if engine == "vllm":
            raise UsageError(f"{name} packs a latent, and {spec.name} keeps none; take one of {', '.join(OFFERED_KV)}")
        raise UsageError(f"{kv} is a format of vLLM; {engine} takes {', '.join(OFFERED_KV)}")
    offered = OFFERED_KV + (("nvfp4",) if engine == "trtllm" else ())
    if (found := kv_format(name).name) not in offered:
        raise UsageError(
            f"{engine} has no {found} cache, it takes {', '.join(offered)}; `perfmodel estimate --kv {found}` takes any"
        )
    return found


def _draft(
    draft: str | ModelSpec | None, spec: ModelSpec, device: Gpu, plan: Plan, options: dict[str, Any], engine: str
) -> Draft | None:
    if draft is None:
        if "num_draft_tokens" in options:
            raise UsageError("num_draft_tokens needs a draft: say draft as well")
        return None
    tokens = int(options.get("num_draft_tokens", 1))
    if isinstance(draft, str) and draft.casefold() == "mtp":
        if spec.mtp is None:
            raise UsageError(f"{spec.name} has no MTP layers; name a draft model")
        return Draft("mtp", tokens, own=True)
    if engine == "trtllm":
        raise UsageError("a draft model beside TensorRT-LLM's is not counted; its own MTP layers are: draft mtp")
    other = load_model(draft)
    return Draft(other.name, tokens, model=other, plan=make_plan(other, device, plan.tp))


def remedies(asked: Ask) -> list[str]:
    """What would fit: more GPUs, smaller weights or cache, another share of the memory, a shorter request."""
    found = []
    if option := _more_gpus(asked):
        found.append(option)
    if option := _smaller_weights(asked):
        found.append(option)
    if asked.plan.kv.bits > 8 and asked.rules.engine != "llamacpp" and _fits(asked, kv="fp8"):
        found.append("--kv fp8")
    if share := _other_fraction(asked):
        found.append(f"--memory-fraction {share:g}")
    if size := _smaller_pool(asked):
        found.append(f"-O kv_cache_memory_bytes={size}")
    if length := longest(asked):
        found.append(f"--max-model-len {length}")
    return found


def longest(asked: Ask) -> int:
    """The longest request that fits, by bisection: fitting can only end as it grows; 0 when none does. [tokens]"""
    low, high = 0, asked.max_model_len
    if not asked.option("allow_long_context", False):
        high = min(high, asked.model.max_context)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if answer(replace(asked, max_model_len=middle)).fits else (low, middle - 1)
    return low


def _fits(asked: Ask, **change: Any) -> bool:
    """Whether the question fits with another plan or format."""
    plan = asked.plan
    wanted = {"tp": plan.tp, "pp": plan.pp, "weights": plan.weights, "kv": asked.kv, **change}
    cache = kv_format(wanted["kv"]) if wanted["kv"] in KV_FORMATS else plan.kv
    try:
        other = make_plan(
            asked.model, asked.gpu, wanted["tp"], wanted["pp"], plan.ep, plan.dp, wanted["weights"], cache
        )
    except UsageError:
        return False
    return answer(replace(asked, plan=other, kv=wanted["kv"])).fits


def _other_fraction(asked: Ask) -> float:
    """The smallest share, in hundredths above the present one, that fits; or what vLLM has at its start. 0 for none."""
    if asked.rules.engine == "llamacpp" or "kv_cache_memory_bytes" in asked.options:
        return 0.0
    now = answer(asked).settings["memory_fraction"]
    if asked.rules.engine == "vllm" and asked.fraction > (most := vllm.largest_fraction(asked)):
        shares = [most]
    else:
        shares = [hundredths / 100 for hundredths in range(int(now * 100 + 1e-9) + 1, 96)]
    return next((one for one in shares if answer(replace(asked, memory_fraction=one)).fits), 0.0)


def _smaller_pool(asked: Ask) -> int:
    """The most that ``kv_cache_memory_bytes`` can be beside the weights, where less than was given fits; else 0."""
    given = asked.options.get("kv_cache_memory_bytes")
    if given is None:
        return 0
    left = int(vllm.most_pool(asked))
    other = replace(asked, options={**asked.options, "kv_cache_memory_bytes": float(left)})
    return left if 0 < left < given and answer(other).fits else 0


def _more_gpus(asked: Ask) -> str | None:
    name = "pp" if asked.rules.engine == "llamacpp" else "tp"
    now = getattr(asked.plan, name)
    degrees = (2**n for n in range(1, 8) if 2**n > now)
    return next((f"--{name} {degree}" for degree in degrees if _fits(asked, **{name: degree})), None)


def _smaller_weights(asked: Ask) -> str | None:
    smaller = sorted(
        (f for name in OFFERED if (f := FORMATS[name]).bits < asked.plan.weights.bits), key=lambda f: -f.bits
    )
    return next((f"--weights {fmt.name}" for fmt in smaller if _fits(asked, weights=fmt)), None)
