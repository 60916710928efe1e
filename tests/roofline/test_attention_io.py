"""Traffic of standard attention and FlashAttention: closed forms against loops, laws, and the numbers of the papers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.roofline.attention_blocks import visible_scores, visited_blocks
from perfmodel.roofline.attention_io import flash_traffic, standard_traffic

SMALL = st.integers(1, 70)
TILE = st.integers(1, 24)


@st.composite
def shapes(draw):
    """A small problem: batch, heads, kv_heads, q, kv, head_dim, causal with q <= kv if causal."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    causal = draw(st.booleans())
    kv = draw(SMALL)
    q = draw(st.integers(1, kv) if causal else SMALL)
    return draw(st.integers(1, 3)), kv_heads * group, kv_heads, q, kv, draw(st.integers(1, 9)), causal


def mask(q, kv, causal):
    """The mask, written out: row i sees the first i + 1 + kv - q keys."""
    return np.tril(np.ones((q, kv), bool), kv - q) if causal else np.ones((q, kv), bool)


def brute_blocks(q, kv, block_q, block_kv, causal, packed):
    """Tiles visited, rows and keys in them, computed and needed scores, tile by tile."""
    rows = np.repeat(mask(q, kv, causal), packed, axis=0)
    pairs = touched = keys = 0
    for i in range(0, len(rows), block_q):
        for j in range(0, kv, block_kv):
            here = rows[i : i + block_q, j : j + block_kv]
            if here.any():
                pairs, touched, keys = pairs + 1, touched + here.shape[0], keys + here.shape[1]
    return pairs, touched, keys, pairs * block_q * block_kv, int(rows.sum())


@given(shape=shapes(), block_q=TILE, block_kv=TILE, packed=st.integers(1, 4))
@settings(max_examples=300)
def test_visited_blocks_equal_a_loop_over_tiles(shape, block_q, block_kv, packed):
    """The closed form of the tiles, rows and keys visited equals counting them one by one, packed heads included."""
    _, _, _, q, kv, _, causal = shape
    got = visited_blocks(q, kv, block_q, block_kv, causal, packed=packed)
    want = brute_blocks(q, kv, block_q, block_kv, causal, packed)
    assert (got.pairs, got.rows, got.keys, got.computed, got.needed) == want
    assert got.padding >= 1


def loop_flash1(batch, heads, q, kv, d, size, block_q, block_kv, causal):
    """Algorithm 1 of the FlashAttention paper as loops that count bytes."""
    sees, read, written = mask(q, kv, causal), 0, 0
    for _ in range(batch * heads):
        written += q * (d * size + 8)  # line 2: O, l and m
        for j in range(0, kv, block_kv):
            read += 2 * min(block_kv, kv - j) * d * size  # line 6: K and V
            for i in range(0, q, block_q):
                rows = min(block_q, q - i)
                if sees[i : i + rows, j : j + block_kv].any():
                    read += rows * (2 * d * size + 8)  # line 8: Q, O, l, m
                    written += rows * (d * size + 8)  # lines 12 and 13: O, l, m
    return read, written


def loop_flash2(batch, heads, kv_heads, q, kv, d, size, block_q, block_kv, causal, pack):
    """Algorithm 1 of the FlashAttention-2 paper as loops that count bytes; a packed group is one head of more rows."""
    packed = heads // kv_heads if pack else 1
    sees, read, written = np.repeat(mask(q, kv, causal), packed, axis=0), 0, 0
    for _ in range(batch * (kv_heads if pack else heads)):
        for i in range(0, len(sees), block_q):
            rows = min(block_q, len(sees) - i)
            read += rows * d * size  # line 4: Q
            for j in range(0, kv, block_kv):
                if sees[i : i + rows, j : j + block_kv].any():
                    read += 2 * min(block_kv, kv - j) * d * size  # line 7: K and V
            written += rows * (d * size + 4)  # lines 14 and 15: O and the log-sum-exp
    return read, written


