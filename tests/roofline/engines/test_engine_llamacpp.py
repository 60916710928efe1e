"""llama.cpp's caches against its logs, digit by digit, and what partial offload leaves on the GPU."""

import csv
import re
from pathlib import Path

import pytest

from perfmodel.base.errors import UnknownName, UsageError
from perfmodel.modelspecs.load import model
from perfmodel.roofline.engines import kv_cache_bytes, memory
from perfmodel.roofline.engines.llamacpp import gpu_layers
from perfmodel.roofline.engines.llamacpp_cache import CACHE_TYPES, KvRow, cache_type, padded, row_bytes, swa_cells

MIB = 2.0**20
LOGS = Path(__file__).parent / "data/memory_logs.csv"

#: Rows whose log cannot be right: it mixes the lines of two models.
MIXED = {"ML0075": "a c^KV line of a DeepSeek run under the name of Qwen3-30B-A3B"}
#: Elements of K and V a token and layer where the old logs do not print them: Llama 2 and, of 60 layers, Llama 30B.
BY_LAYERS = {"32": (4096, 4096), "40": (5120, 5120), "60": (6656, 6656), "80": (1024, 1024)}


def logged() -> list[dict[str, str]]:
    """Logs of llama.cpp and ik_llama.cpp that print the size of their cache."""
    with LOGS.open() as stream:
        return [row for row in csv.DictReader(stream) if row["kind"] == "llama.cpp_log" and row["id"] not in MIXED]


@pytest.mark.parametrize("row", logged(), ids=lambda row: row["id"])
def test_caches_are_exact_to_the_printed_digits(row: dict[str, str]) -> None:
    """Every size that a log prints comes out to the hundredth of a MiB, whatever the types of K and V."""
    layers = row["n_layer"].split(".")[0]
    if row["n_embd_k_gqa"]:
        k, v = int(float(row["n_embd_k_gqa"])), int(float(row["n_embd_v_gqa"]))
    else:
        k, v = BY_LAYERS[layers]
    if "c^KV" in row["verbatim"]:  # the latent of DeepSeek, alone or with its value part transposed
        k, v = 576, 512 if re.search(r"kv\^T \(", row["verbatim"]) else 0
    kinds = row["kv_dtype"].split("/")
    found = kv_cache_bytes([KvRow(int(layers), k, v)], int(float(row["max_len_or_n_ctx"])), kinds[0], kinds[-1])
    assert f"{found.kv / MIB:.2f}" == f"{float(row['kv_mem']):.2f}"


def test_there_are_enough_logs() -> None:
    """The table behind the test above has 76 logs of 30 models and six types of cache."""
    rows = logged()
    assert len(rows) == 76
    assert len({row["kv_dtype"] for row in rows}) >= 5


@pytest.mark.parametrize(
    ("name", "n_ctx", "kind", "expected"),
    [
        ("llama3-8b", 8192, "f16", 1024.0), ("qwen3-235b-a22b", 32768, "q8_0", 3196.0),
        ("qwen3-30b-a3b", 32768, "f16", 3072.0), ("deepseek-r1", 163840, "f16", 10980.0),
        ("deepseek-r1", 32768, "q8_0", 1166.625),
    ],
)  # fmt: skip
def test_built_in_models_give_the_sizes_of_the_logs(name: str, n_ctx: int, kind: str, expected: float) -> None:
    """From the spec alone: heads, head size and latent are those that the logs print."""
    assert kv_cache_bytes(model(name), n_ctx, kind).kv / MIB == expected


def test_deepseek_r1_in_three_forms() -> None:
    """2048 tokens: 9760 MiB as full heads, 137.25 as a latent, 259.25 with its value part once more."""
    sizes = [
        kv_cache_bytes(model("deepseek-r1"), 2048, mla=form).kv / MIB for form in ("expanded", "latent", "latent_v")
    ]
    assert sizes == [9760.0, 137.25, 259.25]


def test_the_build_decides_how_a_latent_is_kept() -> None:
    """Full heads before 2025-04, latent and value part until 2026-01, the latent alone since."""
    forms = [
        memory("deepseek-v2-lite", "h100", engine="llamacpp", version=v, max_model_len=4096).settings["mla"]
        for v in ("2025-01", "2025-06", "2026-05")
    ]
    assert forms == ["expanded", "latent_v", "latent"]


def test_cells_are_padded_to_256() -> None:
    """4100 tokens take 4352 cells, and so do 4352."""
    assert padded(4100) == padded(4352) == 4352
    assert kv_cache_bytes([KvRow(1, 32, 32)], 4100).cells == 4352


def test_windows_have_cells_for_every_slot_and_a_step() -> None:
    """Gemma 3's window of 1024 and a step of 512: 1536 cells, with four slots 4608, and never more than the context."""
    assert swa_cells(32768, 1024, 512) == 1536
    assert swa_cells(32768, 1024, 512, n_parallel=4) == 4608
    assert swa_cells(32768, 1024, 512, n_parallel=4, unified=False) == 1536
    assert swa_cells(1024, 1024, 512) == 1024


