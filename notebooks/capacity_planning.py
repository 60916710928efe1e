# ---
# jupyter:
#   jupytext: {cell_markers: '"""', formats: "py:percent"}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
"""
# Which GPUs for this model?

A capacity plan answers three questions in this order: **does it fit**, **how many requests does it then hold**, and
**how fast can it go at best, for how much money**. This notebook answers them for Llama 3 70B served by vLLM, and then
for any `config.json` of your own. It needs no GPU, no network and no weights.

Three words are used strictly:

- **GB** is 10⁹ bytes, **GiB** is 2³⁰ bytes, 7 % more. The labels of GPUs say GB and most of them mean GiB.
- **Usable** memory is what the driver gives a process: 79.19 GiB (85.0 GB) of an H100 with a label of 80 GB.
- A **bound** is what the data sheet allows: no step can be shorter. It is not a forecast; section 6 says what follows.
"""

# %%
import contextlib
import json
import math
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import Markdown, display

import perfmodel as pm
from perfmodel.base.errors import SpecError, UsageError
from perfmodel.reports import memory_plot
from perfmodel.reports.words import by_limiter
from perfmodel.roofline.engines import largest_batch, largest_context, smallest_gpu_count

# %matplotlib inline
GIB = 2**30
COLOURS = ["#0072b2", "#c04a00", "#00795a", "#a8558a", "#7a5c00", "#16191d"]
pd.options.display.float_format = lambda x: f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"
pd.options.display.max_colwidth = 160

# %% [markdown]
"""
## The question

Fill in the load. `perfmodel list gpus` shows the GPUs that are built in; a spec file of your own is as good.
"""

# %%
MODEL = pm.model("llama3-70b")
PROMPT, OUTPUT, REQUESTS = 3072, 1024, 32  # tokens in, tokens out, requests at once
LENGTH = PROMPT + OUTPUT  # tokens that a request holds at its end
GPUS = ["h100", "h200", "b200", "a100", "mi300x", "l40s", "rtx-4090"]
DEGREES = (1, 2, 4, 8)  # tensor parallelism within a machine
ENGINE = {"engine": "vllm"}  # the newest version that is known; add "version": "0.19.0" for that one

# %% [markdown]
"""
## 1. How big is it, and what does a token of context cost?

Weights are paid once by each replica. The KV cache is paid for every token of every request that is alive: a key and a
value vector for each layer and KV head. Smaller formats shrink both; no formula here says whether answers stay good.
"""


# %%
def size(model, length):
    """Weights and KV cache in three pairs of formats, before they are cut over GPUs."""
    rows = []
    for weights, kv in ((None, "auto"), ("fp8", "fp8"), ("int4", "fp8")):
        m = pm.memory(model, "h100", weights=weights, kv=kv, max_model_len=length, **ENGINE)
        rows.append({
            "weights": m.settings["weights"], "KV cache": m.settings["kv"], "weights [GB]": m.weights / 1e9,
            "weights [GiB]": m.weights / GIB, f"a request of {length:,} tokens [GiB]": m.request_bytes / GIB,
            "requests as big as the weights": m.weights / m.request_bytes if m.request_bytes else math.inf,
        })  # fmt: skip
    counts = pm.params(model)
    text = (
        f"**{counts['title']}**: {counts['total_params']:,} weights ({counts['active_params']:,} for a token), up to "
        f"{counts['max_context']:,} tokens, {counts['kv_bytes_per_token'] / 1024:,.0f} KiB of KV cache each in 16 bits."
    )
    return text, pd.DataFrame(rows)


words, sizes = size(MODEL, LENGTH)
display(Markdown(words), sizes)

# %% [markdown]
"""
## 2. Which GPUs hold it?

An engine does not give all memory to weights and cache. vLLM takes a fraction of the usable memory, and from it the
weights, the peak of activations of a step, what driver, kernels and communicators hold, and an estimate of its CUDA
graphs. The rest is the **KV pool**, and vLLM refuses to start when that cannot hold one request of the longest length.

The table asks twice: the fewest GPUs **to start** (one request of the model's longest length), and **for the load**.
Only the second one is a plan. Tensor parallelism (TP) is tried first, pipeline stages (PP) where it does not divide the
model, so that some counts are odd; machines come with 1, 2, 4 or 8 GPUs. The sequences that vLLM prepares for
(`max_num_seqs`) are set to the number of requests: fewer take less memory.
"""


