"""Each kind of table on an excerpt: the contract of its JSON, its figures, and a reason for every row left out."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from perfmodel.reports.check_text import check_text
from perfmodel.validate.check import Check, check

FIGURES = {"n", "mape", "mape_10us", "physics_mape_10us", "median_ape", "bias", "coverage80"}
TABLES = ("param_counts", "param_counts_bulk", "vllm_capacity", "memory_logs")
Excerpt = Callable[[str], Path]


@pytest.mark.parametrize("name", TABLES)
def test_json_holds_the_contract(checked: dict[str, Check], name: str) -> None:
    """Table, rows, skipped and metrics with overall figures and groups, all plain JSON."""
    found = json.loads(check_text(checked[name], "json"))
    assert found["table"] == name
    assert found["rows"] == found["compared"] + sum(skip["rows"] for skip in found["skipped"])
    assert all(set(skip) == {"reason", "rows"} and skip["reason"] for skip in found["skipped"])
    for metric in found["metrics"].values():
        assert metric["overall"].keys() >= FIGURES
        assert sum(group["n"] for group in metric["groups"]) == metric["overall"]["n"]
        assert all(group.keys() > FIGURES for group in metric["groups"])
    assert any(metric["overall"]["n"] for metric in found["metrics"].values())


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_compared_or_has_a_reason(checked: dict[str, Check], name: str, excerpt: Excerpt) -> None:
    """Lines of the results and of the skipped rows together are the lines of the file, none twice."""
    found = checked[name]
    compared, skipped = {r.line for r in found.results}, {skip.line for skip in found.skips}
    with excerpt(name).open(newline="") as stream:
        rows = len(list(csv.DictReader(stream)))
    assert compared.isdisjoint(skipped)
    assert len(compared) + len(skipped) == found.rows == rows


@pytest.mark.parametrize("name", TABLES)
def test_reordering_rows_changes_nothing(
    checked: dict[str, Check], name: str, excerpt: Excerpt, tmp_path: Path
) -> None:
    """Figures, groups and reasons are the same to the last bit whatever the order of the rows."""
    with excerpt(name).open(newline="") as stream:
        header, *rows = csv.reader(stream)
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        path = tmp_path / f"{name}.csv"
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([header, *rows])
        assert check(path).to_dict() == checked[name].to_dict()


@pytest.mark.parametrize("name", TABLES)
def test_frame_explains_each_number(checked: dict[str, Check], name: str) -> None:
    """A row a comparison, with measured, predicted, their ratio, and in words where the prediction comes from."""
    frame = checked[name].frame
    assert {"measured", "predicted", "ratio", "low", "high", "source", "explanation"} <= set(frame.columns)
    assert (frame["ratio"] == frame["predicted"] / frame["measured"]).all()
    assert (frame["explanation"].str.len() > 10).all()
    assert (frame["source"] != "").all()


def overall(found: Check, metric: str) -> dict[str, float]:
    return found.metrics[metric]["overall"]


def test_totals_of_hubs_are_exact(checked: dict[str, Check]) -> None:
    """Every total that a hub counted is met to the last digit."""
    for name in ("param_counts", "param_counts_bulk"):
        hubs = [r for r in checked[name].of("total_params") if "HF" in r.group.get("total_kind", "HF")]
        assert len(hubs) >= 5
        assert all(r.comparison.predicted == r.comparison.measured for r in hubs)


def test_published_counts_agree_to_their_rounding(checked: dict[str, Check]) -> None:
    """671B, 117B, 37B and 5.1B: each is what the model's count rounds to."""
    found = [r for r in checked["param_counts"].results if r.group["total_kind"] == "published (rounded)"]
    assert len(found) == 4
    assert all(r.comparison.exact for r in found)


def test_why_counts_are_skipped(checked: dict[str, Check]) -> None:
    """A label of llama-bench names no model, a row's note may forbid its use, and the rest is unknown by name."""
    reasons = {skip.model: skip.reason for skip in checked["param_counts"].skips}
    assert "names no single model" in reasons["deepseek2 671B Q4_K_R4"]
    assert "not to be used as truth" in reasons["keras-hub:qwen2.5_7b_en"]
    assert reasons["Grok-1"] == "no built-in model and no configuration of that name"


def test_capacity_of_vllm(checked: dict[str, Check]) -> None:
    """Weights within 0.5 % in the mean, KV tokens within 2 %, none off by more than 10 %."""
    found = checked["vllm_capacity"]
    assert overall(found, "weights_gib")["mape"] < 0.005
    assert overall(found, "kv_tokens")["mape"] < 0.02
    assert max(overall(found, name)["max_ape"] for name in ("weights_gib", "kv_tokens")) < 0.1
    assert overall(found, "kv_tokens")["coverage80"] > 0.8


