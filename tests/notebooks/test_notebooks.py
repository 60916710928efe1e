"""The notebooks run from top to bottom, and say what the library says when it is asked directly."""

import base64
import json
import math
import os
import struct
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import jupytext
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

import perfmodel as pm
from perfmodel.roofline.engines import largest_batch, largest_context, smallest_gpu_count

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "capacity_planning.py"

#: Where nbclient notes when the kernel had finished a cell.
REPLY = "shell.execute_reply"

#: Evaluated in the notebook's kernel after its last cell: what the tests compare.
ASKED = """
import json as _json
print(_json.dumps({
    "needed": needed.to_dict("records"), "own_needed": own_needed.to_dict("records"),
    "sizes": sizes.to_dict("records"), "held": [m.to_dict() for m in held],
    "risky": list(risky), "concurrent": concurrent.astype(object).where(concurrent.notna(), None).to_dict(),
    "inverse": inverse.to_dict("records"), "batch": batch.value, "tpot_s": analysis.tpot_s,
    "limits": limits.iloc[:, 0].to_dict(), "offered": offered.to_dict("records"),
    "own_offered": own_offered.to_dict("records"), "rents": rents.to_dict("records"),
    "own_params": pm.params(OWN)["total_params"], "own_title": OWN.title, "refused": refused,
    "within": {name: int(column.last_valid_index()) for name, column in within.items()},
}))
"""


#: Other people's models: heads that eight GPUs do not divide, and one that no machine of eight here can hold.
OTHERS = {
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_ctx": 32768, "n_embd": 768, "n_head": 12,
             "n_layer": 12, "n_positions": 32768, "vocab_size": 50257},
    "huge": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32768, "head_dim": 128,
             "intermediate_size": 131072, "max_position_embeddings": 4096, "num_attention_heads": 256,
             "num_hidden_layers": 160, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "vocab_size": 128256,
             "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
}  # fmt: skip

#: What is left of another model's turn.
OTHER = 'print(_json.dumps({"params": pm.params(OWN)["total_params"], "offers": len(own_offered), "refused": refused}))'