# %%
def fewest(model, gpus, length, requests):
    """Fewest GPUs of each kind to start, and for a load; 0 where no number up to 64 will do."""
    rows = []
    for gpu in map(pm.gpu, gpus):
        start = smallest_gpu_count(model, gpu, batch=1, **ENGINE)
        load = smallest_gpu_count(model, gpu, batch=requests, context=length, **ENGINE)
        m = load.memory
        rows.append({
            "GPU": gpu.name, "label": gpu.title,
            "usable [GiB]": gpu.usable_memory / GIB, "GPUs to start": start.value, "GPUs for the load": load.value,
            "TP": m.settings["tp"], "PP": m.settings["pp"], "weights a GPU [GiB]": m.weights / GIB,
            "KV pool a GPU [GiB]": m.kv_pool / GIB, "KV tokens": float(m.kv_tokens),
            f"requests of {length:,} held": m.max_concurrency,
        })  # fmt: skip
    return pd.DataFrame(rows)


needed = fewest(MODEL, GPUS, LENGTH, REQUESTS)
display(needed)

# %% [markdown]
"""
### Where the memory goes

A bar is the memory of one GPU, at vLLM's default settings. Doubling TP halves the weights on a GPU, and all that this
frees goes to the pool: from a machine that barely holds the weights to one of twice the size, **the pool grows by far
more than twice**. A machine that merely starts is a poor one to serve from.
"""


# %%
def budgets(model, pairs, length):
    """Memory under the engine for each pair of GPU and tensor parallelism; pairs that do not divide it are left out."""
    found = []
    for gpu, tp in pairs:
        with contextlib.suppress(UsageError):
            found.append(pm.memory(model, gpu, tp=tp, max_model_len=length, **ENGINE))
    return found


PAIRS = [("h100", 1), ("h100", 2), ("h100", 4), ("h100", 8), ("h200", 2), ("b200", 1), ("mi300x", 1), ("l40s", 4)]
held = budgets(MODEL, [*PAIRS, ("rtx-4090", 8)], LENGTH)
display(memory_plot.draw(held))

# %% [markdown]
"""
Every term has its formula and its source and, where it was fitted to start-up logs, an 80 % interval: here those of one
bar. The interval matters most where little is left. Below the table: what starts at the model's longest length by the
central estimate of its KV tokens, with default settings, and might not by the low end of the interval.
"""

# %%
four = held[2]  # 4 x h100
terms = four.frame[["term", "formula"]]
for name, column in (("GiB", "bytes"), ("low [GiB]", "low_bytes"), ("high [GiB]", "high_bytes")):
    terms[name] = (four.frame[column] / GIB).map("{:.2f}".format, na_action="ignore").fillna("")
longest = budgets(MODEL, [(gpu, tp) for gpu in GPUS for tp in DEGREES], MODEL.max_context)
risky = {
    f"{m.settings['gpus']} x {m.gpu}": f"{m.kv_tokens:,} KV tokens ({m.kv_tokens_low:,} to {m.kv_tokens_high:,})"
    for m in longest if m.fits and m.kv_tokens_low < MODEL.max_context
}  # fmt: skip
display(Markdown(f"{four.title}: it {four.sentence}."), terms, risky)

# %% [markdown]
"""
## 3. Concurrency against context

The pool is a number of tokens that requests share: **twice the context, half the requests**. The lines are of Llama 3.1
70B, which has the layers of Llama 3 70B and a context of 131,072 tokens in place of 8,192, so that the picture also
shows what that promise costs. A line ends where not even one request fits.
"""


# %%
def concurrency(model, pairs, lengths):
    """Requests that the cache holds at once against their length [tokens], a column for each pair; NaN where none."""
    columns = {}
    for gpu, tp in pairs:
        found = [m for length in lengths for m in budgets(model, [(gpu, tp)], length)]
        columns[f"{tp} x {gpu}"] = [m.max_concurrency if m.fits else math.nan for m in found] or math.nan
    return pd.DataFrame(columns, index=lengths).dropna(axis="columns", how="all")