@given(shape=shapes(), block_q=TILE, block_kv=TILE, size=st.sampled_from([1, 2, 4]))
@settings(max_examples=150)
def test_flash1_equals_its_algorithm(shape, block_q, block_kv, size):
    """FlashAttention-1's bytes equal the paper's loops, causal tiles skipped."""
    batch, heads, kv_heads, q, kv, d, causal = shape
    got = flash_traffic(batch, heads, kv_heads, q, kv, d, size, causal, block_q=block_q, block_kv=block_kv, version=1)
    assert (got.read, got.written) == loop_flash1(batch, heads, q, kv, d, size, block_q, block_kv, causal)


@given(shape=shapes(), block_q=TILE, block_kv=TILE, version=st.sampled_from([2, 3]), pack=st.booleans())
@settings(max_examples=150)
def test_flash2_equals_its_algorithm(shape, block_q, block_kv, version, pack):
    """FlashAttention-2's and 3's bytes equal the paper's loops, with grouped heads apart or packed."""
    batch, heads, kv_heads, q, kv, d, causal = shape
    tile = {"block_q": block_q, "block_kv": block_kv, "version": version, "pack_gqa": pack}
    got = flash_traffic(batch, heads, kv_heads, q, kv, d, 2, causal, **tile)
    assert (got.read, got.written) == loop_flash2(batch, heads, kv_heads, q, kv, d, 2, block_q, block_kv, causal, pack)


def test_standard_by_hand():
    """Standard attention at N = 4, d = 2, one head, FP16, each step counted by hand."""
    got = standard_traffic(1, 1, 1, 4, 4, 2, 2)
    # Q and K are 8 elements each, S is 16: 2 bytes an element.
    assert (got.step("scores").read, got.step("scores").written) == (32, 32)
    assert (got.step("softmax").read, got.step("softmax").written) == (32, 32)
    assert (got.step("output").read, got.step("output").written) == (32 + 16, 16)
    assert got.l2 == got.dram == 2 * (4 * 8 + 4 * 16)


def test_a1_scores_of_128k_are_32_gib():
    """A1: S of one head at N = 128K in FP16 is 34.36 GB, which is 32 GiB; the traffic is 4 N d + 4 N^2 elements."""
    n, d = 131072, 128
    got = standard_traffic(1, 1, 1, n, n, d, 2)
    assert got.scores == 34_359_738_368 == 32 * 2**30
    assert got.l2 == 2 * (4 * n * d + 4 * n * n)


def test_a2_reduction_in_the_forward_pass():
    """A2: at N = 128K, d = 128, a tile of 128 rows moves 2 N^2 elements, standard attention 4: 2x, not 9x."""
    n = 131072
    standard = standard_traffic(1, 1, 1, n, n, 128, 2).l2
    flash = flash_traffic(1, 1, 1, n, n, 128, 2).l2
    # K and V once a query block: 2 N d N / 128 = 2 N^2 elements; Q and O add 2 N d, the log-sum-exp 2 N.
    assert flash == 2 * (2 * n * n + 2 * n * 128 + 2 * n)
    assert standard / flash == pytest.approx(2.0, rel=2e-3)


def test_llmroofline_issue_2_output_and_reloads():
    """feifeibear/LLMRoofline#2: FlashAttention writes N x d, not N x N, and reads K/V again for every query block."""
    got = flash_traffic(1, 1, 1, 2048, 2048, 128, 2)
    assert got.step("O").written == 2048 * 128 * 2
    assert got.step("K, V").read == 2048 / 128 * (2 * 2048 * 128 * 2)


def test_both_k_and_v_are_counted():
    """One query block reads K and V, two tensors, once: a count of one of them is half of it (seen in LLM-Para)."""
    assert flash_traffic(1, 1, 1, 128, 4096, 128, 2).step("K, V").read == 2 * 4096 * 128 * 2


