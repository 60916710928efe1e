"""SGLang's pools against what it prints, and its default share of the memory."""

import pytest

from perfmodel.roofline.engines import memory
from perfmodel.roofline.engines.layers import CacheLayers
from perfmodel.roofline.engines.sglang import cells, least_fraction, pools, prefill_buckets, reserve_mib

GIB = 2.0**30


def test_a_pool_of_qwen3_30b_comes_out_to_the_token() -> None:
    """The engine's own budget of 164,149,629,787 bytes gives 1,669,816 tokens (sgl-project/sglang PR 18263)."""
    found = pools(164149629787, [CacheLayers(48, 2048.0)])
    assert found.tokens == 1669816
    assert found.full_bytes / 2 / GIB == pytest.approx(76.44, abs=5e-3)  # it prints K 76.44 GB, and means GiB


def test_the_same_log_follows_from_its_fraction() -> None:
    """230.20 GiB free after 56.98 of weights, f = 0.911, 51.75 of workspace: 152.88 GiB and 1,669,816 tokens.

    204.63 GiB before the workspace, as printed: 230.20 - (1 - 0.911) x (230.20 + 56.98) = 204.64.
    """
    found = memory(
        "qwen3-30b-a3b-2507", "mi355x", engine="sglang", memory_fraction=0.911, max_model_len=8192,
        weights_bytes=56.98 * GIB, free_before_bytes=(230.20 + 56.98) * GIB, workspace_bytes=51.75 * GIB,
    )  # fmt: skip
    assert found.kv_pool / GIB == pytest.approx(152.88, abs=0.02)
    assert found.kv_tokens == pytest.approx(1669816, rel=2e-4)


def test_qwen3_235b_prints_gib_and_calls_them_gb() -> None:
    """367,404 tokens of 94 layers with one KV head a rank are 8.23 + 8.23 "GB" (vllm-project/vllm issue 21348)."""
    found = pools(16.47 * GIB, [CacheLayers(94, 2 * 1 * 128 * 2.0)])
    assert found.tokens == pytest.approx(367404, rel=1e-3)
    assert found.full_bytes / 2 / GIB == pytest.approx(8.23, abs=6e-3)


def test_from_settings_alone_pools_are_some_percent_off() -> None:
    """What the page says: Qwen3-235B at 0.93 on H100s 3.7 % above, Qwen3-30B with its workspace 0.3 %, without 34 %."""
    large = memory(
        "qwen3-235b-a22b", "h100", engine="sglang", tp=4, memory_fraction=0.93, weights="fp8_block", max_model_len=4096
    )
    assert large.kv_tokens / 367404 - 1 == pytest.approx(0.037, abs=1e-3)
    for workspace, off in ((51.75 * GIB, 0.003), (0.0, 0.341)):
        found = memory(
            "qwen3-30b-a3b-2507", "mi355x", engine="sglang", memory_fraction=0.911, max_model_len=8192,
            workspace_bytes=workspace,
        )  # fmt: skip
        assert found.kv_tokens / 1669816 - 1 == pytest.approx(off, abs=1e-3)


def test_a_known_miss() -> None:
    """DeepSeek-V4-Pro at 0.88 on 8 H200 did not start: 125.65 GiB of weights were loaded, its tensors are 101.8.

    With the loaded size the answer is the log's: nothing is left.
    """
    question = {"engine": "sglang", "tp": 8, "memory_fraction": 0.88, "max_model_len": 4096}
    found = memory("deepseek-v4-pro", "h200", **question)
    assert found.fits
    assert found.weights / GIB == pytest.approx(101.76, abs=0.05)
    loaded = memory("deepseek-v4-pro", "h200", weights_bytes="125.65 GiB", free_before_bytes="137.90 GiB", **question)
    assert not loaded.fits
    assert "memory_fraction must be above 0.9112" in loaded.notice