def test_explicit_slots_share_the_context() -> None:
    """Four slots of 8192 cells take what one of 32768 takes; without a unified cache each is padded by itself."""
    one = kv_cache_bytes(model("llama3-8b"), 32768)
    four = kv_cache_bytes(model("llama3-8b"), 32768, n_parallel=4, unified=False)
    assert one.kv == four.kv
    assert kv_cache_bytes(model("llama3-8b"), 1000, n_parallel=4, unified=False).cells == 1024


def test_every_cache_type_has_the_bits_of_its_blocks() -> None:
    """Scales included: 8.5 bits for q8_0, 4.5 for q4_0, 5.5 for q5_0, and so on."""
    bits = {
        "f32": 32,
        "f16": 16,
        "bf16": 16,
        "q8_0": 8.5,
        "q4_0": 4.5,
        "q4_1": 5,
        "q5_0": 5.5,
        "q5_1": 6,
        "iq4_nl": 4.5,
    }
    assert {name: row_bytes(cache_type(name), 1024) * 8 / 1024 for name in bits} == bits
    assert set(bits) <= set(CACHE_TYPES)


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    """80 elements are no whole number of blocks of 32: llama.cpp refuses q8_0 there, and so do we."""
    with pytest.raises(UsageError, match="use f16"):
        row_bytes(cache_type("q8_0"), 80)
    with pytest.raises(UnknownName, match="q8_0"):
        cache_type("q8")


def test_layers_are_offloaded_from_the_last_one_on() -> None:
    """Of 32 layers and an output, ngl 33 takes all, 32 leaves the first layer, 1 is the output alone."""
    assert gpu_layers(32, 33) == [list(range(33))]
    assert gpu_layers(32, 32) == [list(range(1, 33))]
    assert gpu_layers(32, 1) == [[32]]
    assert gpu_layers(32, 0) == [[]]
    assert gpu_layers(32, 99) == gpu_layers(32, 33)


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("ngl", [0, 5, 33])
def test_offloading_loses_nothing(ngl: int, devices: int) -> None:
    """Every offloaded layer is on one device, and those not offloaded on none."""
    found = [layer for device in gpu_layers(32, ngl, devices) for layer in device]
    assert sorted(found) == list(range(33 - ngl, 33))


def test_partial_offload_moves_weights_and_cache_together() -> None:
    """Half of Llama-3-8B's layers on the GPU: half of its cache too, the rest on the host; the embedding always."""
    whole = memory("llama3-8b", "rtx-4090", engine="llamacpp", max_model_len=8192)
    half = memory("llama3-8b", "rtx-4090", engine="llamacpp", max_model_len=8192, ngl=17)
    assert half.kv_pool == whole.kv_pool / 2
    assert half.facts["host_kv_bytes"] == whole.kv_pool / 2
    assert half.weights + half.facts["host_weights_bytes"] == whole.weights + whole.facts["host_weights_bytes"]
    assert whole.facts["host_weights_bytes"] == 128256 * 4096 * 2


def test_a_file_size_stands_for_weights_of_any_type() -> None:
    """4.58 GiB of Q4_K_M: the log has 4403.49 MiB on the device and 281.81 on the host, 4685.30 in all.

    The split by our layers is right to 5 %, as the embedding is stored in other types than the layers.
    """
    found = memory("llama3-8b", "rtx-3090", engine="llamacpp", max_model_len=8192, weights_bytes=4685.30 * MIB)
    assert found.weights / MIB == pytest.approx(4403.49, rel=0.05)
    assert (found.weights + found.facts["host_weights_bytes"]) / MIB == pytest.approx(4685.30, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "n_ctx", "flash", "printed", "off"),
    [
        ("llama3-8b", 512, False, 258.50, 1e-9), ("qwen3-30b-a3b", 32768, True, 300.75, 1e-9),
        ("llama3-8b", 8192, False, 560.0, 0.08),
    ],
)  # fmt: skip
def test_compute_buffers_of_three_logs(name: str, n_ctx: int, flash: bool, printed: float, off: float) -> None:
    """Logits and one hidden state, to the digit; attention scores within 8 %."""
    found = memory(name, "rtx-3090", engine="llamacpp", max_model_len=n_ctx, flash_attn=flash, n_parallel=1)
    assert found.activations / MIB == pytest.approx(printed, rel=off)


def test_gpus_share_layers_only() -> None:
    """Tensor parallelism is not llama.cpp's: it is refused, and layers are shared by ``pp``."""
    with pytest.raises(UsageError, match="say pp"):
        memory("llama3-8b", "rtx-4090", engine="llama.cpp", tp=2)
    one, two = (memory("llama3-8b", "rtx-4090", engine="llama.cpp", pp=n, max_model_len=8192) for n in (1, 2))
    assert two.weights < 0.6 * one.weights