@given(shape=shapes(), block=st.integers(1, 24))
def test_flash2_moves_no_more_than_flash1(shape, block):
    """With the same square tile FlashAttention-2 never moves more than FlashAttention-1."""
    batch, heads, kv_heads, q, kv, d, causal = shape
    first, second = (
        flash_traffic(batch, heads, kv_heads, q, kv, d, 2, causal, block_q=block, block_kv=block, version=version)
        for version in (1, 2)
    )
    assert second.l2 <= first.l2


@given(n=st.integers(1, 5000), d=st.integers(1, 128), causal=st.booleans())
def test_standard_moves_more_than_flash(n, d, causal):
    """With tiles of 128 x 128 FlashAttention-2 never moves more than standard attention, nor does 1 from N = 512."""
    standard = standard_traffic(1, 1, 1, n, n, d, 2, causal).l2
    assert flash_traffic(1, 1, 1, n, n, d, 2, causal, version=2).l2 <= standard
    if n >= 512:
        assert flash_traffic(1, 1, 1, n, n, d, 2, causal, version=1).l2 < standard


def test_flash1_can_lose_at_short_lengths():
    """FlashAttention-1 moves more than standard attention just past one tile (N = 129, d = 128)."""
    assert flash_traffic(1, 1, 1, 129, 129, 128, 2, version=1).l2 > standard_traffic(1, 1, 1, 129, 129, 128, 2).l2


@given(shape=shapes(), block_q=TILE, block_kv=TILE, version=st.sampled_from([1, 2, 3]))
def test_never_below_compulsory(shape, block_q, block_kv, version):
    """No count is below Q, K, V read once and O written once, and causal moves no more than the full rectangle."""
    batch, heads, kv_heads, q, kv, d, causal = shape
    tile = {"block_q": block_q, "block_kv": block_kv, "version": version}
    got = flash_traffic(batch, heads, kv_heads, q, kv, d, 2, causal, **tile)
    least = 2 * batch * d * (2 * heads * q + 2 * kv_heads * kv)
    assert got.compulsory == least
    assert least <= got.dram == got.l2 <= flash_traffic(batch, heads, kv_heads, q, kv, d, 2, False, **tile).l2
    assert standard_traffic(batch, heads, kv_heads, q, kv, d, 2, causal).l2 >= least


@given(shape=shapes(), block_q=TILE, block_kv=TILE, version=st.sampled_from([1, 2]), pack=st.booleans())
def test_more_tokens_move_more(shape, block_q, block_kv, version, pack):
    """One token more (query and key) never moves fewer bytes."""
    batch, heads, kv_heads, q, kv, d, causal = shape
    tile = {"block_q": block_q, "block_kv": block_kv, "version": version, "pack_gqa": pack and version == 2}
    now = flash_traffic(batch, heads, kv_heads, q, kv, d, 2, causal, **tile)
    more = flash_traffic(batch, heads, kv_heads, q + 1, kv + 1, d, 2, causal, **tile)
    assert more.l2 > now.l2


@given(shape=shapes(), block_q=TILE, block_kv=TILE)
def test_packing_saves_the_group(shape, block_q, block_kv):
    """Packing the heads of a group reads K/V at most as often as reading them for each query head."""
    batch, heads, kv_heads, q, kv, d, _ = shape
    apart, packed = (
        flash_traffic(batch, heads, kv_heads, q, kv, d, 2, block_q=block_q, block_kv=block_kv, pack_gqa=pack)
        for pack in (False, True)
    )
    assert packed.step("K, V").read <= apart.step("K, V").read
    assert packed.step("Q") == apart.step("Q")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_scalar_equals_vector(version, causal):
    """Arrays of lengths and batches give what scalars give, one by one, with and without reuse in L2."""
    lengths, batches = np.array([1.0, 127, 128, 129, 4096, 131072, 1048576]), np.array([[1.0], [7.0]])
    options = {"version": version, "l2_reuse": gpu("h100"), "block_kv": 176}
    got = flash_traffic(batches, 64, 8, lengths, lengths, 128, 2, causal, **options)
    plain = standard_traffic(batches, 64, 8, lengths, lengths, 128, 2, causal)
    for b, row in enumerate(batches):
        for i, n in enumerate(lengths):
            one = flash_traffic(float(row[0]), 64, 8, float(n), float(n), 128, 2, causal, **options)
            assert isinstance(one.l2, float)
            for name in ("l2", "dram", "compulsory", "working_set"):
                want = np.broadcast_to(getattr(got, name), (2, 7))[b, i]
                assert getattr(one, name) == pytest.approx(want, rel=1e-13)
            other = standard_traffic(float(row[0]), 64, 8, float(n), float(n), 128, 2, causal)
            assert other.l2 == pytest.approx(plain.l2[b, i], rel=1e-13)