def draw(frame, title, x, y, marks=()):
    """One line a column on log-log axes: colours and marks differ; a dotted vertical line for each of ``marks``."""
    style = ["o-", "s-", "D-", "^-", "v-", "P-"][: frame.shape[1]]
    axes = frame.plot(style=style, color=COLOURS, loglog=True, figsize=(10, 5.2), xlabel=x, ylabel=y)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xticks([n for n in frame.index if n == 2 ** round(math.log2(n))])
    axes.set_xticks([], minor=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.grid(True, color="#e4e7ea")
    axes.legend(title="GPUs (tensor parallel)", frameon=False)
    for at, words in marks:
        axes.axvline(at, color="#565c64", linewidth=1, linestyle=":")
        axes.text(at, 0.99, f" {words}", transform=axes.get_xaxis_transform(), va="top", color="#565c64")
    return axes


TOKENS, HELD = "tokens of a request, prompt and answer", "requests that the KV cache holds at once"
LONGER = pm.model("llama3.1-70b")
CHOICES = [("h100", 2), ("h100", 4), ("h100", 8), ("h200", 2), ("h200", 4), ("b200", 2)]
concurrent = concurrency(LONGER, CHOICES, [2**n for n in range(10, 18)])
marks = (MODEL.max_context, "longest of Llama 3"), (LENGTH, "the load")
axes = draw(concurrent, f"{LONGER.title} in {four.engine} {four.version}, BF16", TOKENS, HELD, marks)

# %% [markdown]
"""
The cache is not the only limit: vLLM never runs more than `max_num_seqs` sequences at once, by default 1,024 on large
GPUs and 256 on others. The inverse question can be asked directly; its answers are exact for this model of the engine:
one token more does not fit. `max_num_seqs` again follows the number of requests, so that two H100 do better than above.
"""

# %%
inverse = pd.DataFrame([
    {"GPUs": f"{tp} x {gpu}", "longest single request [tokens]": largest_context(LONGER, gpu, tp=tp, **ENGINE).value,
     f"longest of {REQUESTS} at once [tokens]": largest_context(LONGER, gpu, batch=REQUESTS, tp=tp, **ENGINE).value}
    for gpu, tp in CHOICES
])  # fmt: skip
display(inverse)

# %% [markdown]
"""
## 4. How fast at best, and what limits?

Now the clock. Take four H100 and the largest batch that they hold at the load's full length. The roofline puts each
operator of prefill (the prompts) and of decode (a token for each request) under the roofs of the GPU: left of the ridge
memory limits, right of it the matrix units. The area of a point is its share of its phase's time.
"""

# %%
batch = largest_batch(MODEL, "h100", context=LENGTH, tp=4, **ENGINE)
analysis = pm.analyze(MODEL, "h100", tp=4, batch=batch.value, input=PROMPT, output=OUTPUT)
limits = pd.Series(by_limiter(analysis.decode, analysis.setup), name="share of a decode step").to_frame()
critical = pm.critical_batch(MODEL, "h100", [512.0, float(LENGTH)], tp=4)
at = [f"at {c.step:,.0f} sequences" if c.step < math.inf else "at no batch" for c in critical]
display(Markdown(f"On 4 x h100, {batch.words}."), analysis.plot(), limits)
display(Markdown(
    f"A decode step takes at least **{analysis.tpot_s * 1e3:.1f} ms**: a user sees at most {1 / analysis.tpot_s:.0f} "
    f"tokens/s, all {batch.value} users together {batch.value / analysis.tpot_s:,.0f}. The linear layers alone turn "
    f"compute-bound at {critical[0].linear:,.0f} sequences. The whole step, which reads the KV cache of each sequence "
    f"anew, turns {at[0]} with 512 tokens of context each, and {at[1]} with {LENGTH:,}."
))  # fmt: skip

# %% [markdown]
"""
Batching pays because all requests share one reading of the weights. How far it pays is decided by memory and time
together: decode throughput of one GPU against the batch, solid as far as the requests fit and dotted beyond.
"""


# %%
def throughput(model, pairs, length):
    """Decode bound of a GPU [tokens/s] against the batch, a column for each pair, and the same as far as it fits."""
    most = {pair: largest_batch(model, pair[0], context=length, tp=pair[1], **ENGINE).value for pair in pairs}
    batches = sorted({2**n for n in range(10)} | set(most.values()) - {0})
    all_of, held_of, at = {}, {}, {"context": length, "hypothetical": True}
    for (gpu, tp), held in most.items():
        rate = pm.sweep(model, gpu, batch=batches, tp=tp, **at).set_index("batch")["tokens_per_s"] / tp
        all_of[f"{tp} x {gpu}: {held} held"], held_of[f"{tp} x {gpu}: {held} held"] = rate, rate[rate.index <= held]
    return pd.DataFrame(all_of), pd.DataFrame(held_of)


every, within = throughput(MODEL, [*CHOICES[:4], ("b200", 1), ("b200", 2)], LENGTH)
axes = draw(within, f"{MODEL.title} with {LENGTH:,} tokens in each cache", "batch", "decode, at most [tokens/s a GPU]")
axes = every.plot(ax=axes, style=":", color=COLOURS, linewidth=1, legend=False, xlabel=axes.get_xlabel())

# %% [markdown]
"""
### Per GPU and per dollar

A row is a machine of 1, 2, 4 or 8 GPUs that holds the load. Times are bounds, so throughput is **at most** and cost
**at least** what stands here, for this schedule: the largest batch that is held with every request at its full length,
all prompts first, then all answers, the price of both put on the tokens of the answers. Rents are list prices of a
GPU-hour with their sources and dates below. They come from different tiers and months, and for one and the same GPU
providers differ by a factor of three: put your own contract in their place before you compare vendors.
"""


# %%
def offers(model, gpus, prompt, output, requests):
    """Bounds of speed and cost for each GPU and tensor parallelism that holds the load."""
    rows = []
    for gpu, tp in ((pm.gpu(name), tp) for name in gpus for tp in DEGREES):
        divides = budgets(model, [(gpu, tp)], prompt + output)
        most = largest_batch(model, gpu, context=prompt + output, tp=tp, **ENGINE).value if divides else 0
        if most < requests:
            continue
        a = pm.analyze(model, gpu, tp=tp, batch=most, input=prompt, output=output)
        rent = tp * gpu.cost.rent.value if gpu.cost and gpu.cost.rent else math.nan
        rows.append((
            f"{tp} x {gpu.name}", most, a.tpot_s * 1e3, a.tokens_per_s, a.tokens_per_s / tp, rent,
            rent / 3600 / a.tokens_per_s * 1e6,
        ))  # fmt: skip
    names = ["GPUs", "requests held", "ms a token, at least", "tokens/s, at most", "tokens/s a GPU, at most"]
    frame = pd.DataFrame(rows, columns=[*names, "rent [USD/h]", "USD a million tokens, at least"])
    return frame.sort_values(frame.columns[-1], ignore_index=True)


rents = pd.DataFrame([
    {"GPU": g.name, "USD/h": g.cost.rent.value, "source": g.cost.rent.source,
     "others": ", ".join(f"{a.value} ({a.why})" for a in g.cost.rent.alternatives)}
    for g in map(pm.gpu, GPUS) if g.cost and g.cost.rent
])  # fmt: skip
offered = offers(MODEL, GPUS, PROMPT, OUTPUT, REQUESTS)
display(offered, rents)

# %% [markdown]
"""
More tensor parallelism gives each user faster answers and each GPU a larger pool, but moves more data between GPUs. The
bound counts that traffic at the full speed of the links and without latency, which flatters cards without NVLink, such
as the L40S and the RTX 4090. A large batch flatters throughput: look at the time a token beside it, and at whether your
traffic fills the batch.

## 5. Your own model

Any `config.json` of a Hugging Face model will do. This one is of Qwen3-32B (https://huggingface.co/Qwen/Qwen3-32B),
written to a temporary folder as you would download it. Point `CONFIG` at yours, set its load, and run the rest.
"""

# %%
FOLDER = tempfile.TemporaryDirectory()
CONFIG = Path(FOLDER.name) / "Qwen3-32B" / "config.json"
PUBLISHED = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
    "intermediate_size": 25600, "max_position_embeddings": 40960, "max_window_layers": 64, "model_type": "qwen3",
    "num_attention_heads": 64, "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
CONFIG.parent.mkdir()
CONFIG.write_text(json.dumps(PUBLISHED))
OWN_PROMPT, OWN_OUTPUT, OWN_REQUESTS = 6144, 2048, 32

# %%
OWN, OWN_LENGTH = pm.model(str(CONFIG)), OWN_PROMPT + OWN_OUTPUT
own_words, own_sizes = size(OWN, OWN_LENGTH)
own_needed = fewest(OWN, GPUS, OWN_LENGTH, OWN_REQUESTS)
display(Markdown(own_words), own_sizes, own_needed)

# %%
own_held = budgets(OWN, [*PAIRS[:3], ("h200", 1), ("mi300x", 1), ("l40s", 2), ("l40s", 4), ("rtx-4090", 4)], OWN_LENGTH)
display(memory_plot.draw(own_held))
own_concurrent = concurrency(OWN, [("h100", 1), *CHOICES[:5]], [2**n for n in range(10, 24) if 2**n <= OWN.max_context])
if own_concurrent.size:
    axes = draw(
        own_concurrent, f"{OWN.title} in {four.engine} {four.version}", TOKENS, HELD, [(OWN_LENGTH, "the load")]
    )

# %%
own_offered = offers(OWN, GPUS, OWN_PROMPT, OWN_OUTPUT, OWN_REQUESTS)
display(own_offered)
if len(own_offered):  # the roofline of the first row
    count, _, name = own_offered["GPUs"][0].partition(" x ")
    most = int(own_offered["requests held"][0])
    own_analysis = pm.analyze(OWN, name, tp=int(count), batch=most, input=OWN_PROMPT, output=OWN_OUTPUT)
    own_limits = pd.Series(by_limiter(own_analysis.decode, own_analysis.setup), name="share of a decode step")
    display(own_analysis.plot(), own_limits.to_frame())

# %% [markdown]
"""
A configuration that is not understood is refused, with the keys at fault. The same file with a key that nobody knows:
"""

# %%
CONFIG.write_text(json.dumps(PUBLISHED | {"kv_heads_of_every_third_layer": 2}))
try:
    refused = f"accepted as {pm.model(str(CONFIG)).title}"
except SpecError as error:
    refused = str(error).replace(FOLDER.name, "...")
print(refused)
FOLDER.cleanup()

# %% [markdown]
"""
## 6. What this plan does not say

- **Times are bounds, not measurements.** They take the data sheet's rates and leave out launches, scheduling,
  imperfect kernels and the latency of links. Real engines are slower, by a factor that depends on model, batch, GPU and
  engine, so that **the order of the cost table may change** when it is measured. Use bounds to rule out what cannot
  work and to see what limits; then measure the two or three candidates that remain.
- **The load is idealized.** Requests have one length and are all there at once. In service most are shorter than at
  their end, so that an engine holds more of them, and preempts some when the pool runs out. An engine that mixes
  prompts into decode steps uses both roofs at once and can pass this schedule's throughput. Nothing queues here:
  latency under traffic needs a simulation.
- **Memory is the engine's own arithmetic at its version**, with overheads that were fitted to start-up logs of vLLM
  0.19.0 on H100. There, KV tokens of models left out of the fit were within 0.4 %. Other GPUs, versions and pipelines
  use the same overheads, so that their 80 % intervals are too narrow (an RTX 4090 was 7 % off), and nothing was
  measured on AMD's GPUs or on B200. Leave a margin.
- **The intervals are of the fitted terms alone**, not of another process on the GPU, other options or newer versions;
  **prices** are what the sources printed on their dates: no discount, storage, network or idle time.
"""
