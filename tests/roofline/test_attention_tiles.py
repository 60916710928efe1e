"""The tile planner against the tiles that FlashAttention's authors ship, and the limits of real GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import UsageError
from perfmodel.hwspecs.load import gpu
from perfmodel.roofline.attention_tiles import (
    BLOCKS_KV,
    BLOCKS_Q,
    DESIGNS,
    KIB,
    accumulator_registers,
    kernel_bytes,
    plan_tiles,
    textbook_bytes,
    tile,
)

LIMITS = {"a100": 163, "h100": 227, "rtx-4090": 99}


@pytest.mark.parametrize("name", LIMITS)
def test_real_limits(name):
    """The planner uses the most that a block can have on the GPU: 163, 227 and 99 KiB."""
    assert tile(gpu(name), 128, 2, "fa2", 128, 64).shared_limit == LIMITS[name] * KIB


def test_a3_textbook_tiles_do_not_fit_an_a100_block():
    """A3: six tiles of 32 KiB and the statistics are 193 KiB: more than A100's 163 a block, and even than its 192."""
    assert textbook_bytes(128, 128, 128, 2) == 6 * 32 * KIB + KIB == 193 * KIB
    got = tile(gpu("a100"), 128, 2, "textbook", 128, 128)
    assert not got.fits
    assert got.why == "shared memory: 193.0 KiB of at most 163.0 KiB a block"
    assert tile(gpu("h100"), 128, 2, "textbook", 128, 128).fits  # 227 KiB, where no kernel is written so either


def test_a3_statistics_in_fp16_would_not_help():
    """A3: with the statistics in 16 bits, as the usual arithmetic has them, it is 192.5 KiB: still too much."""
    assert textbook_bytes(128, 128, 128, 2) - 2 * 128 * 4 + 2 * 128 * 2 == 192.5 * KIB > 163 * KIB


def test_a3_real_kernels_keep_s_p_and_o_in_registers():
    """A3: the same tile takes 96 KiB in FlashAttention-2 (Q, K, V) and fits; S and O are 128 registers a thread."""
    assert kernel_bytes("fa2", 128, 128, 128, 2, 1) == 96 * KIB
    assert tile(gpu("a100"), 128, 2, "fa2", 128, 128, warps=8).fits
    assert accumulator_registers("fa2", 128, 128, 128, 2, 8) == 128


#: GPU, head_dim, block_q, block_kv, warps. Source: csrc/flash_attn/src/flash_fwd_launch_template.h
FLASH2 = [
    ("a100", 32, 128, 128, 4),
    ("a100", 64, 128, 128, 4),
    ("a100", 96, 128, 64, 4),
    ("a100", 128, 128, 64, 4),
    ("a100", 192, 128, 64, 8),
    ("a100", 256, 128, 64, 8),
    ("h100", 128, 128, 64, 4),
    ("h100", 256, 64, 64, 4),
    ("rtx-4090", 96, 64, 64, 4),
    ("rtx-4090", 128, 128, 32, 4),
    ("rtx-4090", 128, 64, 64, 4),
]


@pytest.mark.parametrize(("name", "head_dim", "block_q", "block_kv", "warps"), FLASH2)
def test_flash2_tiles_fit(name, head_dim, block_q, block_kv, warps):
    """Every tile that FlashAttention-2 launches fits by our account."""
    got = tile(gpu(name), head_dim, 2, "fa2", block_q, block_kv, warps=warps)
    assert got.fits, got.why


@pytest.mark.parametrize(("head_dim", "block_q", "block_kv"), [(64, 256, 64), (128, 128, 128)])
def test_flash2_tiles_noted_as_spilling_do_not_fit(head_dim, block_q, block_kv):
    """256 x 64 at d = 64 with 4 warps spills (launch template's comment); 128 x 128 at d = 128 needs 8 warps."""
    got = tile(gpu("a100"), head_dim, 2, "fa2", block_q, block_kv, warps=4)
    assert got.why.startswith("registers: about")


#: head_dim, block_q, block_kv, P in shared memory, bytes. Source: hopper/tile_size.h
FLASH3 = [
    (64, 192, 192, True, 2),
    (64, 192, 128, False, 2),
    (96, 192, 144, True, 2),
    (96, 192, 128, True, 2),
    (128, 128, 176, False, 2),
    (128, 128, 128, False, 2),
    (128, 64, 176, False, 2),
    (192, 128, 112, False, 2),
    (256, 128, 80, False, 2),
    (64, 192, 160, False, 1),
    (96, 192, 128, False, 1),
    (128, 128, 224, False, 1),
    (192, 128, 160, False, 1),
    (256, 128, 128, False, 1),
]


@pytest.mark.parametrize(("head_dim", "block_q", "block_kv", "p_in_shared", "size"), FLASH3)
def test_flash3_tiles_fit(head_dim, block_q, block_kv, p_in_shared, size):
    """Every tile that FlashAttention-3 launches on H100 fits by our account, with P where its authors put it."""
    got = tile(gpu("h100"), head_dim, size, "fa3", block_q, block_kv, p_in_shared=p_in_shared)
    assert got.fits, got.why