@given(shape=shapes(), version=st.sampled_from([1, 2, 3]), pack=st.booleans())
def test_reuse_in_l2_lies_between_the_bounds(shape, version, pack):
    """What reaches device memory is at least the compulsory bytes and at most what the SMs ask for."""
    batch, heads, kv_heads, q, kv, d, causal = shape
    got = flash_traffic(
        batch,
        heads,
        kv_heads,
        q,
        kv,
        d,
        2,
        causal,
        version=version,
        pack_gqa=pack and version > 1,
        block_q=8,
        block_kv=8,
        l2_reuse=gpu("h100"),
    )
    assert got.compulsory <= got.dram <= got.l2


def test_reuse_in_l2_by_hand():
    """32 heads over 8 KV heads at 4096 tokens on H100: K/V of the KV heads in flight fit, each is read once."""
    got = flash_traffic(1, 32, 8, 4096, 4096, 128, 2, l2_reuse=gpu("h100"))
    # 32 query blocks x 4 heads = 128 blocks a KV head: 132 SMs touch at most ceil(131 / 128) + 1 = 3 heads, 2 MiB each
    assert got.working_set == 3 * 2 * 4096 * 128 * 2
    assert got.dram == got.compulsory + 32 * 4096 * 4  # and the log-sum-exp
    assert got.step("K, V").read == 32 * 32 * 2 * 4096 * 128 * 2


def test_reuse_in_l2_once_a_wave_where_it_does_not_fit():
    """K and V of one head at 128K tokens (64 MiB) exceed half of H100's L2: 1024 blocks on 132 SMs are 8 sweeps."""
    got = flash_traffic(1, 1, 1, 131072, 131072, 128, 2, l2_reuse=gpu("h100"))
    assert got.working_set == 64 * 2**20
    assert got.dram == 8 * 64 * 2**20 + 131072 * (2 * 128 * 2 + 4)  # and Q, O, the log-sum-exp
    assert got.step("K, V").read == 1024 * 64 * 2**20


def test_flash1_does_not_share_where_it_does_not_fit():
    """FlashAttention-1's Q and O of one head at 128K tokens (65 MiB) do not fit: every pass reaches device memory."""
    got = flash_traffic(1, 1, 1, 131072, 131072, 128, 2, version=1, l2_reuse=gpu("h100"))
    assert got.working_set == 131072 * (2 * 128 * 2 + 8)
    assert got.dram == got.l2
    fits = flash_traffic(1, 1, 1, 16384, 16384, 128, 2, version=1, l2_reuse=gpu("h100"))
    assert fits.dram == fits.compulsory + 16384 * 8


@given(heads=st.integers(1, 30), each=st.integers(1, 40), sms=st.integers(1, 40))
def test_sweeps_cover_a_count_of_waves(heads, each, sms):
    """Without room in L2, K and V move once for each head that a wave touches, at most as often as once a block."""
    owner = np.repeat(np.arange(heads), each)
    waves = [set(owner[start : start + sms]) for start in range(0, len(owner), sms)]
    counted, cuts = sum(len(wave) for wave in waves), len(waves) - 1
    got = flash_traffic(1, heads, heads, 8 * each, 40, 16, 2, block_q=8, l2_reuse=variant(sms, 1))
    rows = heads * 8 * each * (2 * 16 * 2 + 4)
    sweeps = (got.dram - rows) / (2 * 40 * 16 * 2)
    assert counted <= sweeps == min(heads + cuts, heads * each)


