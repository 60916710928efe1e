"""Mixes of GGUF files: published file sizes, the layers that get more bits, fallbacks and refusals."""

import pytest

from perfmodel.base.errors import UsageError
from perfmodel.modelspecs.gguf_types import TYPES
from perfmodel.modelspecs.load import model
from perfmodel.roofline.speculative.gguf_mix import MAIN, more_bits, stored


@pytest.mark.parametrize(
    ("name", "mix", "published", "embedding_bits"),
    [
        ("qwen2.5-7b", "Q4_K_M", 4.68, 4.5),  # huggingface.co/Qwen/Qwen2.5-7B-Instruct-GGUF
        ("qwen2.5-72b", "Q4_K_M", 47.4, 4.5),  # huggingface.co/bartowski/Qwen2-72B-Instruct-GGUF
        ("qwen2.5-72b", "Q3_K_M", 37.7, 3.4375),
        ("qwen2.5-72b", "Q2_K", 29.8, 2.625),
        ("qwen2.5-7b", "Q8_0", 8.1, 8.5),
    ],
)
def test_published_file_sizes(name: str, mix: str, published: float, embedding_bits: float) -> None:
    """What a step reads and the embedding (a lookup, in the main type) add up to the published file within 0.5 %."""
    m = model(name)
    total = sum(s.bytes for s in stored(m, mix)) + m.vocab_size * m.hidden_size * embedding_bits / 8
    assert total / 1e9 == pytest.approx(published, rel=0.005)


def test_every_weight_once() -> None:
    """The matrices are the model's linear layers and its head, whatever the mix."""
    m = model("qwen2.5-7b")
    a, f = m.attention["full"], m.ffn["dense"]
    layer = 3584 * 3584 * 2 + 2 * 512 * 3584 + 3 * 18944 * 3584  # Q and O, K and V, gate, up and down
    assert (a.heads, a.kv_heads, f.intermediate_size) == (28, 4, 18944)  # type: ignore[union-attr]
    for mix in MAIN:
        assert sum(s.weights for s in stored(m, mix)) == 28 * layer + 152064 * 3584


def test_layers_with_more_bits() -> None:
    """Of 28 layers the first and last three and every third between: 14 values and down projections have 6 bits."""
    assert sum(more_bits(i, 28) for i in range(28)) == 14
    six = [s for s in stored(model("qwen2.5-7b"), "Q4_K_M") if s.type.name == "Q6_K"]
    assert {(s.rows, s.columns): s.count for s in six} == {(512, 3584): 14, (3584, 18944): 14, (152064, 3584): 1}


def test_rows_that_blocks_of_256_do_not_divide() -> None:
    """896 is 3.5 blocks: a 4-bit K-quant falls back to Q5_0 there, the head to 8 bits; 4864 = 19 x 256 stays."""
    found = {(s.rows, s.columns): s.type.name for s in stored(model("qwen2.5-0.5b"), "Q4_K_M") if s.rows != 896}
    assert found[(4864, 896)] == "Q5_0"
    assert found[(151936, 896)] == "Q8_0"
    assert {s.type.name for s in stored(model("qwen2.5-0.5b"), "Q4_K_M") if s.columns == 4864} == {"Q4_K", "Q6_K"}


def test_types_exist() -> None:
    """Every main type is one of ggml's."""
    assert set(MAIN.values()) <= {t.name for t in TYPES.values()}


@pytest.mark.parametrize(
    ("name", "mix", "said"), [("qwen2.5-7b", "Q9_X", "no GGUF file type"), ("mixtral-8x7b", "Q4_0", "dense models")]
)
def test_refusals(name: str, mix: str, said: str) -> None:
    """An unknown file type, and a model whose mix is not known, are refused."""
    with pytest.raises(UsageError, match=said):
        stored(model(name), mix)