def test_two_pools_of_mimo_hold_what_the_log_says() -> None:
    """39 layers with a window and 9 without, K of 192 and V of 128, TP 4 (sgl-project/sglang PR 15464).

    1,496,958 tokens in both pools: 41.76 + 27.84 GB with windows, 4.82 + 3.21 without, 77.63 in all.
    """
    layers = [CacheLayers(39, 2 * (192 + 128) * 2.0, window=128), CacheLayers(9, 1 * (192 + 128) * 2.0)]
    full, window, _ = cells(layers)
    found = pools((full + window) * 1496958.5, layers, ratio=1.0)
    assert found.tokens == found.window_tokens == 1496958
    assert found.window_bytes / GIB == pytest.approx(41.76 + 27.84, abs=0.02)
    assert found.full_bytes / GIB == pytest.approx(4.82 + 3.21, abs=0.02)
    assert (found.full_bytes + found.window_bytes) / GIB == pytest.approx(77.63, abs=0.01)


def test_a_window_pool_is_shorter_by_the_ratio() -> None:
    """At 0.8 the pool of windows has 0.8 of the slots, and both together take what is there."""
    found = pools(1e9, [CacheLayers(10, 1000.0), CacheLayers(20, 1000.0, window=128)])
    assert found.window_tokens == int(0.8 * found.tokens)
    assert found.full_bytes + found.window_bytes == pytest.approx(1e9, rel=1e-4)


def test_states_of_a_hybrid_take_their_share_first() -> None:
    """``0.9 / 1.9`` of the rest is for recurrent states, the others for tokens."""
    found = pools(1.9e9, [CacheLayers(4, 1000.0), CacheLayers(12, 0.0, state_bytes=1e5)])
    assert found.states == int(0.9e9 // 1.2e6)
    assert found.full_bytes == pytest.approx(1e9, rel=1e-4)


def test_the_reserve_of_an_h100() -> None:
    """512 + 1.5 x 8192 + 128 + 512 + 8 x 58 = 13,904 MiB: 13.58 GiB, and f = 0.829."""
    kept = reserve_mib(8192, 256, 1, 1, 79.19, buckets=prefill_buckets(8192))
    assert kept == 13904
    found = memory("llama3.1-8b", "h100", engine="sglang", max_model_len=8192)
    assert found.settings["memory_fraction"] == pytest.approx(0.829, abs=1e-3)


def test_a_large_gpu_keeps_ten_gib_at_least() -> None:
    """Above 60 GiB the reserve has a floor; a small GPU has none."""
    assert reserve_mib(2048, 8, 1, 1, 79.19) == 10240
    assert reserve_mib(2048, 8, 1, 1, 24.0) == 512 + 3072 + 128 + 16


def test_old_releases_go_by_tensor_parallelism() -> None:
    """0.4.6: 0.88 on one GPU, 0.85 on four, 0.81 on eight."""
    for tp, expected in ((1, 0.88), (2, 0.87), (4, 0.85), (8, 0.81)):
        found = memory("llama3.1-70b", "h100", engine="sglang", version="0.4.6", tp=tp, max_model_len=8192)
        assert found.settings["memory_fraction"] == expected


def test_weights_above_the_share_do_not_start() -> None:
    """DeepSeek-V4-Pro on H200: 125.65 of 137.90 GiB; f must be above 0.9112, with 3.07 more for a draft 0.9334."""
    before = 137.90 * GIB
    assert least_fraction(before, 125.65 * GIB) == pytest.approx(0.9113, abs=2e-4)
    assert least_fraction(before, (125.65 + 3.07) * GIB) == pytest.approx(0.9335, abs=2e-4)
    found = memory(
        "deepseek-v3", "h200", engine="sglang", tp=8, memory_fraction=0.88, max_model_len=4096,
        weights_bytes=125.65 * GIB, free_before_bytes=before,
    )  # fmt: skip
    assert not found.fits
    assert "memory_fraction must be above 0.911" in found.notice


def test_a_latent_cache_is_whole_on_every_rank() -> None:
    """Tensor parallelism divides DeepSeek-V3's weights, not its 61 x 576 x 2 bytes a token."""
    for tp in (8, 16):
        found = memory("deepseek-v3", "h200", engine="sglang", tp=tp, max_model_len=4096)
        assert found.block_bytes == 61 * 576 * 2


def test_a_request_longer_than_the_pool_is_told() -> None:
    """A pool of fewer tokens than the longest request: it says how many there are."""
    found = memory("llama3.1-8b", "rtx-4090", engine="sglang", max_model_len=131072)
    assert not found.fits
    assert f"{found.kv_tokens:,} tokens at most" in found.notice