def variant(sms, l2_bytes):
    """H100 with another SM count and L2."""
    spec = gpu("h100")
    l2 = spec.memory.l2.model_copy(
        update={"capacity": spec.memory.l2.capacity.model_copy(update={"value": float(l2_bytes)})}
    )
    units = spec.compute.model_copy(update={"sms": spec.compute.sms.model_copy(update={"value": float(sms)})})
    return spec.model_copy(update={"compute": units, "memory": spec.memory.model_copy(update={"l2": l2})})


@given(sms=st.integers(1, 30), each=st.integers(1, 30))
def test_heads_in_flight_equal_a_sliding_window(sms, each):
    """The working set is K and V of the most KV heads that any row of as many thread blocks as SMs touches."""
    heads = 70
    owner = np.repeat(np.arange(heads), each)
    seen = max(len(set(owner[start : start + sms])) for start in range(each))
    got = flash_traffic(1, heads, heads, 8 * each, 40, 16, 2, block_q=8, l2_reuse=variant(sms, 1))
    assert got.working_set == seen * 2 * 40 * 16 * 2


def test_causal_halves_the_needed_scores():
    """A causal mask needs N (N + 1) / 2 scores; with 128-tiles at 1024 tokens 36 of 64 tiles are computed."""
    assert visible_scores(1024, 1024, causal=True) == 1024 * 1025 / 2
    blocks = visited_blocks(1024, 1024, 128, 128, causal=True)
    assert (blocks.pairs, blocks.q_blocks * blocks.kv_blocks) == (36, 64)
    assert blocks.padding == pytest.approx(36 * 128 * 128 / (1024 * 1025 / 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": 0}, "q is 0"),
        ({"kv": 1.5}, "kv is 1.5"),
        ({"kv": 1e30}, "kv is 1e"),
        ({"q": np.array([4.0, -1.0])}, "q is -1"),
        ({"bytes_per_element": 0}, "bytes_per_element is 0"),
        ({"kv_bytes_per_element": float("nan")}, "kv_bytes_per_element is nan"),
        ({"batch": float("nan")}, "batch is nan"),
        ({"heads": 6, "kv_heads": 4}, "4 KV heads do not divide 6 heads"),
        ({"q": 9, "kv": 8, "causal": True}, "causal mask needs at least as many keys"),
        ({"version": 4}, "version 4 is not known"),
        ({"version": 1, "pack_gqa": True}, "no packing"),
        ({"block_q": 0}, "block_q is 0"),
    ],
)
def test_bad_input_is_named(change, message):
    """An impossible shape is refused with the argument and its value."""
    good = {"batch": 1, "heads": 4, "kv_heads": 4, "q": 8, "kv": 8, "head_dim": 64, "bytes_per_element": 2}
    with pytest.raises(UsageError, match=message):
        flash_traffic(**{**good, **change})


def test_reuse_needs_the_spec():
    """A GPU without a known L2 is refused for the reuse, by name."""
    bare = gpu("h100").model_copy(update={"memory": gpu("h100").memory.model_copy(update={"l2": None})})
    with pytest.raises(UsageError, match="L2 capacity or SM count"):
        flash_traffic(1, 1, 1, 8, 8, 64, 2, l2_reuse=bare)


def test_standard_refuses_bad_input():
    """Standard attention refuses more queries than keys under a mask, and negative passes."""
    with pytest.raises(UsageError, match="causal mask needs"):
        standard_traffic(1, 1, 1, 9, 8, 64, 2, True)
    with pytest.raises(UsageError, match="extra_passes is -2"):
        standard_traffic(1, 1, 1, 8, 8, 64, 2, extra_passes=-2)


def test_unknown_step_is_refused():
    """Asking for a step that an algorithm does not have names those it has."""
    with pytest.raises(UsageError, match="it has scores, softmax, output"):
        standard_traffic(1, 1, 1, 8, 8, 64, 2).step("merge")