@pytest.mark.parametrize(
    ("head_dim", "block_kv", "p_in_shared"), [(128, 192, False), (128, 144, True), (192, 112, False), (256, 80, False)]
)
def test_flash3_tiles_at_the_limit(head_dim, block_kv, p_in_shared):
    """Where the authors note that a tile hits the limit of shared memory, 16 keys more do not fit and it does."""
    here, more = (
        tile(gpu("h100"), head_dim, 2, "fa3", 128, keys, p_in_shared=p_in_shared) for keys in (block_kv, block_kv + 16)
    )
    assert here.fits
    assert more.why.startswith("shared memory")


@pytest.mark.parametrize(("head_dim", "block_kv"), [(64, 192), (96, 144)])
def test_flash3_puts_p_in_shared_memory_where_registers_end(head_dim, block_kv):
    """For these tiles P does not fit the registers of three consumer warpgroups; there the authors put it elsewhere."""
    assert tile(gpu("h100"), head_dim, 2, "fa3", 192, block_kv).why.startswith("registers")
    assert tile(gpu("h100"), head_dim, 2, "fa3", 192, block_kv, p_in_shared=True).fits


@pytest.mark.parametrize(
    ("name", "head_dim", "block_q", "block_kv", "kib"), [("rtx-4090", 128, 128, 32, 48), ("h100", 256, 64, 64, 96)]
)
def test_two_blocks_on_an_sm(name, head_dim, block_q, block_kv, kib):
    """Tiles chosen for two blocks on an SM (launch template's comments) give two, in the shared memory it states."""
    got = tile(gpu(name), head_dim, 2, "fa2", block_q, block_kv, warps=4)
    assert (got.shared_bytes, got.blocks_per_sm) == (kib * KIB, 2)


@pytest.mark.parametrize(
    ("block_kv", "stages", "kib"),
    [(64, 2, 96), (64, 3, 128), (64, 4, 160), (128, 2, 160), (128, 3, 224), (128, 4, 288)],
)
def test_triton_shared_memory(block_kv, stages, kib):
    """Q and `stages` K/V tiles of the Triton tutorial's kernel at d = 128: 32 KiB for Q, 32 or 64 a stage."""
    assert kernel_bytes("triton", 128, block_kv, 128, 2, stages) == kib * KIB


def test_plan_lists_what_fits_first():
    """The plan starts with the largest tiles that fit and ends with those that do not, each with a reason."""
    plan = plan_tiles(gpu("a100"), 128, 2, "fa2")
    fits = [t.fits for t in plan]
    assert fits == sorted(fits, reverse=True)
    assert any(fits)
    assert not all(fits)
    assert all(bool(t.why) != t.fits for t in plan)
    assert (plan[0].block_q, plan[0].block_kv, plan[0].warps) == (256, 96, 8)
    assert {t.stages for t in plan_tiles(gpu("h100"), 128, 2, "triton", num_stages=3)} == {3}


@given(
    name=st.sampled_from(sorted(LIMITS)),
    design=st.sampled_from(sorted(DESIGNS)),
    block_q=st.sampled_from(BLOCKS_Q),
    block_kv=st.sampled_from(BLOCKS_KV),
    head_dim=st.sampled_from([64, 80, 96, 128, 192, 256]),
    size=st.sampled_from([1, 2]),
)
def test_more_never_fits_where_less_does_not(name, design, block_q, block_kv, head_dim, size):
    """What fits stays within every limit; a wider head or a longer tile never takes less of anything."""
    got = tile(gpu(name), head_dim, size, design, block_q, block_kv)
    if got.fits:
        assert got.shared_bytes <= LIMITS[name] * KIB
        assert got.registers <= got.register_limit <= 255
        assert got.blocks_per_sm >= 1
    wider = tile(gpu(name), head_dim + 16, size, design, block_q, block_kv)
    longer = tile(gpu(name), head_dim, size, design, block_q, block_kv + 16)
    for more in (wider, longer):
        assert more.shared_bytes > got.shared_bytes
        assert more.registers >= got.registers
        assert got.fits or not more.fits


def test_a_warpgroup_takes_64_rows():
    """FlashAttention-3's tiles come in 64 rows, at most three times; elsewhere each warp takes 16 rows."""
    assert "64 rows" in tile(gpu("h100"), 128, 2, "fa3", 32, 64).why
    assert "1 to 3" in tile(gpu("h100"), 64, 2, "fa3", 256, 64).why
    assert "16 rows each" in tile(gpu("a100"), 64, 2, "fa2", 16, 64).why


def test_bad_input_is_named():
    """An unknown design names the known ones; a GPU without shared memory in its spec is refused by name."""
    with pytest.raises(UsageError, match="'fa9' is not known; it is one of textbook, fa2, fa3, triton"):
        plan_tiles(gpu("h100"), 128, 2, "fa9")
    bare = gpu("h100").model_copy(update={"memory": gpu("h100").memory.model_copy(update={"shared": None})})
    with pytest.raises(UsageError, match="shared memory is not in the spec"):
        plan_tiles(bare, 128, 2)