def run(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Execute with this interpreter, whatever kernels are installed; the kernel writes in ``folder`` alone."""
    spec = folder / "kernels" / "here"
    spec.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "here", "language": "python"}))
    specs = KernelSpecManager(kernel_dirs=[str(folder / "kernels")])
    manager = AsyncKernelManager(
        kernel_name="here", kernel_spec_manager=specs, connection_file=str(folder / "connection.json")
    )
    client = NotebookClient(notebook, km=manager, timeout=300, resources={"metadata": {"path": str(folder)}})
    return client.execute(env={**os.environ, "IPYTHONDIR": str(folder / "ipython"), "MPLBACKEND": ""})


def others(cells: list[NotebookNode]) -> list[NotebookNode]:
    """The code of section 5 once more for each other model, and then what came of it."""
    code = [cell for cell in cells if cell.cell_type == "code"]
    (first,) = [i for i, cell in enumerate(code) if "PUBLISHED = {" in cell.source]
    found = []
    for config in OTHERS.values():
        section = [new_code_cell(cell.source) for cell in code[first:]]
        section[0].source = section[0].source.replace("CONFIG.parent.mk", f"PUBLISHED = {config!r}\nCONFIG.parent.mk")
        found += [*section, new_code_cell(OTHER)]
    return found


def printed(cell: NotebookNode) -> Any:
    """The JSON that a cell printed."""
    (output,) = [o for o in cell.outputs if o.output_type == "stream" and o.name == "stdout"]
    return json.loads(output.text)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[NotebookNode, dict[str, Any]]:
    """The notebook after its execution, and what its kernel then holds: a kernel takes seconds to start."""
    notebook = jupytext.read(NOTEBOOK)
    own, more = list(notebook.cells), others(notebook.cells)
    notebook.cells = [*own, new_code_cell(ASKED), *more]
    run(notebook, tmp_path_factory.mktemp("notebook"))
    values = printed(notebook.cells[len(own)])
    ends = [cell for cell in notebook.cells[len(own) + 1 :] if cell.source == OTHER]
    values["others"] = dict(zip(OTHERS, map(printed, ends), strict=True))
    notebook.cells = notebook.cells[: len(own)]
    return notebook, values


@pytest.fixture(scope="module")
def values(executed: tuple[NotebookNode, dict[str, Any]]) -> dict[str, Any]:
    return executed[1]


def outputs(notebook: NotebookNode) -> Iterator[NotebookNode]:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            yield from cell.outputs


def markdown(notebook: NotebookNode) -> str:
    """Prose of the notebook, that of its outputs included."""
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return "\n".join(
        prose + [str(o.data["text/markdown"]) for o in outputs(notebook) if "text/markdown" in o.get("data", {})]
    )


def test_every_cell_runs_without_error_or_warning(executed: tuple[NotebookNode, dict[str, Any]]) -> None:
    """All cells ran, in order, in under a minute, and wrote nothing to the error stream."""
    notebook, _ = executed
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert len(code) > 10
    kinds = {o.output_type for o in outputs(notebook)}
    assert "error" not in kinds
    assert [o.text for o in outputs(notebook) if o.get("name") == "stderr"] == []
    times = [cell.metadata["execution"] for cell in code]
    began, ended = (datetime.fromisoformat(t[k]) for t, k in ((times[0], "iopub.execute_input"), (times[-1], REPLY)))
    assert 0 < (ended - began).total_seconds() < 60


def test_pictures_are_drawn(executed: tuple[NotebookNode, dict[str, Any]]) -> None:
    """Two memory pictures, two of concurrency, one of throughput and two rooflines, each of a readable size."""
    pictures = [base64.b64decode(o.data["image/png"]) for o in outputs(executed[0]) if "image/png" in o.get("data", {})]
    assert len(pictures) == 7
    for picture in pictures:
        assert picture.startswith(b"\x89PNG\r\n")
        wide, high = struct.unpack(">II", picture[16:24])
        assert wide >= 800
        assert high >= 400


def test_fewest_gpus_are_those_of_the_library(values: dict[str, Any]) -> None:
    """The table of GPU counts holds what the inverse question answers."""
    names = ["h100", "h200", "b200", "a100", "mi300x", "l40s", "rtx-4090"]
    for row, name in zip(values["needed"], names, strict=True):
        start = smallest_gpu_count("llama3-70b", name)
        load = smallest_gpu_count("llama3-70b", name, batch=32, context=4096)
        assert row["GPU"] == pm.gpu(name).name
        assert (row["GPUs to start"], row["GPUs for the load"]) == (start.value, load.value)
        assert row["TP"] * row["PP"] == load.value
        assert row["requests of 4,096 held"] == pytest.approx(load.memory.max_concurrency)
        assert row["requests of 4,096 held"] >= 32
        assert row["usable [GiB]"] == pytest.approx(pm.gpu(name).usable_memory / 2**30)
    # 70.6e9 parameters x 2 bytes = 141 GB: more than one H100's 80 GB, and than what vLLM takes of an H200's 141 GB
    assert {row["GPU"]: row["GPUs to start"] for row in values["needed"]}["h200"] == 2


def test_sizes_by_hand(values: dict[str, Any]) -> None:
    """Weights are parameters x bytes and a little; a request is tokens x 2 x 80 layers x 8 heads x 128 x bytes."""
    native, fp8, _ = values["sizes"]
    assert native["weights [GB]"] == pytest.approx(70.553706496 * 2, rel=1e-3)
    assert native["a request of 4,096 tokens [GiB]"] == 4096 * 2 * 80 * 8 * 128 * 2 / 2**30
    assert fp8["a request of 4,096 tokens [GiB]"] == native["a request of 4,096 tokens [GiB]"] / 2


def test_bars_are_those_of_the_library(values: dict[str, Any]) -> None:
    """The memory picture was given what `pm.memory` answers."""
    pairs = [("h100", 1), ("h100", 2), ("h100", 4), ("h100", 8), ("h200", 2), ("b200", 1), ("mi300x", 1), ("l40s", 4)]
    for found, (name, tp) in zip(values["held"], [*pairs, ("rtx-4090", 8)], strict=True):
        asked = json.loads(json.dumps(pm.memory("llama3-70b", name, tp=tp, max_model_len=4096).to_dict()))
        assert found == asked


def test_risky_ones_have_less_than_a_request_at_the_low_end(values: dict[str, Any]) -> None:
    """What is named as uncertain to start has one request within its interval, and what is not named is clear of it."""
    names = ["h100", "h200", "b200", "a100", "mi300x", "l40s", "rtx-4090"]
    found = [pm.memory("llama3-70b", name, tp=tp) for name in names for tp in (1, 2, 4, 8)]
    unsure = [m for m in found if m.kv_tokens_low < 8192 <= m.kv_tokens]
    assert values["risky"] == [f"{m.settings['gpus']} x {m.gpu}" for m in unsure]


def test_concurrency_is_that_of_the_library(values: dict[str, Any]) -> None:
    """Points of the concurrency lines are the engine's own number, and a line ends where one request is too many."""
    lines = {name: {int(x): y for x, y in line.items()} for name, line in values["concurrent"].items()}
    for name in ("2 x h100", "4 x h100", "2 x b200"):
        tp, _, gpu = name.partition(" x ")
        for length in (1024, 8192, 131072):
            m = pm.memory("llama3.1-70b", gpu, tp=int(tp), max_model_len=length)
            assert lines[name][length] == (pytest.approx(m.max_concurrency) if m.fits else None)
    full = lines["4 x h100"]
    assert full[2048] == pytest.approx(full[4096] * 2, rel=0.01)


def test_inverse_answers_are_those_of_the_library(values: dict[str, Any]) -> None:
    """Longest requests are those of `largest_context`, for one and for 32 at once."""
    rows = {row.pop("GPUs"): list(row.values()) for row in values["inverse"]}
    for tp, gpu in ((2, "h100"), (4, "h100"), (4, "h200")):
        one, many = (largest_context("llama3.1-70b", gpu, tp=tp, batch=batch).value for batch in (1, 32))
        assert rows[f"{tp} x {gpu}"] == [one, many]


def test_bounds_are_those_of_the_library(values: dict[str, Any]) -> None:
    """Batch, times, limiters and costs are what the library answers, and no throughput passes that of its decode."""
    batch = largest_batch("llama3-70b", "h100", context=4096, tp=4).value
    found = pm.analyze("llama3-70b", "h100", tp=4, batch=batch, input=3072, output=1024)
    assert (values["batch"], values["tpot_s"]) == (batch, pytest.approx(found.tpot_s))
    assert sum(values["limits"].values()) == pytest.approx(1)
    assert next(iter(values["limits"])) == "HBM3 bandwidth"
    rows = {row["GPUs"]: row for row in values["offered"]}
    row = rows["4 x h100-sxm"]
    assert row["requests held"] == batch
    assert row["tokens/s, at most"] == pytest.approx(found.tokens_per_s)
    # USD/h of four GPUs / 3600 s / (tokens/s) x 1e6 tokens
    assert row["USD a million tokens, at least"] == pytest.approx(4 * 3.99 / 3600 / found.tokens_per_s * 1e6)
    assert {name: most for name, most in values["within"].items() if "4 x h100" in name} == {
        f"4 x h100: {batch} held": batch
    }
    for row in [*values["offered"], *values["own_offered"]]:
        ceiling = row["requests held"] / (row["ms a token, at least"] / 1e3)
        assert 0 < row["tokens/s, at most"] < ceiling
        assert row["requests held"] >= 32
    costs = [row["USD a million tokens, at least"] for row in values["offered"]]
    assert costs == sorted(costs)
    assert not any(math.isnan(cost) for cost in costs)


def test_rents_are_dated(values: dict[str, Any]) -> None:
    """Each rent has a source with its year, and is that of the spec."""
    assert len(values["rents"]) == 7
    for row in values["rents"]:
        rent = pm.gpu(row["GPU"]).cost.rent
        assert rent is not None
        assert (row["USD/h"], row["source"]) == (rent.value, rent.source)
        assert "202" in row["source"]


def test_own_configuration_is_imported_and_a_strange_one_refused(values: dict[str, Any]) -> None:
    """The configuration is that of Qwen3-32B, exact to the parameter; with an unknown key it is refused by name."""
    assert values["own_title"] == "Qwen3-32B"
    assert values["own_params"] == pm.params("qwen3-32b")["total_params"] == 32_762_123_264
    assert {row["GPU"]: row["GPUs for the load"] for row in values["own_needed"]}["h100-sxm"] == 2
    assert "kv_heads_of_every_third_layer" in values["refused"]
    assert "accepted" not in values["refused"]


def test_numbers_in_the_prose_hold(executed: tuple[NotebookNode, dict[str, Any]]) -> None:
    """What the prose states in figures is so: contexts, defaults, the spread of rents, the accuracy."""
    prose = " ".join(markdown(executed[0]).split())
    large, small = (pm.memory("llama3-70b", name, tp=4).settings["max_num_seqs"] for name in ("h100", "l40s"))
    assert f"by default {large:,} on large GPUs and {small} on others" in prose
    assert f"a context of {pm.model('llama3.1-70b').max_context:,} tokens in place of" in prose
    rent = pm.gpu("h100").cost.rent
    assert rent is not None
    assert 3 < max(float(a.value.split()[0]) for a in rent.alternatives) / rent.value < 3.5
    assert "a factor of three" in prose
    usable = pm.gpu("h100").usable_memory
    assert f"{usable / 2**30:.2f} GiB ({usable / 1e9:.1f} GB) of an H100 with a label of 80 GB" in prose
    page = (ROOT / "docs" / "memory.md").read_text()
    largest = next(line for line in page.splitlines() if line.startswith("| KV tokens, ")).split("|")[3]
    assert float(largest.split()[0]) <= 0.4
    assert "within 0.4 %" in prose
    assert "RTX 4090 | KV tokens 7 % above" in page
    assert "an RTX 4090 was 7 % off" in prose


@pytest.mark.parametrize("name", OTHERS)
def test_readers_own_configuration_runs(name: str, values: dict[str, Any]) -> None:
    """With another `config.json` in its place section 5 runs to its end, also when TP 8 or no machine is possible."""
    found = values["others"][name]
    assert found["params"] > 1e8
    assert (found["offers"] > 0) == (name == "gpt2")
    assert "kv_heads_of_every_third_layer" in found["refused"]
