"""Active parameters: one convention for all, set beside what the makers print."""

from __future__ import annotations

import re
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from perfmodel.modelspecs.counts import active_params, active_params_with_embedding, by_role, total_params
from perfmodel.modelspecs.load import MODELS, model

#: Makers who leave the input embedding out, as we do; the digits that they print, in billions.
AGREE = {
    "deepseek-v2-lite": "2.4", "deepseek-v2": "21", "deepseek-v3": "37", "deepseek-r1": "37", "deepseek-v3.1": "37",
    "deepseek-v3.2": "37", "kimi-k2": "32", "gpt-oss-20b": "3.6", "gpt-oss-120b": "5.1", "mixtral-8x22b": "39",
    "glm4.5": "32", "glm4.5-air": "12", "qwen3-235b-a22b": "22", "qwen3-coder-480b": "35", "qwen2-57b-a14b": "14",
    "qwen3-next-80b-a3b": "3", "qwen3.5-35b-a3b": "3", "nemotron-3-nano-30b-a3b": "3", "kimi-linear-48b-a3b": "3",
    "nemotron-3-super-120b-a12b": "12", "nemotron-3-ultra-550b": "55",
    "mimo-v2-flash": "15", "minimax-m2.5": "10", "minimax-m2.7": "10", "glm5": "40", "kimi-k2.5": "32",
    "deepseek-v4-pro": "49", "gemma4-26b-a4b": "4",
}  # fmt: skip
#: Makers who count the input embedding, which no token multiplies.
WITH_EMBEDDING = {
    "mixtral-8x7b": "12.9", "llama4-scout": "17", "llama4-maverick": "17", "qwen3-30b-a3b": "3.3",
    "qwen1.5-moe-a2.7b": "2.7", "mixtral-8x22b": "39", "qwen3-235b-a22b": "22", "qwen3-coder-480b": "35",
    "qwen3.5-122b-a10b": "10", "qwen3.5-397b-a17b": "17",
}  # fmt: skip
#: Makers who leave out the LM head too.
WITHOUT_HEAD = {"minimax-text-01": "45.9"}


def printed_as(count: int, digits: str) -> bool:
    """Whether a maker may print ``count`` with these digits: within 1 %, or rounded or cut to them."""
    unit, value = Decimal(digits), Decimal(count) / 10**9
    step = Decimal(1).scaleb(Decimal(digits).as_tuple().exponent)  # type: ignore[arg-type]
    near = abs(value / unit - 1) <= Decimal("0.01")
    return near or unit in (value.quantize(step, ROUND_HALF_UP), value.quantize(step, ROUND_DOWN))


@pytest.mark.parametrize(("name", "digits"), AGREE.items())
def test_active_as_published(name: str, digits: str) -> None:
    """Our count is what the maker prints."""
    assert printed_as(active_params(model(name)), digits)


@pytest.mark.parametrize(("name", "digits"), WITH_EMBEDDING.items())
def test_active_as_published_with_embedding(name: str, digits: str) -> None:
    """Makers who add the input embedding print our count with it."""
    assert printed_as(active_params_with_embedding(model(name)), digits)


@pytest.mark.parametrize(("name", "digits"), WITHOUT_HEAD.items())
def test_active_as_published_without_head(name: str, digits: str) -> None:
    """MiniMax prints our count less the LM head's."""
    spec = model(name)
    assert printed_as(active_params(spec) - by_role(spec)["lm_head"], digits)


def test_every_published_figure_is_explained() -> None:
    """Each built-in with a published active count is in one of the three tables: none is left out."""
    published = {name for name in MODELS.names if (p := model(name).published) and p.active}
    same = {"qwen3-30b-a3b-2507", "qwen3-235b-a22b-2507", "mixtral-8x22b-instruct", "glm4.7"}  # as their elders
    tables = AGREE.keys() | WITH_EMBEDDING.keys() | WITHOUT_HEAD.keys()
    assert published - same <= tables | {"moonlight-16b-a3b"}
    for name in published & AGREE.keys():
        p = model(name).published
        assert p is not None
        assert p.active == f"{AGREE[name]}B"


def test_gpt_oss_to_the_digits_of_its_card() -> None:
    """OpenAI's card counts the unembedding and not the embedding: 5.13 B and 3.61 B."""
    assert active_params(model("gpt-oss-120b")) / 1e9 == pytest.approx(5.13, abs=0.005)
    assert active_params(model("gpt-oss-20b")) / 1e9 == pytest.approx(3.61, abs=0.005)


def test_active_of_mixtral_by_hand() -> None:
    """Two of eight experts, all else but the input embedding."""
    layer = 4096 * (4096 + 1024 + 1024 + 4096) + 2 * 3 * 4096 * 14336 + 8 * 4096 + 2 * 4096
    assert active_params(model("mixtral-8x7b")) == 32 * layer + 4096 + 32000 * 4096


def test_dense_models_use_all_but_the_embedding() -> None:
    """In a dense model without vision parts every parameter but the input embedding's is active."""
    for name in ("llama3-8b", "qwen2.5-72b", "phi4"):
        spec = model(name)
        assert active_params(spec) == total_params(spec) - by_role(spec)["embedding"]


def test_tied_embedding_is_the_head() -> None:
    """A tied embedding is multiplied once, as LM head: it is active."""
    assert active_params(model("llama3.2-1b")) == total_params(model("llama3.2-1b"))


def test_vision_is_not_active() -> None:
    """A text token passes no vision tower."""
    spec = model("gemma3-4b")
    roles = by_role(spec)
    assert active_params(spec) == total_params(spec) - roles["vision"] - roles["projector"]


def test_table_of_the_documentation() -> None:
    """Each row of the table in docs/models.md holds our two counts, and bold is what agrees with the published one."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| ([\d.]+) \| (\**)([\d.]+)\** \| (\**)([\d.]+)\** \|$", page, re.MULTILINE)
    assert {name for name, *_ in rows} >= (AGREE.keys() | WITH_EMBEDDING.keys()) - {
        "deepseek-r1", "deepseek-v3.1", "qwen2-57b-a14b",
    }  # fmt: skip
    for name, published, bold, without, bold_with, with_it in rows:
        spec = model(name)
        for mark, shown, count in (
            (bold, without, active_params(spec)),
            (bold_with, with_it, active_params_with_embedding(spec)),
        ):
            assert f"{count / 1e9:.2f}" == shown
            assert bool(mark) == printed_as(count, published)