def test_capacity_is_predicted_from_settings_alone(table: Callable[..., Path]) -> None:
    """Doubling every measured column changes no prediction."""
    before = check(table("vllm_capacity", lambda row: row["tp"] == "2")).frame
    doubled = {"weights_gib": "99", "kv_gib": "99", "kv_tokens": "9999", "max_concurrency": "9", "activation_gib": "9",
               "non_torch_gib": "9", "cudagraph_gib": "9"}  # fmt: skip
    after = check(table("vllm_capacity", lambda row: row["tp"] == "2", **doubled)).frame
    assert (before["predicted"] == after["predicted"]).all()
    assert not (before["measured"] == after["measured"]).any()


def test_llamacpp_caches_are_exact_to_the_printed_digits(checked: dict[str, Check]) -> None:
    """f16, q8_0 and iq4_nl, K and V of different types, expanded and latent attention, printed dimensions."""
    found = [r for name in ("kv_mem", "k_mem", "v_mem") for r in checked["memory_logs"].of(name)]
    llama = [r for r in found if "llama.cpp" in r.group["framework"]]
    assert len(llama) >= 30
    assert all(r.comparison.exact for r in llama)


def test_pools_of_sglang_and_tensorrt_llm(checked: dict[str, Check]) -> None:
    """Tokens and blocks from printed bytes, bytes from printed tokens: within 1 %."""
    pools = [r for r in checked["memory_logs"].results if r.group["framework"] in ("sglang", "TensorRT-LLM")]
    assert {r.group["framework"] for r in pools} == {"sglang", "TensorRT-LLM"}
    assert max(r.comparison.error for r in pools) < 0.01


def test_identities_of_vllm_count_apart(checked: dict[str, Check]) -> None:
    """Blocks x block size gives the printed tokens; such rows are a group of their own, not mixed with predictions."""
    groups = {g["given"]: g for g in checked["memory_logs"].metrics["kv_tokens"]["groups"] if g["framework"] == "vllm"}
    assert groups["printed blocks"]["mape"] == 0
    assert groups["settings"]["n"] == 1


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("Qwen3-30B-A3B", "the model of that name has none"),
        ("DeepSeek-R1-Distill-Qwen-14B", "rank"),
        ("Meta-Llama-3.1-405B-Instruct-FP8", "configuration, not in the row"),
        ("Qwen2.5-1.5B-Instruct", "a process's peak"),
        ("DeepSeek-V4-Pro", "no pool was allocated"),
        ("Llama-2-7b", "does not print the memory"),
    ],
)
def test_why_logs_are_skipped(checked: dict[str, Check], model: str, reason: str) -> None:
    """What a log does not say is a reason, and nothing is guessed in its place."""
    reasons = [skip.reason for skip in checked["memory_logs"].skips if skip.model.endswith(model)]
    assert any(reason in text for text in reasons)


def test_a_log_at_odds_with_itself_is_not_compared(checked: dict[str, Check]) -> None:
    """gpt-oss-120b: the row's terms add up to 0.95 of the memory and it says 0.9, so its pool is left out by name."""
    found = [one for one in checked["memory_logs"].missing if one.model == "openai/gpt-oss-120b"]
    assert [(one.metric, "another share" in one.reason) for one in found] == [("kv_mem", True)]


def test_configurations_of_a_folder(table: Callable[..., Path], tmp_path: Path) -> None:
    """A model that is not built in is found as <org>__<name>.json; a refused one says what is not understood."""
    path = table("param_counts_bulk", lambda row: row["model"] == "EleutherAI/pythia-14m", model="me/Small")
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
        "intermediate_size": 128, "tie_word_embeddings": False, "num_key_value_heads": 2, "torch_dtype": "bfloat16",
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "me__Small.json").write_text(json.dumps(config))
    # embedding and head 2 x 6400; a layer: q, o 2 x 4096, k, v 2 x 2048, MLP 3 x 8192, norms 128; final norm 64
    assert check(path, configs=folder).results[0].comparison.predicted == 12800 + 2 * (8192 + 4096 + 24576 + 128) + 64
    (folder / "me__Small.json").write_text(json.dumps({**config, "strange_gates": 7}))
    (refused,) = check(path, configs=folder).skips
    (folder / "me__Small.json").rename(folder / "Small.json")
    assert check(path, configs=folder).skips == (refused,)  # a file without an organisation stands for any
    (folder / "Small.json").rename(folder / "you__Small.json")
    assert check(path, configs=folder).skips[0].reason.startswith("no built-in model")
    assert refused.reason.startswith("configuration refused: strange_gates")
    assert str(tmp_path) not in refused.reason


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("meta-llama/meta-llama-3-8b", "llama3-8b"), ("Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("llama_3.1 8b instruct", "llama3.1-8b"), ("qwen2.5-15b", None), ("qwen25-1.5b", None),
        ("unsloth/Meta-Llama-3-8B", None), ("llama3", None),
    ],
)  # fmt: skip
def test_a_similar_name_is_not_the_model(name: str, found: str | None) -> None:
    """Case and punctuation do not matter, but for the dot between digits; another organisation is another model."""
    from perfmodel.validate.models import Models
    from perfmodel.validate.rows import Skip

    if found is None:
        with pytest.raises(Skip):
            Models().find(name)
    else:
        assert Models().find(name).model.name == found
