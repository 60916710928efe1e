"""Hugging Face configurations read into model specs: one file a family of architectures."""

from perfmodel.modelspecs.hf.config import from_config, load, role_layers

__all__ = ["from_config", "load", "role_layers"]
